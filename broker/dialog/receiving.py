"""
What arrived becomes stored: one transaction for a whole batch of frames, then acknowledgements.

Runs in the writer thread. Frames are grouped by dialog and side; each group moves its endpoint row on by the rules of
`broker.dialog.conversation` and the row is written once. Nothing is acknowledged before the commit: the caller sends
what the `Receipt` says only after `receive_in_writer` has returned.

Source: docs/protocol.md, section 4; Service Broker documentation, "Service Broker Communication Protocols".
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.dialog.application import DEFAULT_LIFETIME, END_DIALOG, ERROR, LIFETIME_MAX, error_body
from broker.dialog.assembly import Assembly
from broker.dialog.contact import Contact
from broker.dialog.conversation import TAKES_MESSAGES, TRANSITIONS, Arrival, Happening, State, after, place
from broker.dialog.store import writing
from broker.errors import FrameMalformedError
from broker.flow import Disposition
from broker.wire.frame import (
    Envelope,
    Fault,
    Header,
    checksum,
    decode_dialog,
    decode_envelope,
    decode_fault,
    decode_stored,
)
from broker.wire.layout import NO_GUID, Flag, Kind

_ENDPOINT = (
    "SELECT endpoint_id, conversation_id, is_initiator, state, service_name, far_service, far_broker_instance,"
    " send_sequence, acknowledged_sequence, receive_sequence, receive_sequence_frag, early_fragments,"
    " end_dialog_sequence FROM broker_conversation WHERE conversation_id = ? AND is_initiator = ?"
)
_SAVE = (
    "UPDATE broker_conversation SET state = ?, far_broker_instance = ?, acknowledged_sequence = ?,"
    " receive_sequence = ?, receive_sequence_frag = ?, early_fragments = ? WHERE endpoint_id = ?"
)
_CREATE = (
    "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator, conversation_group_id,"
    " state, service_name, far_service, far_broker_instance, contract, lifetime, create_date)"
    " VALUES (?, ?, 0, ?, 'SI', ?, ?, ?, ?, ?, ?)"
)
_ENQUEUE = (
    "INSERT INTO broker_message"
    " (queue_id, endpoint_id, message_sequence_number, message_type_name, message_enqueue_time, message_body)"
    " SELECT queue_id, ?, ?, ?, ?, ? FROM broker_service WHERE name = ?"
)

Group = list[tuple[Header, bytes]]


@dataclass(slots=True)
class Receipt:
    """
    What a batch led to, for the loop to act on after the commit.

    Shape: `stored` endpoint_id -> its contact and the next (sequence, fragment) expected, to be acknowledged;
    `acknowledged` endpoint_id -> (sequence, fragment) that the far side has; `contacts` endpoints whose far side
    became known; `finished` endpoints that have nothing to send any more; `faults` to send; `delivered` whole
    messages by service; `dropped` by disposition.
    """

    stored: dict[int, tuple[Contact, tuple[int, int]]] = field(default_factory=dict)
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    contacts: dict[int, Contact] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    faults: list[tuple[Contact, Fault]] = field(default_factory=list)
    delivered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[Disposition] = field(default_factory=Counter)


def receive_in_writer(db: sqlite3.Connection, instance: bytes, frames: Iterable[bytes], now: float) -> Receipt:
    """
    Store a batch of dialog frames for this database.

    Args:
        db: Its connection.
        instance: Its broker instance.
        frames: Whole frames in the order of arrival.
        now: UTC seconds since 1970.

    Raises:
        sqlite3.Error: the store failed; nothing of the batch is stored, and nothing may be acknowledged.
    """
    receipt = Receipt()
    groups: dict[tuple[bytes, bool], Group] = {}
    for frame in frames:
        try:
            header, body = decode_dialog(frame)
        except FrameMalformedError:
            receipt.dropped[Disposition.MALFORMED] += 1
            continue
        if header.flags & Flag.SEALED or (header.body_checksum and header.body_checksum != checksum(body)):
            receipt.dropped[Disposition.CORRUPTED] += 1
            continue
        groups.setdefault((header.conversation_id, header.is_from_target), []).append((header, body))
    with writing(db):
        for (conversation_id, is_from_target), group in groups.items():
            reception = _Reception(db, instance, receipt, now)
            reception.run(conversation_id, group, is_initiator=is_from_target)
    return receipt


@dataclass(slots=True)
class _Endpoint:
    """The row of one side while a group is applied to it."""

    endpoint_id: int
    contact: Contact
    state: State
    send_sequence: int
    acknowledged_sequence: int
    expected: tuple[int, int]
    early_fragments: int
    end_dialog_sequence: int | None


class _Reception:
    """One group of frames of one dialog and side, inside the batch's transaction."""

    def __init__(self, db: sqlite3.Connection, instance: bytes, receipt: Receipt, now: float) -> None:
        self._db = db
        self._instance = instance
        self._receipt = receipt
        self._now = now
        self._endpoint: _Endpoint
        self._assembly: Assembly

    def run(self, conversation_id: bytes, group: Group, *, is_initiator: bool) -> None:
        """Apply the group in order and write the row once."""
        row = self._db.execute(_ENDPOINT, (conversation_id, is_initiator)).fetchone()
        endpoint = self._from_row(row) if row is not None else self._create(group, is_initiator=is_initiator)
        if endpoint is None:
            return
        self._endpoint = endpoint
        self._assembly = Assembly(self._db, endpoint.endpoint_id)
        for header, body in group:
            if self._is_from_far_side(header):
                self._acknowledge(header)
                if header.kind == Kind.MESSAGE:
                    self._message(header, body)
                elif header.kind == Kind.FAULT:
                    self._fault(body)
                elif header.kind == Kind.ACK:
                    self._ack(body)
                else:
                    self._drop(Disposition.MALFORMED)
        self._save()

    # --- the endpoint ---

    def _from_row(self, row: tuple[object, ...]) -> _Endpoint:
        endpoint_id, conversation_id, is_initiator, state, service, far_service, far, send, acked, *rest = row
        contact = Contact(conversation_id, bool(is_initiator), service, self._instance, far_service, far or NO_GUID)  # type: ignore[arg-type]
        sequence, fragment, early, end = rest
        return _Endpoint(endpoint_id, contact, State(state), send, acked, (sequence, fragment), early, end)  # type: ignore[arg-type]

    def _create(self, group: Group, *, is_initiator: bool) -> _Endpoint | None:
        """The endpoint that the first message of a dialog makes at the target; None when there is nothing to make."""
        first = next((pair for pair in group if pair[0].kind == Kind.MESSAGE and pair[0].place == (0, 0)), None)
        if first is None or is_initiator:
            self._drop(Disposition.UNKNOWN_CONVERSATION, frames=len(group))
            return None
        header, body = first
        contact = Contact(
            header.conversation_id,
            is_initiator=False,
            service_name=header.to_service,
            broker_instance=self._instance,
            far_service=header.from_service,
            far_broker_instance=header.from_broker_instance,
        )
        envelope = self._acceptable(header, body, contact, frames=len(group))
        if envelope is None:
            return None
        told = envelope.lifetime if envelope.lifetime is not None else DEFAULT_LIFETIME.total_seconds()
        lifetime = min(told, LIFETIME_MAX)
        values = (uuid.uuid4().bytes, header.conversation_id, uuid.uuid4().bytes, header.to_service)
        far = (header.from_service, header.from_broker_instance)
        cursor = self._db.execute(_CREATE, (*values, *far, envelope.contract, self._now + lifetime, self._now))
        assert cursor.lastrowid is not None
        return _Endpoint(cursor.lastrowid, contact, State.STARTED_INBOUND, 0, 0, (0, 0), 0, None)

    def _acceptable(self, header: Header, body: bytes, contact: Contact, *, frames: int) -> Envelope | None:
        """The envelope of message 0 when its service is here and takes its contract; else the answer is on its way."""
        service = self._db.execute(
            "SELECT contracts FROM broker_service WHERE name = ?", (header.to_service,)
        ).fetchone()
        if service is None:
            # Without the service a frame comes here only when the dialog or its route names this database (R4.1).
            self._drop(Disposition.SERVICE_NOT_FOUND, frames=frames)
            text = f"the service {header.to_service!r} does not exist in the broker instance that was named"
            self._receipt.faults.append((contact, Fault(-8490, text)))
            return None
        try:
            envelope, _ = decode_envelope(body)
        except FrameMalformedError:
            self._drop(Disposition.CORRUPTED, frames=frames)
            return None
        contracts = json.loads(service[0])
        if contracts and envelope.contract not in contracts:
            self._drop(Disposition.CONTRACT_REFUSED, frames=frames)
            text = f"the service {header.to_service!r} does not accept the contract {envelope.contract!r}"
            self._receipt.faults.append((contact, Fault(-8408, text)))
            return None
        return envelope

    def _is_from_far_side(self, header: Header) -> bool:
        """Whether the database that this dialog is bound to sent it; the first answer binds an open dialog (R5.1)."""
        endpoint = self._endpoint
        far = endpoint.contact.far_broker_instance
        if far == header.from_broker_instance:
            return True
        if far == NO_GUID and endpoint.contact.is_initiator:
            if header.kind in (Kind.MESSAGE, Kind.ACK):
                self._bind(header.from_broker_instance)
            return True
        self._drop(Disposition.OTHER_INSTANCE)
        if endpoint.contact.is_initiator and header.kind in (Kind.MESSAGE, Kind.ACK):
            other = endpoint.contact.bound_to(header.from_broker_instance)
            self._receipt.faults.append((other, Fault(-8495, "another instance of the service has this conversation")))
        return False

    def _bind(self, far: bytes) -> None:
        self._endpoint.contact = self._endpoint.contact.bound_to(far)
        self._receipt.contacts[self._endpoint.endpoint_id] = self._endpoint.contact

    def _save(self) -> None:
        endpoint = self._endpoint
        self._db.execute(
            "DELETE FROM broker_transmission WHERE endpoint_id = ? AND message_sequence_number < ?",
            (endpoint.endpoint_id, endpoint.acknowledged_sequence),
        )
        if endpoint.end_dialog_sequence is not None and endpoint.acknowledged_sequence > endpoint.end_dialog_sequence:
            self._change(Happening.END_ACKNOWLEDGED)
        far = endpoint.contact.far_broker_instance
        self._db.execute(
            _SAVE,
            (
                str(endpoint.state),
                None if far == NO_GUID else far,
                endpoint.acknowledged_sequence,
                *endpoint.expected,
                endpoint.early_fragments,
                endpoint.endpoint_id,
            ),
        )

    # --- acknowledgements of what was sent here ---

    def _acknowledge(self, header: Header) -> None:
        endpoint = self._endpoint
        acknowledged = (header.ack_sequence, header.ack_fragment)
        if acknowledged == (0, 0):
            return
        if acknowledged > (endpoint.send_sequence, 0):
            self._drop(Disposition.OUT_OF_SEQUENCE)  # it acknowledges what was never sent
            return
        known = self._receipt.acknowledged.get(endpoint.endpoint_id, (0, 0))
        self._receipt.acknowledged[endpoint.endpoint_id] = max(known, acknowledged)
        endpoint.acknowledged_sequence = max(endpoint.acknowledged_sequence, header.ack_sequence)

    def _ack(self, body: bytes) -> None:
        try:
            decode_stored(body)
        except FrameMalformedError:
            self._drop(Disposition.MALFORMED)

    # --- messages ---

    def _message(self, header: Header, body: bytes) -> None:
        endpoint = self._endpoint
        arrival = place(endpoint.expected, *header.place)
        if arrival is Arrival.TOO_EARLY:
            self._drop(Disposition.OUT_OF_SEQUENCE)
            return
        if arrival is Arrival.DUPLICATE:
            self._drop(Disposition.DUPLICATE)
        elif endpoint.state not in TAKES_MESSAGES:
            self._drop(Disposition.CONVERSATION_ENDED)
            if arrival is Arrival.EXPECTED:
                endpoint.expected = after(endpoint.expected, header.flags)
        elif arrival is Arrival.EARLY:
            self._keep_early(header, body)
        else:
            self._accept(header.flags, body)
            self._catch_up()
        self._receipt.stored[endpoint.endpoint_id] = (endpoint.contact, endpoint.expected)

    def _keep_early(self, header: Header, body: bytes) -> None:
        if self._assembly.keep(header.place, header.flags, body):
            self._endpoint.early_fragments += 1
        else:
            self._drop(Disposition.DUPLICATE)

    def _accept(self, flags: int, body: bytes) -> None:
        """The expected fragment: a whole message goes to its queue, a part is kept."""
        endpoint = self._endpoint
        where = endpoint.expected
        endpoint.expected = after(where, flags)
        if not flags & Flag.LAST_FRAGMENT:
            self._assembly.keep(where, flags, body)
        elif where[1] == 0 and not endpoint.early_fragments:
            self._whole(where[0], flags, body)
        else:
            self._whole(where[0], flags, self._collect(where) + body)

    def _catch_up(self) -> None:
        """Early fragments whose turn has come."""
        endpoint = self._endpoint
        while endpoint.early_fragments and endpoint.state in TAKES_MESSAGES:
            where = endpoint.expected
            flags = self._assembly.flags(where)
            if flags is None:
                return
            endpoint.early_fragments -= 1
            endpoint.expected = after(where, flags)
            if flags & Flag.LAST_FRAGMENT:
                self._whole(where[0], flags, self._collect(where))

    def _collect(self, last: tuple[int, int]) -> bytes:
        """What is kept of the message whose last fragment has this place."""
        body, strays = self._assembly.collect(*last)
        self._endpoint.early_fragments -= strays
        return body

    def _whole(self, sequence: int, flags: int, body: bytes) -> None:
        """A whole message in its turn."""
        is_end = bool(flags & Flag.END_DIALOG)
        try:
            envelope, payload = decode_envelope(body) if body or not is_end else (Envelope(), b"")
        except FrameMalformedError as error:
            self._drop(Disposition.CORRUPTED)
            self._fail(sequence, Fault(-8430, f"the message body failed validation: {error}"), is_told=True)
            return
        if flags & Flag.ERROR:
            type_name, happening = ERROR, Happening.ERROR_RECEIVED
        elif is_end:
            type_name, happening = END_DIALOG, Happening.END_RECEIVED
        else:
            type_name, happening = envelope.type, Happening.FIRST_RECEIVED
        if self._enqueue(sequence, type_name, payload):
            self._change(happening)
        else:
            self._drop(Disposition.SERVICE_NOT_FOUND)
            service = self._endpoint.contact.service_name
            self._fail(sequence, Fault(-8470, f"the service {service!r} has been dropped"), is_told=True)

    # --- errors ---

    def _fault(self, body: bytes) -> None:
        try:
            fault = decode_fault(body)
        except FrameMalformedError:
            self._drop(Disposition.MALFORMED)
            return
        self._fail(self._endpoint.expected[0], fault, is_told=False)

    def _fail(self, sequence: int, fault: Fault, *, is_told: bool) -> None:
        """The dialog has failed: the application reads an Error message, and the far side is told when it must be."""
        endpoint = self._endpoint
        if (endpoint.state, Happening.ERROR_RECEIVED) not in TRANSITIONS:
            return
        if endpoint.state is not State.DISCONNECTED_OUTBOUND:
            self._enqueue(sequence, ERROR, error_body(fault.code, fault.text))
        if is_told:
            self._receipt.faults.append((endpoint.contact, fault))
        self._change(Happening.ERROR_RECEIVED)

    def _enqueue(self, sequence: int, type_name: str, payload: bytes) -> bool:
        """Put a message into the queue of the service; False when the service has been dropped."""
        endpoint = self._endpoint
        service = endpoint.contact.service_name
        cursor = self._db.execute(_ENQUEUE, (endpoint.endpoint_id, sequence, type_name, self._now, payload, service))
        self._receipt.delivered[service] += cursor.rowcount
        return cursor.rowcount > 0

    def _change(self, happening: Happening) -> None:
        endpoint = self._endpoint
        endpoint.state = TRANSITIONS.get((endpoint.state, happening), endpoint.state)
        if endpoint.state not in TAKES_MESSAGES:
            self._assembly.discard()
            endpoint.early_fragments = 0
        if endpoint.state in (State.ERROR, State.CLOSED):
            self._db.execute("DELETE FROM broker_transmission WHERE endpoint_id = ?", (endpoint.endpoint_id,))
            self._receipt.finished.add(endpoint.endpoint_id)

    def _drop(self, disposition: Disposition, *, frames: int = 1) -> None:
        self._receipt.dropped[disposition] += frames
