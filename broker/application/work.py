"""
What one worker of a reader does, step by step: claim a group, hand its messages out, and settle what came of it.

1. `Worker.next` claims a group in a short transaction; the messages stay in the queue, the file is free again.
2. The function computes and calls out; its first write begins the transaction.
3. `Work.finish` takes the messages from the queue and frees the group in that same transaction, and commits; or
   `Work.fail` rolls it back, and notes the failure. After a crash anywhere before the commit all is as it was before.

Blocking, so for threads. What the store fails with is not the message's fault: it is told, never counted.
"""

from __future__ import annotations

import sqlite3
import time
import traceback
import uuid
from typing import Any

import structlog

from broker.application.activation import Activation
from broker.application.claim import Claim, ClaimLostError, are_there, give_back, settle
from broker.application.desk import PAUSE_SECONDS, ReaderDatabase
from broker.application.dialog import Dialog
from broker.application.message import COLUMNS, Message
from broker.application.reader_connection import ReaderConnection
from broker.application.stream import LargeBody
from broker.errors import StoreUnavailableError
from broker.store.fault import sentence
from broker.store.quarantine import Verdict, blame, note_failure, rest
from broker.store.rows import ask

log = structlog.get_logger(__name__)

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
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was committed
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
