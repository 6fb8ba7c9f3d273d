"""
The rows of one side of a dialog: its state and counters, its keys, its entry in the ledger, its tombstone.

The writer thread uses `SideTable` while it applies arrivals. The functions below it may also run in an application's
own transaction: they neither begin nor end one, and those that end a side read no row.

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
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from broker.conversation.frames import Contact, Place
from broker.conversation.state import ConversationState
from broker.protocol.frame import Header
from broker.protocol.layout import NO_GUID
from broker.security.seal import Mode
from broker.security.session import Secured
from broker.store.sqlite.metadata import priority_for
from broker.store.sqlite.transaction import ask

SENT, ACKNOWLEDGED = "sent", "acknowledged"  # entries of the ledger for conversations that were removed
REPLAY_GUARD = 30 * 60.0  # seconds that a tombstone stays; the original's figure
NONE = "NONE"  # `broker_session_key.security` without a mode
OPENING_UNKNOWN, OPENING_ACKNOWLEDGED, NAMING_PROVES_NOTHING = 0, 1, -1  # is_opening_acknowledged


class FailureReason(StrEnum):
    """Why messages will never be sent, or not again; the entry of the ledger."""

    LIFETIME_EXCEEDED = "lifetime exceeded"
    FAILED_THERE = "error from the far side"
    FAILED_HERE = "error at this side"
    FAR_SIDE_ENDED = "the far side had ended"
    CLEANUP = "ended with cleanup"


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
        return _side_row(self._db.execute(query, (conversation_id, is_initiator)).fetchone(), self.instance)

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


def side_of(db: sqlite3.Connection, endpoint_id: int) -> SideRow | None:
    """The side of this number; its contact does not say which database this is."""
    return _side_row(db.execute(f"{_COLUMNS} WHERE endpoint_id = ?", (endpoint_id,)).fetchone(), NO_GUID)


def _side_row(row: tuple[Any, ...] | None, instance: bytes) -> SideRow | None:
    if row is None:
        return None
    conversation_id, is_initiator, endpoint_id, state, service, far_service, far, contract, priority, *rest = row
    lifetime, send, acknowledged, sequence, fragment, early, opening, end, *key = rest
    contact = Contact(
        conversation_id, bool(is_initiator), service, instance, far_service, far or NO_GUID, secured_of(*key)
    )
    kind = (ConversationState(state), contract, priority, lifetime)
    side = SideRow(endpoint_id, contact, *kind, send, acknowledged, (sequence, fragment), early, opening, end)
    side.saved = side.values()
    return side


# --- the end of a side, and the ledger --------------------------------------------------------------------------

_ADD = (
    "INSERT INTO broker_ledger (entry, messages) SELECT ?, {what} FROM {table} WHERE endpoint_id = ?{more}"
    " ON CONFLICT (entry) DO UPDATE SET messages = messages + excluded.messages"
)
_ADD_HELD = _ADD.format(what="count(*)", table="broker_transmission", more=" HAVING count(*) > 0")
_ADD_SENT = _ADD.format(what="send_sequence", table="broker_conversation", more=" AND send_sequence > 0")
_ADD_ACKNOWLEDGED = _ADD.format(
    what="acknowledged_sequence", table="broker_conversation", more=" AND acknowledged_sequence > 0"
)
# A side that has neither sent nor received anything has no peer that could send again.
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
    for table in ("broker_message", "broker_failure"):
        db.execute(f"DELETE FROM {table} WHERE endpoint_id = ?", (endpoint_id,))  # noqa: S608 - names listed above
    remove(db, endpoint_id)


def purge_tombstones(db: sqlite3.Connection, now: float, limit: int) -> bool:
    """Remove at most so many tombstones that have expired; whether there may be more."""
    purged = db.execute(_PURGE, (now, limit)).fetchall()
    db.executemany(_PURGE_KEY, purged)
    return len(purged) == limit


# --- how a side is secured: from its beginning until its tombstone is removed; a side in clear has no row -----------

_PUT_KEY = (
    "INSERT OR REPLACE INTO broker_session_key (conversation_id, is_initiator, security, far_principal,"
    " far_certificate, security_timestamp, secret) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SET_CERTIFICATE = (
    "UPDATE broker_session_key SET far_certificate = ?1 WHERE conversation_id = ?2 AND is_initiator = ?3"
    " AND far_certificate IS NOT ?1"
)


def secured_of(security: str | None, far_principal: str | None, secret: bytes | None) -> Secured | None:
    """Return the security of a side from the columns of its row; None where there is no row."""
    if security is None:
        return None
    return Secured(None if security == NONE else Mode(security), far_principal or "", secret or b"")


def load_secured(db: sqlite3.Connection, conversation_id: bytes, *, is_initiator: bool) -> Secured | None:
    """How this side is secured, whether it is there or its tombstone."""
    query = "SELECT security, far_principal, secret FROM broker_session_key"
    key = (conversation_id, is_initiator)
    row = db.execute(f"{query} WHERE conversation_id = ? AND is_initiator = ?", key).fetchone()
    return None if row is None else secured_of(*row)


def put_secured(
    db: sqlite3.Connection,
    conversation_id: bytes,
    secured: Secured,
    now: float,
    *,
    is_initiator: bool,
    certificate: str = "",
) -> None:
    """
    Keep how a side is secured from now on.

    Args:
        db: Inside a transaction.
        conversation_id: Of the dialog.
        secured: How.
        now: UTC seconds since 1970.
        is_initiator: Which side.
        certificate: SHA-256 of the far side's signing certificate in hexadecimal digits, empty where it is not known.
    """
    security = NONE if secured.mode is None else str(secured.mode)
    shown = f"sha256:{certificate}" if certificate else None
    values = (security, secured.far_principal or None, shown, now, secured.secret or None)
    db.execute(_PUT_KEY, (conversation_id, is_initiator, *values))


def forget_key(db: sqlite3.Connection, endpoint_id: int) -> None:
    """Forget how a side was sealed, before its row is removed, unless its tombstone needs it."""
    db.execute(_FORGET_KEY, (endpoint_id,))


def note_certificate(db: sqlite3.Connection, conversation_id: bytes, certificate: str, *, is_initiator: bool) -> None:
    """The certificate that the far side has proved to have, SHA-256 in hexadecimal digits; it may have a new one."""
    db.execute(_SET_CERTIFICATE, (f"sha256:{certificate}", conversation_id, is_initiator))


def note_own_certificate(db: sqlite3.Connection, subject: str | None) -> None:
    """The subject of this database's certificate, for those who begin dialogs in it; None = it has none."""
    db.execute("UPDATE broker_database SET certificate = ?1 WHERE certificate IS NOT ?1", (subject,))


