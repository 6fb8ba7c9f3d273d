"""
The values exchanged between the daemon and the store of a database: a batch goes in, a result comes out.

Everything that the result calls stored is durable. So is everything that it calls loaded: it may be sent at once.
Nothing in a batch names a file, a connection or SQL. The store (`broker.store.sqlite.write_batch`) decides how it finds
new messages, verifies sealed frames and expires dialogs.

This is the daemon's half only. The calls of applications (`broker.client`), the statements of the catalog and the views
use the database directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from broker.conversation.frames import AckNote, Contact, Place, Run
from broker.conversation.outbound import Outgoing
from broker.flow import Disposition
from broker.protocol.frame import Fault, Header
from broker.protocol.layout import FrameKind
from broker.security.secured import Secured

TracedKey = tuple[bytes, bool, int]
"""Of a message: its conversation_id, whether the target sent it, its sequence number."""


# --- what to do ---


class Find(IntEnum):
    """Which dialogs with unsent messages to look for; the higher one includes the lower."""

    NOTHING = 0
    NEW = 1  # an application has committed
    ALL = 2  # after a start, and when the last result was lost


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """
    Fragments of one dialog to load.

    Attributes:
        endpoint_id: The dialog.
        place: The first of them.
        fragments: At most so many.
        max_bytes: Of bodies, the first one excepted.
    """

    endpoint_id: int
    place: Place
    fragments: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """
    The work of one batch of the writer thread.

    Attributes:
        now: UTC seconds since 1970.
        frames: Whole dialog frames for this database, in the order of arrival.
        find: Which dialogs to look for.
        is_hinted: An application is committing: wait a moment until its commit is visible.
        load: The fragments to load of dialogs that were found before.
        load_max_bytes: Limit of the bodies loaded, in all; never exceeded.
        request_for: What to load of a dialog that was found, None for nothing; called in the writer thread.
        is_maintenance_due: Fire timers, end what is past its lifetime, remove what is no longer needed.
        statuses: Why dialogs wait, by endpoint_id; None where they do not.
        is_probe: The store failed before; a batch with nothing else to write shows whether it works again.
        origins: The link or database that brought each frame, any hashable object; empty = one for all.
        inside: Frames, counted from 0, that a database of this instance has sent, and how the target of a dialog that
            begins keeps what its initiator may seal with later.
        faults: Of dialogs that cannot be sent as they have to be, by endpoint_id.
        off: Services whose queue was off when something arrived for them.
        acknowledge: Conversations of which a next hop accepts acknowledgements again that it refused.
    """

    now: float
    frames: list[bytes] = field(default_factory=list)
    find: Find = Find.NOTHING
    is_hinted: bool = False
    load: list[LoadRequest] = field(default_factory=list)
    load_max_bytes: int = 0
    request_for: Callable[[PendingDialog], LoadRequest | None] = lambda _: None
    is_maintenance_due: bool = False
    statuses: dict[int, str | None] = field(default_factory=dict)
    is_probe: bool = False
    origins: Sequence[object] = ()
    inside: Mapping[int, Secured] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)
    off: Collection[str] = ()
    acknowledge: Collection[bytes] = ()

    @property
    def writes(self) -> bool:
        """Whether it may write; maintenance mostly has nothing to do."""
        return bool(self.frames or self.statuses or self.faults or self.is_maintenance_due or self.is_probe)

    def parts(self) -> list[WriteBatch]:
        """
        Split it into the reading part and the writing part, so that sending waits for no other writer.

        A probe stays whole, for reading proves nothing.
        """
        reads = self.find is not Find.NOTHING or bool(self.load or self.acknowledge)
        if self.is_probe or not (reads and self.writes):
            return [self]
        reading = replace(
            self, frames=[], origins=(), inside={}, statuses={}, faults={}, is_maintenance_due=False, off=()
        )
        return [reading, replace(self, find=Find.NOTHING, load=[], acknowledge=())]


# --- results of a batch ---


@dataclass(frozen=True, slots=True)
class PendingDialog:
    """
    A dialog that has something to send.

    Attributes:
        endpoint_id: This side of it.
        contact: Both ends.
        first_sequence: The first message that waits.
        stored: The next place expected from the far side.
        priority: 1 .. 10.
        status: Why it waits, as the database says.
    """

    endpoint_id: int
    contact: Contact
    first_sequence: int
    stored: Place
    priority: int = 5
    status: str | None = None


class LoadedFragments(NamedTuple):
    """The fragments loaded for a request; `is_all` is true when nothing waits after them."""

    request: LoadRequest
    fragments: list[Outgoing]
    is_all: bool


@dataclass(frozen=True, slots=True)
class AckState:
    """
    The fragments that one side has from its far side, to be acknowledged.

    Attributes:
        contact: Both ends.
        place: The next expected.
        held: Runs after it that are here already, bounded.
        frames: How many were new.
        is_urgent: The far side waits for it or has to send something again: a duplicate, a gap, or an end.
        is_confirmation_wanted: It is not known here that the far side talks with this database alone.
    """

    contact: Contact
    place: Place
    held: tuple[Run, ...] = ()
    frames: int = 0
    is_urgent: bool = False
    is_confirmation_wanted: bool = False


class KeyEvidence(NamedTuple):
    """Evidence of its sender's keys in a sealed frame, for the method of `Sealer` that notes an authentic frame."""

    echo: bytes
    key_id: bytes


