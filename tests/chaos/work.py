"""
What an application of a fault run works with: its connection, and the history of what is done on it.

Some transactions are rolled back on purpose, and done again: what they sent is another text than what is sent then, so
that it is known for what it is should it come to anybody.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
from tests.chaos.job import Job, history_of
from tests.chaos.talk import received_event

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
