"""
Bounds of what is held in memory: the forwarding pool, and the beginnings of frames that have not wholly arrived.

Every held frame is charged to the pool with its bytes and a fixed overhead for what Python needs to hold it. So the
bound holds for the process and not only for payload: many small frames cannot take more memory than few large ones. It
is `MESSAGE_FORWARD_SIZE` of the original. A next hop has only its share of the pool, so that a dead one leaves room for
the others, and a peer may have a quota.

A bound knows its feeders: the origins that lately brought frames which had to wait there. Each of them that is read may
bring `read_cost` at once, so that much is kept free for each, and a link that finds less when its frames have been held
is not read for a while: then what the others bring still fits. `broker.net.backpressure` pauses the links. Loop-only;
changed by outboxes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from broker.forwarding.entry import FrameOrigin
from broker.protocol.layout import MIN_DIALOG_FRAME

# Bytes a held frame costs besides itself, at worst, which is one that waits alone: its bytes object, its tuple, its
# place in the queue under its key, that of its dialog, and its place among the deadlines, half a place more for one
# that has left and is not forgotten yet. Measured with tracemalloc on CPython 3.11 (588; 439 in a large pack with a
# dialog for each frame, 585 when one of 8 was split), and for the `PassOrigin` that each pass of which a frame waits
# leaves where a journal is kept (104, at worst one for each frame), and rounded.
HELD_OVERHEAD = 688

FULL_BYTES = 256 * 1024  # with less free than this a bound is called full
HOLD_SECONDS = 300.0  # senders resend within `dialog.resend_cap`, 64 s unless set otherwise
FED_SECONDS = 1.0  # how long an origin that brought a frame which had to wait counts as a feeder
READ_BYTES = 256 * 1024  # what one read may bring; larger reads cost latency, smaller ones system calls
UNFINISHED_MAX_BYTES = 32 * 1024 * 1024  # all links together; a hundred senders of 256 KiB frames at once fit in

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a pass."""

    pool_bytes: int  # hard bound on what is held
    max_frame: int  # bytes
    max_hops: int  # 1 .. 255
    share_percent: int = 50  # of the pool for one next hop
    hold_seconds: float = HOLD_SECONDS  # for which a frame waits for a next hop at most

    @property
    def slab_bytes(self) -> int:
        """Memory for a frame that was begun, and one read after it."""
        return self.max_frame + READ_BYTES


class Pool:
    """The memory that all next hops together may hold, and its use."""

    def __init__(
        self, limit_bytes: int, *, share_percent: int = 100, read_cost: int = 0, hold_seconds: float = HOLD_SECONDS
    ) -> None:
        self.limit_bytes = limit_bytes
        self.share_percent = share_percent  # of it that one next hop may take
        self.hold_seconds = hold_seconds  # for which a frame waits for a next hop at most, whatever its lifetime
        self.read_cost = read_cost  # what one read may be charged at worst
        self.used_bytes = 0  # charged now, overhead included
        self.frames = 0  # held now
        self.over_share = self.over_quota = 0  # frames since the start that only a share, or a quota, had no room for
        self.feeders: dict[FrameOrigin, float] = {}  # when each last brought something that had to wait
        self.quotas: dict[FrameOrigin, PoolQuota] = {}  # of the origins that have one
        self.left_at = NEVER  # when something that had waited last left

    def limit(self, limits: Limits) -> None:
        """Set the bounds; what is held stays, and above them nothing more is admitted."""
        self.limit_bytes, self.share_percent = limits.pool_bytes, limits.share_percent
        self.read_cost = cost_of_read(READ_BYTES, limits.max_frame)
        self.hold_seconds = limits.hold_seconds

    @property
    def share_bytes(self) -> int:
        """The most bytes that one next hop may take."""
        return self.limit_bytes * self.share_percent // 100


class PoolQuota:
    """The part of the pool that the frames of one peer take, whatever their next hops. Attributes as of `Pool`."""

    __slots__ = ("feeders", "left_at", "percent", "pool", "used_bytes")

    def __init__(self, pool: Pool, percent: int) -> None:
        self.pool = pool
        self.percent = percent  # of the pool, at most
        self.used_bytes = 0
        self.feeders: dict[FrameOrigin, float] = {}
        self.left_at = NEVER

    @property
    def limit_bytes(self) -> int:
        """The bound."""
        return self.pool.limit_bytes * self.percent // 100

    @property
    def read_cost(self) -> int:
        """As of the pool."""
        return self.pool.read_cost


