"""
The applications of a fault run: each is a process in the namespace of its host, on the file of its host's database.

    python -m tests.chaos.application JOB.json

One that begins dialogs sends on several of them side by side, in transactions of a few messages, of all sizes; some of
its dialogs have a lifetime of seconds. One that answers sends each message's answer in the transaction in which it
receives it, and ends the dialog behind the last, some of them with an error of its own. What they did is in their
histories (`tests.chaos.history`). Each may be killed at any moment and started again: it reads in its own history where
it was.

A run goes through phases, each with histories of its own; `Orders` is the file in which the harness says which one it
is, and whether new messages are to be sent.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import broker
from tests.chaos.history import (
    APPLIED,
    BUSY_SECONDS,
    NOTE,
    Event,
    History,
    What,
    answer_open_question,
    is_applied,
    read_history,
)
from tests.chaos.job import Job, Orders, history_of
from tests.chaos.talk import CLOSE, MESSAGE, answer_all, body_of, received_event, sent_event

WAIT_SECONDS = 0.1  # for a message, between two looks at the orders
REST_SECONDS = 0.2  # after the file could not be used
BEAT_SECONDS = 0.15  # between two transactions of a sender
DIALOGS = 6  # open at one time
MESSAGES = (6, 30)  # on a dialog, least and most
LIFETIME = 3600.0
BRIEF_SECONDS = (3.0, 6.0)  # lifetime of a brief dialog
BRIEF_SHARE = 0.15


class Work:
    """A connection and the history of what is done on it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_stopped = False
        self.phase = ""
        self.idle_at = 0.0  # when it last began a look that found nothing, monotonic seconds
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
        """One transaction: what is put into the list stands in the history, if and only if it was committed."""
        events: list[Event] = []
        number = None
        try:
            with self.db as db:
                yield events
                if not events:
                    db.rollback()
                    return
                number = self.history.intend(events)
                db.execute(NOTE, (self.history.name, number))
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
        return [entry.event for entry in read_history(path)]

    def receive(self) -> list[broker.Message]:
        """What waits in the queue, or comes soon; notes when there was nothing."""
        began = time.monotonic()
        messages = broker.receive(self.db, queue=self.job.queue, wait=WAIT_SECONDS)
        if not messages:
            self.idle_at = began
        return messages

    def rest(self, error: Exception) -> None:
        """The file cannot be used now: begin again with another connection, a little later."""
        sys.stderr.write(f"{time.time():.3f} {type(error).__name__}: {error}\n")
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None
        time.sleep(REST_SECONDS)

    def _was_committed(self, number: int) -> bool:
        while True:
            try:
                return is_applied(self._path, self.history.name, number)
            except sqlite3.Error:
                time.sleep(REST_SECONDS)


@dataclass
class Begun:
    """A dialog that this application began. Shape: `total` messages it sends, the last one of type CLOSE."""

    handle: str
    conversation: str
    total: int
    sent: int = 0
    is_refused: bool = False  # its lifetime is over


class Actor(Protocol):
    """What an application of one kind does."""

    def remember(self, events: list[Event]) -> None:
        """Begin with what the history of a phase says already."""

    def step(self, *, is_sending: bool) -> None:
        """Do a little, in transactions of its own; whether dialogs are to be begun."""


