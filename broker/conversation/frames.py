"""
How one side of a dialog is addressed, the frames it makes, and what a fragment is to its receiver. Pure.

A fragment is expected, early or a duplicate by its place `(sequence, fragment)` alone. Early ones are kept within
bounds, so that one dialog cannot fill the disk with what may never become a message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from broker.flow import Disposition
from broker.protocol.frame import Fault, Header, Stored, checksum, encode_dialog, encode_fault, encode_stored
from broker.protocol.layout import EARLY_WINDOW, HOP_LIMIT, NO_GUID, TIME_TO_LIVE_MS, Flag, FrameKind
from broker.routing.decide import RoutingFacts
from broker.security.seal import Direction
from broker.security.secured import Secured
from broker.security.session import Sealer

EARLY_FRAGMENTS_MAX = 4096  # kept out of order for one side: what `EARLY_WINDOW` allows to be under way
EARLY_BYTES_MAX = 64 * 1024 * 1024  # likewise, of bodies; a thousand fragments of the default size

# An enum's operators are slow, and these are used for every fragment.
_MESSAGE, _ACK, _FAULT = int(FrameKind.MESSAGE), int(FrameKind.ACK), int(FrameKind.FAULT)
_LAST, _FROM_TARGET, _SEALED = int(Flag.LAST_FRAGMENT), int(Flag.FROM_TARGET), int(Flag.SEALED)

Place = tuple[int, int]
"""(sequence, fragment): one fragment of a direction of a dialog, or everything before it."""


Run = tuple[int, int, int]
"""(sequence, first fragment, last fragment): what is held out of order."""


class FragmentArrival(IntEnum):
    """The class of an arriving fragment for its receiver."""

    EXPECTED = 0
    EARLY = 1
    DUPLICATE = 2
    TOO_EARLY = 3


def classify(expected: Place, place: Place) -> FragmentArrival:
    """Return the class of a fragment at this place, given the next expected place."""
    if place == expected:
        return FragmentArrival.EXPECTED
    if place < expected:
        return FragmentArrival.DUPLICATE
    return FragmentArrival.EARLY if place[0] < expected[0] + EARLY_WINDOW else FragmentArrival.TOO_EARLY


def after(place: Place, flags: int) -> Place:
    """The place that is expected after a fragment with these flags."""
    sequence, fragment = place
    return (sequence + 1, 0) if flags & _LAST else (sequence, fragment + 1)


@dataclass(frozen=True, slots=True)
class Contact:
    """Both ends of a dialog as seen from this one; GUIDs are 16 bytes."""

    conversation_id: bytes
    is_initiator: bool
    service_name: str
    broker_instance: bytes
    far_service: str
    far_broker_instance: bytes = NO_GUID  # while any instance may answer
    secured: Secured | None = None  # None: in clear

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

    def why_refused(self, header: Header) -> Disposition | None:
        """
        Why a frame is not from the far side of this dialog to this side, by what its header says; None when it is.

        Permissions are checked for the service that a frame names, and a side is found by the conversation id alone. So
        a frame is applied to a side only when all of its header fits.
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
        """Return the direction for which the keys of this side's frames are made."""
        return Direction(
            self.conversation_id, not self.is_initiator, self.far_service, self.service_name, self.broker_instance
        )

    def facts(self) -> RoutingFacts:
        """Return the facts by which frames of this side are routed."""
        return RoutingFacts(
            self.far_service,
            self.far_broker_instance,
            self.conversation_id,
            is_from_target=not self.is_initiator,
            database=self.broker_instance,
        )


@dataclass(frozen=True, slots=True)
class Travel:
    """How far and how long one copy of a frame may travel."""

    hop_limit: int = HOP_LIMIT  # 1 .. 255
    time_to_live: int = TIME_TO_LIVE_MS


class AckNote(NamedTuple):
    """A remark in an acknowledgement by itself: the fields of `Stored` after its runs."""

    code: int = 0
    reason: str = ""
    confirm: bool = False


NO_NOTE = AckNote()
CONFIRM = AckNote(confirm=True)


class Fragment(NamedTuple):
    """One fragment to send."""

    place: Place
    flags: int
    body: bytes
    stored: Place  # acknowledged with it: the next place expected from the far side


class Seal(NamedTuple):
    """How a frame is sealed."""

    sealer: Sealer
    now: float  # UTC seconds since 1970
    with_packet: bool  # the key packet is sent with it

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
    held: tuple[Run, ...] = (),
    *,
    note: AckNote = NO_NOTE,
    seal: Seal | None = None,
) -> bytes:
    """
    An acknowledgement by itself: everything before `stored` is safe here, and after that the runs in `held`.

    Raises:
        CannotSealError: it is to be sealed, and a certificate is missing.
    """
    body = encode_stored(Stored(held, *note))
    return _frame(contact, travel, message_id, _ACK, Fragment((0, 0), 0, body, stored), seal=seal)


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
