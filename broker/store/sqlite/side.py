"""
The rows of one side of a dialog: its state and counters, its tombstone.

The writer thread uses `SideTable` while it applies arrivals. How a side ends is in `ledger`, how it is secured in
`session_keys`.

Source: Service Broker documentation, "Dialog Conversations"; team blog, "How to prevent conversation endpoint leaks".
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from broker.conversation.frames import Contact, Place
from broker.conversation.state import ConversationState
from broker.protocol.frame import Header
from broker.protocol.layout import NO_GUID
from broker.store.port import AckState
from broker.store.sqlite.dialog_rules import priority_for
from broker.store.sqlite.failure import UNCONFIRMED
from broker.store.sqlite.ledger import FailureReason, close, fail
from broker.store.sqlite.session_keys import secured_of
from broker.store.sqlite.transaction import ask

UNCONFIRMED_MAX = 1000  # sides that are asked about in one turn
OPENING_UNKNOWN, OPENING_ACKNOWLEDGED, NAMING_PROVES_NOTHING = 0, 1, -1  # is_opening_acknowledged


@dataclass(slots=True)
class SideRow:
    """
    One side of a dialog, as in `broker_conversation`.

    Attributes:
        expected: The next (sequence, fragment) of the far side.
        opening: `is_opening_acknowledged`.
        saved: The row's values of the columns that arrivals change, as `SideTable` wrote or read them.
    """

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
    saved: tuple[Any, ...] = field(default=(), compare=False)

    def values(self) -> tuple[Any, ...]:
        """The columns that arrivals change: first those that hardly ever do, then the counters."""
        far = self.contact.far_broker_instance
        counters = (self.acknowledged_sequence, *self.expected, self.early_fragments, self.opening)
        return self.state, None if far == NO_GUID else far, *counters


@dataclass(slots=True)
class Tombstone:
    """The rest of a closed side; `expected` is the next (sequence, fragment) of a far side that goes on sending."""

    contact: Contact
    expected: Place


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
_SAVE_COUNTERS = _SAVE.format("")
_SAVE_ALL = _SAVE.format("state = ?, far_broker_instance = ?, ")
_CREATE = (
    "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator, conversation_group_id,"
    " state, service_name, far_service, far_broker_instance, contract, priority, lifetime, create_date,"
    " is_opening_acknowledged) VALUES (?, ?, 0, ?, 'SI', ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FORGET_ACKNOWLEDGED = "DELETE FROM broker_transmission WHERE endpoint_id = ? AND message_sequence_number < ?"
_UNCONFIRMED = (
    f"{_COLUMNS} WHERE endpoint_id IN"  # noqa: S608 - columns listed above
    " (SELECT DISTINCT endpoint_id FROM broker_message WHERE status = ?"
    " AND queue_id IN (SELECT queue_id FROM broker_service WHERE is_exclusive_target) LIMIT ?)"
)
_RECEIVING = f"{_COLUMNS} WHERE c.conversation_id = ? AND (receive_sequence, receive_sequence_frag) > (0, 0)"
_FIND_TOMBSTONE = (
    "SELECT receive_sequence, receive_sequence_frag, service_name, far_service, far_broker_instance, k.security,"
    " k.far_principal, k.secret FROM broker_tombstone t LEFT JOIN broker_session_key k"
    " USING (conversation_id, is_initiator) WHERE t.conversation_id = ? AND t.is_initiator = ?"
)
_MOVE_TOMBSTONE = (
    "UPDATE broker_tombstone SET receive_sequence = ?, receive_sequence_frag = ?"
    " WHERE conversation_id = ? AND is_initiator = ?"
)


class SideTable:
    """The sides of one database, inside the transaction of one batch; `instance` is its broker instance."""

    def __init__(self, db: sqlite3.Connection, instance: bytes, now: float) -> None:
        self.instance = instance
        self.now = now
        self._db = db

    def load(self, conversation_id: bytes, *, is_initiator: bool) -> SideRow | None:
        """One side of a dialog; None when it does not live here."""
        query = f"{_COLUMNS} WHERE c.conversation_id = ? AND c.is_initiator = ?"
        row = self._db.execute(query, (conversation_id, is_initiator)).fetchone()
        return None if row is None else _side_of_row(row, self.instance)

    def create(self, contact: Contact, contract: str, lifetime: float, *, is_named: bool) -> SideRow:
        """
        Make the target's side of a dialog that begins.

        Args:
            contact: Both ends.
            contract: The initiator's.
            lifetime: UTC instant at which the dialog expires.
            is_named: Whether the initiator named this database before it can have had an answer.
        """
        priority = priority_for(self._db, contract, contact.service_name, contact.far_service)
        opening = NAMING_PROVES_NOTHING if is_named else OPENING_UNKNOWN
        ids = (uuid.uuid4().bytes, contact.conversation_id, uuid.uuid4().bytes)
        names = (contact.service_name, contact.far_service, contact.far_broker_instance, contract)
        cursor = self._db.execute(_CREATE, (*ids, *names, priority, lifetime, self.now, opening))
        assert cursor.lastrowid is not None
        state = ConversationState.STARTED_INBOUND
        side = SideRow(cursor.lastrowid, contact, state, contract, priority, lifetime, opening=opening)
        side.saved = side.values()
        return side

    def save(self, side: SideRow) -> None:
        """Write what has changed, and remove the messages that the far side has acknowledged."""
        values, saved = side.values(), side.saved
        if values == saved:
            return
        if values[2] > saved[2]:
            self._db.execute(_FORGET_ACKNOWLEDGED, (side.endpoint_id, side.acknowledged_sequence))
        if values[:2] == saved[:2]:
            self._db.execute(_SAVE_COUNTERS, (*values[2:], side.endpoint_id))
        else:
            self._db.execute(_SAVE_ALL, (str(side.state), *values[1:], side.endpoint_id))
        side.saved = values

    def fail(self, side: SideRow, reason: FailureReason) -> None:
        """Give up the messages that the side holds: they will not be sent."""
        fail(self._db, side.endpoint_id, reason)

    def close(self, side: SideRow, reason: FailureReason) -> None:
        """The side, which is saved, is over; a tombstone remains."""
        close(self._db, side.endpoint_id, self.now, reason)

    def find_tombstone(self, header: Header) -> Tombstone | None:
        """
        The tombstone of the side to which a frame is sent.

        One that an older version made does not know its ends: they are those that the frame names.
        """
        row = self._db.execute(_FIND_TOMBSTONE, (header.conversation_id, header.is_from_target)).fetchone()
        if row is None:
            return None
        sequence, fragment, service, far_service, far, *key = row
        if service is None:
            service, far_service, far = header.to_service, header.from_service, header.from_broker_instance
        ends = (service, self.instance, far_service, far or NO_GUID, secured_of(*key))
        return Tombstone(Contact(header.conversation_id, header.is_from_target, *ends), (sequence, fragment))

    def move_tombstone(self, tombstone: Tombstone, expected: Place) -> None:
        """The far side has sent more, all of which is discarded."""
        tombstone.expected = expected
        contact = tombstone.contact
        self._db.execute(_MOVE_TOMBSTONE, (*expected, contact.conversation_id, contact.is_initiator))


def unconfirmed_sides(db: sqlite3.Connection, instance: bytes) -> dict[int, AckState]:
    """Sides of services that are exclusive targets whose messages wait for a confirmation, UNCONFIRMED_MAX at most."""
    rows = db.execute(_UNCONFIRMED, (UNCONFIRMED, UNCONFIRMED_MAX)).fetchall()
    return _ack_states(rows, instance, is_unconfirmed=True)


def receiving_sides(db: sqlite3.Connection, instance: bytes, conversations: Iterable[bytes]) -> dict[int, AckState]:
    """The open sides of these conversations that have received something."""
    rows = [row for one in conversations for row in db.execute(_RECEIVING, (one,)).fetchall()]
    return _ack_states(rows, instance, is_unconfirmed=False)


def _ack_states(rows: Iterable[tuple[Any, ...]], instance: bytes, *, is_unconfirmed: bool) -> dict[int, AckState]:
    """The acknowledgements of these sides, which leave at once."""
    sides = [_side_of_row(row, instance) for row in rows]
    return {
        side.endpoint_id: AckState(side.contact, side.expected, is_urgent=True, is_confirmation_wanted=is_unconfirmed)
        for side in sides
    }


def side_of(db: sqlite3.Connection, endpoint_id: int) -> SideRow | None:
    """The side of this number; its contact does not say which database this is."""
    row = db.execute(f"{_COLUMNS} WHERE endpoint_id = ?", (endpoint_id,)).fetchone()
    return None if row is None else _side_of_row(row, NO_GUID)


def _side_of_row(row: tuple[Any, ...], instance: bytes) -> SideRow:
    conversation_id, is_initiator, endpoint_id, state, service, far_service, far, contract, priority, *rest = row
    lifetime, send, acknowledged, sequence, fragment, early, opening, end, *key = rest
    contact = Contact(
        conversation_id, bool(is_initiator), service, instance, far_service, far or NO_GUID, secured_of(*key)
    )
    kind = (ConversationState(state), contract, priority, lifetime)
    side = SideRow(endpoint_id, contact, *kind, send, acknowledged, (sequence, fragment), early, opening, end)
    side.saved = side.values()
    return side


# --- single columns, by handle -----------------------------------------------------------------------------------

_OPEN_BETWEEN = (
    "SELECT conversation_handle, conversation_group_id, create_date FROM broker_conversation"
    " WHERE is_initiator AND service_name = ? AND far_service = ? AND state NOT IN ('DO', 'CD')"
)


def dialogs_between(db: sqlite3.Connection, service_name: str, far_service: str) -> list[tuple[bytes, bytes, float]]:
    """
    (conversation_handle, conversation_group_id, begun at UTC seconds) of open dialogs from one service to another.

    Cost: it reads all conversations.
    """
    return db.execute(_OPEN_BETWEEN, (service_name, far_service)).fetchall()


def shorten_lifetime(db: sqlite3.Connection, conversation_handle: bytes, lifetime: float) -> None:
    """Let a conversation end at this UTC time, unless it ends earlier."""
    statement = "UPDATE broker_conversation SET lifetime = min(lifetime, ?) WHERE conversation_handle = ?"
    ask(db, statement, (lifetime, conversation_handle))


def state_of(db: sqlite3.Connection, conversation_handle: bytes) -> ConversationState:
    """The state of a side; CLOSED when it is gone."""
    question = "SELECT state FROM broker_conversation WHERE conversation_handle = ?"
    row = db.execute(question, (conversation_handle,)).fetchone()
    return ConversationState.CLOSED if row is None else ConversationState(row[0])