class Share:
    """The part of the pool that one next hop takes. Attributes as of `Pool`."""

    __slots__ = ("feeders", "left_at", "pool", "refused", "used_bytes")

    def __init__(self, pool: Pool) -> None:
        self.used_bytes = 0
        self.refused = 0  # frames since the start that the pool had room for and the share had not
        self.pool = pool
        self.feeders: dict[FrameOrigin, float] = {}
        self.left_at = NEVER

    def admit(self, frame_bytes: int, quota: PoolQuota | None = None, *, frames: int = 1) -> bool:
        """Charge frames; False, and nothing charged, when they do not fit into the pool, the share or the quota."""
        pool, cost = self.pool, frame_bytes + frames * HELD_OVERHEAD
        if pool.used_bytes + cost > pool.limit_bytes:
            return False
        if self.used_bytes + cost > pool.share_bytes:
            self.refused += frames
            pool.over_share += frames
            return False
        if quota is not None:
            if quota.used_bytes + cost > quota.limit_bytes:
                pool.over_quota += frames
                return False
            quota.used_bytes += cost
        self.used_bytes += cost
        pool.used_bytes += cost
        pool.frames += frames
        return True

    def free_bytes(self, quota: PoolQuota | None = None) -> int:
        """Bytes that may still be charged, overhead included."""
        bounds: tuple[Bound, ...] = (self.pool, self) if quota is None else (self.pool, self, quota)
        return min(map(free_in, bounds))

    def release(self, frame_bytes: int, quota: PoolQuota | None = None, *, frames: int = 1) -> None:
        """Take back the charge of admitted frames."""
        cost = frame_bytes + frames * HELD_OVERHEAD
        if quota is not None:
            quota.used_bytes -= cost
        self.used_bytes -= cost
        self.pool.used_bytes -= cost
        self.pool.frames -= frames

    def fed_by(self, origin: FrameOrigin, now: float) -> None:
        """Frames from this origin had to wait."""
        self.feeders[origin] = self.pool.feeders[origin] = now
        if origin in self.pool.quotas:
            self.pool.quotas[origin].feeders[origin] = now

    def left(self, now: float) -> None:
        """Something that had waited has left."""
        self.left_at = self.pool.left_at = now

    @property
    def limit_bytes(self) -> int:
        """The bound."""
        return self.pool.share_bytes

    @property
    def read_cost(self) -> int:
        """As of the pool."""
        return self.pool.read_cost

    @property
    def is_full(self) -> bool:
        """Whether next to nothing more is admitted."""
        return any(free_in(bound) < min(FULL_BYTES, bound.limit_bytes // 8) for bound in (self, self.pool))


Bound: TypeAlias = Pool | Share | PoolQuota


def free_in(bound: Bound) -> int:
    """Bytes that may still be charged."""
    return bound.limit_bytes - bound.used_bytes


def is_tight(bound: Bound, paused: int) -> bool:
    """Whether what the feeders that are not paused may bring at once might not fit."""
    return free_in(bound) < min(bound.limit_bytes * 3 // 4, _active(bound, paused) * bound.read_cost)


def has_room_for_one(bound: Bound, paused: int, granted: int) -> bool:
    """
    Whether one of the paused feeders may be read again, when `granted` were allowed to be and have not been yet.

    A little later than it was tight, so that neither follows right after the other.
    """
    needed = min(bound.limit_bytes * 7 // 8, (_active(bound, paused) + 1) * bound.read_cost)
    return free_in(bound) >= needed + granted * bound.read_cost


def forget_feeders(bound: Bound, now: float) -> None:
    """Forget feeders that brought nothing lately."""
    if bound.feeders:
        bound.feeders = {origin: at for origin, at in bound.feeders.items() if now - at < FED_SECONDS}


def cost_of_read(read_bytes: int, max_frame: int) -> int:
    """Return the worst charge of one read: frames of the smallest size, after the end of one of the largest."""
    return read_bytes // MIN_DIALOG_FRAME * (MIN_DIALOG_FRAME + HELD_OVERHEAD) + max_frame + HELD_OVERHEAD


def _active(bound: Bound, paused: int) -> int:
    return max(1, len(bound.feeders) - paused)


class Keeper(Protocol):
    """A link that keeps the beginning of a frame."""

    is_accept: bool  # the peer opened it

    def close(self, reason: str) -> None:
        """Keep nothing more, and report so to `PartialFrames.keep`."""


class PartialFrames:
    """
    The bytes of frames that have not wholly arrived, on all links together.

    A link keeps at most the beginning of one frame, or the bytes of one read, but the number of links is not bounded:
    an unknown peer may open many and finish no frame. So all of it has a bound. At the bound that link is closed whose
    frame was begun first; links that the peer opened are closed before those that we have dialled. An honest peer
    finishes a frame within milliseconds, however large it is, and still has the message.
    """

    def __init__(self, max_bytes: int = UNFINISHED_MAX_BYTES) -> None:
        self.kept_bytes = 0  # never above `max_bytes` when `keep` has returned
        self._max_bytes = max_bytes
        self._accepted: dict[Keeper, int] = {}  # both in the order in which they began to keep something
        self._dialled: dict[Keeper, int] = {}

    def keep(self, keeper: Keeper, size: int) -> None:
        """A link keeps so many bytes now, 0 when the frame is whole; may close it or another one. Cost: O(1)."""
        kept = self._accepted if keeper.is_accept else self._dialled
        self.kept_bytes += size - kept.get(keeper, 0)
        if size:
            kept[keeper] = size
        else:
            kept.pop(keeper, None)
        while self.kept_bytes > self._max_bytes:
            oldest = next(iter(self._accepted or self._dialled))
            oldest.close("too much kept of unfinished frames by all links together")
