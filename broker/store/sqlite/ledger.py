"""
The end of one side of a dialog: what it had not got acknowledged is counted in the ledger, and a tombstone remains.

The functions may run in an application's own transaction: they neither begin nor end one, and they read no row.

The ledger: sent = acknowledged + held + failed with a reason, after every commit. Messages are counted where they are:
`send_sequence` and `acknowledged_sequence` of each conversation, and the rows held in the transmission queue. A
function that removes a conversation, or rows of that queue that were not acknowledged, writes into `broker_ledger` the
counts that are then in no row.

A tombstone is the rest of a closed side: enough to acknowledge frames that arrive again, and to accept nothing twice.
It stays as long as the original's: half an hour when no peer can open the dialog again. That is always true of the
initiator's side, and of the target's as soon as the initiator is known to have an answer. Otherwise it stays until half
an hour past the lifetime of the dialog, at which the initiator stops.

Source: Service Broker documentation, "Dialog Conversations"; team blog, "How to prevent conversation endpoint leaks".
"""

from __future__ import annotations

import sqlite3
from enum import StrEnum

from broker.store.sqlite.session_keys import forget_key

SENT, ACKNOWLEDGED = "sent", "acknowledged"  # entries of the ledger for conversations that were removed
REPLAY_GUARD = 30 * 60.0  # seconds that a tombstone stays; the original's figure


class FailureReason(StrEnum):
    """Why messages will never be sent, or not again; the entry of the ledger."""

    LIFETIME_EXCEEDED = "lifetime exceeded"
    FAILED_THERE = "error from the far side"
    FAILED_HERE = "error at this side"
    FAR_SIDE_ENDED = "the far side had ended"
    CLEANUP = "ended with cleanup"


ADD = (
    "INSERT INTO broker_ledger (entry, messages) SELECT ?, {what} AS more FROM broker_{rows}"
    " ON CONFLICT (entry) DO UPDATE SET messages = messages + excluded.messages"
)
# How many messages went unsent, or unacknowledged, when an application ended its side.
GIVEN_UP_SQL = (
    "SELECT total(messages) FROM broker_ledger"  # noqa: S608 - the words above
    f" WHERE entry IN ('{FailureReason.CLEANUP}', '{FailureReason.FAR_SIDE_ENDED}')"
)
_ADD_HELD = ADD.format(what="count(*)", rows="transmission WHERE endpoint_id = ? HAVING more > 0")
_ADD_SENT = ADD.format(what="send_sequence", rows="conversation WHERE endpoint_id = ? AND more > 0")
_ADD_ACKNOWLEDGED = ADD.format(what="acknowledged_sequence", rows="conversation WHERE endpoint_id = ? AND more > 0")
# A side that has neither sent nor received anything has no peer that could send again.
_BURY = (
    "INSERT OR REPLACE INTO broker_tombstone SELECT conversation_id, is_initiator, receive_sequence,"
    " receive_sequence_frag, ?1,"
    " CASE WHEN is_initiator OR is_opening_acknowledged > 0 THEN ?1 ELSE max(?1, lifetime) END + ?2,"
    " conversation_handle, service_name, far_service, far_broker_instance"
    " FROM broker_conversation WHERE endpoint_id = ?3"
    " AND (send_sequence, receive_sequence, receive_sequence_frag) > (0, 0, 0)"
)
_PURGE = (
    "DELETE FROM broker_tombstone WHERE (conversation_id, is_initiator) IN"
    " (SELECT conversation_id, is_initiator FROM broker_tombstone WHERE expire_time <= ?"
    " ORDER BY expire_time LIMIT ?) RETURNING conversation_id, is_initiator"
)
_PURGE_KEY = "DELETE FROM broker_session_key WHERE conversation_id = ? AND is_initiator = ?"


def fail(db: sqlite3.Connection, endpoint_id: int, reason: str) -> None:
    """
    Remove what a conversation still holds unacknowledged, and count it under the reason: it will not be sent.

    From then on `acknowledged_sequence` of this conversation must not grow. The parts of large bodies are left to the
    daemon, which removes what belongs to no message in slices (`broker.store.sqlite.expiry`).
    """
    assert reason not in (SENT, ACKNOWLEDGED)
    db.execute(_ADD_HELD, (str(reason), endpoint_id))
    db.execute("DELETE FROM broker_transmission WHERE endpoint_id = ?", (endpoint_id,))


def remove(db: sqlite3.Connection, endpoint_id: int) -> None:
    """Remove the row of a conversation that holds no messages (after `fail`), and keep its sums in the ledger."""
    db.execute(_ADD_SENT, (SENT, endpoint_id))
    db.execute(_ADD_ACKNOWLEDGED, (ACKNOWLEDGED, endpoint_id))
    db.execute("DELETE FROM broker_conversation WHERE endpoint_id = ?", (endpoint_id,))


def close(db: sqlite3.Connection, endpoint_id: int, now: float, reason: str) -> None:
    """
    End a side: remove its row, its unread and its unsent messages; a tombstone and the ledger remain.

    The tombstone keeps the handle, so that the side can still be found by it. Fragments of large or unfinished messages
    that the side had received are left to the daemon, which removes them in slices.

    Args:
        db: A connection inside a transaction.
        endpoint_id: The side; its row has to be up to date.
        now: UTC seconds since 1970.
        reason: The ledger counts messages that were never acknowledged under this reason; a `FailureReason`.
    """
    db.execute(_BURY, (now, REPLAY_GUARD, endpoint_id))
    forget_key(db, endpoint_id)
    fail(db, endpoint_id, reason)
    forget_unread(db, endpoint_id)
    remove(db, endpoint_id)


def forget_unread(db: sqlite3.Connection, endpoint_id: int) -> None:
    """Delete the messages of a side that wait to be received, and what is known of a failure among them."""
    for table in ("broker_message", "broker_failure"):
        db.execute(f"DELETE FROM {table} WHERE endpoint_id = ?", (endpoint_id,))  # noqa: S608 - names listed above


def purge_tombstones(db: sqlite3.Connection, now: float, limit: int) -> bool:
    """Remove at most so many tombstones that have expired; whether there may be more."""
    purged = db.execute(_PURGE, (now, limit)).fetchall()
    db.executemany(_PURGE_KEY, purged)
    return len(purged) == limit
