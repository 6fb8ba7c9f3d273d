"""The row of one side of a dialog while arrivals are applied to it. For the writer thread."""

from __future__ import annotations

import sqlite3
import uuid
from dataclasses import dataclass
from typing import Any

from broker.conversation.frames import Contact, Place
from broker.conversation.state import ConversationState
from broker.protocol.layout import NAME_MAX_BYTES, NO_GUID
from broker.store.metadata import priority_for
from broker.store.secured import secured_of

_COLUMNS = (
    "SELECT c.conversation_id, c.is_initiator, endpoint_id, state, service_name, far_service, far_broker_instance,"
    " contract, priority, lifetime, send_sequence, acknowledged_sequence, receive_sequence, receive_sequence_frag,"
    " early_fragments, is_opening_acknowledged, end_dialog_sequence, k.security, k.far_principal, k.secret"
    " FROM broker_conversation c LEFT JOIN broker_session_key k USING (conversation_id, is_initiator)"
)
_SAVE = (  # the state only when it has changed: to check it doubles the cost
    "UPDATE broker_conversation SET {}acknowledged_sequence = ?, receive_sequence = ?, receive_sequence_frag = ?,"
    " early_fragments = ?, is_opening_acknowledged = ? WHERE endpoint_id = ?"
)
_SAVE_COUNTS = _SAVE.format("")
_SAVE_ALL = _SAVE.format("state = ?, far_broker_instance = ?, ")
_CREATE = (
    "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator, conversation_group_id,"
    " state, service_name, far_service, far_broker_instance, contract, priority, lifetime, create_date,"
    " is_opening_acknowledged) VALUES (?, ?, 0, ?, 'SI', ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FORGET = "DELETE FROM broker_transmission WHERE endpoint_id = ? AND message_sequence_number < ?"

OPENING_UNKNOWN, OPENING_ACKNOWLEDGED, NAMING_PROVES_NOTHING = 0, 1, -1  # is_opening_acknowledged


@dataclass(slots=True)
class SideRow:
    """Shape: as in `broker_conversation`; `expected` the next (sequence, fragment) of the far side."""

    endpoint_id: int
    contact: Contact
    state: ConversationState
    contract: str
    priority: int
    lifetime: float
    send_sequence: int = 0
    acknowledged_sequence: int = 0
    expected: Place = (0, 0)
    early_fragments: int = 0
    opening: int = OPENING_UNKNOWN
    end_dialog_sequence: int | None = None


def load_side(db: sqlite3.Connection, instance: bytes, conversation_id: bytes, *, is_initiator: bool) -> SideRow | None:
    """One side of a dialog; None when it does not live here."""
    query = f"{_COLUMNS} WHERE c.conversation_id = ? AND c.is_initiator = ?"
    return _side(db.execute(query, (conversation_id, is_initiator)).fetchone(), instance)


def side_of(db: sqlite3.Connection, endpoint_id: int) -> SideRow | None:
    """The side of this number; its contact does not say which database this is."""
    return _side(db.execute(f"{_COLUMNS} WHERE endpoint_id = ?", (endpoint_id,)).fetchone(), NO_GUID)


def create_side(
    db: sqlite3.Connection, contact: Contact, contract: str, lifetime: float, now: float, *, is_named: bool
) -> SideRow:
    """
    The target's side of a dialog that begins.

    Args:
        db: Inside a transaction.
        contact: Both ends.
        contract: As the initiator tells it.
        lifetime: UTC instant at which the dialog expires.
        now: UTC seconds since 1970.
        is_named: Whether the initiator named this database before it can have had an answer.
    """
    priority = priority_for(db, contract, contact.service_name, contact.far_service)
    opening = NAMING_PROVES_NOTHING if is_named else OPENING_UNKNOWN
    ids = (uuid.uuid4().bytes, contact.conversation_id, uuid.uuid4().bytes)
    names = (contact.service_name, contact.far_service, contact.far_broker_instance, contract)
    cursor = db.execute(_CREATE, (*ids, *names, priority, lifetime, now, opening))
    assert cursor.lastrowid is not None
    return SideRow(
        cursor.lastrowid, contact, ConversationState.STARTED_INBOUND, contract, priority, lifetime, opening=opening
    )


def save_side(db: sqlite3.Connection, side: SideRow, before: SideRow) -> None:
    """Write what has changed since `before`, and forget the messages that the far side has."""
    if side == before:
        return
    if side.acknowledged_sequence > before.acknowledged_sequence:
        db.execute(_FORGET, (side.endpoint_id, side.acknowledged_sequence))
    far = side.contact.far_broker_instance
    counts = (side.acknowledged_sequence, *side.expected, side.early_fragments, side.opening, side.endpoint_id)
    if side.state is before.state and far == before.contact.far_broker_instance:
        db.execute(_SAVE_COUNTS, counts)
    else:
        db.execute(_SAVE_ALL, (str(side.state), None if far == NO_GUID else far, *counts))


def is_name(text: str) -> bool:
    """Whether a far side may name a message type or a contract so; one that names none has left it out."""
    return len(text.encode()) <= NAME_MAX_BYTES


def copy_of(side: SideRow) -> SideRow:
    """The side as it is now."""
    return SideRow(  # by hand: `replace` takes as long as a statement
        side.endpoint_id,
        side.contact,
        side.state,
        side.contract,
        side.priority,
        side.lifetime,
        side.send_sequence,
        side.acknowledged_sequence,
        side.expected,
        side.early_fragments,
        side.opening,
        side.end_dialog_sequence,
    )


def _side(row: tuple[Any, ...] | None, instance: bytes) -> SideRow | None:
    if row is None:
        return None
    conversation_id, is_initiator, endpoint_id, state, service, far_service, far, contract, priority, *rest = row
    lifetime, send, acknowledged, sequence, fragment, early, opening, end, *key = rest
    secured = secured_of(*key)
    contact = Contact(conversation_id, bool(is_initiator), service, instance, far_service, far or NO_GUID, secured)
    place, counts = (sequence, fragment), (send, acknowledged)
    return SideRow(
        endpoint_id,
        contact,
        ConversationState(state),
        contract,
        priority,
        lifetime,
        *counts,
        place,
        early,
        opening,
        end,
    )
