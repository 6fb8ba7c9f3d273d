"""
Frames that arrived become stored: messages in queues, acknowledgements noted, dialogs begun and ended.

A batch is grouped by dialog and side, in order of arrival. Each group moves its side on, begins a dialog, or meets what
is left of one (a tombstone, or nothing). The rules are `broker.conversation`; here they are applied to rows, and a
side's row is written once per group. Nothing is sent: what to answer is in the `ReceiveResult`, which the loop acts on
after the commit. A frame that breaks a rule is dropped and counted, never raised. Rows are reached through `SideTable`,
`Reassembly`, `QueueWriter` and `VerifiedBatch` alone. For the writer thread.

Source: docs/protocol.md, section 4; Service Broker documentation, "Service Broker Communication Protocols", "Dialog
Conversations"; message 8462.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from broker.conversation.body_check import error_body
from broker.conversation.frames import AckNote, Contact, FragmentArrival, Place, after, classify
from broker.conversation.message_types import DEFAULT_LIFETIME, END_DIALOG, LIFETIME_MAX
from broker.conversation.state import TAKES_MESSAGES, TRANSITIONS, ConversationState, Happening
from broker.errors import FrameMalformedError
from broker.flow import Disposition
from broker.protocol.envelope import TRACE_PARENT, are_bounded
from broker.protocol.frame import (
    Envelope,
    Fault,
    Header,
    checksum,
    decode_dialog,
    decode_envelope,
    decode_fault,
    decode_stored,
)
from broker.protocol.layout import EARLY_WINDOW, HEADERS_MAX, HEADERS_MAX_BYTES, NAME_MAX_BYTES, Flag, FrameKind
from broker.security.secured import Secured
from broker.store.port import AckState, ReceiveResult, WriteBatch
from broker.store.sqlite.ledger import FailureReason
from broker.store.sqlite.reassembly import LargeBody, QueueWriter, Reassembly
from broker.store.sqlite.side import OPENING_ACKNOWLEDGED, OPENING_UNKNOWN, SideRow, SideTable, Tombstone
from broker.store.sqlite.verify import FrameGroup, FrameVerifier, VerifiedBatch

RUNS_MAX = 1024  # of one acknowledgement that are read
REASON_MAX = 512  # characters of one that are kept
PEER_GONE = -8462
CODES = (-(2**31), -1)  # of errors that a broker makes, least and most
_FRAGMENT_MAX = 2**32 - 1
# An enum's operators take longer than all the rest of a frame.
_LAST, _ERROR, _END, _TRACE = int(Flag.LAST_FRAGMENT), int(Flag.ERROR), int(Flag.END_DIALOG), int(Flag.TRACE)
_SEALED, _FROM_TARGET = int(Flag.SEALED), int(Flag.FROM_TARGET)
_OVER = frozenset({ConversationState.ERROR, ConversationState.CLOSED})  # what these held is in the ledger


def store_frames(db: sqlite3.Connection, instance: bytes, batch: WriteBatch, verifier: FrameVerifier) -> ReceiveResult:
    """
    Store all frames of a batch, inside the caller's transaction.

    Args:
        db: The database.
        instance: Its broker instance.
        batch: With its frames, where they came from, and the time.
        verifier: Of this database.

    Raises:
        sqlite3.Error: the store failed; nothing of the batch is stored, and nothing may be acknowledged.
    """
    result = ReceiveResult()
    sides, queue = SideTable(db, instance, batch.now), QueueWriter(db, batch.now)
    verified = verifier.batch(db, result, batch.now)
    for (conversation_id, is_from_target), arrived in _group_by_side(batch, result, verified).items():
        side = sides.load(conversation_id, is_initiator=is_from_target)
        tombstone = None if side is not None else sides.find_tombstone(arrived[0][0])
        group, secured = verified.accepted(arrived, side or tombstone)
        if not group:
            continue
        if tombstone is not None:
            _discard_for_tombstone(sides, group, tombstone, result)
            continue
        if side is None:
            side = _begin_dialog(sides, queue, group, verified, secured=secured, result=result)
        if side is not None:
            fragments = Reassembly(db, side.endpoint_id, side.expected, side.early_fragments)
            SideReceiver(side, sides, queue, fragments, result).apply(group)
    queue.flush()
    result.delivered = queue.delivered
    return result


class SideReceiver:
    """One group of frames applied to one side."""

    def __init__(
        self, side: SideRow, sides: SideTable, queue: QueueWriter, fragments: Reassembly, result: ReceiveResult
    ) -> None:
        self._side = side
        self._sides = sides
        self._queue = queue
        self._fragments = fragments
        self._result = result
        self._was_closed = side.state is ConversationState.CLOSED
        self._fail_reason: FailureReason | None = None  # why what is held will not be sent
        self._header: Header  # of the frame at hand
        self._new_frames = 0
        self._is_due = False  # an acknowledgement is: a message arrived, or the target is to be named
        self._is_ack_urgent = False
        self._is_refused = False  # one arrived that the queue does not take
        self._is_asked = False  # the target asks to be named
        self._was_unconfirmed = queue.is_unconfirmed(side)

    def apply(self, group: FrameGroup) -> None:
        """Apply the group in order and write the row once."""
        for header, body in group:
            self._header = header
            if self._is_from_far_side(header, body):
                is_true = self._note_acknowledged(header)
                if header.kind == FrameKind.MESSAGE:
                    self._on_message(header, body)
                elif header.kind == FrameKind.FAULT:
                    self._on_fault(body)
                elif header.kind == FrameKind.ACK:
                    self._on_ack(header, body, is_true=is_true)
                else:
                    self._drop(Disposition.MALFORMED)
        self._save()

    # --- who sent it ---

    def _is_from_far_side(self, header: Header, body: bytes) -> bool:
        """Whether the far side of this dialog sent it; the first answer binds an open dialog to its database (R5.1)."""
        side = self._side
        if not self._result.accepts(side.contact, header):
            return False
        if side.contact.is_open and header.kind in (FrameKind.MESSAGE, FrameKind.ACK):
            reason = self._why_not_first_answer(header, body)
            if reason is not None:
                self._drop(reason)
                return False
            if header.kind == FrameKind.MESSAGE or not decode_stored(body).code:  # else the dialog has not begun there
                side.contact = side.contact.bound_to(header.from_broker_instance)
                self._is_due = True
                self._result.contacts[side.endpoint_id] = side.contact
        return True

    def _why_not_first_answer(self, header: Header, body: bytes) -> Disposition | None:
        """Why a frame cannot be the first answer: such a frame binds nothing and does nothing."""
        if not self._acknowledges_what_was_sent(header):
            return Disposition.OUT_OF_SEQUENCE
        if header.kind == FrameKind.ACK:
            try:
                decode_stored(body)
            except FrameMalformedError:
                return Disposition.MALFORMED
            return None
        if classify(self._side.expected, header.place) is FragmentArrival.TOO_EARLY:
            return Disposition.OUT_OF_SEQUENCE
        if header.fragment_number == 0 and (body or not header.flags & _END):
            try:
                decode_envelope(body)
            except FrameMalformedError:
                return Disposition.CORRUPTED
        return None

    # --- acknowledgements of what was sent here ---

    def _acknowledges_what_was_sent(self, header: Header) -> bool:
        return (header.ack_sequence, header.ack_fragment) <= (self._side.send_sequence, 0)

    def _note_acknowledged(self, header: Header) -> bool:
        """Note the place up to which the far side has everything; False when it cannot be true."""
        side = self._side
        is_named = header.to_broker_instance == side.contact.broker_instance
        if (
            side.opening == OPENING_UNKNOWN and is_named and header.kind != FrameKind.FAULT
        ):  # a fault names a second one
            side.opening = OPENING_ACKNOWLEDGED
        acknowledged = (header.ack_sequence, header.ack_fragment)
        if acknowledged == (0, 0):
            return True
        if not self._acknowledges_what_was_sent(header):
            if header.kind == FrameKind.ACK:
                self._drop(Disposition.OUT_OF_SEQUENCE)
            else:  # its message is judged by itself
                self._result.count(Disposition.OUT_OF_SEQUENCE, header)
            return False
        side.opening = OPENING_ACKNOWLEDGED
        if not self._is_given_up():
            known = self._result.acknowledged.get(side.endpoint_id, (0, 0))
            self._result.acknowledged[side.endpoint_id] = max(known, acknowledged)
            side.acknowledged_sequence = max(side.acknowledged_sequence, header.ack_sequence)
        return True

    def _is_given_up(self) -> bool:
        """Whether what it held is in the ledger: not where an error made by this broker is on its way after that."""
        side = self._side
        return side.state in _OVER and not (
            side.state is ConversationState.ERROR and side.end_dialog_sequence is not None
        )

    def _on_ack(self, header: Header, body: bytes, *, is_true: bool) -> None:
        """Note what the far side has after the acknowledged place; the newest frame counts."""
        try:
            said = decode_stored(body)
        except FrameMalformedError:
            self._drop(Disposition.MALFORMED)
            return
        runs, sent = said.stored[:RUNS_MAX], self._side.send_sequence
        held = tuple((one, first, last) for one, first, last in runs if 0 <= one < sent and 0 <= first <= last)
        if len(held) < len(runs):
            self._drop(Disposition.OUT_OF_SEQUENCE)
        key, result = self._side.endpoint_id, self._result
        result.said[key] = AckNote(said.code, said.reason[:REASON_MAX])
        self._is_asked |= said.confirm
        known = result.acknowledged.get(key, (0, 0))
        if not is_true or (header.ack_sequence, header.ack_fragment) < known or self._is_given_up():
            return
        if held or key in result.held_there:
            result.acknowledged[key] = known
            result.held_there[key] = held

    # --- messages ---

    def _on_message(self, header: Header, body: bytes) -> None:
        side = self._side
        self._is_due = True
        arrival = classify(side.expected, header.place)
        is_new = arrival is not FragmentArrival.DUPLICATE and side.state in TAKES_MESSAGES
        if is_new and self._queue.is_off(side.contact.service_name):
            self._is_refused = True
            self._drop(Disposition.QUEUE_DISABLED)
            return
        if arrival is FragmentArrival.EXPECTED and side.state in TAKES_MESSAGES:
            self._new_frames += 1
            self._accept(header.flags, body)
            self._catch_up()
            return
        self._is_ack_urgent = True
        if arrival is FragmentArrival.DUPLICATE:
            self._drop(Disposition.DUPLICATE)
        elif arrival is FragmentArrival.TOO_EARLY:
            self._drop(Disposition.OUT_OF_SEQUENCE)
        elif side.state not in TAKES_MESSAGES:
            self._drop(Disposition.CONVERSATION_ENDED)
            if arrival is FragmentArrival.EXPECTED:
                self._skip_after_end(header.flags)
        else:
            disposition = self._fragments.keep_early(header.place, header.flags, body)
            if disposition is not None:
                self._drop(disposition)

    def _skip_after_end(self, flags: int | None) -> None:
        """The expected fragment arrives after the end of this side; what is held after it will not be sent again."""
        while flags is not None:
            self._side.expected = after(self._side.expected, flags)
            flags = self._fragments.take_early(self._side.expected)

    def _accept(self, flags: int, body: bytes) -> None:
        """The expected fragment: a whole message goes to its queue, a part is kept."""
        where = self._side.expected
        self._side.expected = after(where, flags)
        if flags & _LAST:
            self._join(where, flags, body)
        else:
            self._fragments.keep(where, flags, body)

    def _catch_up(self) -> None:
        """Accept early fragments that are expected now."""
        side = self._side
        while side.state in TAKES_MESSAGES:
            where = side.expected
            flags = self._fragments.take_early(where)
            if flags is None:
                return
            self._is_ack_urgent = True
            side.expected = after(where, flags)
            if flags & _LAST:
                # Its frame has had its verdict, and the frame at hand has nothing to do with it.
                self._header = replace(self._header, sequence_number=where[0], fragment_number=where[1])
                self._join(where, flags)

    def _join(self, where: Place, flags: int, last: bytes | None = None) -> None:
        """A message is whole, whose `last` fragment has just arrived: most have no other, and none is early."""
        is_end = flags & _END > 0
        try:
            if where[1] or last is None or self._fragments.count:
                tail = None if last is None else (flags, last)
                envelope, payload = self._fragments.join(*where, tail, is_end=is_end)
            else:
                envelope, payload = decode_envelope(last) if last or not is_end else (Envelope(), b"")
        except FrameMalformedError as error:
            self._fail_malformed(where[0], error)
        else:
            self._deliver(where[0], flags, envelope, payload)

    def _deliver(self, sequence: int, flags: int, envelope: Envelope, body: bytes | LargeBody) -> None:
        side, queue = self._side, self._queue
        if isinstance(body, LargeBody) and flags & (_ERROR | _END):
            self._fail_malformed(sequence, "a message of the broker's own is never large")
            return
        if flags & _ERROR:
            is_put, happening = queue.put_error(side, sequence, body), Happening.ERROR_RECEIVED
        elif flags & _END:
            is_put, happening = queue.put(side, sequence, END_DIALOG, b""), Happening.END_RECEIVED
        elif not _is_name(envelope.type):
            self._fail_malformed(sequence, f"a message type's name has at most {NAME_MAX_BYTES} bytes")
            return
        elif envelope.headers and not are_bounded(envelope.headers):
            problem = f"a message has at most {HEADERS_MAX} headers, of {HEADERS_MAX_BYTES} bytes together"
            self._fail_malformed(sequence, problem)
            return
        else:
            refusal = queue.why_refused(side, envelope.type, body)
            if refusal is not None:
                self._drop(Disposition.CONTRACT_REFUSED)
                self._fail(sequence, Fault(-refusal.number, refusal.problem))
                return
            is_put = queue.put(side, sequence, envelope.type, body, headers=envelope.headers)
            if flags & _TRACE and envelope.headers:
                key = (side.contact.conversation_id, side.contact.is_initiator, sequence)
                self._result.traced[key] = envelope.headers.get(TRACE_PARENT, "")
            happening = Happening.FIRST_RECEIVED
        if is_put:
            self._is_ack_urgent |= happening is not Happening.FIRST_RECEIVED
            self._change_state(happening, FailureReason.FAILED_THERE)
        else:
            self._drop(Disposition.SERVICE_NOT_FOUND)
            self._fail(sequence, Fault(-8470, f"the service {side.contact.service_name!r} has been dropped"))

    # --- errors and the end ---

    def _on_fault(self, body: bytes) -> None:
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
            text = f"the far side failed the dialog with the code {fault.code}, not a broker's error: {fault.text}"
            fault = Fault(-8430, text)
        self._fail(side.expected[0], fault, FailureReason.FAILED_THERE)

    def _fail_malformed(self, sequence: int, problem: object) -> None:
        self._drop(Disposition.CORRUPTED)
        self._fail(sequence, Fault(-8430, f"the message body failed validation: {problem}"))

    def _fail(self, sequence: int, fault: Fault, reason: FailureReason = FailureReason.FAILED_HERE) -> None:
        """The dialog has failed: the application reads an Error message, and the far side is notified if it must be."""
        side = self._side
        is_unconfirmed = self._queue.is_unconfirmed(side)
        if (side.state, Happening.ERROR_RECEIVED) not in TRANSITIONS and not is_unconfirmed:
            return
        if side.state is not ConversationState.DISCONNECTED_OUTBOUND and not is_unconfirmed:
            self._queue.put_error(side, sequence, error_body(fault.code, fault.text))
        if reason is FailureReason.FAILED_HERE:
            self._is_ack_urgent = True
            self._result.faults.append((side.contact, fault))
        self._change_state(Happening.ERROR_RECEIVED, reason)
        if reason is FailureReason.FAILED_THERE:  # its sender has an answer, or no dialog
            side.opening = OPENING_ACKNOWLEDGED
        if is_unconfirmed:  # its application never saw it: only a tombstone stays
            side.state, self._fail_reason = ConversationState.CLOSED, reason
            self._result.finished.add(side.endpoint_id)

    def _change_state(self, happening: Happening, reason: FailureReason | None = None) -> None:
        side = self._side
        before, side.state = side.state, TRANSITIONS.get((side.state, happening), side.state)
        if side.state is before:
            return
        has_pieces = self._fragments.count > 0 or side.expected[1] > 0
        has_stopped = before in TAKES_MESSAGES and side.state not in TAKES_MESSAGES
        if has_pieces and (has_stopped or side.state in _OVER):
            self._fragments.discard(side.expected)
        if side.state in _OVER:
            self._fail_reason = reason
            self._result.finished.add(side.endpoint_id)

    def _save(self) -> None:
        """Write the row, or what remains when the side is over; the order of the steps matters."""
        side = self._side
        if side.end_dialog_sequence is not None and side.acknowledged_sequence > side.end_dialog_sequence:
            self._change_state(Happening.END_ACKNOWLEDGED)
        is_unconfirmed = self._queue.is_unconfirmed(side)
        if self._was_unconfirmed and not is_unconfirmed and side.state is not ConversationState.CLOSED:
            self._queue.confirm(side)
        side.early_fragments = self._fragments.count
        self._sides.save(side)
        if side.state is ConversationState.CLOSED and not self._was_closed:
            self._queue.flush()  # so that what was put is removed with the rest
            self._sides.close(side, self._fail_reason or FailureReason.FAR_SIDE_ENDED)
        elif self._fail_reason is not None:
            self._sides.fail(side, self._fail_reason)
        if self._is_asked:
            self._result.asked.append((side.contact, side.expected))
        if self._is_refused:
            self._result.refused.append((side.contact, side.expected))
        elif self._is_due:
            held = self._fragments.held_runs() if self._fragments.count else ()
            is_urgent = self._is_ack_urgent or bool(held) or is_unconfirmed
            self._result.stored[side.endpoint_id] = AckState(
                side.contact, side.expected, held, self._new_frames, is_urgent, is_unconfirmed
            )

    def _drop(self, disposition: Disposition) -> None:
        self._result.drop(disposition, self._header)


# --- grouping ---------------------------------------------------------------------------------------------------


def _group_by_side(
    batch: WriteBatch, result: ReceiveResult, verified: VerifiedBatch
) -> dict[tuple[bytes, bool], FrameGroup]:
    """The frames that are whole, opened where they are sealed, by dialog and side."""
    groups: dict[tuple[bytes, bool], FrameGroup] = {}
    for number, frame in enumerate(batch.frames):
        try:
            header, body = decode_dialog(frame)
        except FrameMalformedError:
            result.headers.append(None)
            result.count(Disposition.MALFORMED, None)
            continue
        result.headers.append(header)
        flags = header.flags
        if flags & _SEALED:
            content = verified.open(header, frame, body, batch.origins[number] if batch.origins else None)
            if content is None:
                continue
            body = content
        elif header.body_checksum and header.body_checksum != checksum(body):
            result.drop(Disposition.CORRUPTED, header)
            continue
        if number in batch.inside:
            verified.mark_inside(header, batch.inside[number])
        groups.setdefault((header.conversation_id, flags & _FROM_TARGET > 0), []).append((header, body))
    return groups


# --- dialogs of which no side is here -----------------------------------------------------------------------------


def _discard_for_tombstone(sides: SideTable, group: FrameGroup, tombstone: Tombstone, result: ReceiveResult) -> None:
    """Frames for a side that has ended: messages are acknowledged and discarded."""
    contact, expected = tombstone.contact, tombstone.expected
    accepted = [(one, body) for one, body in group if result.accepts(contact, one)]
    messages = [one for one, _ in accepted if one.kind == FrameKind.MESSAGE]
    for header in messages:
        if header.place < expected:
            result.drop(Disposition.DUPLICATE, header)
        elif header.sequence_number >= expected[0] + EARLY_WINDOW or header.fragment_number >= _FRAGMENT_MAX:
            result.drop(Disposition.OUT_OF_SEQUENCE, header)
        else:
            # Nothing of it is kept, so a gap does not matter: else every early frame would cost its sender a time-out.
            result.drop(Disposition.CONVERSATION_ENDED, header)
            expected = after(header.place, header.flags)
    if expected != tombstone.expected:
        sides.move_tombstone(tombstone, expected)
    if messages:
        result.closed.append((contact, expected))
    if any(one.kind == FrameKind.ACK and _is_confirmation_wanted(body) for one, body in accepted):
        result.asked.append((contact, expected))


def _is_confirmation_wanted(body: bytes) -> bool:
    try:
        return decode_stored(body).confirm
    except FrameMalformedError:
        return False


class _DialogRefusedError(Exception):
    """A dialog does not begin; the far side is notified of `fault`, only this side of `why`."""

    def __init__(self, disposition: Disposition, fault: Fault | None = None, *, why: str = "") -> None:
        super().__init__(disposition, fault, why)
        self.disposition = disposition
        self.fault = fault
        self.why = why


def _begin_dialog(
    sides: SideTable,
    queue: QueueWriter,
    group: FrameGroup,
    verified: VerifiedBatch,
    *,
    secured: Secured | None,
    result: ReceiveResult,
) -> SideRow | None:
    """The target's side for a first message; None when there is none, and the result says all."""
    headers = [header for header, _ in group]
    first = next((pair for pair in group if pair[0].kind == FrameKind.MESSAGE and pair[0].place == (0, 0)), None)
    if first is None or headers[0].is_from_target:
        result.drop(Disposition.UNKNOWN_CONVERSATION, *headers)
        _report_unknown(headers, sides.instance, secured, result)
        return None
    contact = _contact_of(first[0], sides.instance, secured)
    try:
        side = _create_target_side(sides, queue, first, contact, verified)
    except _DialogRefusedError as error:
        result.drop(error.disposition, *headers)
        if error.why:
            result.refusals[error.disposition] = error.why
        if error.fault is not None:
            result.faults.append((contact, error.fault))
        elif error.disposition is Disposition.QUEUE_DISABLED:
            result.refused.append((contact, (0, 0)))
        return None
    verified.on_begun(side, first[0])
    return side


