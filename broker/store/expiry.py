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
from broker.store.delivery import Delivery
from broker.store.failing import fail_side
from broker.store.ledger import FailureReason
from broker.store.side import side_of
from broker.store.tombstone import close

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
