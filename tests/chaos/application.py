"""
The applications of a fault run: each is a process in the namespace of its host, on the file of its host's database.

    python -m tests.chaos.application JOB.json

What they did is in their histories (`tests.chaos.history`). Each may be killed at any moment and started again: it
reads in its own history where it was. A run goes through phases, each with histories of its own; `Orders` is the file
in which the harness says which one it is, and whether new messages are to be sent. Some transactions are rolled back on
purpose, and repeated with other contents, so that these are known if they ever arrive.
"""

import random
import signal
import sqlite3
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import broker
from tests.chaos.history import (
    APPLIED,
    BUSY_SECONDS,
    NOTE,
    Event,
    History,
    Job,
    Orders,
    What,
    answer_open_question,
    history_of,
    is_applied,
    read_history,
)
from tests.chaos.talk import (
    ERROR_CODE,
    LEVELS,
    Close,
    Plan,
    answer_all,
    body_of,
    headers_of,
    make_plan,
    received_event,
    sent_event,
)

WAIT_SECONDS = 0.1  # for a message, between two looks at the orders
REST_SECONDS = 0.2  # after the file could not be used
UNDONE_SHARE = 0.08  # of the transactions
GROUP_SHARE = 0.4  # of the looks into a queue


class UndoneError(Exception):
    """A transaction was rolled back on purpose."""


class Work:
    """A connection and the history of what is done on it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_stopped = False
        self.phase = ""
        self.idle_at = 0.0  # when it last began a look that found nothing, monotonic seconds
        self.draft = ""  # of a transaction that is to be rolled back
        self._dice = random.Random()
        self._may_undo = False
        self._path = Path(job.database)
        self._history: History | None = None
        self._db: sqlite3.Connection | None = None

    @property
    def db(self) -> sqlite3.Connection:
        """The connection, made when it is needed."""
        if self._db is None:
            if not self._path.exists():
                raise sqlite3.OperationalError("no file yet")
            self._db = sqlite3.connect(self._path, timeout=BUSY_SECONDS)
            with self._db:
                self._db.execute(APPLIED)
        return self._db

    @property
    def history(self) -> History:
        """Of this phase; only after `enter`."""
        assert self._history is not None
        return self._history

    @contextmanager
    def transaction(self) -> Iterator[list[Event]]:
        """
        One transaction: what is put into the list stands in the history, if and only if it was committed.

        Some are rolled back on purpose; the list is empty then, behind the end, and all is to be done again.
        """
        events: list[Event] = []
        number = None
        self.draft = self.choose_draft()
        try:
            with self.db as db:
                yield events
                if not events:
                    db.rollback()
                    return
                number = self.history.intend(events)
                db.execute(NOTE, (self.history.name, number))
                if self.draft:
                    db.rollback()
                    raise UndoneError  # noqa: TRY301 - as any failure of the transaction
        except UndoneError:
            assert number is not None
            self.history.settle(number, is_committed=self._was_committed(number))
            events.clear()
            return
        except BaseException:
            if number is not None:
                self.history.settle(number, is_committed=self._was_committed(number))
            raise
        self.history.settle(number, is_committed=True)

    def tell(self, *events: Event) -> None:
        """Events that are no transaction."""
        self.history.tell(*events)

    def enter(self, phase: str) -> list[Event]:
        """Go on in the history of a phase; what is there already."""
        path = history_of(Path(self.job.histories), phase, self.job.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._history is not None:
            self._history.close()
            self._history = None
        answer_open_question(path, self.job.name, self._path)
        self._history = History(path, self.job.name, self.job.database)
        self.phase = phase
        self._dice = random.Random(f"{self.job.seed} {self.job.name} {phase}")
        return [entry.event for entry in read_history(path)]

    def receive(self) -> tuple[list[broker.Message], Event]:
        """
        What waits in the queue, or comes soon, now and then that of one conversation group alone; and what is told of
        this look. Notes when there was nothing.
        """
        began, group = time.monotonic(), None
        if self._dice.random() < GROUP_SHARE:
            group = broker.get_conversation_group(self.db, queue=self.job.queue, wait=WAIT_SECONDS)
            found = [] if group is None else broker.receive(self.db, queue=self.job.queue, conversation_group=group)
        else:
            found = broker.receive(self.db, queue=self.job.queue, wait=WAIT_SECONDS)
        if not found and group is None:
            self.idle_at = began
        return found, self._look(began, "" if group is None else str(group))

    def rest_of(self, dialog: broker.Dialog, *, is_initiator: bool) -> Iterator[Event]:
        """Receive what waits of a dialog that is over: an error is received before it."""
        while True:
            began = time.monotonic()
            rest = broker.receive(self.db, queue=self.job.queue, conversation=dialog)
            if not rest:
                return
            look = self._look(began, "")
            yield from (received_event(one, is_initiator=is_initiator, look=look) for one in rest)

    def choose_draft(self) -> str:
        """
        What is put into the texts of a transaction that is to be rolled back, "" for one that is not.

        Never two in a row: what is rolled back again and again is taken for a message that makes readers fail.
        """
        self._may_undo = self._may_undo and self._dice.random() < UNDONE_SHARE
        is_undone, self._may_undo = self._may_undo, not self._may_undo
        return f"draft {time.monotonic_ns()} " if is_undone else ""

    def rest(self, error: Exception) -> None:
        """The file cannot be used now: begin again with another connection, a little later."""
        sys.stderr.write(f"{time.time():.3f} {type(error).__name__}: {error}\n")
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None
        time.sleep(REST_SECONDS)

    def _look(self, began: float, group: str) -> Event:
        return Event(What.END, idle_at=self.idle_at, call=began, asked_group=group, until=time.time())

    def _was_committed(self, number: int) -> bool:
        while True:
            try:
                return is_applied(self._path, self.history.name, number)
            except sqlite3.Error:
                time.sleep(REST_SECONDS)


BEAT_SECONDS = 0.15  # between two transactions of a sender
DIALOGS = 6  # open at one time
PATIENCE_SECONDS = 40.0  # with a timer that is due, from when nothing new is begun
OVER = (8410, 8429, 8489)  # what a dialog says that has failed, or ends too soon for a timer


@dataclass
class Begun:
    """
    A dialog that this application began.

    Shape: how many messages were `sent` and `answers` received, how many timers `set` and `fired`.
    """

    handle: str
    conversation: str
    plan: Plan
    group: str
    sent: int = 0
    answers: int = 0
    set: int = 0
    fired: int = 0
    is_refused: bool = False  # its lifetime is over


class Actor(ABC):
    """What an application of one kind does."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def remember(self, events: list[Event]) -> None:  # noqa: B027 - most have all they need in the messages
        """Begin with what the history of a phase says already."""

    @abstractmethod
    def step(self, *, is_sending: bool) -> None:
        """Do a little, in transactions of its own; whether dialogs are to be begun."""


