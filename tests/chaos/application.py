"""
The applications of a fault run: each is a process in the namespace of its host, on the file of its host's database.

    python -m tests.chaos.application JOB.json

One that begins dialogs is an `Initiator` (`tests.chaos.initiator`). One that answers sends each message's answer in the
transaction in which it receives it, and ends the dialog behind the last, some of them with an error of its own; or when
its initiator has ended it. What they did is in their histories (`tests.chaos.history`). Each may be killed at any
moment and started again: it reads in its own history where it was.

A run goes through phases, each with histories of its own; `Orders` is the file in which the harness says which one it
is, and whether new messages are to be sent.
"""

from __future__ import annotations

import signal
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import broker
from tests.chaos.history import Event, What
from tests.chaos.initiator import Initiator
from tests.chaos.job import Job, Orders
from tests.chaos.talk import answer_all
from tests.chaos.work import WAIT_SECONDS, Work


class Actor(Protocol):
    """What an application of one kind does."""

    def remember(self, events: list[Event]) -> None:
        """Begin with what the history of a phase says already."""

    def step(self, *, is_sending: bool) -> None:
        """Do a little, in transactions of its own; whether dialogs are to be begun."""


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
            messages, look = work.receive()
            answer_all(messages, events, look=look, draft=work.draft, rest=self._rest)

    def _rest(self, dialog: broker.Dialog) -> list[Event]:
        return list(self._work.rest_of(dialog, is_initiator=False))


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
