"""
Frames of a dialog of which no side lives here: a beginning, what comes again after the end, or a stranger's.

For the writer thread. A beginning makes the target's side. After the end a tombstone acknowledges whatever still comes
and throws it away. Of anything else nothing is known here: a far side that goes on sending is told so, for else it
would send until the dialog's lifetime is over.

Source: Service Broker documentation, "Dialog Conversations"; message 8462.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from broker.conversation.frames import EARLY_WINDOW, Arrival, Contact, Place, after, place
from broker.conversation.message_types import DEFAULT_LIFETIME, END_DIALOG, LIFETIME_MAX, error_body
from broker.conversation.state import TAKES_MESSAGES, TRANSITIONS, ConversationState, Happening
from broker.errors import FrameMalformedError
from broker.flow import Disposition
from broker.protocol.frame import (
    TRACE_PARENT,
    Envelope,
    Fault,
    Header,
    are_bounded,
    checksum,
    decode_dialog,
    decode_envelope,
    decode_fault,
    decode_stored,
)
from broker.protocol.layout import HEADERS_MAX, HEADERS_MAX_BYTES, NAME_MAX_BYTES, Flag, FrameKind
from broker.security.session import Secured
from broker.store.port import AckState, ReceiveResult, Run
from broker.store.sqlite.reassembly import EarlyFragment, LargeBody, QueueWriter, Reassembly
from broker.store.sqlite.side import (
    OPENING_ACKNOWLEDGED,
    OPENING_UNKNOWN,
    FailureReason,
    SideRow,
    Tombstone,
    close,
    copy_of,
    create_side,
    fail,
    find_tombstone,
    is_name,
    load_side,
    save_side,
)
from broker.store.sqlite.verify import FrameVerifier, VerifiedBatch

Group = list[tuple[Header, bytes]]
_FRAGMENT_MAX = 2**32 - 1


class Arrived(NamedTuple):
    """
    Frames of one dialog and side, of which no row is here; those that are believed.

    Shape: `instance` the broker instance of this database; `secured` how all of them are secured.
    """

    instance: bytes
    group: Group
    secured: Secured | None

    def contact(self, header: Header) -> Contact:
        """Both ends as seen from here, as a frame says."""
        return Contact(
            header.conversation_id,
            is_initiator=header.is_from_target,
            service_name=header.to_service,
            broker_instance=self.instance,
            far_service=header.from_service,
            far_broker_instance=header.from_broker_instance,
            secured=self.secured,
        )


def throw_away(db: sqlite3.Connection, group: Group, tombstone: Tombstone, receipt: ReceiveResult) -> None:
    """Frames for a side that has ended: messages are acknowledged and thrown away. Inside the batch's transaction."""
    contact = tombstone.contact
    messages = [one for one, _ in group if receipt.accepts(contact, one) and one.kind == FrameKind.MESSAGE]
    expected = _after(messages, tombstone.expected, receipt)
    if expected != tombstone.expected:
        tombstone.move(db, expected)
    if messages:
        receipt.closed.append((contact, expected))


def open_side(
    db: sqlite3.Connection, arrived: Arrived, receipt: ReceiveResult, batch: VerifiedBatch, now: float
) -> SideRow | None:
    """
    The side that frames are for, of which nothing is known here: made when they begin a dialog.

    Args:
        db: Inside the transaction of the batch.
        arrived: The frames.
        receipt: Of the batch; told what becomes of them.
        batch: Who knows how they are secured.
        now: UTC seconds since 1970.

    Returns:
        None when there is no side to apply the frames to, and the receipt says all.
    """
    group = arrived.group
    header = group[0][0]
    first = next((pair for pair in group if pair[0].kind == FrameKind.MESSAGE and pair[0].place == (0, 0)), None)
    if first is None or header.is_from_target:
        receipt.drop(Disposition.UNKNOWN_CONVERSATION, *_headers(group))
        _strange(arrived, receipt)
        return None
    try:
        side = _begin(db, arrived, first, batch, now)
    except _DialogRefusedError as error:
        receipt.drop(error.disposition, *_headers(group))
        if error.why:
            receipt.refusals[error.disposition] = error.why
        if error.fault is not None:
            receipt.faults.append((arrived.contact(first[0]), error.fault))
        return None
    batch.begin(side, first[0])
    return side


