"""
Requests for routes, as rows: which are open, what they ask for, and how long an answered one is remembered.

`broker.dialog.route_requests` knows what a request is and when it is made. Here it is a conversation like every other,
and its group says what it asks for. Nothing here begins or ends a transaction; the connection may be an
application's own.
"""

from __future__ import annotations

import sqlite3

from broker.conversation.state import ConversationState
from broker.store.rows import ask

_OPEN = (
    "SELECT conversation_handle, conversation_group_id, create_date FROM broker_conversation"
    " WHERE is_initiator AND service_name = ? AND far_service = ? AND state NOT IN ('DO', 'CD')"
)


def open_requests(db: sqlite3.Connection, service_name: str, far_service: str) -> list[tuple[bytes, bytes, float]]:
    """
    (conversation_handle, conversation_group_id, begun at UTC seconds) of what one asks the other and is not over.

    Cost: it reads all conversations.
    """
    return db.execute(_OPEN, (service_name, far_service)).fetchall()


def put_group(db: sqlite3.Connection, conversation_handle: bytes, conversation_group_id: bytes) -> None:
    """A conversation belongs to this group; nobody has a lock on the one that it had."""
    statement = "UPDATE broker_conversation SET conversation_group_id = ? WHERE conversation_handle = ?"
    db.execute(statement, (conversation_group_id, conversation_handle))


def put_lifetime(db: sqlite3.Connection, conversation_handle: bytes, lifetime: float) -> None:
    """A conversation ends at this UTC time."""
    db.execute(
        "UPDATE broker_conversation SET lifetime = ? WHERE conversation_handle = ?", (lifetime, conversation_handle)
    )


def shorten_lifetime(db: sqlite3.Connection, conversation_handle: bytes, lifetime: float) -> None:
    """A conversation ends at this UTC time, unless it ends earlier anyhow."""
    statement = "UPDATE broker_conversation SET lifetime = min(lifetime, ?) WHERE conversation_handle = ?"
    ask(db, statement, (lifetime, conversation_handle))


def is_begun_here(db: sqlite3.Connection, conversation_handle: bytes) -> bool:
    """Whether this side, which exists, is the initiator's."""
    question = "SELECT is_initiator FROM broker_conversation WHERE conversation_handle = ?"
    return bool(db.execute(question, (conversation_handle,)).fetchone()[0])


def state_of(db: sqlite3.Connection, conversation_handle: bytes) -> ConversationState:
    """The state of a side; CLOSED when it is gone."""
    question = "SELECT state FROM broker_conversation WHERE conversation_handle = ?"
    row = db.execute(question, (conversation_handle,)).fetchone()
    return ConversationState.CLOSED if row is None else ConversationState(row[0])
