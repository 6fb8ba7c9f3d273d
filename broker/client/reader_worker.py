"""
Activation: which function is given the messages of a queue, and how; the original's ACTIVATION clause of a queue.

It knows nothing of databases or threads. Applications see it as a `Reader` (`broker.client.reader_pool`).
"""

from __future__ import annotations

import inspect
import sqlite3
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import structlog

from broker.client.body import LargeBody
from broker.client.dialog import Dialog
from broker.client.queue import (
    Claim,
    ClaimLostError,
    Crash,
    RetryRule,
    are_there,
    claim_group,
    give_back,
    next_rest_end,
    note_crashes,
    settle,
)
from broker.client.receiving import COLUMNS, Message
from broker.client.transaction import unavailable
from broker.errors import ConversationError, StoreUnavailableError
from broker.store.sqlite.database import open_watch
from broker.store.sqlite.metadata import queues
from broker.store.sqlite.quarantine import ATTEMPTS, REST_FIRST, Verdict, blame, note_failure, rest
from broker.store.sqlite.queues import QueueRecord, ReaderSlot, disown
from broker.store.sqlite.transaction import BUSY_SECONDS, ask, sentence

TOP = 100  # messages of one conversation group in one transaction

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Activation:
    """
    What is run for a queue. The arguments of `broker.client.reader_pool.reader` are the fields.

    Shape: `concurrency` 1 .. 1024; `top` and `attempts` at least 1; `retry_delay` seconds, at least 0.
    """

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
        """Where the function is, as logs tell it."""
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"{getattr(self.function, '__module__', '?')}.{name}"


# --- reader_connection ---
# The connection that a reader's function is given: its transaction is committed by the reader alone.
#
# The first statement that writes begins the transaction, IMMEDIATE; the reader commits it together with the receipt
# of
# the messages. A function that committed by itself would be given the same messages again after a crash, so it is
# told.


ASYNC_BUSY_SECONDS = 1.0  # a write in a coroutine stops the loop, and with it whoever has the file, while it waits
_REFUSAL = "the reader commits when the function returns, and rolls back when it raises: leave out {what}"


class ReaderConnection(sqlite3.Connection):
    """A connection that only its reader commits (`commit_all`) and closes (`close_all`)."""

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
        """From now on the function has it: COMMIT as text is refused too, as "not authorized"."""
        self._may_commit = False

    def take_back(self) -> None:
        """The function has it no more; what it set on the connection is undone."""
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

    def judge(self, action: int, what: str | None, *_rest: Any) -> int:
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
    db.set_authorizer(db.judge)
    db.execute("PRAGMA synchronous = FULL")
    return db


# --- desk ---
# One database as the readers of this process see it: its slot, who claims next, and when to look again.
#
# Idle readers wait without touching the file: one thread looks at `data_version`, which every commit of another
# connection changes, and wakes them. Of the idle threads of one reader only one looks for work at a time; when it has
# found some, the next one looks. So a message that comes wakes one thread, however many wait.


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


# --- work ---
# What one worker of a reader does, step by step: claim a group, hand its messages out, and settle what came of it.
#
# 1. `Worker.next` claims a group in a short transaction; the messages stay in the queue, the file is free again.
# 2. The function computes and calls out; its first write begins the transaction.
# 3. `Work.finish` takes the messages from the queue and frees the group in that same transaction, and commits; or
#    `Work.fail` rolls it back, and notes the failure. After a crash anywhere before the commit all is as it was
# before.
#
# Blocking, so for threads. What the store fails with is not the message's fault: it is told, never counted.


_STORE_TROUBLE = frozenset(  # primary result codes of SQLite that speak of the file or its users, not of a statement
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}
    | {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL}
    | {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
)


class CommittedItselfError(Exception):
    """The function wrote outside of the reader's transaction: those writes stay although its message may come again."""

    def __str__(self) -> str:
        return "the function wrote outside of the reader's transaction: leave out SAVEPOINT and isolation_level"


class ReaderWorker:
    """One of `concurrency` of a reader: its own connection, one group at a time. For one thread at a time."""

    def __init__(self, desk: ReaderDatabase, reader: Activation) -> None:
        """Raises: sqlite3.Error, the file cannot be opened."""
        self.desk = desk
        self.reader = reader
        self._db = desk.connect(reader)
        self._troubles = 0

    def next(self) -> Work | None:
        """Wait for a group, claim it, and read its messages; None when nothing shall be claimed any more."""
        desk, reader = self.desk, self.reader
        desk.waits(reader.queue, 1)
        try:
            with desk.lookout(reader):
                while not desk.stopping.is_set():
                    generation = desk.generation
                    try:
                        claim, look_at = desk.claim(self._db, reader)
                    except sqlite3.Error as error:
                        self.trouble("claim failed", error)
                        continue
                    self._troubles = 0
                    if claim is None:
                        desk.wait(generation, look_at)
                        continue
                    work = Work(self, self._db, claim)
                    if work.load():
                        return work
                return None
        finally:
            desk.waits(reader.queue, -1)

    def trouble(self, event: str, error: BaseException) -> None:
        """The store failed: say so, and rest, longer each time."""
        first, most = PAUSE_SECONDS
        pause = min(most, first * 2.0 ** min(self._troubles, 10))
        self._troubles += 1
        log.error(event, database=self.desk.name, queue=self.reader.queue, reason=_reason(error), pause_s=pause)
        self.desk.stopping.wait(pause)

    def close(self) -> None:
        """Close the connection."""
        self._db.close_all()


