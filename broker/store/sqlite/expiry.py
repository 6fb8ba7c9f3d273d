"""
What time does to conversations: timers that are due, lifetimes that are over, half-closed sides that nobody ends.

For the writer thread, in slices, so that a turn stays short. Instants in the file are of the wall clock, and so is
`now`. When that goes back, lifetimes and timers last longer by as much; when it goes forward, they end sooner, which
nobody can tell from time that has passed. The loop therefore lets a clock that has jumped forward settle before it asks
for anything here.

A dialog past its lifetime fails at this side: its application reads an Error. A side that was ended here is closed
then, and one that failed or whose far side has ended is closed a while later, when nothing waits in its queue. The
original never removes an endpoint by itself; here none outlives its lifetime for long unless its messages are unread.

Source: Service Broker documentation, "BEGIN DIALOG CONVERSATION", "BEGIN CONVERSATION TIMER"; message 8489.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.conversation.message_types import DIALOG_TIMER, TIMER_PRIORITY
from broker.conversation.state import TAKES_MESSAGES, ConversationState
from broker.protocol.frame import Fault
from broker.store.port import MaintenanceResult
from broker.store.sqlite.reassembly import Delivery, fail_side
from broker.store.sqlite.side import FailureReason, close, purge_tombstones, side_of

SLICE = 256  # conversations looked at in one turn
LINGER_SECONDS = 30 * 60.0  # past its lifetime, for an application that has read the end and is about to end it too

_BEGINNING = (float("-inf"), 0)
_DUE = "SELECT endpoint_id, dialog_timer FROM broker_conversation WHERE dialog_timer <= ? ORDER BY dialog_timer LIMIT ?"
_CAN_BE_TIMED = TAKES_MESSAGES | {ConversationState.DISCONNECTED_INBOUND}
_NEXT_TIMER = (
    "SELECT dialog_timer FROM broker_conversation WHERE dialog_timer IS NOT NULL ORDER BY dialog_timer LIMIT 1"
)
_OVER = (
    "SELECT lifetime, endpoint_id FROM broker_conversation WHERE lifetime <= ?"
    " AND (lifetime, endpoint_id) > (?, ?) ORDER BY lifetime, endpoint_id LIMIT ?"
)
_HELD = "SELECT 1 FROM broker_transmission WHERE endpoint_id = ? LIMIT 1"
_UNREAD = "SELECT 1 FROM broker_message WHERE endpoint_id = ? LIMIT 1"
_EXCEEDED = Fault(-8489, "the dialog has exceeded its LIFETIME")


@dataclass(slots=True)
class Expired:
    """Shape: `finished` endpoints that have nothing to send any more; `has_more` when a slice was not enough."""

    finished: list[int] = field(default_factory=list)
    has_more: bool = False


def next_timer(db: sqlite3.Connection) -> float | None:
    """The instant of the next conversation timer."""
    row = db.execute(_NEXT_TIMER).fetchone()
    return None if row is None else float(row[0])


def fire_timers(db: sqlite3.Connection, delivery: Delivery, now: float) -> bool:
    """
    Put a DialogTimer message into the queue of each conversation whose timer is due, and clear the timer.

    Nothing is put for a side that has ended or failed, or at an instant beyond its lifetime.

    Returns:
        Whether there may be more.
    """
    due = db.execute(_DUE, (now, SLICE)).fetchall()
    for endpoint_id, at in due:
        side = side_of(db, endpoint_id)
        if side is not None and side.state in _CAN_BE_TIMED and at < side.lifetime:
            delivery.put(side, side.expected[0], DIALOG_TIMER, b"", priority=TIMER_PRIORITY)
        db.execute("UPDATE broker_conversation SET dialog_timer = NULL WHERE endpoint_id = ?", (endpoint_id,))
    delivery.flush()
    return len(due) == SLICE


class Expiry:
    """
    The walk through the conversations whose lifetime is over, each looked at once when that comes true; those that
    linger behind are looked at again, a slice at a time. Used by the writer thread only.
    """

    def __init__(self) -> None:
        self._fresh = _BEGINNING
        self._lingering = _BEGINNING

    def has_work(self, db: sqlite3.Connection, now: float) -> bool:
        """Whether any conversation is past its lifetime."""
        return db.execute(_OVER, (now, *_BEGINNING, 1)).fetchone() is not None

    def run(self, db: sqlite3.Connection, delivery: Delivery, now: float) -> Expired:
        """
        One slice of those that have just come true, and one of those that linger.

        Raises:
            sqlite3.Error: the transaction has to be rolled back; `forget` has to be called then.
        """
        expired = Expired()
        self._fresh = min(self._fresh, (now, 0))  # when the clock went back, it may come this way again
        fresh = db.execute(_OVER, (now, *self._fresh, SLICE)).fetchall()
        old = db.execute(_OVER, (min(now, self._fresh[0]), *self._lingering, SLICE)).fetchall()
        for endpoint_id in dict.fromkeys(row[1] for row in (*fresh, *old)):
            expired.finished += self._expire(db, delivery, endpoint_id, now)
        delivery.flush()
        self._fresh = fresh[-1] if fresh else self._fresh
        self._lingering = old[-1] if len(old) == SLICE else _BEGINNING
        expired.has_more = len(fresh) == SLICE
        return expired

    def forget(self) -> None:
        """What was done came to nothing: begin anew."""
        self._fresh = self._lingering = _BEGINNING

    def _expire(self, db: sqlite3.Connection, delivery: Delivery, endpoint_id: int, now: float) -> Iterator[int]:
        side = side_of(db, endpoint_id)
        if side is None:
            return
        has_failed = side.state is ConversationState.DISCONNECTED_INBOUND and _has(db, _HELD, endpoint_id)
        if has_failed or side.state in TAKES_MESSAGES:
            fail_side(db, delivery, side, _EXCEEDED, FailureReason.LIFETIME_EXCEEDED)
            yield endpoint_id
        elif side.state in (ConversationState.DISCONNECTED_OUTBOUND, ConversationState.CLOSED):
            close(db, endpoint_id, now, FailureReason.LIFETIME_EXCEEDED)
            yield endpoint_id
        elif side.lifetime + LINGER_SECONDS <= now and not _has(db, _UNREAD, endpoint_id):
            close(db, endpoint_id, now, FailureReason.LIFETIME_EXCEEDED)


def _has(db: sqlite3.Connection, query: str, endpoint_id: int) -> bool:
    return db.execute(query, (endpoint_id,)).fetchone() is not None


# --- purge ---
# What has served is removed in slices: tombstones, the fragments of large messages that were received, and what
# belonged
# to conversations and messages that are gone.
#
# For the writer thread. Removing a gigabyte at once would keep everybody from the file for seconds, so those who
# receive,
# end or acknowledge a large message only take away its row; its pieces go here, a few megabytes a turn.


TOMBSTONES = 256  # removed in one turn
PIECES = 64  # likewise of fragments and parts: 4 MiB and 16 MiB of the usual size
LOOKS = 256  # endpoints or messages looked at in one turn for pieces that belong to nothing

_RECEIVED = "SELECT endpoint_id, message_sequence_number FROM broker_received LIMIT 1"
_DONE = "DELETE FROM broker_received WHERE endpoint_id = ? AND message_sequence_number = ?"
_OF_MESSAGE = (
    "DELETE FROM broker_fragment WHERE endpoint_id = ?1 AND message_sequence_number = ?2 AND fragment_number IN"
    " (SELECT fragment_number FROM broker_fragment WHERE endpoint_id = ?1 AND message_sequence_number = ?2 LIMIT ?3)"
)
_OF_ENDPOINT = (
    "DELETE FROM broker_fragment WHERE endpoint_id = ?1 AND (message_sequence_number, fragment_number) IN"
    " (SELECT message_sequence_number, fragment_number FROM broker_fragment WHERE endpoint_id = ?1 LIMIT ?2)"
)
_OF_TRANSMISSION = (
    "DELETE FROM broker_transmission_part WHERE transmission_id = ?1 AND part_number IN"
    " (SELECT part_number FROM broker_transmission_part WHERE transmission_id = ?1 LIMIT ?2)"
)
_NEXT_ENDPOINT = "SELECT min(endpoint_id) FROM broker_fragment WHERE endpoint_id > ?"
_HAS_ENDPOINT = "SELECT 1 FROM broker_conversation WHERE endpoint_id = ?"
_FAILURE_OF_ENDPOINT = (
    "DELETE FROM broker_failure WHERE endpoint_id IN"
    " (SELECT endpoint_id FROM broker_failure WHERE endpoint_id = ?1 LIMIT ?2)"
)
_NEXT_FAILURE = "SELECT min(endpoint_id) FROM broker_failure WHERE endpoint_id > ?"
_NEXT_TRANSMISSION = "SELECT min(transmission_id) FROM broker_transmission_part WHERE transmission_id > ?"
_HAS_TRANSMISSION = "SELECT 1 FROM broker_transmission WHERE transmission_id = ?"


class Purge:
    """The walks through what may have served. Used by the writer thread only."""

    def __init__(self) -> None:
        self._orphans = (
            _PurgeWalk(_NEXT_ENDPOINT, _HAS_ENDPOINT, _OF_ENDPOINT),
            _PurgeWalk(_NEXT_FAILURE, _HAS_ENDPOINT, _FAILURE_OF_ENDPOINT),
            _PurgeWalk(_NEXT_TRANSMISSION, _HAS_TRANSMISSION, _OF_TRANSMISSION),
        )

    def has_work(self, db: sqlite3.Connection, now: float) -> bool:
        """Whether anything may have to be removed."""
        is_due = "SELECT 1 FROM broker_tombstone WHERE expire_time <= ? LIMIT 1"
        if db.execute(is_due, (now,)).fetchone() or db.execute(_RECEIVED).fetchone():
            return True
        found = [walk.find(db) for walk in self._orphans]  # each of them goes on
        return any(owner is not None for owner in found)

    def run(self, db: sqlite3.Connection, now: float) -> bool:
        """One slice, inside a transaction; whether there may be more."""
        has_more = purge_tombstones(db, now, TOMBSTONES)
        row = db.execute(_RECEIVED).fetchone()
        if row is not None:
            if db.execute(_OF_MESSAGE, (*row, PIECES)).rowcount < PIECES:
                db.execute(_DONE, row)
            has_more = True
        for walk in self._orphans:
            has_more |= walk.run(db)
        return has_more


class _PurgeWalk:
    """Looks through the owners of pieces, some at a time, for one that is gone."""

    def __init__(self, following: str, has_owner: str, remove: str) -> None:
        self._following = following
        self._has_owner = has_owner
        self._remove = remove
        self._after = -1

    def find(self, db: sqlite3.Connection) -> int | None:
        """The next owner that is gone, within LOOKS."""
        for _ in range(LOOKS):
            (owner,) = db.execute(self._following, (self._after,)).fetchone()
            if owner is None:
                self._after = -1
                return None
            if db.execute(self._has_owner, (owner,)).fetchone() is None:
                return int(owner)
            self._after = owner
        return None

    def run(self, db: sqlite3.Connection) -> bool:
        """Remove some pieces of one that is gone; whether one was found."""
        owner = self.find(db)
        if owner is not None:
            db.execute(self._remove, (owner, PIECES))
        return owner is not None


# --- housekeeping ---
# What the writer does of itself, now and then: timers, lifetimes, and the removal of what has served.
#
# For the writer thread; one `Housekeeping` for each database, whose walks go on from turn to turn.


class Maintenance:
    """What goes on from turn to turn."""

    def __init__(self) -> None:
        self._expiry = Expiry()
        self._purge = Purge()

    def has_work(self, db: sqlite3.Connection, now: float) -> bool:
        """Whether a transaction is worth while; reads only."""
        timer = next_timer(db)
        is_due = timer is not None and timer <= now
        return is_due or self._expiry.has_work(db, now) or self._purge.has_work(db, now)

    def run(self, db: sqlite3.Connection, now: float) -> MaintenanceResult:
        """One slice of everything, inside a transaction."""
        delivery = Delivery(db, now)
        has_timers = fire_timers(db, delivery, now)
        expired = self._expiry.run(db, delivery, now)
        has_rest = self._purge.run(db, now)
        return MaintenanceResult(expired.finished, has_timers or expired.has_more or has_rest)

    def forget(self) -> None:
        """What was done was rolled back."""
        self._expiry.forget()
