"""
How one side of a dialog is addressed on the wire, and the frames it makes: MESSAGE, ACK, FAULT. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.routing.facts import Facts
from broker.wire.frame import Fault, Header, checksum, encode_dialog, encode_fault
from broker.wire.layout import HOP_LIMIT, NO_GUID, TIME_TO_LIVE_MS, Flag, Kind


@dataclass(frozen=True, slots=True)
class Contact:
    """
    Both ends of a dialog as seen from this one.

    Shape: GUIDs are 16 bytes; `far_broker_instance` zero while any instance may answer.
    """

    conversation_id: bytes
    is_initiator: bool
    service_name: str
    broker_instance: bytes
    far_service: str
    far_broker_instance: bytes = NO_GUID

    def facts(self) -> Facts:
        """What routing is told about frames of this side."""
        return Facts(
            self.far_service,
            self.far_broker_instance,
            self.conversation_id,
            is_from_target=not self.is_initiator,
            database=self.broker_instance,
        )


@dataclass(frozen=True, slots=True)
class Travel:
    """Shape: `hop_limit` 1 .. 255; `time_to_live` ms that one copy may live."""

    hop_limit: int = HOP_LIMIT
    time_to_live: int = TIME_TO_LIVE_MS


def message_frame(
    contact: Contact, travel: Travel, message_id: bytes, place: tuple[int, int], flags: int, body: bytes, stored: tuple[int, int]
) -> bytes:
    """
    One fragment of a message.

    Shape: `place` its (sequence, fragment); `stored` what is acknowledged with it, the next (sequence, fragment) expected.
    """
    return encode_dialog(_header(contact, travel, Kind.MESSAGE, message_id, flags, place, stored, checksum(body)), body)


def ack_frame(contact: Contact, travel: Travel, message_id: bytes, stored: tuple[int, int]) -> bytes:
    """An acknowledgement by itself: everything before `stored` is safe here."""
    return encode_dialog(_header(contact, travel, Kind.ACK, message_id, 0, (0, 0), stored, 0))


def fault_frame(contact: Contact, travel: Travel, message_id: bytes, fault: Fault) -> bytes:
    """An error made by this broker, not by an application."""
    body = encode_fault(fault)
    return encode_dialog(_header(contact, travel, Kind.FAULT, message_id, 0, (0, 0), (0, 0), checksum(body)), body)


def _header(
    contact: Contact, travel: Travel, kind: Kind, message_id: bytes, flags: int, place: tuple[int, int], stored: tuple[int, int], body_checksum: int
) -> Header:
    return Header(
        kind=kind,
        flags=flags if contact.is_initiator else flags | Flag.FROM_TARGET,
        message_id=message_id,
        conversation_id=contact.conversation_id,
        to_service=contact.far_service,
        from_service=contact.service_name,
        from_broker_instance=contact.broker_instance,
        to_broker_instance=contact.far_broker_instance,
        sequence_number=place[0],
        fragment_number=place[1],
        ack_sequence=stored[0],
        ack_fragment=stored[1],
        body_checksum=body_checksum,
        hop_limit=travel.hop_limit,
        time_to_live=travel.time_to_live,
    )
