"""
The ledger: sent = acknowledged + held + failed with a reason, after every commit.

Messages are counted where they are: `send_sequence` and `acknowledged_sequence` of each conversation, and the rows
that are held in the transmission queue. Whoever takes rows from there that nobody acknowledged, or removes a
conversation, writes into `broker_ledger` what no row tells any more. Nothing here begins or ends a transaction, or
reads a row: the connection may be an application's own.
"""

from __future__ import annotations

import sqlite3
from enum import StrEnum

SENT, ACKNOWLEDGED = "sent", "acknowledged"  # entries for conversations that were removed

_ADD = (
    "INSERT INTO broker_ledger (entry, messages) SELECT ?, {what} FROM {table} WHERE endpoint_id = ?{more}"
    " ON CONFLICT (entry) DO UPDATE SET messages = messages + excluded.messages"
)
_HELD = _ADD.format(what="count(*)", table="broker_transmission", more=" HAVING count(*) > 0")
_SENT = _ADD.format(what="send_sequence", table="broker_conversation", more=" AND send_sequence > 0")
_ACKNOWLEDGED = _ADD.format(
    what="acknowledged_sequence", table="broker_conversation", more=" AND acknowledged_sequence > 0"
)


class FailureReason(StrEnum):
    """Why messages will never be sent, or no more; the entry of the ledger."""

    LIFETIME_EXCEEDED = "lifetime exceeded"
    FAILED_THERE = "error from the far side"
    FAILED_HERE = "error at this side"
    FAR_SIDE_ENDED = "the far side had ended"
    CLEANUP = "ended with cleanup"


def fail(db: sqlite3.Connection, endpoint_id: int, reason: str) -> None:
    """
    What a conversation still holds unacknowledged will not be sent: it is taken away and counted under the reason.

    From then on `acknowledged_sequence` of this conversation must not grow. The parts of large bodies are left to the
    daemon, which removes what belongs to no message in slices (`broker.store.purge`).
    """
    assert reason not in (SENT, ACKNOWLEDGED)
    db.execute(_HELD, (str(reason), endpoint_id))
    db.execute("DELETE FROM broker_transmission WHERE endpoint_id = ?", (endpoint_id,))


def remove(db: sqlite3.Connection, endpoint_id: int) -> None:
    """Remove the row of a conversation that holds nothing any more (`fail` goes before), its sums kept."""
    db.execute(_SENT, (SENT, endpoint_id))
    db.execute(_ACKNOWLEDGED, (ACKNOWLEDGED, endpoint_id))
    db.execute("DELETE FROM broker_conversation WHERE endpoint_id = ?", (endpoint_id,))
