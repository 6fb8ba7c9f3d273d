"""Part of `broker.store.turn`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.conversation.window import FIRST_FRAMES
from broker.protocol.frame import Fault
from broker.security.session import Secured
from broker.store.gate import FrameVerifier
from broker.store.housekeeping import Maintenance, MaintenanceResult
from broker.store.receipt import Receipt
from broker.store.sending_port import LoadedFragments, PendingDialog, Want


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