class Work:
    """A claimed group. Shape: `db` for the function; `messages` at least one, in order."""

    def __init__(self, worker: ReaderWorker, db: ReaderConnection, claim: Claim) -> None:
        self._worker = worker
        self._reader = worker.reader
        self._desk = worker.desk
        self._claim = claim
        self.db = db
        self.messages: list[Message] = []
        self._dialogs: dict[int, Dialog] = {}  # by endpoint_id, that of the first message first
        self._changes = 0

    def load(self) -> bool:
        """Read the messages; False when that fails, or they went with their dialog, and the group is free again."""
        try:
            rows = _rows(self.db, self._claim)
        except sqlite3.Error as error:
            self._worker.trouble("messages not read", error)
            rows = []
        for row in rows:
            dialog = self._dialogs.get(row[1])
            if dialog is None:
                dialog = self._dialogs[row[1]] = Dialog(self.db, row[1], _guid(row[7]), _guid(row[8]))
            large = None if row[4] is not None else LargeBody(self.db, row[1], row[2], row[6])
            self.messages.append(Message(row, large, dialog))
        if not self.messages:
            self.release()
        self._changes = self.db.total_changes
        return bool(self.messages)

    def argument(self) -> Any:
        """What the function is given beside the connection; from now on the connection is the function's."""
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
            settle(db, self._claim, self._dialogs)
            if self._reader.end_dialogs:
                self._end_dialogs()
            db.commit_all()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """The function has raised: roll back, note the failure, and let the group rest."""
        self._until_stored(lambda: self._note(error))

    def release(self) -> None:
        """The function was cut off because everything ends: roll back, and blame nobody."""
        self._until_stored(self._give_back)

    # --- parts ---

    def _end_dialogs(self) -> None:
        """End this side where the far side has ended or failed, and nothing of it waits to be read."""
        query = (
            "SELECT 1 FROM broker_conversation c WHERE endpoint_id = ? AND state IN ('DI', 'ER') AND NOT EXISTS"
            " (SELECT 1 FROM broker_message m WHERE m.endpoint_id = c.endpoint_id)"
        )
        for endpoint_id, dialog in self._dialogs.items():
            if ask(self.db, query, (endpoint_id,)).fetchone() is not None:
                dialog.end()

    def _until_stored(self, write: Any) -> None:
        """Write, again and again while the store fails; when everything ends meanwhile, the slot's end says it all."""
        while True:
            try:
                self._roll_back()
                write()
            except sqlite3.Error as error:
                self._worker.trouble("failure not noted", error)
                if self._desk.stopping.is_set():
                    return
            else:
                self._desk.wake()
                return

    def _roll_back(self) -> None:
        self.db.take_back()
        if self.db.in_transaction:
            self.db.rollback()

    def _note(self, error: BaseException) -> None:
        database, queue = self._desk.name, self._reader.queue
        self.db.begin()
        now = time.time()
        is_owner = give_back(self.db, self._claim)
        # A function whose messages are gone may fail for that alone; one that lost the lock has nothing to write down:
        # its failure was counted, or its messages were given to another reader, when the lock was removed.
        if isinstance(error, ClaimLostError) or not is_owner or not are_there(self.db, self._claim.queuing_orders):
            self.db.commit_all()
            log.error("claim lost", database=database, queue=queue, reason=str(ClaimLostError()))
            return
        if is_store_trouble(error):
            rest(self.db, self._claim.conversation_group_id, now, PAUSE_SECONDS[0] * 2)
            self.db.commit_all()
            log.error("reader store failed", database=database, queue=queue, reason=_reason(error))
            return
        first = self.messages[0]
        what = blame(next(iter(self._dialogs)), first.message_sequence_number, error)
        # Of several messages any may be to blame: they are tried again one by one before one is put in quarantine.
        attempts = self._reader.attempts if len(self.messages) == 1 else max(2, self._reader.attempts)
        verdict = note_failure(self.db, what, now=now, attempts=attempts, rest_first=self._reader.retry_delay)
        self.db.commit_all()
        self._tell(first, verdict, error, now)

    def _give_back(self) -> None:
        self.db.begin()
        give_back(self.db, self._claim)
        self.db.commit_all()

    def _tell(self, message: Message, verdict: Verdict, error: BaseException, now: float) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        fields = {
            "database": self._desk.name,
            "queue": self._reader.queue,
            "reader": self._reader.name,
            "service": message.service_name,
            "conversation_handle": str(message.dialog.conversation_handle),
            "message_sequence_number": message.message_sequence_number,
            "message_type_name": message.type,
            "batch": len(self.messages),
            "error": type(error).__name__,  # its text may quote a body, and stands in broker_failure only
            "where": f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None,
            "failures": verdict.failures,
        }
        if verdict.is_quarantined:
            log.error("dialog quarantined", **fields)
        else:
            rest_s, retry_at = round(verdict.rest_s, 3), verdict.retry_at(now)
            log.warning("message failed", **fields, attempts=self._reader.attempts, retry_s=rest_s, retry_at=retry_at)
        if verdict.is_queue_disabled:
            log.error("queue disabled", database=self._desk.name, queue=self._reader.queue, reason="poison message")


def is_store_trouble(error: BaseException) -> bool:
    """Whether an error speaks of the file or those who use it, so that no message is to blame."""
    if isinstance(error, StoreUnavailableError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.Error) and isinstance(code, int) and code & 0xFF in _STORE_TROUBLE


def _reason(error: BaseException) -> str:
    return sentence(error) if isinstance(error, sqlite3.Error) else str(error)


def _rows(db: ReaderConnection, claim: Claim) -> list[tuple[Any, ...]]:
    query = (
        f"SELECT {COLUMNS} FROM broker_message m JOIN broker_conversation c USING (endpoint_id)"  # noqa: S608
        " WHERE m.queuing_order = ?"
    )
    return [row for order in claim.queuing_orders for row in ask(db, query, (order,))]


def _guid(value: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=value)
