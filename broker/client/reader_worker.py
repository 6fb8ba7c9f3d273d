"""
Readers at work on one database: claim a conversation group, pass its messages to a function, commit both or neither.

1. `ReaderWorker.next` claims a group in a short transaction; the messages stay in the queue, the file is free again.
2. The function computes and calls out; its first write begins the transaction.
3. `Work.finish` removes the messages from the queue and releases the group in that same transaction, and commits; or
   `Work.fail` rolls it back and records the failure. After a crash anywhere before the commit all is as it was before.

Idle workers wait without touching the file: one thread for each database waits for the daemon's bell, polls
`data_version`, which every commit of another connection changes, and wakes them. Of the idle workers of one reader only
one searches for work at a time; when it has found some, the next one searches. So a message that arrives wakes one
thread, however many wait.

All functions here block, so they are called in threads. A failure of the store is not the message's fault: it is
logged, and never counted. `Activation` is the original's ACTIVATION clause of a queue; applications see it as a
`Reader` (`broker.client.reader_pool`).
"""

from __future__ import annotations

import inspect
import os
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import structlog

from broker.client.claims import (
    Claim,
    ClaimLostError,
    RetryRule,
    are_there,
    claim_group,
    finish_claim,
    next_rest_end,
    record_crashes,
    release_claim,
)
from broker.client.queue import WHOLE_QUEUE, queue_of
from broker.client.receiving import COLUMNS, Message, dialogs_of, large_body
from broker.client.transaction import unavailable
from broker.client.waiting import Doorbell
from broker.errors import ConversationError, StoreUnavailableError
from broker.protocol.layout import show_guid
from broker.store.sqlite.failure import ATTEMPTS, REST_FIRST, Blame, Verdict, blame, note_failure, rest
from broker.store.sqlite.hints import ANY, queue_slot
from broker.store.sqlite.metadata import queues
from broker.store.sqlite.reader_slots import QueueRecord, ReaderSlot, disown
from broker.store.sqlite.transaction import BUSY_SECONDS, ask, open_watch, sentence, translated

TOP = 100  # messages of one conversation group in one transaction
ASYNC_BUSY_SECONDS = 1.0  # a write in a coroutine stops the loop while it waits, and with it the holder of the file
RECORD_SECONDS = 1.0  # between two records of what the readers do, for the views
LONGEST_WAIT = 60.0  # seconds after which an idle reader looks in any case
PAUSE_SECONDS = (0.5, 30.0)  # of rest after the store failed: first, and at most

_HERE = str(Path(__file__).parents[1])  # of this package
_REFUSAL = "the reader commits when the function returns, and rolls back when it raises: leave out {what}"
_STORE_FAILURES = frozenset(  # primary result codes of SQLite about the file or its users, not about a statement
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}
    | {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL}
    | {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
)

Function: TypeAlias = Callable[..., Any]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Activation:
    """What is run for a queue. The arguments of `broker.client.reader_pool.reader` are the fields."""

    function: Function
    queue: str
    concurrency: int = 1
    top: int = TOP
    attempts: int = ATTEMPTS
    retry_delay: float = REST_FIRST
    database: str | None = None
    single: bool = False
    end_dialogs: bool = True

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, which runs in the loop."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def name(self) -> str:
        """Where the function is, as logs show it."""
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"{getattr(self.function, '__module__', '?')}.{name}"


class CommittedItselfError(Exception):
    """The function wrote outside of the reader's transaction: those writes stay although its message may come again."""

    def __str__(self) -> str:
        return "the function wrote outside of the reader's transaction: leave out SAVEPOINT and isolation_level"


