"""
Queries for single conversations of a database, for readers other than its writer: by GUID, by number, or all under way.

This module only reads, on any connection. Each query uses an index, with two exceptions. Numbers of all conversations,
and the conversations under way, are read through. The handle of a side that is not open is searched among all
tombstones. The answer of `find_conversation` is as of one moment. Bodies are not read, except those of Error messages,
which say why a dialog failed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker.conversation.body_check import error_parts
from broker.conversation.frames import Contact
from broker.conversation.message_types import ERROR, ERROR_PRIORITY
from broker.protocol.layout import NO_GUID
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.failure import IN_QUARANTINE, READY, UNCONFIRMED
from broker.store.sqlite.group_locks import LOCKED_GROUPS_SQL, locked_groups
from broker.store.sqlite.quarantine import Failure, failures
from broker.store.sqlite.reader_slots import records as reader_records
from broker.store.sqlite.session_keys import OWN_PRINCIPAL_SQL, sentence_sql
from broker.store.sqlite.transaction import path_of

_FIND = """
    SELECT conversation_id, is_initiator, service_name, far_service, far_broker_instance
    FROM broker_conversation WHERE conversation_handle = ?1 OR conversation_id = ?1
    ORDER BY conversation_handle = ?1 DESC, is_initiator DESC LIMIT 1
