"""
What a fragment is to the receiver: expected, early or a duplicate, by its place `(sequence, fragment)` alone.

What is early is kept within bounds, so that one dialog cannot fill the disk with what may never become a message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from broker.flow import Disposition
from broker.protocol.frame import Fault, Header, Stored, checksum, encode_dialog, encode_fault, encode_stored
from broker.protocol.layout import HOP_LIMIT, NO_GUID, TIME_TO_LIVE_MS, Flag, FrameKind
from broker.routing.decide import RoutingFacts
from broker.security.seal import Direction
from broker.security.session import Sealer, Secured

_LAST = int(Flag.LAST_FRAGMENT)  # an enum's operators are slow, and this is asked of every fragment
EARLY_WINDOW = 4096  # how many messages from the expected one on are taken: `dialog.window` at its widest
EARLY_FRAGMENTS_MAX = 4096  # kept out of order for one side: what that window lets be under way
EARLY_BYTES_MAX = 64 * 1024 * 1024  # likewise, of bodies; a thousand fragments of the default size


class Arrival(IntEnum):
    """What a fragment is to the receiver."""

    EXPECTED = 0
    EARLY = 1
    DUPLICATE = 2
    TOO_EARLY = 3


def place(expected: tuple[int, int], sequence: int, fragment: int) -> Arrival:
    """What a fragment is, given the next expected (sequence, fragment)."""
    if (sequence, fragment) == expected:
        return Arrival.EXPECTED
    if (sequence, fragment) < expected:
        return Arrival.DUPLICATE
    return Arrival.EARLY if sequence < expected[0] + EARLY_WINDOW else Arrival.TOO_EARLY


def after(place: tuple[int, int], flags: int) -> tuple[int, int]:
    """The place that is expected after a fragment with these flags."""
    sequence, fragment = place
    return (sequence + 1, 0) if flags & _LAST else (sequence, fragment + 1)


# --- contact ---
# How one side of a dialog is addressed on the wire, and the frames it makes: MESSAGE, ACK, FAULT. Pure.


_MESSAGE, _ACK, _FAULT = (
    int(FrameKind.MESSAGE),
    int(FrameKind.ACK),
    int(FrameKind.FAULT),
)  # an enum's operators are slow
_FROM_TARGET, _SEALED = int(Flag.FROM_TARGET), int(Flag.SEALED)


@dataclass(frozen=True, slots=True)
class Contact:
    """
    Both ends of a dialog as seen from this one.

    Shape: GUIDs are 16 bytes; `far_broker_instance` zero while any instance may answer; `secured` None when it is in
    clear.
    """

    conversation_id: bytes
    is_initiator: bool
    service_name: str
    broker_instance: bytes
    far_service: str
    far_broker_instance: bytes = NO_GUID
    secured: Secured | None = None

    @property
    def is_open(self) -> bool:
        """Whether any instance of the far service may answer still (R5.1)."""
        return self.is_initiator and self.far_broker_instance == NO_GUID

    def bound_to(self, broker_instance: bytes) -> Contact:
        """The same dialog with this database as its far side."""
        return replace(self, far_broker_instance=broker_instance)

    def secured_as(self, secured: Secured | None) -> Contact:
        """The same dialog, secured so."""
        return replace(self, secured=secured)

    def objection(self, header: Header) -> Disposition | None:
        """
        Why a frame is not from the far side of this dialog to this side, by what its header says; None when it is.

        Permissions are asked of the service that a frame names, and a side is found by the conversation id alone. So a
        frame is applied to a side only when all of its header fits.
        """
        ends = header.conversation_id, header.is_from_target, header.to_service, header.from_service
        if ends != (self.conversation_id, self.is_initiator, self.service_name, self.far_service):
            return Disposition.NOT_OF_THIS_DIALOG
        if header.to_broker_instance not in (NO_GUID, self.broker_instance):
            return Disposition.NOT_OF_THIS_DIALOG
        if not self.is_open and header.from_broker_instance != self.far_broker_instance:
            return Disposition.OTHER_INSTANCE
        return None

    def direction(self) -> Direction:
        """What the keys of this side's frames are for."""
        return Direction(
            self.conversation_id, not self.is_initiator, self.far_service, self.service_name, self.broker_instance
        )

    def facts(self) -> RoutingFacts:
        """What routing is told about frames of this side."""
        return RoutingFacts(
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


class Fragment(NamedTuple):
    """One fragment to send. Shape: `stored` is acknowledged with it: the next place expected from the far side."""

    place: Place
    flags: int
    body: bytes
    stored: Place


class Seal(NamedTuple):
    """How a frame is sealed. Shape: `now` UTC seconds since 1970; `with_packet` whether the key packet goes along."""

    sealer: Sealer
    now: float
    with_packet: bool

    @property
    def again(self) -> Seal:
        """For what is sent a second time: the far side may have lost the key."""
        return self._replace(with_packet=True)


def message_frame(
    contact: Contact, travel: Travel, message_id: bytes, fragment: Fragment, seal: Seal | None = None
) -> bytes:
    """
    One fragment of a message.

    Raises:
        CannotSealError: it is to be sealed, and a certificate is missing.
    """
    return _frame(contact, travel, message_id, _MESSAGE, fragment, seal=seal)


def ack_frame(
    contact: Contact,
    travel: Travel,
    message_id: bytes,
    stored: Place,
    held: tuple[tuple[int, int, int], ...] = (),
    *,
    seal: Seal | None = None,
) -> bytes:
    """
    An acknowledgement by itself: everything before `stored` is safe here.

    Shape: `held` runs of (sequence, first fragment, last fragment) that are safe here behind that.

    Raises:
        CannotSealError: it is to be sealed, and a certificate is missing.
    """
    return _frame(
        contact, travel, message_id, _ACK, Fragment((0, 0), 0, encode_stored(Stored(held)), stored), seal=seal
    )


def fault_frame(contact: Contact, travel: Travel, message_id: bytes, fault: Fault, seal: Seal | None = None) -> bytes:
    """
    An error made by this broker, not by an application.

    Raises:
        CannotSealError: it is to be sealed, and a certificate is missing.
    """
    return _frame(contact, travel, message_id, _FAULT, Fragment((0, 0), 0, encode_fault(fault), (0, 0)), seal=seal)


def _frame(
    contact: Contact, travel: Travel, message_id: bytes, kind: int, fragment: Fragment, *, seal: Seal | None
) -> bytes:
    place, flags, body, stored = fragment
    if seal is not None:
        flags |= _SEALED
    header = Header(  # by position: every message pays for this
        kind,
        flags if contact.is_initiator else flags | _FROM_TARGET,
        message_id,
        contact.conversation_id,
        contact.far_service,
        contact.service_name,
        contact.broker_instance,
        contact.far_broker_instance,
        place[0],
        place[1],
        stored[0],
        stored[1],
        checksum(body) if seal is None else 0,
        0,
        travel.hop_limit,
        travel.time_to_live,
    )
    if seal is None:
        return encode_dialog(header, body)
    return seal.sealer.seal(header, body, seal.now, with_packet=seal.with_packet)