class ReaderWorker:
    """One of `concurrency` of a reader: its own connection, one group at a time. For one thread at a time."""

    def __init__(self, database: ReaderDatabase, reader: Activation) -> None:
        """Raises: sqlite3.Error, the file cannot be opened."""
        self.database = database
        self.reader = reader
        self._db = open_connection(database.path, is_async=reader.is_async)
        self._failures = 0  # of the store, in a row

    def next(self) -> Work | None:
        """Wait for a group, claim it, and read its messages; None when the readers are stopping."""
        database, reader = self.database, self.reader
        database.count_waiting(reader.queue, 1)
        try:
            with database.lookouts[id(reader)]:
                while not database.stopping.is_set():
                    generation = database.generation
                    try:
                        claim, look_at = database.claim(self._db, reader)
                    except sqlite3.Error as error:
                        self.rest_after("claim failed", error)
                        continue
                    self._failures = 0
                    if claim is None:
                        database.wait(generation, look_at)
                        continue
                    work = Work(self, self._db, claim)
                    if work.load():
                        return work
                return None
        finally:
            database.count_waiting(reader.queue, -1)

    def rest_after(self, event: str, error: BaseException) -> None:
        """The store failed: log it, and rest, longer each time."""
        first, most = PAUSE_SECONDS
        pause = min(most, first * 2.0 ** min(self._failures, 10))
        self._failures += 1
        log.error(event, database=self.database.name, queue=self.reader.queue, reason=sentence(error), pause_s=pause)
        self.database.stopping.wait(pause)

    def close(self) -> None:
        """Close the connection."""
        self._db.close_all()


class Work:
    """A claimed group, whose `messages` are passed to the function with the connection `db`."""

    def __init__(self, worker: ReaderWorker, db: ReaderConnection, claim: Claim) -> None:
        self.db = db
        self.messages: list[Message] = []
        self._worker = worker
        self._reader = worker.reader
        self._database = worker.database
        self._claim = claim
        self._changes = 0  # total_changes of the connection before the function ran

    def load(self) -> bool:
        """Read the messages; False when that fails, or their dialog is gone, and the group is released."""
        query = (
            f"SELECT {COLUMNS} FROM broker_message m JOIN broker_conversation c USING (endpoint_id)"  # noqa: S608
            " WHERE m.queuing_order = ?"
        )
        try:
            rows = [row for order in self._claim.queuing_orders for row in ask(self.db, query, (order,))]
        except sqlite3.Error as error:
            self._worker.rest_after("messages not read", error)
            rows = []
        dialogs = dialogs_of(self.db, rows)
        self.messages = [Message(row, large_body(self.db, row), dialogs[row[1]]) for row in rows]
        if not rows:
            self.release()
        self._changes = self.db.total_changes
        return bool(rows)

    def argument(self) -> Any:
        """Return the argument of the function next to the connection, which the function owns from now on."""
        self.db.hand_out()
        return self.messages[0] if self._reader.single else self.messages

    def finish(self) -> None:
        """The function has returned: commit its writes and the receipt of its messages, both or none."""
        db = self.db
        db.take_back()
        try:
            if not db.in_transaction and db.total_changes != self._changes:
                raise CommittedItselfError  # noqa: TRY301 - handled as any failure of the function
            db.begin()
            finish_claim(db, self._claim, {message.dialog.endpoint_id for message in self.messages})
            if self._reader.end_dialogs:
                self._end_dialogs()
            db.commit_all()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """The function has raised: roll back, record the failure, and let the group rest."""
        self._until_stored(lambda: self._record(error))

    def release(self) -> None:
        """The function was cut off because everything ends: roll back, and count no failure."""
        self._until_stored(self._release)

    def _end_dialogs(self) -> None:
        """End this side where the far side has ended or failed, and no message of it waits."""
        query = (
            "SELECT 1 FROM broker_conversation c WHERE endpoint_id = ? AND state IN ('DI', 'ER') AND NOT EXISTS"
            " (SELECT 1 FROM broker_message m WHERE m.endpoint_id = c.endpoint_id)"
        )
        for endpoint_id, dialog in {message.dialog.endpoint_id: message.dialog for message in self.messages}.items():
            if ask(self.db, query, (endpoint_id,)).fetchone() is not None:
                dialog.end()

    def _until_stored(self, write: Callable[[], None]) -> None:
        """Roll back and write, again while the store fails; when all ends, the end of the slot releases the group."""
        while True:
            try:
                self.db.take_back()
                if self.db.in_transaction:
                    self.db.rollback()
                write()
            except sqlite3.Error as error:
                self._worker.rest_after("failure not noted", error)
                if self._database.stopping.is_set():
                    return
            else:
                self._database.wake()
                return

    def _record(self, error: BaseException) -> None:
        about = {"database": self._database.name, "queue": self._reader.queue}
        self.db.begin()
        now = time.time()
        is_owner = release_claim(self.db, self._claim.lock)
        # A function whose messages are gone may fail for that alone; one that lost the lock has nothing to record: its
        # failure was counted, or its messages were passed to another reader, when the lock was removed.
        if isinstance(error, ClaimLostError) or not is_owner or not are_there(self.db, self._claim.queuing_orders):
            self.db.commit_all()
            log.error("claim lost", **about, reason=str(ClaimLostError()))
            return
        if is_store_failure(error):
            rest(self.db, self._claim.lock.conversation_group_id, now, PAUSE_SECONDS[0] * 2)
            self.db.commit_all()
            log.error("reader store failed", **about, reason=sentence(error))
            return
        first = self.messages[0]
        what = blame(first.dialog.endpoint_id, first.message_sequence_number, error)
        # Of several messages any may be to blame: they are tried again one by one before one is put in quarantine.
        attempts = self._reader.attempts if len(self.messages) == 1 else max(2, self._reader.attempts)
        verdict = note_failure(self.db, what, now=now, attempts=attempts, rest_first=self._reader.retry_delay)
        self.db.commit_all()
        self._log_failure(first, verdict, error, now)

    def _release(self) -> None:
        self.db.begin()
        release_claim(self.db, self._claim.lock)
        self.db.commit_all()

    def _log_failure(self, message: Message, verdict: Verdict, error: BaseException, now: float) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(_HERE)] or frames
        fields = {
            "database": self._database.name,
            "queue": self._reader.queue,
            "reader": self._reader.name,
            "service": message.service_name,
            "conversation_handle": show_guid(message.dialog.conversation_handle),
            "message_sequence_number": message.message_sequence_number,
            "message_type_name": message.type,
            "batch": len(self.messages),
            "error": type(error).__name__,  # its text may quote a body, and is in broker_failure only
            "number": error.number if isinstance(error, ConversationError) else None,
            "where": f"{own[-1].filename}:{own[-1].lineno}" if own else None,  # in the application
            "failures": verdict.failures,
        }
        if verdict.is_quarantined:
            log.error("dialog quarantined", **fields)
        else:
            rest_s, retry_at = round(verdict.rest_s, 3), verdict.retry_at(now)
            log.warning("message failed", **fields, attempts=self._reader.attempts, retry_s=rest_s, retry_at=retry_at)
        if verdict.is_queue_disabled:
            log.error("queue disabled", database=self._database.name, queue=self._reader.queue, reason="poison message")


