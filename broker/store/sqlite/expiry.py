"""
Maintenance of dialogs that needs no frame: timers, lifetimes, local failures, and the purging of their rows.

It runs in the writer thread, in slices, so that a batch stays short: removing a gigabyte at once would block all
writers for seconds. Therefore a caller that receives, ends or acknowledges a large message only removes its row. This
module removes the pieces of the message, a few megabytes a batch.

Instants in the file are of the wall clock, and so is `now`. When the clock goes back, lifetimes and timers last longer
by as much. When it goes forward, they end sooner, because a jump cannot be distinguished from time that has passed. The
loop therefore lets a clock that has jumped forward settle before it asks for maintenance.

A dialog past its lifetime fails at this side: its application reads an Error. A side that was ended here is closed
then, and one that failed or whose far side has ended is closed LINGER_SECONDS later, when nothing waits in its queue.
The original never removes an endpoint by itself; here none outlives its lifetime for long unless its messages are
unread.

Source: Service Broker documentation, "BEGIN DIALOG CONVERSATION", "BEGIN CONVERSATION TIMER"; message 8489.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from broker.conversation.body_check import error_body
from broker.conversation.message_types import DIALOG_TIMER, TIMER_PRIORITY
from broker.conversation.state import TAKES_MESSAGES, ConversationState
from broker.protocol.frame import Fault
from broker.store.sqlite.ledger import FailureReason, close, fail, purge_tombstones
from broker.store.sqlite.reassembly import QueueWriter, discard_fragments
from broker.store.sqlite.side import SideRow, side_of

SLICE = 256  # timers, expired dialogs of a walk, tombstones in one batch
LINGER_SECONDS = 30 * 60.0  # past its lifetime, for an application that has read the end and is about to end it too
PIECES = 64  # fragments or parts removed in one batch: 4 MiB and 16 MiB of the usual size
SCAN_MAX = 256  # endpoints or messages checked in one batch for pieces that belong to nothing

_BEGINNING = (float("-inf"), 0)
_DUE = "SELECT endpoint_id, dialog_timer FROM broker_conversation WHERE dialog_timer <= ? ORDER BY dialog_timer LIMIT ?"
_CAN_BE_TIMED = TAKES_MESSAGES | {ConversationState.DISCONNECTED_INBOUND}
_NEXT_TIMER = "SELECT min(dialog_timer) FROM broker_conversation WHERE dialog_timer IS NOT NULL"
_OVER = (
    "SELECT lifetime, endpoint_id FROM broker_conversation WHERE lifetime <= ?"
    " AND (lifetime, endpoint_id) > (?, ?) ORDER BY lifetime, endpoint_id LIMIT ?"
)
_HELD = "SELECT 1 FROM broker_transmission WHERE endpoint_id = ? LIMIT 1"
_UNREAD = "SELECT 1 FROM broker_message WHERE endpoint_id = ? LIMIT 1"
_EXCEEDED = Fault(-8489, "the dialog has exceeded its LIFETIME")
_FAILED = "UPDATE broker_conversation SET state = 'ER', early_fragments = 0, dialog_timer = NULL WHERE endpoint_id = ?"
_TOMBSTONE_DUE = "SELECT 1 FROM broker_tombstone WHERE expire_time <= ? LIMIT 1"
_RECEIVED = "SELECT endpoint_id, message_sequence_number FROM broker_received LIMIT 1"
_DONE = "DELETE FROM broker_received WHERE endpoint_id = ? AND message_sequence_number = ?"
_OF_MESSAGE = (
    "DELETE FROM broker_fragment WHERE endpoint_id = ?1 AND message_sequence_number = ?2 AND fragment_number IN"
    " (SELECT fragment_number FROM broker_fragment WHERE endpoint_id = ?1 AND message_sequence_number = ?2 LIMIT ?3)"
)
_ORPHANS = (  # pieces whose owner may be gone: their table, its owner's column and table, and the rest of the key
    ("broker_fragment", "endpoint_id", "broker_conversation", "message_sequence_number, fragment_number"),
    ("broker_failure", "endpoint_id", "broker_conversation", "endpoint_id"),
    ("broker_transmission_part", "transmission_id", "broker_transmission", "part_number"),
)


def next_timer(db: sqlite3.Connection) -> float | None:
    """The instant of the next conversation timer."""
    timer: float | None = db.execute(_NEXT_TIMER).fetchone()[0]
    return timer


class Maintenance:
    """
    Timers, lifetimes and purging of one database; its walks continue from batch to batch.

    A conversation is visited once when its lifetime is over; those that linger afterwards are visited again, a slice at
    a time.
    """

    def __init__(self) -> None:
        self._fresh = self._lingering = _BEGINNING
        self._orphans = [OrphanWalk(*names) for names in _ORPHANS]

    def has_work(self, db: sqlite3.Connection, now: float) -> bool:
        """Whether a transaction is worth while; reads only."""
        due = [(_DUE, (now, 1)), (_OVER, (now, *_BEGINNING, 1)), (_TOMBSTONE_DUE, (now,)), (_RECEIVED, ())]
        if any(db.execute(query, values).fetchone() for query, values in due):
            return True
        found = [walk.find(db) for walk in self._orphans]  # each of them moves on
        return any(owner is not None for owner in found)

    def run(self, db: sqlite3.Connection, now: float) -> tuple[list[int], bool]:
        """
        Do one slice of each kind of maintenance, inside a transaction.

        Returns:
            The endpoints that have nothing left to send, and whether there may be more to do.

        Raises:
            sqlite3.Error: the transaction has to be rolled back; `forget` has to be called then.
        """
        queue = QueueWriter(db, now)
        has_more = _fire_timers(db, queue, now)
        finished, has_expired = self._visit_expired(db, queue, now)
        has_more |= has_expired | purge_tombstones(db, now, SLICE) | _purge_received(db)
        for walk in self._orphans:
            has_more |= walk.run(db)
        return finished, has_more

    def forget(self) -> None:
        """Begin again: what the last run did was rolled back."""
        self._fresh = self._lingering = _BEGINNING

    def _visit_expired(self, db: sqlite3.Connection, queue: QueueWriter, now: float) -> tuple[list[int], bool]:
        """Visit a slice of the conversations whose lifetime has just ended, and one of those that linger; as `run`."""
        self._fresh = min(self._fresh, (now, 0))  # when the clock went back, it may come this way again
        fresh = db.execute(_OVER, (now, *self._fresh, SLICE)).fetchall()
        old = db.execute(_OVER, (min(now, self._fresh[0]), *self._lingering, SLICE)).fetchall()
        visited = dict.fromkeys(row[1] for row in (*fresh, *old))
        finished = [endpoint_id for endpoint_id in visited if _expire(db, queue, endpoint_id, now)]
        queue.flush()
        self._fresh = fresh[-1] if fresh else self._fresh
        self._lingering = old[-1] if len(old) == SLICE else _BEGINNING
        return finished, len(fresh) == SLICE


class OrphanWalk:
    """Searches the owners of pieces, SCAN_MAX at a time, for one that is gone."""

    def __init__(self, table: str, owner: str, owners: str, key: str) -> None:
        pieces = f"FROM {table} WHERE {owner} = ?1"
        self._next_owner = f"SELECT min({owner}) FROM {table} WHERE {owner} > ?"  # noqa: S608 - names listed above
        self._has_owner = f"SELECT 1 FROM {owners} WHERE {owner} = ?"  # noqa: S608 - likewise
        self._remove = f"DELETE {pieces} AND ({key}) IN (SELECT {key} {pieces} LIMIT ?2)"
        self._after = -1

    def find(self, db: sqlite3.Connection) -> int | None:
        """The next owner that is gone."""
        for _ in range(SCAN_MAX):
            (owner,) = db.execute(self._next_owner, (self._after,)).fetchone()
            if owner is None:
                self._after = -1
                return None
            if db.execute(self._has_owner, (owner,)).fetchone() is None:
                return int(owner)
            self._after = owner
        return None

    def run(self, db: sqlite3.Connection) -> bool:
        """Remove some pieces of an owner that is gone; whether one was found."""
        owner = self.find(db)
        if owner is not None:
            db.execute(self._remove, (owner, PIECES))
        return owner is not None


def fail_dialogs(db: sqlite3.Connection, faults: Mapping[int, Fault], now: float) -> None:
    """
    Fail dialogs that cannot be sent as they have to be, and close those of them that have ended here.

    Args:
        db: A connection inside a transaction.
        faults: The error that the application of each dialog reads, by endpoint_id.
        now: UTC seconds since 1970.
    """
    queue = QueueWriter(db, now)
    for endpoint_id, fault in faults.items():
        side = side_of(db, endpoint_id)
        if side is None:
            continue
        if side.state in TAKES_MESSAGES or side.state is ConversationState.DISCONNECTED_INBOUND:
            _fail_side(db, queue, side, fault, FailureReason.FAILED_HERE)
        elif side.state is ConversationState.DISCONNECTED_OUTBOUND:
            close(db, endpoint_id, now, FailureReason.FAILED_HERE)
    queue.flush()


def _fire_timers(db: sqlite3.Connection, queue: QueueWriter, now: float) -> bool:
    """
    Put a DialogTimer message into the queue of each conversation whose timer is due, and clear the timer.

    Nothing is put for a side that has ended or failed, or at an instant beyond its lifetime.

    Returns:
        True if there may be more.
    """
    due = db.execute(_DUE, (now, SLICE)).fetchall()
    for endpoint_id, at in due:
        side = side_of(db, endpoint_id)
        if side is not None and side.state in _CAN_BE_TIMED and at < side.lifetime:
            queue.put(side, side.expected[0], DIALOG_TIMER, b"", priority=TIMER_PRIORITY)
        db.execute("UPDATE broker_conversation SET dialog_timer = NULL WHERE endpoint_id = ?", (endpoint_id,))
    queue.flush()
    return len(due) == SLICE


def _expire(db: sqlite3.Connection, queue: QueueWriter, endpoint_id: int, now: float) -> bool:
    """Fail or close a dialog past its lifetime. True if it has nothing left to send because of that."""
    side = side_of(db, endpoint_id)
    if side is None:
        return False
    if queue.is_unconfirmed(side):
        close(db, endpoint_id, now, FailureReason.LIFETIME_EXCEEDED)
        return True
    has_failed = side.state is ConversationState.DISCONNECTED_INBOUND and _has(db, _HELD, endpoint_id)
    if has_failed or side.state in TAKES_MESSAGES:
        _fail_side(db, queue, side, _EXCEEDED, FailureReason.LIFETIME_EXCEEDED)
        return True
    is_ended = side.state in (ConversationState.DISCONNECTED_OUTBOUND, ConversationState.CLOSED)
    if is_ended or (side.lifetime + LINGER_SECONDS <= now and not _has(db, _UNREAD, endpoint_id)):
        close(db, endpoint_id, now, FailureReason.LIFETIME_EXCEEDED)
    return is_ended


def _fail_side(db: sqlite3.Connection, queue: QueueWriter, side: SideRow, fault: Fault, reason: FailureReason) -> None:
    """The application of a dialog reads an error, and the ledger counts what was not acknowledged."""
    queue.put_error(side, side.expected[0], error_body(fault.code, fault.text))
    fail(db, side.endpoint_id, reason)
    discard_fragments(db, side.endpoint_id, side.expected[0])
    db.execute(_FAILED, (side.endpoint_id,))


def _purge_received(db: sqlite3.Connection) -> bool:
    """Remove some fragments of a large message that was received; whether there may be more."""
    row = db.execute(_RECEIVED).fetchone()
    if row is None:
        return False
    if db.execute(_OF_MESSAGE, (*row, PIECES)).rowcount < PIECES:
        db.execute(_DONE, row)
    return True


def _has(db: sqlite3.Connection, query: str, endpoint_id: int) -> bool:
    return db.execute(query, (endpoint_id,)).fetchone() is not None
