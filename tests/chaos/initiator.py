"""
The application that begins dialogs: several side by side, in transactions of a few messages of all sizes.

What it does with each is its plan (`tests.chaos.plan`); how far it is follows from its history alone, so that it goes
on where it was when it is killed and started again.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import broker
from tests.chaos.history import Event, What
from tests.chaos.plan import Close, Plan, make_plan
from tests.chaos.talk import ERROR_CODE, LEVELS, body_of, headers_of, received_event, sent_event
from tests.chaos.work import Work

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


class Initiator:
    """Begins dialogs, sends on them, hears the answers, ends them."""

    def __init__(self, work: Work) -> None:
        self._work = work
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
