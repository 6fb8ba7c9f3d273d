"""
What arrived becomes stored: one transaction for a whole batch of frames, then acknowledgements.

Runs in the writer thread. Frames are grouped by dialog and side; each group moves its side on (`reception`), makes it
(`opening`), or meets what is left of it. Nothing is acknowledged before the commit: the caller sends what the `Receipt`
says only after the transaction has ended.

Source: docs/protocol.md, section 4; Service Broker documentation, "Service Broker Communication Protocols".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from broker.errors import FrameMalformedError
from broker.flow import Disposition
from broker.protocol.frame import checksum, decode_dialog
from broker.protocol.layout import Flag
from broker.security.session import Secured
from broker.store.delivery import Delivery
from broker.store.gate import FrameVerifier, VerifiedBatch
from broker.store.opening import Arrived, open_side, throw_away
from broker.store.receipt import Receipt
from broker.store.reception import Group, Reception
from broker.store.side import load_side
from broker.store.tombstone import find_tombstone
from broker.store.transaction import writing

_SEALED, _FROM_TARGET = int(Flag.SEALED), int(Flag.FROM_TARGET)  # an enum's operators take longer than all of the rest


def receive_in_writer(db: sqlite3.Connection, instance: bytes, frames: Iterable[bytes], now: float) -> Receipt:
    """
    Store a batch of dialog frames for this database, in a transaction of its own.

    Args:
        db: Its connection.
        instance: Its broker instance.
        frames: Whole frames in the order of arrival.
        now: UTC seconds since 1970.

    Raises:
        sqlite3.Error: the store failed; nothing of the batch is stored, and nothing may be acknowledged.
    """
    with writing(db):
        return store_in_writer(db, instance, frames, now)


def store_in_writer(
    db: sqlite3.Connection,
    instance: bytes,
    frames: Iterable[bytes],
    now: float,
    *,
    gate: FrameVerifier | None = None,
    origins: Sequence[object] = (),
    inside: Mapping[int, Secured] = MappingProxyType({}),
) -> Receipt:
    """
    The same, in the transaction of the caller.

    Args:
        db: Its connection.
        instance: Its broker instance.
        frames: Whole frames in the order of arrival.
        now: UTC seconds since 1970.
        gate: Who opens seals; None = of a database without a certificate.
        origins: The link that brought each frame, any hashable object; empty = one for all.
        inside: Frames, counted from 0, that a database of this very instance has sent, and how the target of a dialog
            that begins keeps what its initiator may seal with later.

    Raises:
        sqlite3.Error: the store failed; nothing of the batch is stored, and nothing may be acknowledged.
    """
    receipt = Receipt()
    delivery = Delivery(db, now)
    batch = (gate or FrameVerifier()).batch(db, receipt, now)
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
    receipt: Receipt,
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