def _report_unknown(headers: list[Header], instance: bytes, secured: Secured | None, result: ReceiveResult) -> None:
    """
    Note for the loop that nothing is known here of a dialog whose far side names this database.

    A far side that is not notified would go on sending until the dialog's lifetime is over.
    """
    named = [one for one in headers if one.kind == FrameKind.MESSAGE and one.to_broker_instance == instance]
    if named:
        # The beginning of a dialog may arrive after its later messages, if its sender has received nothing from here.
        is_certain = any(one.is_from_target or (one.ack_sequence, one.ack_fragment) > (0, 0) for one in named)
        result.unknown_dialogs.append((_contact_of(named[0], instance, secured), is_certain))


def _create_target_side(
    sides: SideTable, queue: QueueWriter, first: tuple[Header, bytes], contact: Contact, verified: VerifiedBatch
) -> SideRow:
    """
    Create the target's side of a new dialog.

    Raises:
        _DialogRefusedError: its service is not here or does not accept its contract, its queue is off, or its sender
            may not send to it.
    """
    header, body = first
    why_stale = verified.why_stale(header)
    if why_stale:
        raise _DialogRefusedError(Disposition.SECURITY_UNRESOLVED, why=why_stale)
    contracts = queue.contracts_of(contact.service_name)
    if contracts is None:
        # Without the service a frame arrives here only when the dialog or its route names this database (R4.1).
        text = f"the service {contact.service_name!r} does not exist in the broker instance that was named"
        raise _DialogRefusedError(Disposition.SERVICE_NOT_FOUND, Fault(-8490, text))
    ruling = verified.ruling(header)
    if ruling is not None and not ruling.is_permitted:
        text = f"you do not have permission to access the service {contact.service_name!r}: {ruling.why}"
        raise _DialogRefusedError(Disposition.NOT_PERMITTED, Fault(-8494, text), why=ruling.why)
    if queue.is_off(contact.service_name):
        raise _DialogRefusedError(Disposition.QUEUE_DISABLED)
    try:
        envelope, _ = decode_envelope(body)
    except FrameMalformedError:
        raise _DialogRefusedError(Disposition.CORRUPTED) from None
    if not _is_name(envelope.contract):
        text = f"the message body failed validation: a contract's name has at most {NAME_MAX_BYTES} bytes"
        raise _DialogRefusedError(Disposition.CORRUPTED, Fault(-8430, text))
    if contracts and envelope.contract not in contracts:
        text = f"the service {contact.service_name!r} does not accept the contract {envelope.contract!r}"
        raise _DialogRefusedError(Disposition.CONTRACT_REFUSED, Fault(-8408, text))
    lifetime = envelope.lifetime if envelope.lifetime is not None else DEFAULT_LIFETIME.total_seconds()
    remaining = min(lifetime, LIFETIME_MAX) - header.time_consumed / 1000
    if remaining <= 0:
        raise _DialogRefusedError(Disposition.LIFETIME_EXCEEDED)  # it was held for that long on its way
    is_named = header.to_broker_instance == contact.broker_instance
    return sides.create(contact, envelope.contract, sides.now + remaining, is_named=is_named)


def _contact_of(header: Header, instance: bytes, secured: Secured | None) -> Contact:
    """Both ends of a dialog as seen from here, as a frame says."""
    return Contact(
        header.conversation_id,
        is_initiator=header.is_from_target,
        service_name=header.to_service,
        broker_instance=instance,
        far_service=header.from_service,
        far_broker_instance=header.from_broker_instance,
        secured=secured,
    )


def _is_name(text: str) -> bool:
    """Whether a far side may name a message type or a contract so; an empty one was left out."""
    return len(text.encode()) <= NAME_MAX_BYTES