@dataclass(slots=True)
class ReceiveResult:
    """
    The effects of the frames that arrived. The loop acts on them after the commit.

    Attributes:
        stored: The acknowledgements to send, by endpoint_id.
        closed: The places that tombstones acknowledge, with the contact of each.
        asked: Dialogs whose target asks to be named, and the place that each side expects.
        refused: Dialogs of which something was not stored, as the queue is off, and the place that each side expects.
        acknowledged: The place up to which the far side has everything, by endpoint_id.
        held_there: The runs that the far side has after that place, by endpoint_id.
        said: Why the far side stores nothing for now, as its last acknowledgement by itself says, by endpoint_id.
        contacts: Endpoints whose far side became known.
        finished: Endpoints that have nothing left to send.
        faults: The faults to send.
        unknown_dialogs: Dialogs that name this database but of which nothing is known here, and whether that is
            certain. If it is not, the beginning of the dialog may still arrive.
        delivered: The number of whole messages, by service.
        dropped: The number of frames, by disposition.
        last_dropped: The header of the last frame dropped, by disposition; None when it cannot be read.
        headers: The headers of all frames in the order of arrival; None for one that cannot be read.
        keys: The key evidence in the last sealed frame of a side, by conversation_id and side.
        refusals: Why a frame was not accepted as authentic, by disposition.
        traced: The application's own spans of messages with the TRACE flag that went to a queue.
    """

    stored: dict[int, AckState] = field(default_factory=dict)
    closed: list[tuple[Contact, Place]] = field(default_factory=list)
    asked: list[tuple[Contact, Place]] = field(default_factory=list)
    refused: list[tuple[Contact, Place]] = field(default_factory=list)
    acknowledged: dict[int, Place] = field(default_factory=dict)
    held_there: dict[int, tuple[Run, ...]] = field(default_factory=dict)
    said: dict[int, AckNote] = field(default_factory=dict, compare=False)
    contacts: dict[int, Contact] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    faults: list[tuple[Contact, Fault]] = field(default_factory=list)
    unknown_dialogs: list[tuple[Contact, bool]] = field(default_factory=list)
    delivered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[Disposition] = field(default_factory=Counter)
    last_dropped: dict[Disposition, Header | None] = field(default_factory=dict, compare=False)  # a sample, no outcome
    headers: list[Header | None] = field(default_factory=list, compare=False)
    keys: dict[tuple[bytes, bool], KeyEvidence] = field(default_factory=dict)
    refusals: dict[Disposition, str] = field(default_factory=dict)
    traced: dict[TracedKey, str] = field(default_factory=dict, compare=False)
    _endings: list[tuple[Header, Disposition]] = field(default_factory=list, compare=False)

    def drop(self, disposition: Disposition, *headers: Header) -> None:
        """Drop these frames."""
        for header in headers:
            self.count(disposition, header)
            self._endings.append((header, disposition))

    def refuse(self, disposition: Disposition, why: str, header: Header) -> None:
        """Drop a frame that is not authentic, and say why."""
        self.drop(disposition, header)
        self.refusals[disposition] = why

    def count(self, disposition: Disposition, header: Header | None) -> None:
        """Count a frame as dropped for one thing in it, though another thing in it may be accepted."""
        self.dropped[disposition] += 1
        self.last_dropped[disposition] = header

    def accepts(self, contact: Contact, header: Header) -> bool:
        """
        Whether a frame is from the far side of this dialog; one that is not is dropped here.

        A second instance that answers an open dialog is notified with FAULT -8495.
        """
        objection = contact.why_refused(header)
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

    def verdicts(self) -> list[Disposition]:
        """
        Return the disposition of each frame, in the order of `headers`.

        A frame that was neither dropped nor unreadable is delivered: it was stored, in order or early, or understood.
        """
        endings = {id(header): disposition for header, disposition in self._endings}
        return [
            Disposition.MALFORMED if header is None else endings.get(id(header), Disposition.DELIVERED)
            for header in self.headers
        ]


@dataclass(slots=True)
class WriteResult:
    """
    The result of a batch.

    Attributes:
        received: The effects of its frames.
        found: Dialogs that have something to send.
        is_all_found: Whether no other dialog has.
        loaded: Fragments that were requested, or of dialogs that were found.
        postponed: Requests that there was no capacity to load.
        finished: Endpoints that maintenance has ended: they have nothing left to send.
        unconfirmed: After maintenance, the sides whose messages wait for a confirmation, by endpoint_id.
        acknowledged_again: The sides of the conversations to acknowledge that have received something.
        on_again: Those of the batch's services whose queue is on, or that are gone.
        has_more_maintenance: Maintenance should run again soon.
        next_timer: UTC instant of the next conversation timer.
        commit_seconds: Duration of the transaction, its commit to the disk included; None where nothing was written.
    """

    received: ReceiveResult = field(default_factory=ReceiveResult)
    found: list[PendingDialog] = field(default_factory=list)
    is_all_found: bool = False
    loaded: list[LoadedFragments] = field(default_factory=list)
    postponed: list[LoadRequest] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    unconfirmed: dict[int, AckState] = field(default_factory=dict)
    acknowledged_again: dict[int, AckState] = field(default_factory=dict)
    on_again: list[str] = field(default_factory=list)
    has_more_maintenance: bool = False
    next_timer: float | None = None
    commit_seconds: float | None = None