def _after(messages: list[Header], expected: Place, receipt: ReceiveResult) -> Place:
    """What is expected after messages for a side that has ended."""
    for header in messages:
        if header.place < expected:
            receipt.drop(Disposition.DUPLICATE, header)
        elif header.sequence_number >= expected[0] + EARLY_WINDOW or header.fragment_number >= _FRAGMENT_MAX:
            receipt.drop(Disposition.OUT_OF_SEQUENCE, header)
        else:
            # Nothing of it is kept, so a gap is none: else every early frame would cost its sender a time-out.
            receipt.drop(Disposition.CONVERSATION_ENDED, header)
            expected = after(header.place, header.flags)
    return expected


def _strange(arrived: Arrived, receipt: ReceiveResult) -> None:
    """Whether the far side has to be told that nothing is known here of what it names."""
    instance = arrived.instance
    named = [one for one, _ in arrived.group if one.kind == FrameKind.MESSAGE and one.to_broker_instance == instance]
    if named:
        # What begins a dialog may come after what follows it, as long as its sender has heard nothing from here.
        is_certain = any(one.is_from_target or (one.ack_sequence, one.ack_fragment) > (0, 0) for one in named)
        receipt.unknown_dialogs.append((arrived.contact(named[0]), is_certain))


class _DialogRefusedError(Exception):
    """A dialog does not begin. Shape: `fault` the far side is told; `why` only this side."""

    def __init__(self, disposition: Disposition, fault: Fault | None = None, *, why: str = "") -> None:
        super().__init__(disposition, fault, why)
        self.disposition = disposition
        self.fault = fault
        self.why = why


def _begin(
    db: sqlite3.Connection, arrived: Arrived, first: tuple[Header, bytes], batch: VerifiedBatch, now: float
) -> SideRow:
    """
    The target's side of a new dialog.

    Raises:
        _RefusedError: its service is not here or does not take its contract, or its sender may not send to it.
    """
    header, body = first
    contact = arrived.contact(header)
    objection = batch.objection(header)
    if objection:
        raise _DialogRefusedError(Disposition.SECURITY_UNRESOLVED, why=objection)
    service = db.execute("SELECT contracts FROM broker_service WHERE name = ?", (contact.service_name,)).fetchone()
    if service is None:
        # Without the service a frame comes here only when the dialog or its route names this database (R4.1).
        text = f"the service {contact.service_name!r} does not exist in the broker instance that was named"
        raise _DialogRefusedError(Disposition.SERVICE_NOT_FOUND, Fault(-8490, text))
    ruling = batch.ruling(header)
    if ruling is not None and not ruling.is_permitted:
        text = f"you do not have permission to access the service {contact.service_name!r}: {ruling.why}"
        raise _DialogRefusedError(Disposition.NOT_PERMITTED, Fault(-8494, text), why=ruling.why)
    try:
        envelope, _ = decode_envelope(body)
    except FrameMalformedError:
        raise _DialogRefusedError(Disposition.CORRUPTED) from None
    if not is_name(envelope.contract):
        text = f"the message body failed validation: a contract's name has at most {NAME_MAX_BYTES} bytes"
        raise _DialogRefusedError(Disposition.CORRUPTED, Fault(-8430, text))
    contracts = json.loads(service[0])
    if contracts and envelope.contract not in contracts:
        text = f"the service {contact.service_name!r} does not accept the contract {envelope.contract!r}"
        raise _DialogRefusedError(Disposition.CONTRACT_REFUSED, Fault(-8408, text))
    lifetime = _lifetime(envelope) - header.time_consumed / 1000
    if lifetime <= 0:
        raise _DialogRefusedError(Disposition.LIFETIME_EXCEEDED)  # it was held for that long on its way
    is_named = header.to_broker_instance == contact.broker_instance
    return create_side(db, contact, envelope.contract, now + lifetime, now, is_named=is_named)


def _headers(group: Group) -> list[Header]:
    return [header for header, _ in group]


def _lifetime(envelope: Envelope) -> float:
    told = envelope.lifetime if envelope.lifetime is not None else DEFAULT_LIFETIME.total_seconds()
    return min(told, LIFETIME_MAX)


# --- reception ---
# What frames do to one side of a dialog that lives here, inside the transaction of their batch.
#
# The rules of `broker.conversation` say what a fragment is and what changes a state; here they are applied to the row
# of
# the side, to its fragments and to the queue. The row is written once, at the end; what is left of a side that closes
# is a tombstone.
#
# Source: docs/protocol.md, section 4; Service Broker documentation, "Service Broker Communication Protocols".