class Initiator(Actor):
    """Begins dialogs, sends on them, hears the answers, ends them."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._dialogs: dict[str, Begun] = {}
        self._begun = 0
        self._due = 0.0
        self._closing_since: float | None = None  # nothing new is begun, monotonic seconds
        self._dice = random.Random()

    def remember(self, events: list[Event]) -> None:
        """What this phase's history says about dialogs that are open."""
        self._dialogs.clear()
        self._begun = 0
        self._dice = random.Random(f"{self._work.job.seed} {self._work.job.name} {self._work.phase} {len(events)}")
        self._apply(events)

    def step(self, *, is_sending: bool) -> None:
        """One transaction that sends when it is time, and one that receives."""
        now = time.monotonic()
        self._closing_since = None if is_sending else self._closing_since or now
        if now >= self._due:
            self._send(may_begin=is_sending)
            self._due = time.monotonic() + BEAT_SECONDS
        self._receive()

    # --- sending ---

    def _send(self, *, may_begin: bool) -> None:
        with self._work.transaction() as events:
            if may_begin and len(self._dialogs) < DIALOGS:
                events.append(self._begin())
            for one in self._dialogs.values():
                if not one.is_refused:
                    self._further(one, events)
        self._apply(events)

    def _further(self, one: Begun, events: list[Event]) -> None:
        """The next timer, the next messages, and the end, as far as they are due."""
        try:
            if one.set == one.fired < len(one.plan.timers):
                events.append(self._set_timer(one))
            total = one.plan.total - self._is_waiting(one)
            sent = min(total, one.sent + self._dice.randint(0, 2))
            for number in range(one.sent, sent):
                events.append(self._send_one(one, number))  # noqa: PERF401 - those before one that is refused stay
            if max(sent, one.sent) == one.plan.total and (told := self._end(one)) is not None:
                events.append(told)
        except broker.ConversationError as error:
            if error.number not in OVER:
                raise
            one.is_refused = True

    def _is_waiting(self, one: Begun) -> bool:
        """Whether the last message is not sent yet, because a timer is to come before."""
        if one.fired == len(one.plan.timers):
            return False
        return self._closing_since is None or time.monotonic() < self._closing_since + PATIENCE_SECONDS

    def _set_timer(self, one: Begun) -> Event:
        delay, until = one.plan.timers[one.set], time.time()
        self._dialog(one).set_timer(delay)
        return Event(What.SET, one.conversation, until=until + delay, until_most=time.time() + delay)

    def _send_one(self, one: Begun, number: int) -> Event:
        body = body_of(one.conversation, number, is_initiator=True, draft=self._work.draft)
        headers, type_name = headers_of(one.conversation, number, is_initiator=True), one.plan.type_of(number)
        got = self._dialog(one).send(body, type=type_name, headers=headers)
        return sent_event(one.conversation, got, body, type_name, headers, is_initiator=True)

    def _end(self, one: Begun) -> Event | None:
        """Behind the last message: None when it is not yet time, or is left to the target."""
        close = one.plan.close
        if close is Close.BEHIND or (close is Close.ANSWERED and one.answers == one.plan.total):
            self._dialog(one).end()
            return Event(What.ENDED, one.conversation)
        if close is Close.ERROR:
            note = f"{one.conversation} is called off"
            self._dialog(one).end(error=ERROR_CODE + 1, description=note)
            return Event(What.ENDED, one.conversation, number=ERROR_CODE + 1, note=note)
        if close is Close.CLEANUP and (one.plan.is_hasty or one.answers):
            self._dialog(one).end(cleanup=True)
            return Event(What.CLEANED, one.conversation)
        return None

    def _dialog(self, one: Begun) -> broker.Dialog:
        return broker.get_dialog(self._work.db, one.handle)

    def _begin(self) -> Event:
        job, plan = self._work.job, self._plan(self._begun)
        service = self._service(self._begun)
        open_ones = list(self._dialogs.values())
        related = self._dice.choice(open_ones) if plan.is_related and open_ones else None
        until = time.time() + plan.lifetime
        dialog = broker.begin_dialog(
            self._work.db,
            from_service=job.service,
            to_service=service,
            contract=plan.contract,
            lifetime=plan.lifetime,
            related_conversation=related.handle if related else None,
            encryption=service in job.sealed,
        )
        return Event(
            What.BEGAN,
            str(dialog.conversation_id),
            until=until,
            until_most=time.time() + plan.lifetime,
            said_until=dialog.lifetime.timestamp(),
            priority=LEVELS[plan.contract],
            group=str(dialog.conversation_group_id),
            asked_group=related.group if related else "",
            note=f"{service} {dialog.conversation_handle}",
        )

    def _service(self, number: int) -> str:
        return self._work.job.targets[number % len(self._work.job.targets)]

    def _plan(self, number: int) -> Plan:
        """Of the dialog that is begun with this number in this phase."""
        job = self._work.job
        seed = f"{job.seed} {job.name} {self._work.phase} dialog {number}"
        return make_plan(seed, may_fail=self._service(number) not in job.given)

    # --- receiving ---

    def _receive(self) -> None:
        over: dict[str, broker.Dialog] = {}
        with self._work.transaction() as events:
            messages, look = self._work.receive()
            for message in messages:
                told = received_event(message, is_initiator=True, look=look)
                events.append(told)
                if told.what in (What.END, What.ERROR):
                    over[told.conversation] = message.dialog
            for conversation, dialog in over.items():
                events.extend(self._work.rest_of(dialog, is_initiator=True))
                dialog.end()
                events.append(Event(What.ENDED, conversation))
        self._apply(events)

    # --- what was done ---

    def _apply(self, events: list[Event]) -> None:
        """What was committed."""
        for event in events:
            if event.what is What.BEGAN:
                handle = event.note.rpartition(" ")[2]
                plan = self._plan(self._begun)
                self._dialogs[event.conversation] = Begun(handle, event.conversation, plan, event.group)
                self._begun += 1
            elif event.what in (What.ENDED, What.CLEANED):
                self._dialogs.pop(event.conversation, None)
            elif (one := self._dialogs.get(event.conversation)) is not None:
                one.sent += event.what is What.SENT
                one.answers += event.what is What.RECEIVED
                one.set += event.what is What.SET
                one.fired += event.what is What.TIMER


