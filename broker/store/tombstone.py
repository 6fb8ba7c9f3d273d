"""
What is left of a closed side of a dialog: enough to acknowledge what comes again, and to take nothing twice.

`close` may run in an application's own transaction and reads no row. How long a tombstone stays is the original's rule:
half an hour when nobody can open the dialog anew, which is the initiator's side always, and the target's as soon as the
initiator is known to have an answer; else half an hour past the lifetime of the dialog, at which the initiator stops.

Source: Service Broker documentation, "Dialog Conversations"; team blog, "How to prevent conversation endpoint leaks".
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from broker.conversation.frames import Contact, Place
from broker.protocol.frame import Header
from broker.protocol.layout import NO_GUID
from broker.store.ledger import fail, remove
from broker.store.secured import secured_of

REPLAY_GUARD = 30 * 60.0  # seconds; the original's figure

# A side that has neither sent nor received anything has nobody who could send again.
_BURY = (
    "INSERT OR REPLACE INTO broker_tombstone SELECT conversation_id, is_initiator, receive_sequence,"
    " receive_sequence_frag, ?1,"
    " CASE WHEN is_initiator OR is_opening_acknowledged > 0 THEN ?1 ELSE max(?1, lifetime) END + ?2,"
    " conversation_handle, service_name, far_service, far_broker_instance"
    " FROM broker_conversation WHERE endpoint_id = ?3"
    " AND (send_sequence, receive_sequence, receive_sequence_frag) > (0, 0, 0)"
)
_FORGET_KEY = (
    "DELETE FROM broker_session_key WHERE (conversation_id, is_initiator) ="
    " (SELECT conversation_id, is_initiator FROM broker_conversation WHERE endpoint_id = ?)"
    " AND (conversation_id, is_initiator) NOT IN (SELECT conversation_id, is_initiator FROM broker_tombstone)"
)
_FIND = (
    "SELECT receive_sequence, receive_sequence_frag, service_name, far_service, far_broker_instance, k.security,"
    " k.far_principal, k.secret FROM broker_tombstone t LEFT JOIN broker_session_key k"
    " USING (conversation_id, is_initiator) WHERE t.conversation_id = ? AND t.is_initiator = ?"
)
_MOVE = (
    "UPDATE broker_tombstone SET receive_sequence = ?, receive_sequence_frag = ?"
    " WHERE conversation_id = ? AND is_initiator = ?"
)
_PURGE = (
    "DELETE FROM broker_tombstone WHERE (conversation_id, is_initiator) IN"
    " (SELECT conversation_id, is_initiator FROM broker_tombstone WHERE expire_time <= ?"
    " ORDER BY expire_time LIMIT ?) RETURNING conversation_id, is_initiator"
)
_PURGE_KEY = "DELETE FROM broker_session_key WHERE conversation_id = ? AND is_initiator = ?"


def close(db: sqlite3.Connection, endpoint_id: int, now: float, reason: str) -> None:
    """
    A side is over: its row, its unread messages and what it holds unsent are gone, a tombstone and the ledger remain.

    The tombstone keeps the handle, for who asks what became of it; nothing else looks at that.

    What it had received of large or unfinished messages is left to the daemon, which removes it in slices.

    Args:
        db: Inside a transaction.
        endpoint_id: The side, as its row says; that row has to be up to date.
        now: UTC seconds since 1970.
        reason: Under which the ledger counts what was never acknowledged; see `broker.store.ledger.FailureReason`.
    """
    db.execute(_BURY, (now, REPLAY_GUARD, endpoint_id))
    forget_key(db, endpoint_id)
    fail(db, endpoint_id, reason)
    for table in ("broker_message", "broker_failure"):
        db.execute(f"DELETE FROM {table} WHERE endpoint_id = ?", (endpoint_id,))  # noqa: S608 - names listed above
    remove(db, endpoint_id)


def forget_key(db: sqlite3.Connection, endpoint_id: int) -> None:
    """How a side was sealed is forgotten with its row, which is there still, unless its tombstone needs it."""
    db.execute(_FORGET_KEY, (endpoint_id,))


@dataclass(slots=True)
class Tombstone:
    """One that was found. Shape: `expected` the next (sequence, fragment) of a far side that goes on sending."""

    contact: Contact
    expected: Place

    def move(self, db: sqlite3.Connection, expected: Place) -> None:
        """The far side has sent more, all of which is thrown away."""
        self.expected = expected
        db.execute(_MOVE, (*expected, self.contact.conversation_id, self.contact.is_initiator))


def find_tombstone(db: sqlite3.Connection, instance: bytes, header: Header) -> Tombstone | None:
    """
    The tombstone of the side to which a frame is sent, in the database with this broker instance.

    One that an older version made does not know its ends: they are those that the frame names.
    """
    row = db.execute(_FIND, (header.conversation_id, header.is_from_target)).fetchone()
    if row is None:
        return None
    sequence, fragment, service, far_service, far, *key = row
    if service is None:
        service, far_service, far = header.to_service, header.from_service, header.from_broker_instance
    ends = (service, instance, far_service, far or NO_GUID, secured_of(*key))
    return Tombstone(Contact(header.conversation_id, header.is_from_target, *ends), (sequence, fragment))


def purge_tombstones(db: sqlite3.Connection, now: float, limit: int) -> bool:
    """Remove at most so many that have served; whether there may be more."""
    purged = db.execute(_PURGE, (now, limit)).fetchall()
    db.executemany(_PURGE_KEY, purged)
    return len(purged) == limit
