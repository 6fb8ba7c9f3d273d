"""
One turn of the writer thread: find what applications queued, load what the windows ask for, say what waits and why,
store what arrived.

Everything that touches the file of a database happens here, in this order, on one connection. Whatever is written is
written last and in one transaction: when any of it fails, nothing has been stored that the loop does not hear of. The
arrivals of a turn are one transaction, so the more arrives at once, the less a message pays for the disk.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.conversation.window import FIRST_BYTES, FIRST_FRAMES
from broker.protocol.frame import Fault
from broker.security.session import Secured
from broker.store.expiry import next_timer
from broker.store.failing import fail_in_writer
from broker.store.gate import FrameVerifier
from broker.store.housekeeping import Maintenance, MaintenanceResult
from broker.store.receipt import Receipt
from broker.store.receiving import store_in_writer
from broker.store.sending import LoadedFragments, PendingDialog, Want, find_in_writer, load_in_writer, say_in_writer
from broker.store.transaction import check_epoch, writing

FOUND_LOADED = 1000  # dialogs at most that are loaded in the turn that finds them: the others ask for it
_PROBE = (  # takes more pages than may be lying about
    "INSERT INTO broker_fragment VALUES (-1, 0, 0, 0, zeroblob(65536))",
    "DELETE FROM broker_fragment WHERE endpoint_id = -1",
)


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


def turn_in_writer(db: sqlite3.Connection, instance: bytes, turn: WriteBatch, fragment_size: int) -> WriteResult:
    """
    Do one turn.

    Raises:
        sqlite3.Error: the store failed; nothing of `frames` was stored and nothing may be acknowledged.
        DemotedError: likewise, because somebody else is the principal of this database.
    """
    result = WriteResult()
    if turn.find_after is not None:
        result.found_up_to, result.found = find_in_writer(db, instance, turn.find_after)
    _load(db, turn, fragment_size, result)
    keeper = turn.housekeeping
    if keeper is not None and not keeper.has_work(db, turn.now):
        keeper = None
    if turn.frames or turn.statuses or turn.faults or turn.is_probe or keeper is not None:
        began = time.perf_counter()
        try:
            with writing(db):
                if turn.is_probe:
                    for statement in _PROBE:
                        db.execute(statement)
                if turn.statuses:
                    say_in_writer(db, turn.statuses, turn.now)
                if keeper is not None:
                    result.kept = keeper.run(db, turn.now)
                if turn.faults:
                    fail_in_writer(db, turn.faults, turn.now)
                if turn.frames:
                    result.receipt = store_in_writer(
                        db, instance, turn.frames, turn.now, gate=turn.gate, origins=turn.origins, inside=turn.inside
                    )
                result.receipt.finished.update(turn.faults)
                result.next_timer = next_timer(db)
            result.seconds = time.perf_counter() - began
        except sqlite3.Error:
            if keeper is not None:
                keeper.forget()
            raise
    else:
        check_epoch(db)
        result.next_timer = next_timer(db)
    return result


def _load(db: sqlite3.Connection, turn: WriteBatch, fragment_size: int, result: WriteResult) -> None:
    """What was wanted; and of dialogs that begin to wait what they may send at once, which saves them a turn."""
    room = turn.load_max_bytes
    wants = [(want, True) for want in turn.wants]
    for found in result.found[:FOUND_LOADED]:
        if not turn.known(found.endpoint_id):
            place = (found.first_sequence, 0)
            wants.append((Want(found.endpoint_id, place, turn.first_frames, FIRST_BYTES), False))
    for want, is_asked_for in wants:
        loaded = load_in_writer(db, want, fragment_size, now=turn.now, room=room)
        if loaded is not None:
            room -= sum([len(fragment.body) for fragment in loaded.fragments])
            result.loaded.append(loaded)
        elif is_asked_for:
            result.postponed.append(want)
