"""
One database as the readers of this process see it: its slot, who claims next, and when to look again.

Idle readers wait without touching the file: one thread looks at `data_version`, which every commit of another
connection changes, and wakes them. Of the idle threads of one reader only one looks for work at a time; when it has
found some, the next one looks. So a message that comes wakes one thread, however many wait.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import structlog

from broker.application.activation import Activation
from broker.application.busy import unavailable
from broker.application.claim import Claim, Crash, RetryRule, claim_group, next_rest_end, note_crashes
from broker.application.reader_connection import ReaderConnection, open_connection
from broker.errors import ConversationError, StoreUnavailableError
from broker.store.database import open_watch
from broker.store.fault import sentence
from broker.store.group_lock import QueueRecord, ReaderSlot, disown
from broker.store.metadata import queues
from broker.store.transaction import BUSY_SECONDS

POLL_SECONDS = (0.002, 0.02)  # between two looks at data_version: right after a change, and at most
RECORD_SECONDS = 1.0  # between two records of what the readers do, for the views
LONGEST_WAIT = 60.0  # seconds after which an idle reader looks in any case
PAUSE_SECONDS = (0.5, 30.0)  # of rest after the store failed: first, and at most

log = structlog.get_logger(__name__)


class ReaderDatabase:
    """
    What the readers of one database share. Its methods may be called by any thread.

    Shape: `name` of the database; `readers` on it; `stopping` once nothing new shall be claimed.
    """

    def __init__(self, name: str, path: Path, readers: Sequence[Activation]) -> None:
        """
        Take a slot, and settle what readers that died have left behind.

        Raises:
            ConversationError: 911 no such file; 208 no such queue.
            StoreUnavailableError: the file or its lock file cannot be used.
        """
        self.name = name
        self.path = path
        self.readers = readers
        self.stopping = threading.Event()
        self._changed = threading.Condition()
        self._generation = 0
        self._claiming = threading.Lock()
        self._lookouts = {id(reader): threading.Lock() for reader in readers}
        self._rules = _rules(name, path, readers)
        now = time.time()
        self._records = {reader.queue: QueueRecord(reader.queue, 0, now, None) for reader in readers}
        self._slot = ReaderSlot(str(path))
        self._disown()
        self._bell = threading.Thread(target=self._ring, name=f"bell {name}", daemon=True)
        self._bell.start()

    @property
    def slot(self) -> int:
        """The slot of this process."""
        return self._slot.number

    @property
    def generation(self) -> int:
        """Grows whenever there may be something to do."""
        return self._generation

    def connect(self, reader: Activation) -> ReaderConnection:
        """A connection for one worker of a reader. Raises sqlite3.Error."""
        return open_connection(self.path, is_async=reader.is_async)

    def claim(self, db: ReaderConnection, reader: Activation) -> tuple[Claim | None, float | None]:
        """
        Claim the next group of a reader's queue.

        Returns:
            The claim, or None and the instant (UTC seconds) at which to look again unless something changes before.

        Raises:
            sqlite3.Error: the store failed; nothing is claimed.
        """
        if not self._has_messages(db, reader.queue):
            self._records[reader.queue].last_empty_time = time.time()
            return None, None
        with self._claiming:
            db.execute("PRAGMA synchronous = NORMAL")  # a lock need not outlive a failure of the power
            try:
                db.begin()
                now = time.time()  # not before: `begin` waits for others, and what they commit may begin a pause
                own = self.slot
                crashes = note_crashes(db, own=own, rules=self._rules, now=now)
                claim = claim_group(db, reader.queue, slot=own, top=reader.top, now=now)
                rest_end = next_rest_end(db, now) if claim is None else None
                db.commit_all()
            finally:
                if db.in_transaction:
                    db.rollback()
                db.execute("PRAGMA synchronous = FULL")
        for crash in crashes:
            self._tell(crash, now)
        if claim is None:
            self._records[reader.queue].last_empty_time = now
        return claim, rest_end

    def lookout(self, reader: Activation) -> threading.Lock:
        """What the one worker of a reader holds that looks for work."""
        return self._lookouts[id(reader)]

    def wait(self, generation: int, until: float | None) -> None:
        """Wait until there may be something new since `generation`, at most until an instant (UTC seconds)."""
        seconds = LONGEST_WAIT if until is None else min(LONGEST_WAIT, max(0.0, until - time.time()))
        with self._changed:
            self._changed.wait_for(lambda: self._generation != generation or self.stopping.is_set(), seconds)

    def waits(self, queue: str, more: int) -> None:
        """So many more, or fewer, workers of a queue have nothing to do."""
        with self._changed:
            self._records[queue].tasks_waiting += more

    def wake(self) -> None:
        """There may be something new that this process did itself, which its own watch sees only later."""
        with self._changed:
            self._generation += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Claim nothing new."""
        self.stopping.set()
        self.wake()

    def close(self) -> None:
        """Give the slot back; groups that are still locked by it count as left behind by a crash."""
        self.stop()
        self._bell.join()
        self._slot.close()

    def _disown(self) -> None:
        """Whoever had this slot before is dead: what it had is for the next claim to settle."""
        try:
            db = open_connection(self.path, is_async=False)
            try:
                db.begin()
                disown(db, self.slot)
                db.commit_all()
            finally:
                db.close_all()
        except sqlite3.Error as error:
            self._slot.close()
            raise unavailable(str(self.path), error, BUSY_SECONDS) from error

    def _has_messages(self, db: ReaderConnection, queue: str) -> bool:
        """A look that locks nothing."""
        query = (
            "SELECT 1 FROM broker_message m JOIN broker_queue q USING (queue_id)"
            " WHERE q.name = ? AND q.is_receive_enabled AND m.status = 1 LIMIT 1"
        )
        return db.execute(query, (queue,)).fetchone() is not None

    def _tell(self, crash: Crash, now: float) -> None:
        log.error(
            "reader died" if not crash.verdict.is_quarantined else "dialog quarantined",
            database=self.name,
            endpoint_id=crash.endpoint_id,
            message_sequence_number=crash.message_sequence_number,
            failures=crash.verdict.failures,
            retry_s=round(crash.verdict.rest_s, 3),
            retry_at=crash.verdict.retry_at(now),
            reason="the process of its reader died while it had the message",
        )

    # --- the bell ---

    def _ring(self) -> None:
        """Notice commits of all other connections; look often while there are some."""
        shortest, longest = POLL_SECONDS
        pause, record_at = longest, 0.0
        watch: sqlite3.Connection | None = None
        version: int | None = None
        while not self.stopping.wait(pause):
            try:
                watch = watch or open_watch(self.path)
                now: int | None = watch.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as error:
                log.warning("watch failed", database=self.name, reason=str(error))
                now, pause = None, PAUSE_SECONDS[0]
            if now is None or now != version:
                pause = shortest if now is not None else pause
                version = now
                self.wake()
            else:
                pause = min(longest, pause * 1.3)
            if time.monotonic() >= record_at:
                record_at = time.monotonic() + RECORD_SECONDS
                self._slot.record(self._records.values())
        if watch is not None:
            watch.close()


def _rules(name: str, path: Path, readers: Iterable[Activation]) -> dict[int, RetryRule]:
    """What the readers say of failures, by queue_id. Raises ConversationError 911, 208."""
    if not path.is_file():
        raise ConversationError(911, f"database {name}: there is no file {str(path)!r}; broker serve makes it")
    try:
        with closing(open_watch(path)) as db:
            known = queues(db)
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), sentence(error)) from error
    for reader in readers:
        if reader.queue not in known:
            problem = (
                f"{reader.name}: the queue {reader.queue!r} does not exist in database {name}; it has {sorted(known)}"
            )
            raise ConversationError(208, problem)
    return {known[one.queue].queue_id: RetryRule(one.attempts, one.retry_delay) for one in readers}
