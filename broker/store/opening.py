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
from typing import NamedTuple

from broker.conversation.frames import EARLY_WINDOW, Contact, Place, after
from broker.conversation.message_types import DEFAULT_LIFETIME, LIFETIME_MAX
from broker.errors import FrameMalformedError
from broker.flow import Disposition
from broker.protocol.frame import Envelope, Fault, Header, decode_envelope
from broker.protocol.layout import NAME_MAX_BYTES, FrameKind
from broker.security.session import Secured
from broker.store.gate import VerifiedBatch
from broker.store.receipt import Receipt
from broker.store.side import SideRow, create_side, is_name
from broker.store.tombstone import Tombstone

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


def throw_away(db: sqlite3.Connection, group: Group, tombstone: Tombstone, receipt: Receipt) -> None:
    """Frames for a side that has ended: messages are acknowledged and thrown away. Inside the batch's transaction."""
    contact = tombstone.contact
    messages = [one for one, _ in group if receipt.takes(contact, one) and one.kind == FrameKind.MESSAGE]
    expected = _after(messages, tombstone.expected, receipt)
    if expected != tombstone.expected:
        tombstone.move(db, expected)
    if messages:
        receipt.closed.append((contact, expected))


def open_side(
    db: sqlite3.Connection, arrived: Arrived, receipt: Receipt, batch: VerifiedBatch, now: float
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


def _after(messages: list[Header], expected: Place, receipt: Receipt) -> Place:
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


def _strange(arrived: Arrived, receipt: Receipt) -> None:
    """Whether the far side has to be told that nothing is known here of what it names."""
    instance = arrived.instance
    named = [one for one, _ in arrived.group if one.kind == FrameKind.MESSAGE and one.to_broker_instance == instance]
    if named:
        # What begins a dialog may come after what follows it, as long as its sender has heard nothing from here.
        is_certain = any(one.is_from_target or (one.ack_sequence, one.ack_fragment) > (0, 0) for one in named)
        receipt.strangers.append((arrived.contact(named[0]), is_certain))


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
