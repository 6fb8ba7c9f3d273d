"""What a batch of arrivals led to, for the loop to act on after the commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.conversation.frames import Contact, Place
from broker.conversation.outbound import Outgoing
from broker.conversation.window import FIRST_FRAMES
from broker.flow import Disposition
from broker.protocol.frame import Fault, Header
from broker.protocol.layout import FrameKind
from broker.security.session import Secured
from broker.store.sqlite.transaction import DaemonConnection

if TYPE_CHECKING:
    from broker.store.sqlite.expiry import Maintenance
    from broker.store.sqlite.verify import FrameVerifier


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


# --- sending_port ---
# Part of `broker.store.sqlite.outbound`.


@dataclass(frozen=True, slots=True)
class PendingDialog:
    """
    A dialog that has something to send.

    Shape: `stored` next place expected from the far side; `priority` 1 .. 10; `status` what the file says of it.
    """

    endpoint_id: int
    contact: Contact
    first_sequence: int
    stored: Place
    priority: int = 5
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """
    What to load.

    Shape: from `place` on, at most `fragments`, and no more than `max_bytes` of bodies, the first one excepted.
    """

    endpoint_id: int
    place: Place
    fragments: int
    max_bytes: int


class LoadedFragments(NamedTuple):
    """What was loaded for a want. Shape: `is_all` when nothing waits behind the fragments."""

    want: Want
    fragments: list[Outgoing]
    is_all: bool


# --- turn_port ---
# Part of `broker.store.sqlite.write_batch`.


@dataclass(slots=True)
class MaintenanceResult:
    """
    What came of it.

    Shape: `finished` endpoints that have nothing to send any more; `has_more` when it should soon be done again.
    """

    finished: list[int] = field(default_factory=list)
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """
    What to do.

    Shape: `now` UTC seconds since 1970; `frames` whole dialog frames for this database; `find_after` a transmission_id,
    None when no application has committed; `load_max_bytes` of bodies, never exceeded; `known` whether the loop loads
    for this dialog itself, asked by endpoint_id from the writer thread; `first_frames` at most are loaded of one that
    was found and is not known; `housekeeping` when it is time for that; `statuses` why dialogs wait, by endpoint_id;
    `is_probe` when the store failed before, so that a turn with nothing else to write shows whether it works again;
    `inside` the frames, counted from 0, that come from databases of this instance, as `store_in_writer` takes them;
    `origins` the link or database that brought each of them, empty where that does not matter; `gate` opens what is
    sealed; `faults` of dialogs that cannot be sent as they have to be, by endpoint_id.
    """

    now: float
    frames: list[bytes]
    find_after: int | None
    wants: list[Want]
    load_max_bytes: int
    known: Callable[[int], bool] = lambda _: True
    first_frames: int = FIRST_FRAMES
    housekeeping: Maintenance | None = None
    statuses: dict[int, str | None] = field(default_factory=dict)
    is_probe: bool = False
    origins: Sequence[object] = ()
    inside: Mapping[int, Secured] = field(default_factory=dict)
    gate: FrameVerifier | None = None
    faults: dict[int, Fault] = field(default_factory=dict)

    def parts(self) -> list[WriteBatch]:
        """
        The same as turns to do one after the other: what only reads comes first, so that it waits for no other writer.

        A probe stays whole, for reading shows nothing.
        """
        reads = self.find_after is not None or bool(self.wants)
        writes = bool(self.frames or self.statuses or self.faults) or self.housekeeping is not None
        if self.is_probe or not (reads and writes):
            return [self]
        reading = replace(self, frames=[], origins=(), inside={}, statuses={}, faults={}, housekeeping=None)
        return [reading, replace(self, find_after=None, wants=[])]


@dataclass(slots=True)
class WriteResult:
    """
    What came of it.

    Shape: `found_up_to` the next turn's `find_after`; `loaded` what was wanted, or found and not known; `postponed`
    what there was no room to load; `next_timer` UTC instant of the next conversation timer; `seconds` that the
    transaction took, its commit to the disk included, None where nothing was written.
    """

    receipt: Receipt = field(default_factory=Receipt)
    found: list[PendingDialog] = field(default_factory=list)
    found_up_to: int | None = None
    loaded: list[LoadedFragments] = field(default_factory=list)
    postponed: list[Want] = field(default_factory=list)
    kept: MaintenanceResult = field(default_factory=MaintenanceResult)
    next_timer: float | None = None
    seconds: float | None = None


# --- store_port ---
# What a database at work needs of the store that keeps it: the port through which another kind of store can follow.
#
# `broker.store.sqlite.write_batch` is the one there is. What a turn does is described by values that say nothing of
# files or SQL.


class Store(Protocol):
    """
    The conversations of one database, kept through every crash.

    Shape: `broker_instance` 16 bytes, constant.
    """

    broker_instance: bytes

    def turn_in_writer(self, turn: WriteBatch) -> WriteResult:
        """
        Do one turn as a whole: what it returns is durable, of what fails nothing is there.

        Raises:
            StoreUnavailableError: it failed, for a reason that may pass.
        """

    def lend(self) -> DaemonConnection:
        """
        What the catalog's statements and the requests for routes run on, in the writer thread or while it stands still.

        Nobody but the functions of `broker.store` and `broker.client` looks into it: everybody else hands it on.

        Raises:
            StoreUnavailableError: what would be committed now would not be found again.
        """

    def version(self) -> int:
        """A number that changes with every commit of an application; cheap, and for any thread, it waits for nobody."""

    def close(self) -> None:
        """Let go of it; nothing may be under way."""


# --- mr ---
# Part of `broker.store.sqlite.expiry`.