"""


def find_contact(db: sqlite3.Connection, guid: bytes) -> Contact | None:
    """
    The side of a dialog that lives here and has this handle or this id, 16 bytes; of two sides, the initiator's.

    Raises:
        sqlite3.Error: the database cannot be read.
    """
    row = db.execute(_FIND, (guid,)).fetchone()
    instance = broker_instance(db)
    if row is None:
        return None
    conversation_id, is_initiator, service, far_service, far_instance = row
    return Contact(conversation_id, bool(is_initiator), service, instance, far_service, far_instance or NO_GUID)


# Read at once. Each row releases the interpreter's lock for a moment too short for another thread to take it, and a
# waiting thread waits again: to read and decide alternately would delay the loop for as long as both take.
ROWS = 1000
# Without conversations that are closed or failed: their messages are no longer routed.
_UNDER_WAY = (
    "SELECT conversation_handle, conversation_id, is_initiator, service_name, far_service, far_broker_instance,"
    " send_sequence FROM broker_conversation WHERE state IN ('SO', 'SI', 'CO', 'DI', 'DO') ORDER BY endpoint_id"
)


class UnderWay(NamedTuple):
    """A side that may still send; GUIDs have 16 bytes, `far_broker_instance` is None while open."""

    conversation_handle: bytes
    conversation_id: bytes
    is_initiator: int
    service_name: str
    far_service: str
    far_broker_instance: bytes | None
    send_sequence: int


def conversations_under_way(db: sqlite3.Connection) -> Iterator[UnderWay]:
    """
    The sides that may still send, in the order in which they began; read `ROWS` at a time, on demand.

    Raises:
        sqlite3.Error: the database cannot be read.
    """
    cursor = db.execute(_UNDER_WAY)
    while rows := cursor.fetchmany(ROWS):
        yield from map(UnderWay._make, rows)


# --- where a conversation is ------------------------------------------------------------------------------------

_ERROR_BODY_MAX = 32_768  # bytes of an Error message that are read


@dataclass(frozen=True, slots=True)
class Inbound:
    """
    The messages and fragments that have arrived for one side.

    Attributes:
        queue_name: None when its service was dropped.
        ready: Whole messages that can be received.
        ready_since: When the next of them was queued.
        quarantined: Messages in quarantine.
        unconfirmed: Messages that wait until the initiator is known to have this database alone.
        early_fragments: Fragments that arrived out of order.
        is_taken: A reader has its conversation group, or the group rests after a failure.
        readers: Reader processes that live on this queue.
        poison: Why its reader fails.
        error_code: Of an unread Error message.
        error_text: Likewise.
    """

    queue_name: str | None
    is_receive_enabled: bool
    ready: int
    ready_since: float | None
    quarantined: int
    unconfirmed: int
    early_fragments: int
    is_taken: bool
    readers: int
    poison: Failure | None
    error_code: int | None
    error_text: str


@dataclass(frozen=True, slots=True)
class ConversationSide:
    """
    One side of a conversation as it is in this file.

    GUIDs have 16 bytes; times are UTC seconds.

    Attributes:
        far_broker_instance: None = open.
        transmission_status: As the daemon last wrote it.
        held: Messages sent and not acknowledged.
        held_from: The sequence number of the first of them.
        held_since: When it was sent.
        security: One sentence: sealed to whom, or why not.
        principal: Which this side proves to be; None where it proves none.
        sent_error_code: Of an Error message that is among those held.
        sent_error_text: Likewise.
    """

    endpoint_id: int
    conversation_handle: bytes
    conversation_id: bytes
    is_initiator: bool
    state: str
    service_name: str
    far_service: str
    far_broker_instance: bytes | None
    lifetime: float
    create_date: float
    dialog_timer: float | None
    send_sequence: int
    acknowledged_sequence: int
    receive_sequence: int
    end_dialog_sequence: int | None
    transmission_status: str | None
    held: int
    held_from: int | None
    held_since: float | None
    inbound: Inbound
    security: str = ""
    principal: str | None = None
    sent_error_code: int | None = None
    sent_error_text: str = ""


@dataclass(frozen=True, slots=True)
class Closed:
    """A side that is over, by its tombstone. Times are UTC seconds; old tombstones have no handle."""

    conversation_id: bytes
    is_initiator: bool
    receive_sequence: int
    close_time: float
    expire_time: float
    conversation_handle: bytes | None = None


@dataclass(frozen=True, slots=True)
class ConversationFacts:
    """The sides of a conversation in one database, those that exist and those that are closed."""

    sides: tuple[ConversationSide, ...]
    closed: tuple[Closed, ...]


def find_conversation(db: sqlite3.Connection, guid: bytes, now: float) -> ConversationFacts:
    """
    Return the sides of the conversation with this handle or this id; both sides when both live in this database.

    Args:
        db: A connection in no transaction.
        guid: A conversation_handle or a conversation_id.
        now: UTC seconds since 1970.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    db.execute("BEGIN")
    try:
        rows = db.execute(_SIDES, (guid,)).fetchall()
        closed = _closed(db, rows[0][2] if rows else guid)
        if not rows and not closed:
            by_handle = db.execute(_CLOSED_HANDLE, (guid,)).fetchone()
            closed = [] if by_handle is None else _closed(db, by_handle[0])
        return ConversationFacts(tuple(_side(db, row, now) for row in rows), tuple(closed))
    finally:
        db.execute("ROLLBACK")


