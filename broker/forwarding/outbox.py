"""
What waits for one next hop, or for the principal of a mirrored pair to be known.

In the plain case nothing waits: a batch's runs become one buffer and one write. What the link does not take is held
here, frame by frame, charged to the pool, in order, until the link can send, the lifetime ends or the bound is hit.
While frames are held, a second copy of one of them is dropped, and the time they wait is added to `time_consumed`
when they leave. When room gets tight, those who feed it are held back. Loop-only; called by the forwarder and by the
link it is attached to.

Source: docs/protocol.md, section 5, steps 3 and 6 to 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from broker.flow import Disposition
from broker.forwarding.held import Held, HeldQueue, copy_key, hold
from broker.forwarding.pool import Pool, Share
from broker.forwarding.way import Buffer, Origin, Outlet, Way, WayOf, frame_bounds
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair
from broker.wire.layout import TIME_CONSUMED_AT

GATHER_BYTES = 128 * 1024  # one write when held frames leave: a socket buffer's worth, no more copied than is taken
FED_SECONDS = 1.0  # how long whoever brought a frame that had to wait counts among those who feed the outbox

Drop = Callable[[Buffer, Disposition, Origin | None], None]
Destination: TypeAlias = NetworkAddress | MirroredPair
Want = Callable[[], None]


class Outbox:
    """
    The frames on their way to one address, or to a mirrored pair.

    Shape: `runs` of the batch under way; `outlet` the link that serves the address now, None while there is none;
    `held` in the order of leaving, charged to `share`; `alternatives` the other addresses that lead on for some of what
    comes from outside; `feeders` who lately brought frames that had to wait, with the time.
    """

    __slots__ = (
        "_drop",
        "_hold_back",
        "_want",
        "address",
        "alternatives",
        "feeders",
        "held",
        "outlet",
        "runs",
        "share",
    )

    def __init__(
        self,
        address: Destination,
        *,
        pool: Pool,
        drop: Drop,
        want: Want,
        hold_back: Callable[[Outbox, Origin], None] = lambda *_: None,
    ) -> None:
        self.address = address
        self.outlet: Outlet | None = None
        self.runs: list[Buffer] = []
        self.held = HeldQueue()
        self.share = Share(pool)
        self.alternatives: set[NetworkAddress] = set()
        self.feeders: dict[Origin, float] = {}
        self._drop = drop
        self._want = want
        self._hold_back = hold_back

    @property
    def is_ready(self) -> bool:
        """Whether a frame given now would leave at once."""
        return not self.held and self.outlet is not None and self.outlet.can_send

    def want_link(self) -> None:
        """Ask for a link when none serves the address."""
        if self.outlet is None:
            self._want()

    def flush(self, now: float, origin: Origin, way_of: WayOf) -> None:
        """Write the batch at once as far as the link takes it; hold the rest. One write for the whole batch."""
        outlet = self.outlet
        if outlet is not None and outlet.is_narrow:
            self._shed(outlet.max_frame, origin, way_of)
        runs = self.runs
        if self.held or outlet is None or not outlet.can_send:
            self._settle(0, now, origin, way_of)
            self.drain(now)
            self._ease(origin)
        elif runs:
            data = runs[0] if len(runs) == 1 else b"".join(runs)
            sent = outlet.send(data)
            if sent < len(data):
                self._settle(sent, now, origin, way_of)
                self._ease(origin)
        self.runs.clear()

    def drain(self, now: float) -> None:
        """The link can send: let held frames leave, aged by the time they waited, until it takes no more."""
        outlet = self.outlet
        while self.held and outlet is not None and outlet.can_send:
            leaving = self._next_gather(now, outlet.max_frame)
            if not leaving:
                return
            data = bytearray().join([held.frame for held in leaving])
            at = 0
            for held in leaving:
                consumed_at = at + TIME_CONSUMED_AT
                data[consumed_at : consumed_at + 4] = held.time_consumed(now).to_bytes(4, "big")
                at += len(held.frame)
            sent = outlet.send(data)
            at = 0
            for held in leaving:
                if sent <= at:
                    break
                at += len(held.frame)
                if sent < at:
                    outlet.finish(data[sent:at])
                held.way.frames += 1
                self._release(held)

    def expire(self, now: float) -> None:
        """Drop what has waited past its lifetime. Cost: O(log n) for each of them, else O(1)."""
        for held in self.held.take_due(now):
            self.share.release(len(held.frame))
            self._drop(held.frame, Disposition.EXPIRED_HERE, None)
        if self.feeders:
            self.feeders = {origin: at for origin, at in self.feeders.items() if now - at < FED_SECONDS}

    def surrender(self, now: float, new_way: Callable[[Held], Way | None]) -> Iterator[tuple[bytearray, Way]]:
        """Give up, one by one, the frames that have a new way, aged; what has waited past its lifetime is dropped."""
        self.expire(now)
        for held in list(self.held):
            way = new_way(held)
            if way is not None:
                self._release(held)
                yield held.aged(now), way

    def abandon(self) -> None:
        """The instance stops: everything that waits is dropped and counted."""
        for held in list(self.held):
            self._release(held)
            self._drop(held.frame, Disposition.SHUTDOWN, None)

    def _shed(self, max_frame: int, origin: Origin, way_of: WayOf) -> None:
        """Drop from the batch what the peer would not take for its size."""
        kept: list[Buffer] = []
        for run in self.runs:
            at = 0
            for start, stop in frame_bounds(run) if len(run) > max_frame else ():
                if stop - start > max_frame:
                    if at < start:
                        kept.append(run[at:start])
                    at = stop
                    way_of(run[start:stop]).frames -= 1
                    self._drop(run[start:stop], Disposition.FRAME_TOO_LARGE, origin)
            if at < len(run):
                kept.append(run[at:])
        self.runs[:] = kept

    def _settle(self, sent: int, now: float, origin: Origin, way_of: WayOf) -> None:
        """Of the batch's first `sent` bytes the link took care; finish the frame that was cut, hold what follows."""
        at = 0
        for run in self.runs:
            for start, stop in frame_bounds(run):
                begin, at = at, at + stop - start
                if begin >= sent:
                    self._hold(run[start:stop], way_of(run[start:stop]), now, origin)
                elif at > sent and self.outlet is not None:
                    self.outlet.finish(run[stop - (at - sent) : stop])
        self.want_link()  # also when nothing found room: then the next copy may find a link

    def _hold(self, frame: Buffer, way: Way, now: float, origin: Origin) -> None:
        way.frames -= 1
        if copy_key(frame) in self.held:
            self._drop(frame, Disposition.ALREADY_HELD, origin)
            return
        self.feeders[origin] = now
        if self.share.admit(len(frame)):
            self.held.add(hold(frame, now, way))
        else:
            self._drop(frame, Disposition.POOL_LIMIT, origin)

    def _ease(self, origin: Origin) -> None:
        """Hold back those who feed it, while what they bring finds little room."""
        if origin in self.feeders and not self.is_ready and self.share.bottleneck is not None:
            self._hold_back(self, origin)

    def _release(self, held: Held) -> None:
        self.held.remove(held)
        self.share.release(len(held.frame))

    def _next_gather(self, now: float, max_frame: int) -> list[Held]:
        """The next held frames worth one write; what cannot leave any more is dropped on the way."""
        leaving: list[Held] = []
        lost: list[Held] = []
        size = 0
        for held in self.held:
            if size >= GATHER_BYTES:
                break
            if len(held.frame) > max_frame or held.deadline <= now:
                lost.append(held)
            else:
                leaving.append(held)
                size += len(held.frame)
        for held in lost:
            self._release(held)
            is_late = held.deadline <= now
            self._drop(held.frame, Disposition.EXPIRED_HERE if is_late else Disposition.FRAME_TOO_LARGE, None)
        return leaving