class Target(Actor):
    """Answers each message, and ends the dialog behind the last."""

    def step(self, *, is_sending: bool) -> None:
        """One transaction that receives and answers."""
        work = self._work
        with work.transaction() as events:
            messages, look = work.receive()
            answer_all(messages, events, look=look, draft=work.draft, rest=self._rest)

    def _rest(self, dialog: broker.Dialog) -> list[Event]:
        return list(self._work.rest_of(dialog, is_initiator=False))


class Mirror(Actor):
    """Looks into the queue of a database that is a mirror, and tells of everything that was stored there since."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._mark = work.job.mark

    def step(self, *, is_sending: bool) -> None:
        """One look."""
        rows = self._work.db.execute(
            "SELECT queuing_order, conversation_id, message_sequence_number FROM broker_message"
            " JOIN broker_conversation USING (endpoint_id) WHERE queuing_order > ? ORDER BY queuing_order",
            (self._mark,),
        ).fetchall()
        for order, conversation, number in rows:
            self._work.tell(Event(What.FOUND, str(uuid.UUID(bytes=conversation)), is_initiator=False, number=number))
            self._mark = order
        time.sleep(WAIT_SECONDS)


KINDS: dict[str, type[Actor]] = {"initiator": Initiator, "target": Target, "mirror": Mirror}


def main(job: Job) -> None:
    """Work until SIGTERM."""
    work = Work(job)
    actor = KINDS[job.kind](work)

    def stop(*_: object) -> None:
        work.is_stopped = True

    signal.signal(signal.SIGTERM, stop)
    while not work.is_stopped:
        try:
            orders = Orders.read(Path(job.orders))
            if orders.phase != work.phase:
                actor.remember(work.enter(orders.phase))
            actor.step(is_sending=orders.is_sending)
        except (sqlite3.Error, broker.StoreUnavailableError) as error:
            work.rest(error)


if __name__ == "__main__":
    main(Job.read(Path(sys.argv[1])))
