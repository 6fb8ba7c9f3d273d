"""
What waits for one next hop, or for the principal of a mirrored pair to be known.

In the plain case nothing waits: a batch's runs become one buffer and one write. What the link does not take is held
here, frame by frame, charged to the pool, in order, until the link can send, the lifetime ends or the bound is hit.
While frames are held, a second copy of one of them is dropped, and the time they wait is added to `time_consumed`
when they leave. Loop-only; called by the forwarder and by the link it is attached to.

Source: docs/protocol.md, section 5, steps 3 and 6 to 8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from broker.flow import Disposition
from broker.forwarding.pool import Pool
from broker.forwarding.way import Buffer, Origin, Outlet, Way, WayOf, frame_bounds
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair
from broker.wire.layout import CONVERSATION_AT, PLACE_END, TIME_CONSUMED_AT, TIME_TO_LIVE_AT, TIMES, Flag

GATHER_BYTES = 128 * 1024  # one write when held frames leave: a socket buffer's worth, no more copied than is taken

NEVER = float("inf")
TIME_MAX = 2**32 - 1  # ms; what the field can say

Drop = Callable[[Buffer, Disposition, Origin | None], None]
Destination: TypeAlias = NetworkAddress | MirroredPair
Want = Callable[[], None]


class Held(NamedTuple):
    """One waiting frame. Shape: `since` monotonic seconds at which its own `time_consumed` was true."""

    frame: bytearray
    since: float
    way: Way

    @property
    def deadline(self) -> float:
        """Monotonic seconds at which its lifetime ends."""
        time_to_live, time_consumed = TIMES.unpack_from(self.frame, TIME_TO_LIVE_AT)
        return self.since + float(time_to_live - time_consumed) / 1000

    def aged(self, now: float) -> Held:
        """The same frame with the time it waited written into it; what is less than a millisecond goes on counting."""
        waited = int((now - self.since) * 1000)
        consumed = int.from_bytes(self.frame[TIME_CONSUMED_AT : TIME_CONSUMED_AT + 4], "big")
        consumed = min(TIME_MAX, consumed + waited)
        self.frame[TIME_CONSUMED_AT : TIME_CONSUMED_AT + 4] = consumed.to_bytes(4, "big")
        return self._replace(since=self.since + waited / 1000)


class Outbox:
    """
    The frames on their way to one address, or to a mirrored pair.

    Shape: `runs` of the batch under way; `outlet` the link that serves the address now, None while there is none;
    `held` in the order of leaving.
    """

    __slots__ = ("_drop", "_earliest", "_keys", "_pool", "_want", "address", "held", "outlet", "runs")

    def __init__(self, address: Destination, *, pool: Pool, drop: Drop, want: Want) -> None:
        self.address = address
        self.outlet: Outlet | None = None
        self.runs: list[Buffer] = []
        self.held: deque[Held] = deque()
        self._keys: set[bytes] = set()
        self._earliest = NEVER  # no held frame's deadline is before this
        self._pool = pool
        self._drop = drop
        self._want = want

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
        elif runs:
            data = runs[0] if len(runs) == 1 else b"".join(runs)
            sent = outlet.send(data)
            if sent < len(data):
                self._settle(sent, now, origin, way_of)
        self.runs.clear()

    def drain(self, now: float) -> None:
        """The link can send: let held frames leave, aged by the time they waited, until it takes no more."""
        outlet = self.outlet
        while self.held and outlet is not None and outlet.can_send:
            leaving = self._next_gather(now, outlet.max_frame)
            if not leaving:
                return
            sent = outlet.send(b"".join([held.frame for held in leaving]))
            for held in leaving:
                if sent <= 0:
                    break
                if sent < len(held.frame):
                    outlet.finish(bytes(held.frame[sent:]))
                sent -= len(held.frame)
                held.way.frames += 1
                self._release(self.held.popleft().frame)

    def expire(self, now: float) -> None:
        """Drop what has waited past its lifetime. Cost: O(held) when one has, else O(1)."""
        if now < self._earliest:
            return
        waiting = list(self.held)
        self.held.clear()
        self._earliest = NEVER
        for held in waiting:
            if held.deadline <= now:
                self._release(held.frame)
                self._drop(held.frame, Disposition.EXPIRED_HERE, None)
            else:
                self.held.append(held)
                self._earliest = min(self._earliest, held.deadline)

    def surrender(self, now: float, is_wanted: Callable[[bytearray], bool]) -> list[bytearray]:
        """Give up the frames that are wanted for another way, aged; what has waited past its lifetime is dropped."""
        self.expire(now)
        frames = [held.aged(now).frame for held in self.held if is_wanted(held.frame)]
        self.held = deque(held for held in self.held if not is_wanted(held.frame))
        for frame in frames:
            self._release(frame)
        return frames

    def abandon(self) -> None:
        """The instance stops: everything that waits is dropped and counted."""
        while self.held:
            frame = self.held.popleft().frame
            self._release(frame)
            self._drop(frame, Disposition.SHUTDOWN, None)

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
        if self.held:
            self.want_link()

    def _hold(self, frame: Buffer, way: Way, now: float, origin: Origin) -> None:
        way.frames -= 1
        key = _key(frame)
        if key in self._keys:
            self._drop(frame, Disposition.ALREADY_HELD, origin)
        elif not self._pool.admit(len(frame)):
            self._drop(frame, Disposition.POOL_LIMIT, origin)
        else:
            held = Held(bytearray(frame), now, way)
            self._keys.add(key)
            self.held.append(held)
            self._earliest = min(self._earliest, held.deadline)

    def _release(self, frame: bytearray) -> None:
        self._keys.discard(_key(frame))
        self._pool.release(len(frame))

    def _next_gather(self, now: float, max_frame: int) -> list[Held]:
        """The next held frames worth one write, aged; what cannot leave any more is dropped on the way."""
        leaving: list[Held] = []
        size = 0
        while len(leaving) < len(self.held) and size < GATHER_BYTES:
            held = self.held[len(leaving)]
            too_large = len(held.frame) > max_frame
            if too_large or held.deadline <= now:
                del self.held[len(leaving)]
                self._release(held.frame)
                self._drop(held.frame, Disposition.FRAME_TOO_LARGE if too_large else Disposition.EXPIRED_HERE, None)
                continue
            self.held[len(leaving)] = held = held.aged(now)
            leaving.append(held)
            size += len(held.frame)
        return leaving


def _key(frame: Buffer) -> bytes:
    """What makes two frames copies of each other: conversation, sequence, fragment, kind and direction."""
    return bytes(frame[CONVERSATION_AT:PLACE_END]) + bytes((frame[4], frame[5] & Flag.FROM_TARGET))
