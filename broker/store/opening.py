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

from broker.conversation.arrival import EARLY_WINDOW, after
from broker.conversation.contact import Contact, Place
from broker.conversation.well_known import DEFAULT_LIFETIME, LIFETIME_MAX
from broker.errors import FrameMalformedError
from broker.flow import Disposition
from broker.store.receipt import Receipt
from broker.store.side import Side, create_side, is_name
from broker.store.tombstone import find_tombstone
from broker.wire.frame import Envelope, Fault, Header, decode_envelope
from broker.wire.layout import NAME_MAX_BYTES, Kind

Group = list[tuple[Header, bytes]]
_FRAGMENT_MAX = 2**32 - 1


def open_side(db: sqlite3.Connection, instance: bytes, group: Group, receipt: Receipt, now: float) -> Side | None:
    """
    The side that these frames are for: made when they begin a dialog.

    Args:
        db: Inside the transaction of the batch.
        instance: The broker instance of this database.
        group: Frames of one dialog and side, of which no row is here.
        receipt: Of the batch; told what becomes of them.
        now: UTC seconds since 1970.

    Returns:
        None when there is no side to apply the frames to, and the receipt says all.
    """
    header = group[0][0]
    tombstone = find_tombstone(db, header.conversation_id, is_initiator=header.is_from_target)
    if tombstone is not None:
        expected = _thrown_away(group, tombstone.expected, receipt)
        if expected != tombstone.expected:
            tombstone.move(db, expected)
        if any(one.kind == Kind.MESSAGE for one, _ in group):
            receipt.closed.append((_contact(header, instance), expected))
        return None
    first = next((pair for pair in group if pair[0].kind == Kind.MESSAGE and pair[0].place == (0, 0)), None)
    if first is None or header.is_from_target:
        receipt.drop(Disposition.UNKNOWN_CONVERSATION, *_headers(group))
        _strange(instance, group, receipt)
        return None
    return _begin(db, _contact(first[0], instance), first, receipt, now, group=group)


def _thrown_away(group: Group, expected: Place, receipt: Receipt) -> Place:
    """What is expected after frames for a side that has ended."""
    for header, _ in group:
        if header.kind != Kind.MESSAGE:
            continue
        if header.place < expected:
            receipt.drop(Disposition.DUPLICATE, header)
        elif header.sequence_number >= expected[0] + EARLY_WINDOW or header.fragment_number >= _FRAGMENT_MAX:
            receipt.drop(Disposition.OUT_OF_SEQUENCE, header)
        else:
            # Nothing of it is kept, so a gap is none: else every early frame would cost its sender a time-out.
            receipt.drop(Disposition.CONVERSATION_ENDED, header)
            expected = after(header.place, header.flags)
    return expected


def _strange(instance: bytes, group: Group, receipt: Receipt) -> None:
    """Whether the far side has to be told that nothing is known here of what it names."""
    named = [one for one, _ in group if one.kind == Kind.MESSAGE and one.to_broker_instance == instance]
    if named:
        # What begins a dialog may come after what follows it, as long as its sender has heard nothing from here.
        is_certain = any(one.is_from_target or (one.ack_sequence, one.ack_fragment) > (0, 0) for one in named)
        receipt.strangers.append((_contact(named[0], instance), is_certain))


def _begin(
    db: sqlite3.Connection,
    contact: Contact,
    first: tuple[Header, bytes],
    receipt: Receipt,
    now: float,
    *,
    group: Group,
) -> Side | None:
    """The target's side of a new dialog, when its service is here and takes its contract; else the answer is no."""
    header, body = first
    service = db.execute("SELECT contracts FROM broker_service WHERE name = ?", (contact.service_name,)).fetchone()
    if service is None:
        # Without the service a frame comes here only when the dialog or its route names this database (R4.1).
        receipt.drop(Disposition.SERVICE_NOT_FOUND, *_headers(group))
        text = f"the service {contact.service_name!r} does not exist in the broker instance that was named"
        receipt.faults.append((contact, Fault(-8490, text)))
        return None
    try:
        envelope, _ = decode_envelope(body)
    except FrameMalformedError:
        receipt.drop(Disposition.CORRUPTED, *_headers(group))
        return None
    if not is_name(envelope.contract):
        receipt.drop(Disposition.CORRUPTED, *_headers(group))
        text = f"the message body failed validation: a contract's name has at most {NAME_MAX_BYTES} bytes"
        receipt.faults.append((contact, Fault(-8430, text)))
        return None
    contracts = json.loads(service[0])
    if contracts and envelope.contract not in contracts:
        receipt.drop(Disposition.CONTRACT_REFUSED, *_headers(group))
        text = f"the service {contact.service_name!r} does not accept the contract {envelope.contract!r}"
        receipt.faults.append((contact, Fault(-8408, text)))
        return None
    is_named = header.to_broker_instance == contact.broker_instance
    return create_side(db, contact, envelope.contract, now + _lifetime(envelope), now, is_named=is_named)


def _headers(group: Group) -> list[Header]:
    return [header for header, _ in group]


def _lifetime(envelope: Envelope) -> float:
    told = envelope.lifetime if envelope.lifetime is not None else DEFAULT_LIFETIME.total_seconds()
    return min(told, LIFETIME_MAX)


def _contact(header: Header, instance: bytes) -> Contact:
    """Both ends as seen from here, as a frame says."""
    return Contact(
        header.conversation_id,
        is_initiator=header.is_from_target,
        service_name=header.to_service,
        broker_instance=instance,
        far_service=header.from_service,
        far_broker_instance=header.from_broker_instance,
    )