RUNS_MAX = 1024  # believed of one acknowledgement
_LAST, _ERROR, _END = int(Flag.LAST_FRAGMENT), int(Flag.ERROR), int(Flag.END_DIALOG)  # an enum's operators are slow
_TRACE = int(Flag.TRACE)
PEER_GONE = -8462
CODES = (-(2**31), -1)  # of errors that a broker makes, least and most
_OVER = frozenset(
    {ConversationState.ERROR, ConversationState.CLOSED}
)  # what these held is in the ledger, and counts as acknowledged no more


class Reception:
    """One group of frames of one dialog and side."""

    def __init__(
        self, db: sqlite3.Connection, side: SideRow, delivery: QueueWriter, receipt: ReceiveResult, now: float
    ) -> None:
        self._db = db
        self._side = side
        self._before = copy_of(side)
        self._delivery = delivery
        self._receipt = receipt
        self._now = now
        self._assembly = Reassembly(db, side.endpoint_id, side.expected, side.early_fragments)
        self._reason: FailureReason | None = None  # why what is held will not be sent
        self._header: Header  # of the frame that is looked at
        self._frames = 0
        self._has_come = False
        self._is_urgent = False

    def run(self, group: Group) -> None:
        """Apply the group in order and write the row once."""
        for header, body in group:
            self._header = header
            if self._is_from_far_side(header, body):
                is_believed = self._acknowledge(header)
                if header.kind == FrameKind.MESSAGE:
                    self._message(header, body)
                elif header.kind == FrameKind.FAULT:
                    self._fault(body)
                elif header.kind == FrameKind.ACK:
                    self._ack(header, body, is_believed=is_believed)
                else:
                    self._drop(Disposition.MALFORMED)
        self._save()

    def _save(self) -> None:
        side = self._side
        if side.end_dialog_sequence is not None and side.acknowledged_sequence > side.end_dialog_sequence:
            self._change(Happening.END_ACKNOWLEDGED)
        side.early_fragments = self._assembly.count
        save_side(self._db, side, self._before)
        if side.state is ConversationState.CLOSED and self._before.state is not ConversationState.CLOSED:
            self._delivery.flush()  # so that it goes with the rest
            close(self._db, side.endpoint_id, self._now, self._reason or FailureReason.FAR_SIDE_ENDED)
        elif self._reason is not None:
            fail(self._db, side.endpoint_id, self._reason)
        if self._has_come:
            held = self._assembly.held_runs() if self._assembly.count else ()
            self._receipt.stored[side.endpoint_id] = AckState(
                side.contact, side.expected, held, self._frames, self._is_urgent or bool(held)
            )

    # --- who sent it ---

    def _is_from_far_side(self, header: Header, body: bytes) -> bool:
        """Whether the far side of this dialog sent it; the first answer binds an open dialog to its database (R5.1)."""
        side = self._side
        if not self._receipt.accepts(side.contact, header):
            return False
        if side.contact.is_open and header.kind in (FrameKind.MESSAGE, FrameKind.ACK):
            objection = self._objection(header, body)
            if objection is not None:
                self._drop(objection)
                return False
            side.contact = side.contact.bound_to(header.from_broker_instance)
            self._receipt.contacts[side.endpoint_id] = side.contact
        return True

    def _objection(self, header: Header, body: bytes) -> Disposition | None:
        """Why a frame cannot be the first answer: such a frame binds nothing and does nothing."""
        if not self._is_believable(header):
            return Disposition.OUT_OF_SEQUENCE
        if header.kind == FrameKind.ACK:
            try:
                decode_stored(body)
            except FrameMalformedError:
                return Disposition.MALFORMED
            return None
        if place(self._side.expected, *header.place) is Arrival.TOO_EARLY:
            return Disposition.OUT_OF_SEQUENCE
        if header.fragment_number == 0 and (body or not header.flags & _END):
            try:
                decode_envelope(body)
            except FrameMalformedError:
                return Disposition.CORRUPTED
        return None

    # --- acknowledgements of what was sent here ---

    def _is_believable(self, header: Header) -> bool:
        """Whether it acknowledges no more than was ever sent."""
        return (header.ack_sequence, header.ack_fragment) <= (self._side.send_sequence, 0)

    def _acknowledge(self, header: Header) -> bool:
        """Note the place up to which the far side has everything; False when it cannot be true."""
        side = self._side
        if side.opening == OPENING_UNKNOWN and header.to_broker_instance == side.contact.broker_instance:
            side.opening = OPENING_ACKNOWLEDGED
        acknowledged = (header.ack_sequence, header.ack_fragment)
        if acknowledged == (0, 0):
            return True
        if not self._is_believable(header):
            if header.kind == FrameKind.ACK:
                self._drop(Disposition.OUT_OF_SEQUENCE)
            else:  # what it brings beside is judged by itself
                self._receipt.count(Disposition.OUT_OF_SEQUENCE, header)
            return False
        side.opening = OPENING_ACKNOWLEDGED
        if not self._is_given_up:
            known = self._receipt.acknowledged.get(side.endpoint_id, (0, 0))
            self._receipt.acknowledged[side.endpoint_id] = max(known, acknowledged)
            side.acknowledged_sequence = max(side.acknowledged_sequence, header.ack_sequence)
        return True

    @property
    def _is_given_up(self) -> bool:
        """Whether what it held is in the ledger: not where an error made by this broker is on its way behind it."""
        side = self._side
        return side.state in _OVER and not (
            side.state is ConversationState.ERROR and side.end_dialog_sequence is not None
        )

    def _ack(self, header: Header, body: bytes, *, is_believed: bool) -> None:
        """What an acknowledgement tells of fragments behind its place; the newest counts."""
        try:
            runs = decode_stored(body).stored[:RUNS_MAX]
        except FrameMalformedError:
            self._drop(Disposition.MALFORMED)
            return
        held = tuple(run for run in runs if self._was_sent(run))
        if len(held) < len(runs):
            self._drop(Disposition.OUT_OF_SEQUENCE)
        key, receipt = self._side.endpoint_id, self._receipt
        known = receipt.acknowledged.get(key, (0, 0))
        if not is_believed or (header.ack_sequence, header.ack_fragment) < known or self._is_given_up:
            return
        if held or key in receipt.held_there:
            receipt.acknowledged[key] = known
            receipt.held_there[key] = held

    def _was_sent(self, run: Run) -> bool:
        sequence, first, last = run
        return 0 <= sequence < self._side.send_sequence and 0 <= first <= last

    # --- messages ---

    def _message(self, header: Header, body: bytes) -> None:
        side = self._side
        self._has_come = True
        arrival = place(side.expected, *header.place)
        if arrival is Arrival.EXPECTED and side.state in TAKES_MESSAGES:
            self._frames += 1
            self._accept(header.flags, body)
            self._catch_up()
            return
        self._is_urgent = True
        if arrival is Arrival.DUPLICATE:
            self._drop(Disposition.DUPLICATE)
        elif arrival is Arrival.TOO_EARLY:
            self._drop(Disposition.OUT_OF_SEQUENCE)
        elif side.state not in TAKES_MESSAGES:
            self._drop(Disposition.CONVERSATION_ENDED)
            if arrival is Arrival.EXPECTED:
                self._skip(header.flags)
        else:
            kept = self._assembly.keep_early(header.place, header.flags, body)
            if kept is EarlyFragment.HERE_ALREADY:
                self._drop(Disposition.DUPLICATE)
            elif kept is EarlyFragment.NO_ROOM:
                self._drop(Disposition.OUT_OF_SEQUENCE)

    def _skip(self, flags: int | None) -> None:
        """The expected fragment comes after the end of this side; what is held behind it will not be sent again."""
        while flags is not None:
            self._side.expected = after(self._side.expected, flags)
            flags = self._assembly.take_early(self._side.expected)

    def _accept(self, flags: int, body: bytes) -> None:
        """The expected fragment: a whole message goes to its queue, a part is kept."""
        where = self._side.expected
        self._side.expected = after(where, flags)
        if not flags & _LAST:
            self._assembly.keep(where, flags, body)
        elif where[1] == 0 and not self._assembly.count:
            self._whole(where[0], flags, body)
        else:
            self._join(where, flags, (flags, body))

    def _catch_up(self) -> None:
        """Early fragments whose turn has come."""
        side = self._side
        while side.state in TAKES_MESSAGES:
            where = side.expected
            flags = self._assembly.take_early(where)
            if flags is None:
                return
            self._is_urgent = True
            side.expected = after(where, flags)
            if flags & _LAST:
                # Its frame has had its verdict, and that which is looked at has nothing to do with it.
                self._header = replace(self._header, sequence_number=where[0], fragment_number=where[1])
                self._join(where, flags)

    def _join(self, where: tuple[int, int], flags: int, tail: tuple[int, bytes] | None = None) -> None:
        try:
            envelope, body = self._assembly.join(*where, tail)
        except FrameMalformedError as error:
            self._malformed(where[0], error)
        else:
            self._deliver(where[0], flags, envelope, body)

    def _whole(self, sequence: int, flags: int, body: bytes) -> None:
        """A message of one fragment, in its turn."""
        try:
            envelope, payload = decode_envelope(body) if body or not flags & _END else (Envelope(), b"")
        except FrameMalformedError as error:
            self._malformed(sequence, error)
        else:
            self._deliver(sequence, flags, envelope, payload)

    def _deliver(self, sequence: int, flags: int, envelope: Envelope, body: bytes | LargeBody) -> None:
        side, delivery = self._side, self._delivery
        if isinstance(body, LargeBody) and flags & (_ERROR | _END):
            self._malformed(sequence, FrameMalformedError("a message of the broker's own is never large"))
            return
        if flags & _ERROR:
            is_taken, happening = delivery.put_error(side, sequence, body), Happening.ERROR_RECEIVED
        elif flags & _END:
            is_taken, happening = delivery.put(side, sequence, END_DIALOG, b""), Happening.END_RECEIVED
        elif not is_name(envelope.type):
            self._malformed(sequence, FrameMalformedError(f"a message type's name has at most {NAME_MAX_BYTES} bytes"))
            return
        elif envelope.headers and not are_bounded(envelope.headers):
            problem = f"a message has at most {HEADERS_MAX} headers, of {HEADERS_MAX_BYTES} bytes together"
            self._malformed(sequence, FrameMalformedError(problem))
            return
        else:
            refusal = delivery.why_refused(side, envelope.type, body)
            if refusal is not None:
                self._drop(Disposition.CONTRACT_REFUSED)
                self._fail(sequence, Fault(-refusal.number, refusal.problem))
                return
            is_taken = delivery.put(side, sequence, envelope.type, body, headers=envelope.headers)
            if flags & _TRACE and envelope.headers:
                key = (side.contact.conversation_id, side.contact.is_initiator, sequence)
                self._receipt.traced[key] = envelope.headers.get(TRACE_PARENT, "")
            happening = Happening.FIRST_RECEIVED
        if is_taken:
            self._is_urgent |= happening is not Happening.FIRST_RECEIVED
            self._change(happening, FailureReason.FAILED_THERE)
        else:
            self._drop(Disposition.SERVICE_NOT_FOUND)
            self._fail(sequence, Fault(-8470, f"the service {side.contact.service_name!r} has been dropped"))

    def _malformed(self, sequence: int, error: FrameMalformedError) -> None:
        self._drop(Disposition.CORRUPTED)
        self._fail(sequence, Fault(-8430, f"the message body failed validation: {error}"))

    # --- errors ---

    def _fault(self, body: bytes) -> None:
        try:
            fault = decode_fault(body)
        except FrameMalformedError:
            self._drop(Disposition.MALFORMED)
            return
        side = self._side
        if fault.code == PEER_GONE and side.contact.is_initiator and not side.acknowledged_sequence:
            # It has overtaken the beginning of the dialog, which may still arrive.
            self._drop(Disposition.OUT_OF_SEQUENCE)
            return
        if not CODES[0] <= fault.code <= CODES[1]:
            text = f"the far side failed the dialog with the code {fault.code}, no broker's error: {fault.text}"
            fault = Fault(-8430, text)
        self._fail(side.expected[0], fault, FailureReason.FAILED_THERE)

    def _fail(self, sequence: int, fault: Fault, reason: FailureReason = FailureReason.FAILED_HERE) -> None:
        """The dialog has failed: the application reads an Error message, and the far side is told when it must be."""
        side = self._side
        if (side.state, Happening.ERROR_RECEIVED) not in TRANSITIONS:
            return
        if side.state is not ConversationState.DISCONNECTED_OUTBOUND:
            self._delivery.put_error(side, sequence, error_body(fault.code, fault.text))
        if reason is FailureReason.FAILED_HERE:
            self._is_urgent = True
            self._receipt.faults.append((side.contact, fault))
        self._change(Happening.ERROR_RECEIVED, reason)

    def _change(self, happening: Happening, reason: FailureReason | None = None) -> None:
        side = self._side
        before, side.state = side.state, TRANSITIONS.get((side.state, happening), side.state)
        if side.state is before:
            return
        has_pieces = self._assembly.count > 0 or side.expected[1] > 0
        has_stopped = before in TAKES_MESSAGES and side.state not in TAKES_MESSAGES
        if has_pieces and (has_stopped or side.state in _OVER):
            self._assembly.discard(side.expected)
        if side.state in _OVER:
            self._reason = reason
            self._receipt.finished.add(side.endpoint_id)

    def _drop(self, disposition: Disposition) -> None:
        self._receipt.drop(disposition, self._header)


