"""How one side of a dialog is addressed on the wire, and the frames it makes: MESSAGE, ACK, FAULT. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

from broker.routing.facts import Facts
from broker.wire.frame import Fault, Header, Stored, checksum, encode_dialog, encode_fault, encode_stored
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

    def bound_to(self, broker_instance: bytes) -> Contact:
        """The same dialog with this database as its far side."""
        return replace(self, far_broker_instance=broker_instance)

    def facts(self) -> Facts:
        """What routing is told about frames of this side."""
        return Facts(
            self.far_service,
            self.far_broker_instance,
            self.conversation_id,
            is_from_target=not self.is_initiator,
            database=self.broker_instance,
        )


Place = tuple[int, int]
"""(sequence, fragment): one fragment of a direction of a dialog, or everything before it."""


@dataclass(frozen=True, slots=True)
class Travel:
    """Shape: `hop_limit` 1 .. 255; `time_to_live` ms that one copy may live."""

    hop_limit: int = HOP_LIMIT
    time_to_live: int = TIME_TO_LIVE_MS


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fragment to send. Shape: `stored` is acknowledged with it: the next place expected from the far side."""

    place: Place
    flags: int
    body: bytes
    stored: Place


def message_frame(contact: Contact, travel: Travel, message_id: bytes, fragment: Fragment) -> bytes:
    """One fragment of a message."""
    header = Header(
        flags=fragment.flags | _direction(contact),
        sequence_number=fragment.place[0],
        fragment_number=fragment.place[1],
        ack_sequence=fragment.stored[0],
        ack_fragment=fragment.stored[1],
        body_checksum=checksum(fragment.body),
        **_common(contact, travel, Kind.MESSAGE, message_id),
    )
    return encode_dialog(header, fragment.body)


def ack_frame(
    contact: Contact, travel: Travel, message_id: bytes, stored: Place, held: tuple[tuple[int, int, int], ...] = ()
) -> bytes:
    """
    An acknowledgement by itself: everything before `stored` is safe here.

    Shape: `held` runs of (sequence, first fragment, last fragment) that are safe here behind that.
    """
    body = encode_stored(Stored(held))
    header = Header(
        flags=_direction(contact),
        ack_sequence=stored[0],
        ack_fragment=stored[1],
        body_checksum=checksum(body),
        **_common(contact, travel, Kind.ACK, message_id),
    )
    return encode_dialog(header, body)


def fault_frame(contact: Contact, travel: Travel, message_id: bytes, fault: Fault) -> bytes:
    """An error made by this broker, not by an application."""
    body = encode_fault(fault)
    header = Header(
        flags=_direction(contact), body_checksum=checksum(body), **_common(contact, travel, Kind.FAULT, message_id)
    )
    return encode_dialog(header, body)


class _Common(TypedDict):
    kind: int
    message_id: bytes
    conversation_id: bytes
    to_service: str
    from_service: str
    from_broker_instance: bytes
    to_broker_instance: bytes
    hop_limit: int
    time_to_live: int


def _common(contact: Contact, travel: Travel, kind: Kind, message_id: bytes) -> _Common:
    return {
        "kind": kind,
        "message_id": message_id,
        "conversation_id": contact.conversation_id,
        "to_service": contact.far_service,
        "from_service": contact.service_name,
        "from_broker_instance": contact.broker_instance,
        "to_broker_instance": contact.far_broker_instance,
        "hop_limit": travel.hop_limit,
        "time_to_live": travel.time_to_live,
    }


def _direction(contact: Contact) -> int:
    return 0 if contact.is_initiator else Flag.FROM_TARGET
