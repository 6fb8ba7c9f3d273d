"""The row of one side of a dialog while arrivals are applied to it. For the writer thread."""

from __future__ import annotations

import sqlite3
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from broker.conversation.frames import Contact, Place
from broker.conversation.state import ConversationState
from broker.protocol.frame import Header
from broker.protocol.layout import NAME_MAX_BYTES, NO_GUID
from broker.security.seal import Mode
from broker.security.session import Secured
from broker.store.sqlite.metadata import priority_for

# --- ledger ---
# The ledger: sent = acknowledged + held + failed with a reason, after every commit.
#
# Messages are counted where they are: `send_sequence` and `acknowledged_sequence` of each conversation, and the rows
# that are held in the transmission queue. Whoever takes rows from there that nobody acknowledged, or removes a
# conversation, writes into `broker_ledger` what no row tells any more. Nothing here begins or ends a transaction, or
# reads a row: the connection may be an application's own.


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
    daemon, which removes what belongs to no message in slices (`broker.store.sqlite.expiry`).
    """
    assert reason not in (SENT, ACKNOWLEDGED)
    db.execute(_HELD, (str(reason), endpoint_id))
    db.execute("DELETE FROM broker_transmission WHERE endpoint_id = ?", (endpoint_id,))


def remove(db: sqlite3.Connection, endpoint_id: int) -> None:
    """Remove the row of a conversation that holds nothing any more (`fail` goes before), its sums kept."""
    db.execute(_SENT, (SENT, endpoint_id))
    db.execute(_ACKNOWLEDGED, (ACKNOWLEDGED, endpoint_id))
    db.execute("DELETE FROM broker_conversation WHERE endpoint_id = ?", (endpoint_id,))


# --- secured ---
# How the sides of dialogs are secured, as the file keeps it: from the beginning of a side until its tombstone goes.
#
# A side in clear has no row. Nothing here begins or ends a transaction, and what is written is one row: the
# connection
# may be an application's own.


NONE = "NONE"  # `broker_session_key.security` without a mode

_LOAD = "SELECT security, far_principal, secret FROM broker_session_key WHERE conversation_id = ? AND is_initiator = ?"
_PUT = (
    "INSERT OR REPLACE INTO broker_session_key (conversation_id, is_initiator, security, far_principal,"
    " far_certificate, security_timestamp, secret) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SEEN = (
    "UPDATE broker_session_key SET far_certificate = ?1 WHERE conversation_id = ?2 AND is_initiator = ?3"
    " AND far_certificate IS NOT ?1"
)


def secured_of(security: str | None, far_principal: str | None, secret: bytes | None) -> Secured | None:
    """What the columns of a row say; None where there is no row."""
    if security is None:
        return None
    return Secured(None if security == NONE else Mode(security), far_principal or "", secret or b"")


def load_secured(db: sqlite3.Connection, conversation_id: bytes, *, is_initiator: bool) -> Secured | None:
    """How this side is secured, whether it is there or its tombstone."""
    row = db.execute(_LOAD, (conversation_id, is_initiator)).fetchone()
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
    db.execute(_PUT, (conversation_id, is_initiator, *values))


def note_certificate(db: sqlite3.Connection, conversation_id: bytes, certificate: str, *, is_initiator: bool) -> None:
    """The certificate that the far side has proved to have, SHA-256 in hexadecimal digits; it may have a new one."""
    db.execute(_SEEN, (f"sha256:{certificate}", conversation_id, is_initiator))


def note_own_certificate(db: sqlite3.Connection, subject: str | None) -> None:
    """Whose certificate this database has, for those who begin dialogs in it; None = it has none. In a transaction."""
    db.execute("UPDATE broker_database SET certificate = ?1 WHERE certificate IS NOT ?1", (subject,))


def sentence_sql(*, schema: str, far_service: str) -> str:
    """
    SQL of one sentence about how a side is secured: sealed to whom, or why not.

    Args:
        schema: Where the tables are, as it stands before their names; of a side whose columns are named `c.`.
        far_service: SQL of the name of the far service; null where it is not known any more.
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


# --- tombstone ---
# What is left of a closed side of a dialog: enough to acknowledge what comes again, and to take nothing twice.
#
# `close` may run in an application's own transaction and reads no row. How long a tombstone stays is the original's
# rule:
# half an hour when nobody can open the dialog anew, which is the initiator's side always, and the target's as soon as
# the
# initiator is known to have an answer; else half an hour past the lifetime of the dialog, at which the initiator
# stops.
#
# Source: Service Broker documentation, "Dialog Conversations"; team blog, "How to prevent conversation endpoint
# leaks".


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
        reason: Under which the ledger counts what was never acknowledged; see `broker.store.sqlite.side.FailureReason`.
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