def sentence_sql(*, schema: str, far_service: str) -> str:
    """
    Return SQL of one sentence about how a side is secured: the principal that it is sealed to, or why it is not sealed.

    The SQL is for a query in which the columns of the side are named `c.`.

    Args:
        schema: The schema of the tables, as it is written before their names.
        far_service: SQL of the name of the far service; null where it is no longer known.
    """
    known = "coalesce(' (' || substr(k.far_certificate, 1, 19) || '...)', '')"
    return (
        "coalesce((SELECT CASE"  # noqa: S608 - of the callers' own literals
        f" WHEN k.security = 'FULL' THEN 'sealed to ' || k.far_principal || {known} || ', full'"
        " WHEN k.security = 'ANONYMOUS' AND k.is_initiator THEN"
        f" 'sealed to ' || k.far_principal || {known} || ', anonymous: it does not learn who sends'"
        " WHEN k.security = 'ANONYMOUS' THEN 'sealed to whoever began it, anonymous'"
        " WHEN k.is_initiator THEN 'in clear within this instance, which it may not leave: no remote service binding'"
        f" || coalesce(' for ' || {far_service}, '')"
        " ELSE 'in clear: it began within this instance' END"
        f" FROM {schema}broker_session_key k"
        " WHERE k.conversation_id = c.conversation_id AND k.is_initiator = c.is_initiator),"
        f" CASE WHEN {far_service} IS NULL THEN 'in clear'"
        f" WHEN c.is_initiator THEN 'in clear: no remote service binding for ' || {far_service}"
        " ELSE 'in clear: its initiator does not seal it' END)"
    )


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


def put_group(db: sqlite3.Connection, conversation_handle: bytes, conversation_group_id: bytes) -> None:
    """Move a conversation to this group; no reader may have locked the one that it had."""
    statement = "UPDATE broker_conversation SET conversation_group_id = ? WHERE conversation_handle = ?"
    db.execute(statement, (conversation_group_id, conversation_handle))


def put_lifetime(db: sqlite3.Connection, conversation_handle: bytes, lifetime: float) -> None:
    """Let a conversation end at this UTC time."""
    db.execute(
        "UPDATE broker_conversation SET lifetime = ? WHERE conversation_handle = ?", (lifetime, conversation_handle)
    )


def shorten_lifetime(db: sqlite3.Connection, conversation_handle: bytes, lifetime: float) -> None:
    """Let a conversation end at this UTC time, unless it ends earlier."""
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