class Initiator:
    """Begins dialogs, sends on them, hears the answers."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._dialogs: dict[str, Begun] = {}
        self._turn = 0
        self._due = 0.0
        self._dice = random.Random()

    def remember(self, events: list[Event]) -> None:
        """What this phase's history says about dialogs that are open."""
        self._dialogs.clear()
        for event in events:
            if event.what is What.BEGAN:
                _, handle = event.note.rsplit(" ", 1)
                self._add(event.conversation, handle)
            elif event.what is What.SENT:
                self._dialogs[event.conversation].sent += 1
            elif event.what is What.ENDED:
                self._dialogs.pop(event.conversation, None)

    def step(self, *, is_sending: bool) -> None:
        """One transaction that sends when it is time, and one that receives."""
        if time.monotonic() >= self._due:
            self._send(may_begin=is_sending)
            self._due = time.monotonic() + BEAT_SECONDS
        self._receive()

    def _send(self, *, may_begin: bool) -> None:
        work, job = self._work, self._work.job
        refused, sent = [], []
        with work.transaction() as events:
            if may_begin and len(self._dialogs) < DIALOGS:
                events.append(self._begin(job.targets[self._turn % len(job.targets)]))
                self._turn += 1
            for one in [one for one in self._dialogs.values() if one.sent < one.total and not one.is_refused]:
                dialog = broker.get_dialog(work.db, one.handle)
                for number in range(one.sent, min(one.total, one.sent + self._dice.randint(0, 2))):
                    body = body_of(one.conversation, number, is_initiator=True)
                    try:
                        got = dialog.send(body, type=MESSAGE if number + 1 < one.total else CLOSE)
                    except broker.ConversationError as error:
                        if error.number not in (8429, 8489):
                            raise
                        refused.append(one)
                        break
                    events.append(sent_event(one.conversation, got, body, is_initiator=True))
                    sent.append(one)
        for event in events:
            if event.what is What.BEGAN:
                self._add(event.conversation, event.note.rsplit(" ", 1)[1])
        for one in sent:
            one.sent += 1
        for one in refused:
            one.is_refused = True

    def _begin(self, service: str) -> Event:
        job = self._work.job
        is_brief = self._dice.random() < BRIEF_SHARE
        lifetime = round(self._dice.uniform(*BRIEF_SECONDS)) if is_brief else LIFETIME
        until = time.time() + lifetime
        dialog = broker.begin_dialog(
            self._work.db,
            from_service=job.service,
            to_service=service,
            lifetime=lifetime,
            encryption=service in job.sealed,
        )
        until_most, said_until = time.time() + lifetime, dialog.lifetime.timestamp()
        note = f"{service} {dialog.conversation_handle}"
        return Event(
            What.BEGAN,
            str(dialog.conversation_id),
            until=until,
            until_most=until_most,
            said_until=said_until,
            note=note,
        )

    def _add(self, conversation: str, handle: str) -> None:
        total = random.Random(conversation).randint(*MESSAGES)
        self._dialogs[conversation] = Begun(handle, conversation, total)

    def _receive(self) -> None:
        work, over = self._work, dict[str, broker.Dialog]()
        with work.transaction() as events:
            for message in work.receive():
                told = received_event(message, is_initiator=True, idle_at=work.idle_at)
                events.append(told)
                if told.what in (What.END, What.ERROR):
                    over[told.conversation] = message.dialog
            for conversation, dialog in over.items():
                self._receive_rest(dialog, events)
                dialog.end()
                events.append(Event(What.ENDED, conversation))
        for conversation in over:
            self._dialogs.pop(conversation, None)

    def _receive_rest(self, dialog: broker.Dialog, events: list[Event]) -> None:
        """What waits of a dialog that is over: an error is received before it."""
        work = self._work
        while rest := broker.receive(work.db, queue=work.job.queue, conversation=dialog):
            events += [received_event(one, is_initiator=True, idle_at=work.idle_at) for one in rest]


class Target:
    """Answers each message, and ends the dialog behind the last."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def remember(self, events: list[Event]) -> None:
        """Nothing: all that it has to know comes with the messages."""

    def step(self, *, is_sending: bool) -> None:
        """One transaction that receives and answers."""
        work = self._work
        with work.transaction() as events:
            answer_all(work.receive(), events, idle_at=work.idle_at)


class Mirror:
    """Looks into the queue of a database that is a mirror, and tells of everything that was stored there since."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._mark = work.job.mark

    def remember(self, events: list[Event]) -> None:
        """Nothing."""

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


KINDS: dict[str, Callable[[Work], Actor]] = {"initiator": Initiator, "target": Target, "mirror": Mirror}


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
