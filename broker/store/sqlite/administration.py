"""
Administration of a database as a whole: give it another identity, or end all its conversations.

Both are for a file that was copied or put back from a backup. A new broker instance is for a copy that is to live next
to the original. No daemon may have the file open then, because it holds the instance in memory. Ending all
conversations with an error is for a file whose far sides have gone on without it; a daemon may run, and sends the
errors.

Source: Service Broker documentation, "Managing Service Broker Identities"; "ALTER DATABASE", service broker options.
"""

from __future__ import annotations

import sqlite3
import uuid
from dataclasses import dataclass

from broker.conversation.body_check import error_body
from broker.conversation.message_types import ERROR, ERROR_PRIORITY
from broker.protocol.layout import Flag
from broker.store.sqlite.ledger import ACKNOWLEDGED, ADD, SENT

BROKER_ERRORED = -9719  # the code that both ends read
CONTRACT_DROPPED = -8487
NEW_BROKER = "new broker instance"  # the entry of the ledger

_HELD_BY = (
    "transmission",
    "transmission_part",
    "message",
    "fragment",
    "received",
    "group_lock",
    "failure",
    "tombstone",
    "session_key",
)
_IS_OPEN = "state IN ('SO', 'SI', 'CO', 'DI') AND (?1 IS NULL OR contract = ?1)"
_PUT_HERE = (
    "INSERT INTO broker_message (queue_id, status, priority, endpoint_id, message_sequence_number, message_type_name,"  # noqa: S608 - a literal above
    " message_enqueue_time, message_body)"
    " SELECT s.queue_id, CASE WHEN f.quarantine_time IS NULL THEN 1 ELSE 4 END, ?2, c.endpoint_id, c.receive_sequence,"
    " ?3, ?4, ?5 FROM broker_conversation c JOIN broker_service s ON s.name = c.service_name"
    f" LEFT JOIN broker_failure f ON f.endpoint_id = c.endpoint_id WHERE {_IS_OPEN}"
)
_SEND_THERE = (
    "INSERT INTO broker_transmission"  # noqa: S608 - likewise
    " (endpoint_id, message_sequence_number, flags, message_type_name, enqueue_time, message_body)"
    " SELECT endpoint_id, send_sequence, ?2, ?3, ?4, ?5 FROM broker_conversation"
    f" WHERE {_IS_OPEN} AND state IN ('SI', 'CO')"
)
_UNFINISHED = (
    "DELETE FROM broker_fragment WHERE endpoint_id IN (SELECT endpoint_id FROM broker_conversation"  # noqa: S608 - likewise
    f" WHERE {_IS_OPEN}) AND message_sequence_number >="
    " (SELECT receive_sequence FROM broker_conversation c WHERE c.endpoint_id = broker_fragment.endpoint_id)"
)
_FAILED = (
    "UPDATE broker_conversation SET"  # noqa: S608 - likewise
    " end_dialog_sequence = CASE WHEN state IN ('SI', 'CO') THEN send_sequence ELSE end_dialog_sequence END,"
    " send_sequence = send_sequence + (state IN ('SI', 'CO')), early_fragments = 0,"
    f" dialog_timer = NULL, state = 'ER' WHERE {_IS_OPEN}"
)


@dataclass(frozen=True, slots=True)
class ContentsAtRisk:
    """By state the conversations; messages that are not acknowledged yet, and those that wait for RECEIVE."""

    conversations: dict[str, int]
    unsent: int
    unread: int

    @property
    def count(self) -> int:
        """All conversations."""
        return sum(self.conversations.values())

    def __str__(self) -> str:
        states = ", ".join(f"{number:,} {state}" for state, number in self.conversations.items())
        inside = f" ({states})" if states else ""
        many = "" if self.count == 1 else "s"
        to_send = "1 message" if self.unsent == 1 else f"{self.unsent:,} messages"
        return f"{self.count:,} conversation{many}{inside}, {to_send} to send, {self.unread:,} unread"


def stake_of(db: sqlite3.Connection) -> ContentsAtRisk:
    """Return the contents of this database now."""
    states = dict(db.execute("SELECT state, count(*) FROM broker_conversation GROUP BY 1 ORDER BY 1").fetchall())
    unsent = db.execute("SELECT count(*) FROM broker_transmission").fetchone()[0]
    unread = db.execute("SELECT count(*) FROM broker_message").fetchone()[0]
    return ContentsAtRisk(states, unsent, unread)


def new_broker(db: sqlite3.Connection, instance: uuid.UUID) -> int:
    """
    NEW_BROKER: give it another broker instance, and remove every conversation without notifying any peer.

    Queues, services, types, contracts, priorities and routes stay. Messages that were sent and not acknowledged are
    counted in the ledger under `NEW_BROKER`. Call it inside a transaction, with the lock of the file (`lock_store`).

    Args:
        db: The database.
        instance: Its new identity, freshly drawn.

    Returns:
        The number of conversations that there were.
    """
    for entry, what, table in (
        (NEW_BROKER, "count(*)", "transmission"),
        (SENT, "sum(send_sequence)", "conversation"),
        (ACKNOWLEDGED, "sum(acknowledged_sequence)", "conversation"),
    ):
        db.execute(ADD.format(what=what, rows=f"{table} HAVING more > 0"), (entry,))
    for table in _HELD_BY:
        db.execute(f"DELETE FROM broker_{table}")  # noqa: S608 - names listed above
    removed = db.execute("DELETE FROM broker_conversation").rowcount
    db.execute("UPDATE broker_database SET broker_instance = ?", (instance.bytes,))
    return removed


def error_conversations(
    db: sqlite3.Connection,
    now: float,
    *,
    code: int = BROKER_ERRORED,
    text: str = "all conversations of the database were ended with an error by an administrator",
    contract: str | None = None,
) -> int:
    """
    ERROR_BROKER_CONVERSATIONS: every open conversation ends with an error at both ends.

    The application here reads an Error message before any other message that waits. The far side reads one after
    everything that was sent, so nothing of that is lost. A conversation that has sent nothing, or that the far side has
    ended, fails here only; one that has ended here already is left alone. In state ER, `end_dialog_sequence` means that
    the error is on its way. Until the error is acknowledged, the messages that the conversation holds are not given up.
    Call it inside a transaction.

    Args:
        db: The database.
        now: UTC seconds since 1970.
        code: The error code that both ends read; negative, as it is the broker's.
        text: The description that is sent with the code.
        contract: End only the conversations of this contract; None = all.

    Returns:
        The number of conversations that it ended.
    """
    body = error_body(code, text)
    db.execute(_PUT_HERE, (contract, ERROR_PRIORITY, ERROR, now, body))
    db.execute(_SEND_THERE, (contract, int(Flag.ERROR), ERROR, now, body))
    db.execute(_UNFINISHED, (contract,))
    return db.execute(_FAILED, (contract,)).rowcount
