"""
What applications queued becomes messages to send: found, loaded in order, and dropped when its dialog is over.

Runs in the writer thread, but only `expire_in_writer` writes. New rows are found by `transmission_id`, which grows with
every commit; the rows of one dialog are read by sequence number, as far as its window asks.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from broker.dialog.application import ERROR, error_body
from broker.dialog.contact import Contact
from broker.dialog.conversation import Outgoing, State
from broker.dialog.store import writing
from broker.wire.frame import Envelope, encode_envelope
from broker.wire.layout import NO_GUID

_REPLAY_GUARD = 30 * 60.0  # seconds after its lifetime for which a closed dialog is remembered; the original's figure


@dataclass(frozen=True, slots=True)
class Found:
    """A dialog that has something to send. Shape: `stored` next (sequence, fragment) expected from the far side."""

    endpoint_id: int
    contact: Contact
    first_sequence: int
    stored: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Want:
    """What to load. Shape: from `sequence` on, at most `messages`, and no more once `max_bytes` of body are read."""

    endpoint_id: int
    sequence: int
    messages: int
    max_bytes: int


def find_in_writer(db: sqlite3.Connection, instance: bytes, after: int) -> tuple[int, list[Found]]:
    """
    The dialogs with rows behind `after` in the transmission queue.

    Returns:
        The highest transmission_id seen, and the dialogs in the order in which they began to wait.
    """
    rows = db.execute(
        "SELECT max(t.transmission_id), t.endpoint_id, min(t.message_sequence_number), c.conversation_id,"
        " c.is_initiator, c.service_name, c.far_service, c.far_broker_instance,"
        " c.receive_sequence, c.receive_sequence_frag"
        " FROM broker_transmission t JOIN broker_conversation c USING (endpoint_id)"
        " WHERE t.transmission_id > ? GROUP BY t.endpoint_id ORDER BY min(t.transmission_id)",
        (after,),
    ).fetchall()
    found = [
        Found(
            endpoint_id,
            Contact(conversation, bool(is_initiator), service, instance, far_service, far or NO_GUID),
            first,
            (sequence, fragment),
        )
        for _, endpoint_id, first, conversation, is_initiator, service, far_service, far, sequence, fragment in rows
    ]
    return max((row[0] for row in rows), default=after), found


def load_in_writer(db: sqlite3.Connection, want: Want, fragment_size: int, now: float) -> list[Outgoing]:
    """The next messages of a dialog in order, each with its envelope."""
    rows = db.execute(
        "SELECT t.transmission_id, t.message_sequence_number, t.flags, t.message_type_name, t.enqueue_time,"
        " t.message_body, c.contract, c.lifetime, c.is_initiator"
        " FROM broker_transmission t JOIN broker_conversation c USING (endpoint_id)"
        " WHERE t.endpoint_id = ? AND t.message_sequence_number >= ?"
        " ORDER BY t.message_sequence_number LIMIT ?",
        (want.endpoint_id, want.sequence, want.messages),
    )
    loaded = []
    size = 0
    for transmission_id, sequence, flags, type_name, enqueued, payload, contract, lifetime, is_initiator in rows:
        is_opening = sequence == 0 and is_initiator
        envelope = encode_envelope(
            Envelope(
                type=type_name,
                contract=contract if is_opening else "",
                sent_us=int(enqueued * 1_000_000),
                lifetime=max(1, int(lifetime - now)) if is_opening else None,
            )
        )
        loaded.append(Outgoing(transmission_id, sequence, flags, payload, fragment_size, envelope))
        size += len(payload)
        if size >= want.max_bytes:
            break
    return loaded


def expire_in_writer(db: sqlite3.Connection, now: float) -> list[int]:
    """
    Fail the dialogs whose lifetime is over, and forget those that were closed long enough.

    Returns:
        The endpoint_ids that have nothing to send any more.
    """
    expired: list[int] = []
    over = db.execute(
        "SELECT endpoint_id, service_name, receive_sequence FROM broker_conversation"
        " WHERE lifetime <= ? AND state NOT IN ('ER', 'CD')",
        (now,),
    ).fetchall()
    old = "SELECT endpoint_id FROM broker_conversation WHERE lifetime <= ? AND state = 'CD'"
    guard = (now - _REPLAY_GUARD,)
    if not over and db.execute(f"{old} LIMIT 1", guard).fetchone() is None:
        return expired
    with writing(db):
        for endpoint_id, service, sequence in over:
            state = _fail(db, endpoint_id, service, sequence, now)
            db.execute("UPDATE broker_conversation SET state = ? WHERE endpoint_id = ?", (str(state), endpoint_id))
            db.execute("DELETE FROM broker_transmission WHERE endpoint_id = ?", (endpoint_id,))
            db.execute("DELETE FROM broker_fragment WHERE endpoint_id = ?", (endpoint_id,))
            expired.append(endpoint_id)
        db.execute("DELETE FROM broker_conversation WHERE lifetime <= ? AND state = 'CD'", guard)
    return expired


def _fail(db: sqlite3.Connection, endpoint_id: int, service: str, sequence: int, now: float) -> State:
    """The state of a dialog that outlived its lifetime: its application reads an error, unless it has ended here."""
    state = db.execute("SELECT state FROM broker_conversation WHERE endpoint_id = ?", (endpoint_id,)).fetchone()[0]
    if state == State.DISCONNECTED_OUTBOUND:
        return State.CLOSED
    db.execute(
        "INSERT INTO broker_message"
        " (queue_id, endpoint_id, message_sequence_number, message_type_name, message_enqueue_time, message_body)"
        " SELECT queue_id, ?, ?, ?, ?, ? FROM broker_service WHERE name = ?",
        (endpoint_id, sequence, ERROR, now, error_body(-8489, "the dialog has exceeded its LIFETIME"), service),
    )
    return State.ERROR