# --- receiving ---
# What arrived becomes stored: one transaction for a whole batch of frames, then acknowledgements.
#
# Runs in the writer thread. Frames are grouped by dialog and side; each group moves its side on (`reception`), makes
# it
# (`opening`), or meets what is left of it. Nothing is acknowledged before the commit: the caller sends what the
# `ReceiveResult`
# says only after the transaction has ended.
#
# Source: docs/protocol.md, section 4; Service Broker documentation, "Service Broker Communication Protocols".


_SEALED, _FROM_TARGET = int(Flag.SEALED), int(Flag.FROM_TARGET)  # an enum's operators take longer than all of the rest


def store_frames(
    db: sqlite3.Connection,
    instance: bytes,
    frames: Iterable[bytes],
    now: float,
    *,
    verifier: FrameVerifier,
    origins: Sequence[object] = (),
    inside: Mapping[int, Secured] = MappingProxyType({}),
) -> ReceiveResult:
    """
    Store a batch of dialog frames for this database, inside the transaction of the caller.

    Args:
        db: Its connection.
        instance: Its broker instance.
        frames: Whole frames in the order of arrival.
        now: UTC seconds since 1970.
        verifier: Of this database.
        origins: The link that brought each frame, any hashable object; empty = one for all.
        inside: Frames, counted from 0, that a database of this very instance has sent, and how the target of a dialog
            that begins keeps what its initiator may seal with later.

    Raises:
        sqlite3.Error: the store failed; nothing of the batch is stored, and nothing may be acknowledged.
    """
    receipt = ReceiveResult()
    delivery = QueueWriter(db, now)
    batch = verifier.batch(db, receipt, now)
    for (conversation_id, is_from_target), arrived in _grouped(frames, receipt, batch, origins, inside).items():
        side = load_side(db, instance, conversation_id, is_initiator=is_from_target)
        tombstone = None if side is not None else find_tombstone(db, instance, arrived[0][0])
        group, secured = batch.believed(arrived, side or tombstone)
        if not group:
            continue
        if tombstone is not None:
            throw_away(db, group, tombstone, receipt)
            continue
        if side is None:
            side = open_side(db, Arrived(instance, group, secured), receipt, batch, now)
        if side is not None:
            Reception(db, side, delivery, receipt, now).run(group)
    delivery.flush()
    receipt.delivered = delivery.delivered
    return receipt


def _grouped(
    frames: Iterable[bytes],
    receipt: ReceiveResult,
    batch: VerifiedBatch,
    origins: Sequence[object],
    inside: Mapping[int, Secured],
) -> dict[tuple[bytes, bool], Group]:
    """The frames that are whole, opened where they are sealed, by dialog and side."""
    groups: dict[tuple[bytes, bool], Group] = {}
    for number, frame in enumerate(frames):
        try:
            header, body = decode_dialog(frame)
        except FrameMalformedError:
            receipt.headers.append(None)
            receipt.count(Disposition.MALFORMED, None)
            continue
        receipt.headers.append(header)
        flags = header.flags
        if flags & _SEALED:
            content = batch.open(header, frame, body, origins[number] if origins else None)
            if content is None:
                continue
            body = content
        elif header.body_checksum and header.body_checksum != checksum(body):
            receipt.drop(Disposition.CORRUPTED, header)
            continue
        if number in inside:
            batch.note_inside(header, inside[number])
        groups.setdefault((header.conversation_id, flags & _FROM_TARGET > 0), []).append((header, body))
    return groups
