"""What a batch of arrivals led to, for the loop to act on after the commit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.conversation.frames import Contact, Place
from broker.flow import Disposition
from broker.protocol.frame import Fault, Header
from broker.protocol.layout import FrameKind

Run = tuple[int, int, int]
"""(sequence, first fragment, last fragment): what is held out of order."""


TracedKey = tuple[bytes, bool, int]
"""Of a message: its conversation_id, whether the target sent it, its sequence number."""


@dataclass(frozen=True, slots=True)
class AckState:
    """
    What one side has of its far side, to be acknowledged.

    Shape: `place` the next expected; `held` runs behind it, bounded; `frames` that were new; `is_urgent` when the far
    side waits for it or is to send something again: after a duplicate, a gap, or an end.
    """

    contact: Contact
    place: Place
    held: tuple[Run, ...] = ()
    frames: int = 0
    is_urgent: bool = False


class KeyEvidence(NamedTuple):
    """What a sealed frame told of keys. Shape: as `Sealer.heard` takes them."""

    echo: bytes
    key_id: bytes


@dataclass(slots=True)
class Receipt:
    """
    Shape: `stored` by endpoint_id; `closed` what tombstones acknowledge; `acknowledged` endpoint_id -> the place up to
    which the far side has everything, `held_there` what it has behind that; `contacts` endpoints whose far side became
    known; `finished` endpoints that have nothing to send any more; `faults` to send; `strangers` dialogs of which
    nothing is known here though they name this database, and whether that is certain or their beginning may still
    come; `delivered` whole messages by service; `dropped` frames by disposition, and in `last_dropped` the header of
    the last of them, None when it cannot be read; `headers` of all frames in the order of arrival, likewise; `heard` by
    conversation and side what the last of the sealed frames told of keys; `refusals` by disposition why one was not
    believed; `traced` the application's own spans of messages with the TRACE flag that went to a queue.
    """

    stored: dict[int, AckState] = field(default_factory=dict)
    closed: list[tuple[Contact, Place]] = field(default_factory=list)
    acknowledged: dict[int, Place] = field(default_factory=dict)
    held_there: dict[int, tuple[Run, ...]] = field(default_factory=dict)
    contacts: dict[int, Contact] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    faults: list[tuple[Contact, Fault]] = field(default_factory=list)
    strangers: list[tuple[Contact, bool]] = field(default_factory=list)
    delivered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[Disposition] = field(default_factory=Counter)
    last_dropped: dict[Disposition, Header | None] = field(default_factory=dict, compare=False)  # a sample, no outcome
    headers: list[Header | None] = field(default_factory=list, compare=False)
    heard: dict[tuple[bytes, bool], KeyEvidence] = field(default_factory=dict)
    refusals: dict[Disposition, str] = field(default_factory=dict)
    traced: dict[TracedKey, str] = field(default_factory=dict, compare=False)
    _endings: list[tuple[Header, Disposition]] = field(default_factory=list, compare=False)

    def drop(self, disposition: Disposition, *headers: Header) -> None:
        """Frames end here."""
        for header in headers:
            self.count(disposition, header)
            self._endings.append((header, disposition))

    def refuse(self, disposition: Disposition, why: str, header: Header) -> None:
        """A frame is not believed."""
        self.drop(disposition, header)
        self.refusals[disposition] = why

    def takes(self, contact: Contact, header: Header) -> bool:
        """
        Whether a frame is from the far side of this dialog; one that is not is dropped here.

        A second instance that answers an open dialog is notified with FAULT -8495.
        """
        objection = contact.objection(header)
        if objection is None:
            return True
        if objection is Disposition.OTHER_INSTANCE:
            self.drop(objection, header)
            if contact.is_initiator and header.kind in (FrameKind.MESSAGE, FrameKind.ACK):
                fault = Fault(-8495, "another instance of the service has this conversation")
                self.faults.append((contact.bound_to(header.from_broker_instance), fault))
        else:
            why = (
                f"its dialog is between {contact.far_service!r} and {contact.service_name!r}, and it is from"
                f" {header.from_service!r} to {header.to_service!r}"
            )
            self.refuse(objection, why, header)
        return False

    def count(self, disposition: Disposition, header: Header | None) -> None:
        """Count something that is not believed, though its frame may be taken for something else in it."""
        self.dropped[disposition] += 1
        self.last_dropped[disposition] = header

    def verdicts(self) -> list[Disposition]:
        """
        What became of each frame, as `headers` has them.

        Delivered is one that was neither dropped nor unreadable: stored in its turn or before it, or understood.
        """
        endings = {id(header): disposition for header, disposition in self._endings}
        return [
            Disposition.MALFORMED if header is None else endings.get(id(header), Disposition.DELIVERED)
            for header in self.headers
        ]
