"""
The application of a fault run whose messages are given to a reader (`broker.reader`) instead of being received by it.

    python -m tests.chaos.reader JOB.json

What it does is what a target does (`tests.chaos.application`). Only who commits is another one: the reader's worker,
behind the function. So the function says what it is about to do, and what became of it is asked of the file: by the
next call, before which the transaction is over, or as soon as the file can be locked, which it cannot before.
"""

import asyncio
import contextlib
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import broker
from tests.chaos.application import REST_SECONDS, UndoneError, Work
from tests.chaos.history import NOTE, Event, Job, Orders, is_applied
from tests.chaos.talk import answer_all

LOOK_SECONDS = 0.05  # between two looks at the file and at the orders
GRACE_SECONDS = 5.0
PATIENCE = 1_000_000  # failures in a row: no dialog is put into quarantine by what befalls the machine


class Answers:
    """What the function does, and what became of it. One call at a time, all in one loop."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._open: int | None = None  # number of the intent of which that is not known
        self._is_at_work = False

    def take(self, db: Any, messages: list[broker.Message]) -> None:
        """One call of the reader."""
        self._is_at_work = True
        try:
            if self._open is not None:
                self._settle(is_committed=self._is_applied(self._open))
            self._follow_orders()
            events: list[Event] = []
            draft = self._work.choose_draft()
            answer_all(messages, events, draft=draft)
            if events:
                self._open = self._work.history.intend(events)
                db.execute(NOTE, (self._work.history.name, self._open))
            if draft:
                raise UndoneError
        finally:
            self._is_at_work = False

    def begin(self) -> None:
        """No call is under way, and none has been since the process began or the last readers ended."""
        self._open = None
        self._work.enter(Orders.read(Path(self._work.job.orders)).phase)

    def look(self) -> None:
        """Between two calls: what became of the last one, if that can be known yet; and which phase it is."""
        if self._is_at_work:
            return
        if self._open is not None:
            with closing(self._locked()) as db:
                db.execute("BEGIN IMMEDIATE")  # nobody is in the middle of a transaction
                self._settle(is_committed=self._is_applied(self._open))
        if self._open is None:
            self._follow_orders()

    def _locked(self) -> sqlite3.Connection:
        return sqlite3.connect(self._work.job.database, timeout=0, isolation_level=None)

    def _is_applied(self, number: int) -> bool:
        return is_applied(Path(self._work.job.database), self._work.history.name, number)

    def _settle(self, *, is_committed: bool) -> None:
        assert self._open is not None
        self._work.history.settle(self._open, is_committed=is_committed)
        self._open = None

    def _follow_orders(self) -> None:
        phase = Orders.read(Path(self._work.job.orders)).phase
        if phase != self._work.phase:
            self._work.enter(phase)


async def run(job: Job) -> None:
    """Until SIGTERM."""
    work, stop = Work(job), asyncio.Event()
    answers = Answers(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    @broker.reader(job.queue, concurrency=1, attempts=PATIENCE, retry_delay=REST_SECONDS)
    async def answer(db: Any, messages: list[broker.Message]) -> None:
        answers.take(db, messages)

    async def look() -> None:
        while True:
            with contextlib.suppress(sqlite3.Error):  # the next look may go well
                answers.look()
            await asyncio.sleep(LOOK_SECONDS)

    while not stop.is_set():
        looking = None
        try:
            _ = work.db  # the table in which its transactions are noted
            answers.begin()
            looking = asyncio.create_task(look())
            await broker.run_readers(answer, job.database, grace=GRACE_SECONDS, stop=stop)
        except (sqlite3.Error, broker.BrokerError) as error:
            work.rest(error)
        finally:
            if looking is not None:
                looking.cancel()


if __name__ == "__main__":
    asyncio.run(run(Job.read(Path(sys.argv[1]))))
