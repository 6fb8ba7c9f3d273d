"""
What waits for one next hop, or for the principal of a mirrored pair to be known.

In the plain case nothing waits: a batch's runs become one buffer and one write. What the link does not take is held
here, each frame charged to the pool, in order, until the link can send, the lifetime ends or the bound is hit.
While frames are held, a second copy of one of them is dropped, and the time they wait is added to `time_consumed`
when they leave. Who feeds it is told when something has to wait, so that links can be held back in time. Nothing that a
link does harms more than that link: one that fails is given nothing any more. Loop-only; called by the forwarder and by
the link it is attached to.

Source: docs/protocol.md, section 5, steps 3 and 6 to 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeAlias

from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin, Outlet, Report, WayOf, frame_bounds, surface
from broker.forwarding.held_frames import DialogAffinity, Held, Piece
from broker.forwarding.latency import HopTimes
from broker.forwarding.outbox_queue import HeldQueue, Packing, Pending
from broker.forwarding.pool import Pool, Share
from broker.forwarding.ring import Ring
from broker.protocol.layout import PRELUDE
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair

# --- sink ---
# The two sinks of the pass that are no next hop: a database of this instance, and the drop.


class Deliver(Protocol):
    """The port to the dialogs: whole frames for one database, in the order in which they arrived."""

    def __call__(self, database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        """Take them; must not fail and must not block."""


class Drop(Protocol):
    """Count one dropped frame under its disposition and advise where it came from, when that is known."""

    def __call__(self, frame: Buffer, disposition: Disposition, origin: FrameOrigin | None) -> None:
        """Must not fail."""


class DatabaseSink:
    """Frames for a database of this instance, by its broker instance."""

    __slots__ = ("_database", "_deliver", "_drop", "_ring", "runs")

    def __init__(self, database: bytes, deliver: Deliver, drop: Drop, ring: Ring | None = None) -> None:
        self.runs: list[Buffer] = []
        self._database = database
        self._deliver = deliver
        self._drop = drop
        self._ring = ring

    def flush(self, _now: float, origin: FrameOrigin, _way_of: WayOf) -> None:
        """Copy the frames out of the slab and deliver them."""
        frames = [bytes(run[start:stop]) for run in self.runs for start, stop in frame_bounds(run)]
        self._deliver(self._database, frames, origin)
        self.runs.clear()

    def recover(self, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """They could not be delivered: none of them counts as if it had been."""
        for run in self.runs:
            for start, stop in frame_bounds(run):
                frame, way = run[start:stop], way_of(run[start:stop])
                way.frames -= 1
                if self._ring is not None:
                    self._ring.refuse(frame, way, Disposition.STORE_FAILED, self._ring.take_back(frame), now)
                self._drop(frame, Disposition.STORE_FAILED, origin)
        self.runs.clear()


class DropSink:
    """Frames that end here for one reason."""

    __slots__ = ("_disposition", "_drop", "runs")

    def __init__(self, disposition: Disposition, drop: Drop) -> None:
        self.runs: list[Buffer] = []
        self._disposition = disposition
        self._drop = drop

    def flush(self, _now: float, origin: FrameOrigin, _way_of: WayOf) -> None:
        """Count each frame and advise its origin."""
        for run in self.runs:
            for start, stop in frame_bounds(run):
                self._drop(run[start:stop], self._disposition, origin)
        self.runs.clear()

    def recover(self, _now: float, _origin: FrameOrigin, _way_of: WayOf) -> None:
        """Nothing is left to do; counting cannot fail."""
        self.runs.clear()


GATHER_BYTES = 128 * 1024  # one write when held frames leave: a socket buffer's worth, no more copied than is taken
DRAIN_FRAMES = 1024  # that leave, or are lost, in one turn of the loop; some 4 us each at worst

Destination: TypeAlias = NetworkAddress | MirroredPair
Want = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Ports:
    """
    What outboxes need of whoever keeps them; none of it may fail.

    Shape: `drop` counts a frame that ends here; `hold_back` hears who brought what had to wait; `unfinished` that a
    drain was longer than one turn allows; `report` as `way.Report`; `places` where dialogs wait, in all outboxes; `hop`
    how long frames are here.
    """

    drop: Drop
    hold_back: Callable[[Outbox, FrameOrigin], None] = lambda *_: None
    unfinished: Callable[[Outbox], None] = lambda _: None
    report: Report = surface
    ring: Ring | None = None
    places: DialogAffinity = field(default_factory=DialogAffinity)
    hop: HopTimes = field(default_factory=HopTimes)


class Outbox:
    """
    The frames on their way to one address, or to a mirrored pair.

    Shape: `runs` of the batch under way; `outlet` the link that serves the address now, None while there is none;
    `held` in the order of leaving, charged to `share`; `alternatives` the other addresses that lead on for some of what
    comes from outside; `moving` what of `held` has yet to be looked at, while they take other ways, else None.
    """

    __slots__ = (
        "_broken",
        "_outlet",
        "_packing",
        "_ports",
        "_want",
        "address",
        "alternatives",
        "held",
        "moving",
        "runs",
        "share",
    )

    def __init__(self, address: Destination, *, pool: Pool, want: Want, ports: Ports) -> None:
        self.address = address
        self.runs: list[Buffer] = []
        self.held = HeldQueue()
        self.share = Share(pool)
        self.alternatives: set[NetworkAddress] = set()
        self.moving: Pending | None = None
        self._outlet: Outlet | None = None
        self._broken: Outlet | None = None  # one that failed: it is given nothing any more
        self._want = want
        self._ports = ports
        self._packing = Packing(
            self,
            self.held,
            self.share,
            places=ports.places,
            hop=ports.hop,
            ring=ports.ring,
            refuse=self._refuse,
        )

    @property
    def outlet(self) -> Outlet | None:
        """The link that serves the address now; never one that has failed here."""
        return self._outlet

    @outlet.setter
    def outlet(self, outlet: Outlet | None) -> None:
        self._outlet = None if outlet is self._broken else outlet

    @property
    def is_ready(self) -> bool:
        """Whether a frame given now would leave at once."""
        return not self.held and self._outlet is not None and self._outlet.can_send

    def want_link(self) -> None:
        """Ask for a link when none serves the address."""
        if self._outlet is None:
            self._want()

    def flush(self, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """Write the batch at once as far as the link takes it; hold the rest. One write for the whole batch."""
        outlet = self._outlet
        if outlet is not None and outlet.is_narrow:
            self._shed(outlet.max_frame, now, origin, way_of)
        runs = self.runs
        if self.held or outlet is None or not outlet.can_send:
            self._settle(0, now, origin, way_of)
            self.drain(now)
            self._ease(origin)
        elif runs:
            data = runs[0] if len(runs) == 1 else b"".join(runs)
            sent = self._send(outlet, data)
            if sent < len(data):
                self._settle(sent, now, origin, way_of)
                self._ease(origin)
        self.runs.clear()

    def recover(self, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """The batch could not be written: whatever link there is has failed, and the frames wait for another one."""
        self._broken, self._outlet = self._outlet or self._broken, None
        self._hold(self.runs, now, origin, way_of, is_again=True)  # some may have been held before that happened
        self.runs.clear()

    def drain(self, now: float) -> None:
        """The link can send: let held frames leave, aged by the time they waited, until it takes no more."""
        before = len(self.held)
        while self.held and self._outlet is not None and self._outlet.can_send:
            if before - len(self.held) >= DRAIN_FRAMES:
                self._ports.unfinished(self)
                return
            outlet = self._outlet
            leaving = self._next_gather(now, outlet.max_frame)
            data = bytearray().join([piece.data for piece in leaving])
            at = 0
            for piece in leaving:
                piece.age(data, at, now)
                at += len(piece.data)
            if leaving:
                self._take_leave(leaving, data, self._send(outlet, data), now)

    def take_behind(self, frame: Buffer, way: ForwardingEntry, now: float, origin: FrameOrigin) -> None:
        """Hold a frame behind those of its dialog, wherever it would go else; it is counted under `way` already."""
        self._hold((frame,), now, origin, lambda _: way)
        self._ease(origin)

    def expire(self, now: float, most: int) -> int:
        """Drop what has waited past its lifetime; as long as fewer frames than that were looked at; how many were."""
        due, looked = self.held.take_due(now, most)
        for held in due:
            self._forget(held, 1)
            self._lose(held, Disposition.EXPIRED_HERE, now)
        return looked

    def give_up(self, held: Held, now: float) -> bytearray | None:
        """A held frame takes another way: it is here no more. Aged; None when its lifetime has ended meanwhile."""
        self._release(held)
        if held.deadline <= now:
            self._lose(held, Disposition.EXPIRED_HERE, now)
            return None
        return held.aged(now)

    def abandon(self, now: float) -> None:
        """The instance stops: everything that waits is dropped and counted."""
        for held in list(self.held):
            self._release(held)
            self._lose(held, Disposition.SHUTDOWN, now)

    def _send(self, outlet: Outlet, data: Buffer) -> int:
        """What the link takes at once; nothing, from now on, when it fails."""
        try:
            return outlet.send(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            self._break(outlet, error)
            return 0

    def _finish(self, outlet: Outlet | None, rest: Buffer) -> None:
        """The link keeps the end of the frame that it cut; if it cannot, its peer never sees the whole frame."""
        if outlet is None:
            return
        try:
            outlet.finish(rest)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            self._break(outlet, error)

    def _break(self, outlet: Outlet, error: Exception) -> None:
        self._broken, self._outlet = outlet, None
        self._ports.report(outlet, error)

    def _take_leave(self, leaving: list[Piece], data: bytearray, sent: int, now: float) -> None:
        """Of these frames the link took so many bytes."""
        at = same = 0
        since = now
        if sent:
            self.share.left(now)
        for piece in leaving:
            if sent <= at:
                break
            if piece.since != since:  # those that came together leave together, mostly
                self._ports.hop.observe(now - since, same)
                since, same = piece.since, 0
            frames, size = piece.begun(sent - at)
            at += size
            if sent < at:
                self._finish(self._outlet, data[sent:at])
            same += self._let_go(piece, frames, size, now)
        self._ports.hop.observe(now - since, same)

    def _let_go(self, piece: Piece, frames: int, size: int, now: float) -> int:
        """So many frames at the front of a piece, `size` bytes, have left; how many of them came from outside."""
        from_outside = 0
        for way, place, count in piece.by_dialog(frames):
            way.frames += count
            from_outside += count if place is not None else 0  # the others begin here
        if self._ports.ring is not None:
            for held in islice(piece.helds(), frames):
                self._ports.ring.leave(held, now)
        if piece.payer is not None:
            piece.payer.left_at = now
        self.held.remove_first(piece, frames)
        self._forget(piece, frames, size)
        return from_outside

    def _shed(self, max_frame: int, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """Drop from the batch what the peer would not take for its size."""
        kept: list[Buffer] = []
        for run in self.runs:
            at = 0
            for start, stop in frame_bounds(run) if len(run) > max_frame else ():
                if stop - start > max_frame:
                    if at < start:
                        kept.append(run[at:start])
                    at = stop
                    self._refuse(run[start:stop], way_of(run[start:stop]), Disposition.FRAME_TOO_LARGE, now, origin)
            if at < len(run):
                kept.append(run[at:])
        self.runs[:] = kept

    def _settle(self, sent: int, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """Of the batch's first `sent` bytes the link took care; finish the frame that was cut, hold what follows."""
        runs, at = self.runs, 0
        for index, run in enumerate(self.runs):
            if at + len(run) > sent:
                stop = 0
                while at + stop < sent:
                    stop += PRELUDE.unpack_from(run, stop)[0]
                if at + stop > sent:
                    self._finish(self._outlet, run[sent - at : stop])
                runs = [run[stop:], *self.runs[index + 1 :]]
                break
            at += len(run)
        self._hold(runs, now, origin, way_of)
        self.want_link()  # also when nothing found room: then the next copy may find a link

    def _hold(
        self, runs: Iterable[Buffer], now: float, origin: FrameOrigin, way_of: WayOf, *, is_again: bool = False
    ) -> None:
        for piece in self._packing.hold(runs, now, origin, way_of, is_again=is_again):
            if self.moving is not None:
                self.moving.add(piece)

    def _refuse(self, frame: Buffer, way: ForwardingEntry, why: Disposition, now: float, origin: FrameOrigin) -> None:
        """Drop a frame of the batch."""
        way.frames -= 1
        ring = self._ports.ring
        if ring is not None:
            ring.refuse(frame, way, why, ring.take_back(frame), now)
        self._ports.drop(frame, why, origin)

    def _ease(self, origin: FrameOrigin) -> None:
        """Tell who brought what has to wait, while it still does."""
        if origin in self.share.feeders and not self.is_ready:
            self._ports.hold_back(self, origin)

    def _lose(self, held: Held, why: Disposition, now: float) -> None:
        """Drop a frame that waited."""
        if self._ports.ring is not None:
            self._ports.ring.lose(held, why, now)
        self._ports.drop(held.frame, why, None)

    def _release(self, held: Held) -> None:
        self.held.remove(held)
        self._forget(held, 1)

    def _forget(self, piece: Piece, frames: int, size: int | None = None) -> None:
        """The first ones of it are in the queue no more, all of it unless a `size` is told."""
        self.share.release(len(piece.data) if size is None else size, piece.payer, frames=frames)
        for _, place, count in piece.by_dialog(frames):
            if place is not None:
                self._ports.places.leave(place, count)

    def _next_gather(self, now: float, max_frame: int) -> list[Piece]:
        """The next held frames worth one write; what cannot leave any more is dropped on the way."""
        leaving: list[Piece] = []
        lost: list[Held] = []
        size = 0
        for piece in self.held.leaving(now, max_frame):
            if size >= GATHER_BYTES or len(lost) >= DRAIN_FRAMES:
                break
            if isinstance(piece, Held) and (len(piece.frame) > max_frame or piece.deadline <= now):
                lost.append(piece)
            else:
                leaving.append(piece)
                size += len(piece.data)
        for held in lost:
            self._release(held)
            is_late = held.deadline <= now
            self._lose(held, Disposition.EXPIRED_HERE if is_late else Disposition.FRAME_TOO_LARGE, now)
        return leaving


HoldBack = Callable[[Outbox, FrameOrigin, bool], None]
"""This origin brought what has to wait, and, or not, what others take at once: it may be paused; must not fail."""
Again = Callable[[], None]
"""Call `work` in a later turn of the loop; must not fail, may be called many times for one."""