_SIDES = f"""
    SELECT endpoint_id, conversation_handle, conversation_id, is_initiator, state, service_name, far_service,
     far_broker_instance, lifetime, create_date, dialog_timer, send_sequence, acknowledged_sequence, receive_sequence,
     end_dialog_sequence, transmission_status, {sentence_sql("")},
     {OWN_PRINCIPAL_SQL}
    FROM broker_conversation c WHERE conversation_id =
     coalesce((SELECT h.conversation_id FROM broker_conversation h WHERE h.conversation_handle = ?1), ?1)
    ORDER BY is_initiator DESC
"""  # noqa: S608
_CLOSED = """
    SELECT conversation_id, is_initiator, receive_sequence, close_time, expire_time, conversation_handle
    FROM broker_tombstone WHERE conversation_id = ?
"""
_CLOSED_HANDLE = "SELECT conversation_id FROM broker_tombstone WHERE conversation_handle = ?"
# The time is that of the first: SQLite takes a column next to a minimum from the row that has it.
_HELD = "SELECT count(*), min(message_sequence_number), enqueue_time FROM broker_transmission WHERE endpoint_id = ?"
_QUEUE = """
    SELECT q.name, q.is_receive_enabled FROM broker_service s JOIN broker_queue q USING (queue_id) WHERE s.name = ?
"""
_STATUSES = "SELECT status, count(*) FROM broker_message WHERE endpoint_id = ? GROUP BY status"
_NEXT = """
    SELECT message_enqueue_time FROM broker_message WHERE endpoint_id = ? AND status = 1
    ORDER BY priority DESC, queuing_order LIMIT 1
"""
_EARLY = """
    SELECT count(*) FROM broker_fragment WHERE endpoint_id = ?1
    AND (message_sequence_number, fragment_number) >= (SELECT receive_sequence, receive_sequence_frag
     FROM broker_conversation WHERE endpoint_id = ?1)
"""
_SENT_ERROR = """
    SELECT substr(message_body, 1, ?) FROM broker_transmission
    WHERE endpoint_id = ? AND message_sequence_number = ? AND message_type_name = ?
"""
_TAKEN = f"""
    SELECT 1 FROM broker_conversation WHERE endpoint_id = ? AND conversation_group_id IN ({LOCKED_GROUPS_SQL})
"""  # noqa: S608
_ERROR = """
    SELECT substr(message_body, 1, ?) FROM broker_message
    WHERE endpoint_id = ? AND status IN (1, 4) AND priority = ? AND message_type_name = ? LIMIT 1
"""


def _closed(db: sqlite3.Connection, conversation_id: bytes) -> list[Closed]:
    return [Closed(row[0], bool(row[1]), *row[2:]) for row in db.execute(_CLOSED, (conversation_id,))]


def _side(db: sqlite3.Connection, row: tuple[Any, ...], now: float) -> ConversationSide:
    endpoint_id, service = row[0], row[5]
    held = db.execute(_HELD, (endpoint_id,)).fetchone()
    inbound = _inbound(db, endpoint_id, service, now)
    ending = db.execute(_SENT_ERROR, (_ERROR_BODY_MAX, endpoint_id, row[14], ERROR)).fetchone()
    values = (*row[:3], bool(row[3]), *row[4:-2], *held, inbound, *row[-2:], *_error(ending))
    return ConversationSide(*values)


def _inbound(db: sqlite3.Connection, endpoint_id: int, service: object, now: float) -> Inbound:
    name, is_enabled = db.execute(_QUEUE, (service,)).fetchone() or (None, 0)
    messages = dict(db.execute(_STATUSES, (endpoint_id,)).fetchall())
    (since,) = db.execute(_NEXT, (endpoint_id,)).fetchone() or (None,)
    error = db.execute(_ERROR, (_ERROR_BODY_MAX, endpoint_id, ERROR_PRIORITY, ERROR)).fetchone()
    error_code, error_text = _error(error)
    locks = locked_groups(db, now)  # of readers that live, and of groups that rest after a failure
    return Inbound(
        queue_name=name,
        is_receive_enabled=bool(is_enabled),
        ready=messages.get(READY, 0),
        ready_since=since,
        quarantined=messages.get(IN_QUARANTINE, 0),
        unconfirmed=messages.get(UNCONFIRMED, 0),
        early_fragments=db.execute(_EARLY, (endpoint_id,)).fetchone()[0],
        is_taken=locks is not None and db.execute(_TAKEN, (endpoint_id, *locks)).fetchone() is not None,
        readers=0 if name is None else sum(one.queue_name == name for one in reader_records(path_of(db))),
        poison=next(failures(db, endpoint_id), None),
        error_code=error_code,
        error_text=error_text,
    )


def _error(row: tuple[object] | None) -> tuple[int | None, str]:
    """Code and text of the body of an Error message; None and "" where there is none."""
    return error_parts(row[0] if row is not None and isinstance(row[0], bytes) else b"")