class ReaderDatabase:
    """State that the readers of one database in this process share. Its methods may be called by any thread."""

    def __init__(self, name: str, path: Path, readers: Sequence[Activation]) -> None:
        """
        Take a slot, and release what readers that died have left.

        Raises:
            ConversationError: 911 no such file; 208 no such queue.
            StoreUnavailableError: the file or its lock file cannot be used.
        """
        self.name = name
        self.path = path
        self.readers = readers
        self.stopping = threading.Event()  # set once nothing new shall be claimed
        self.generation = 0  # grows whenever there may be something to do
        self._changed = threading.Condition()
        self._claiming = threading.Lock()
        self.lookouts = {id(reader): threading.Lock() for reader in readers}  # held while a worker looks for work
        self._rules = _retry_rules(name, path, readers)
        now = time.time()
        self._records = {
            one.queue: QueueRecord(one.queue, 0, now, None, os.getpid(), one.name, one.concurrency) for one in readers
        }
        self._slot = ReaderSlot(str(path))
        self.slot = self._slot.number  # of this process
        self._disown()
        queue_ids = list(self._rules)
        self._doorbell = Doorbell(str(path), queue_slot(queue_ids[0]) if len(queue_ids) == 1 else ANY)
        self._poller = threading.Thread(target=self._poll_changes, name=f"poll {name}", daemon=True)
        self._poller.start()

    def claim(self, db: ReaderConnection, reader: Activation) -> tuple[Claim | None, float | None]:
        """
        Claim the next group of a reader's queue.

        Returns:
            The claim, or None and the instant (UTC seconds) at which to look again unless something changes before.

        Raises:
            sqlite3.Error: the store failed; nothing is claimed.
        """
        queue = queue_of(db, reader.queue, WHOLE_QUEUE)  # this locks nothing
        if queue is None or not (queue.is_receive_enabled and queue.has_messages):
            self._records[reader.queue].last_empty_time = time.time()
            return None, None
        with self._claiming:
            db.execute("PRAGMA synchronous = NORMAL")  # a lock need not outlive a failure of the power
            try:
                db.begin()
                now = time.time()  # not before: `begin` waits for others, and what they commit may begin a pause
                crashes = record_crashes(db, own=self.slot, rules=self._rules, now=now)
                claim = claim_group(db, reader.queue, slot=self.slot, top=reader.top, now=now)
                rest_end = next_rest_end(db, now) if claim is None else None
                db.commit_all()
            finally:
                if db.in_transaction:
                    db.rollback()
                db.execute("PRAGMA synchronous = FULL")
        for what, verdict in crashes:
            self._log_crash(db, what, verdict, now)
        if claim is None:
            self._records[reader.queue].last_empty_time = now
        return claim, rest_end

    def wait(self, generation: int, until: float | None) -> None:
        """Wait until there may be something new since `generation`, at most until an instant (UTC seconds)."""
        seconds = LONGEST_WAIT if until is None else min(LONGEST_WAIT, max(0.0, until - time.time()))
        with self._changed:
            self._changed.wait_for(lambda: self.generation != generation or self.stopping.is_set(), seconds)

    def count_waiting(self, queue: str, more: int) -> None:
        """So many more, or fewer, workers of a queue have nothing to do."""
        with self._changed:
            self._records[queue].tasks_waiting += more

    def wake(self) -> None:
        """There may be something new, by this process itself, whose own poll sees it only later."""
        with self._changed:
            self.generation += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Claim nothing new."""
        self.stopping.set()
        self.wake()

    def close(self) -> None:
        """Give the slot back; groups that are still locked by it count as left by a crash."""
        self.stop()
        self._poller.join()
        self._doorbell.close()
        self._slot.close()

    def _disown(self) -> None:
        """The process that had this slot before is dead: what it had is for the next claim to release."""
        address = f"{self.path.absolute().as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as db:
                disown(db, self.slot)
        except sqlite3.Error as error:
            self._slot.close()
            raise unavailable(str(self.path), error, BUSY_SECONDS) from error

    def _log_crash(self, db: ReaderConnection, what: Blame, verdict: Verdict, now: float) -> None:
        query = (
            "SELECT q.name, c.service_name, c.conversation_handle FROM broker_conversation c"
            " LEFT JOIN broker_service s ON s.name = c.service_name LEFT JOIN broker_queue q USING (queue_id)"
            " WHERE c.endpoint_id = ?"
        )
        queue, service, handle = db.execute(query, (what.endpoint_id,)).fetchone() or (None, None, None)
        log.error(
            "dialog quarantined" if verdict.is_quarantined else "reader died",
            database=self.name,
            queue=queue,
            service=service,
            conversation_handle=handle and show_guid(handle),
            endpoint_id=what.endpoint_id,
            message_sequence_number=what.message_sequence_number,
            failures=verdict.failures,
            retry_s=round(verdict.rest_s, 3),
            retry_at=verdict.retry_at(now),
            reason="the process of its reader died while it had the message",
        )

    def _poll_changes(self) -> None:
        """Notice commits of all other connections."""
        record_at = 0.0
        watch: sqlite3.Connection | None = None
        version: int | None = None
        while not self.stopping.is_set():
            self._doorbell.mark()
            try:
                watch = watch or open_watch(self.path)
                now: int | None = watch.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as error:
                log.warning("watch failed", database=self.name, reason=str(error))
                now = None
                self.stopping.wait(PAUSE_SECONDS[0])
            if now is None or now != version:
                version = now
                self.wake()
            if time.monotonic() >= record_at:
                record_at = time.monotonic() + RECORD_SECONDS
                self._slot.record(self._records.values())
            self._doorbell.pause()
        if watch is not None:
            watch.close()


class ReaderConnection(sqlite3.Connection):
    """
    The connection that a reader's function is passed: only its reader commits (`commit_all`) and closes it.

    The first statement that writes begins the transaction, IMMEDIATE. A function that committed by itself would be
    passed the same messages again after a crash, so all ways to commit are refused.
    """

    _may_commit = True

    def commit(self) -> None:
        """Refused. Raises sqlite3.ProgrammingError."""
        raise sqlite3.ProgrammingError(_REFUSAL.format(what="commit()"))

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:  # noqa: ARG002 - the name is the library's
        """Refused: it commits first. Raises sqlite3.ProgrammingError."""
        raise sqlite3.ProgrammingError(_REFUSAL.format(what="executescript(), which commits first"))

    def close(self) -> None:
        """Refused. Raises sqlite3.ProgrammingError."""
        raise sqlite3.ProgrammingError("the connection is the reader's: leave out close()")

    def __enter__(self) -> Self:
        raise sqlite3.ProgrammingError(_REFUSAL.format(what='"with db:"'))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]:
        return False

    # --- for the reader ---

    def hand_out(self) -> None:
        """The function has it from now on: COMMIT as text is refused too, as "not authorized"."""
        self._may_commit = False

    def take_back(self) -> None:
        """Take the connection back from the function, and undo the settings that the function changed."""
        self._may_commit = True
        self.isolation_level = "IMMEDIATE"
        self.row_factory = None
        self.text_factory = str

    def begin(self) -> None:
        """Begin the transaction, if the function has not."""
        if not self.in_transaction:
            self.execute("BEGIN IMMEDIATE")

    def commit_all(self) -> None:
        """Commit what the function and the reader did."""
        super().commit()

    def close_all(self) -> None:
        """Close it."""
        super().close()

    def authorize(self, action: int, what: str | None, *_rest: Any) -> int:
        """SQLite's authorizer: everything but a COMMIT of the function's."""
        is_commit = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
        return sqlite3.SQLITE_DENY if is_commit and not self._may_commit else sqlite3.SQLITE_OK


def open_connection(path: str | Path, *, is_async: bool) -> ReaderConnection:
    """
    A connection for one reader, used by one thread at a time.

    Raises:
        sqlite3.Error: there is no such file, or it cannot be opened.
    """
    db = sqlite3.connect(
        f"{Path(path).absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=ASYNC_BUSY_SECONDS if is_async else BUSY_SECONDS,
        isolation_level="IMMEDIATE",
        check_same_thread=False,
        factory=ReaderConnection,
    )
    db.set_authorizer(db.authorize)
    db.execute("PRAGMA synchronous = FULL")
    return db


def is_store_failure(error: BaseException) -> bool:
    """Whether an error is about the file or its users, so that no message is to blame."""
    if isinstance(error, StoreUnavailableError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.Error) and isinstance(code, int) and code & 0xFF in _STORE_FAILURES


def _retry_rules(name: str, path: Path, readers: Iterable[Activation]) -> dict[int, RetryRule]:
    """Return the readers' rules for failures, by queue_id. Raises ConversationError 911, 208."""
    if not path.is_file():
        raise ConversationError(911, f"database {name}: there is no file {str(path)!r}; broker serve makes it")
    with translated(path), closing(open_watch(path)) as db:
        known = queues(db)
    for reader in readers:
        if reader.queue not in known:
            problem = f"the queue {reader.queue!r} does not exist in database {name}; it has {sorted(known)}"
            raise ConversationError(208, f"{reader.name}: {problem}")
    return {known[one.queue].queue_id: RetryRule(one.attempts, one.retry_delay) for one in readers}
