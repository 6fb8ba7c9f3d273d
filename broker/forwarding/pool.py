"""
The bounded pool: how many bytes the frames waiting here may take, all next hops together and each by itself.

Every held frame is charged its own bytes and a fixed overhead for what Python needs to hold it, so that the bound
holds for the process and not only for payload: many small frames cannot take more memory than few large ones.
`MESSAGE_FORWARD_SIZE` of the original. A next hop has no more than its share, so that a dead one leaves room for the
others.

A bound knows who feeds it: whoever lately brought frames that had to wait there. Each of them that is read may bring
`read_cost` at once, so that much room is kept for each, and who finds less when its frames have been held is not read
for a while: then what the others bring still fits. The links are paused by `broker.net.backpressure`. Loop-only;
changed by outboxes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from broker.forwarding.entry import FrameOrigin
from broker.protocol.layout import MIN_DIALOG_FRAME

# Bytes a held frame costs beside itself, at worst, which is one that waits alone: its bytes object, its tuple, its
# place in the queue under its key, that of its dialog, and its place among the deadlines, half a place more for one
# that has left and is not forgotten yet. Measured with tracemalloc on CPython 3.11 (588; 439 in a large pack with a
# dialog for each frame, 585 when one of 8 was taken apart), and for the `Arrival` that each pass of which a frame waits
# leaves where a journal is kept (104, at worst one for each frame), and rounded.
HELD_OVERHEAD = 688

FULL_BYTES = 256 * 1024  # with less room than this a bound is called full
NEVER = float("-inf")
HOLD_SECONDS = 300.0  # senders resend within `dialog.resend_cap`, 64 s unless set otherwise
FED_SECONDS = 1.0  # how long whoever brought a frame that had to wait counts among those who feed


def cost_of_read(read_bytes: int, max_frame: int) -> int:
    """What one read may be charged at worst: frames of the smallest size, behind the end of one of the largest."""
    return read_bytes // MIN_DIALOG_FRAME * (MIN_DIALOG_FRAME + HELD_OVERHEAD) + max_frame + HELD_OVERHEAD


class Pool:
    """
    A counter with a bound.

    Shape: `used_bytes` charged now, overhead included; `frames` held now; `limit_bytes` the bound; `share_percent` of
    it that one next hop may take; `hold_seconds` for which a frame waits for a next hop at most, whatever its lifetime;
    `read_cost` as `cost_of_read` tells; `over_share` frames since the start that only a share had no room for;
    `feeders` with the time at which they last brought something that had to wait; `left_at` when something that had
    waited last left; `payers` of those whose part is limited; `over_payer` frames since the start that only such a part
    had no room for.
    """

    __slots__ = (
        "feeders",
        "frames",
        "hold_seconds",
        "left_at",
        "limit_bytes",
        "over_payer",
        "over_share",
        "payers",
        "read_cost",
        "share_percent",
        "used_bytes",
    )

    def __init__(
        self, limit_bytes: int, *, share_percent: int = 100, read_cost: int = 0, hold_seconds: float = HOLD_SECONDS
    ) -> None:
        self.limit_bytes = limit_bytes
        self.share_percent = share_percent
        self.hold_seconds = hold_seconds
        self.read_cost = read_cost
        self.used_bytes = 0
        self.frames = 0
        self.over_share = self.over_payer = 0
        self.feeders: dict[FrameOrigin, float] = {}
        self.payers: dict[FrameOrigin, Payer] = {}
        self.left_at = NEVER

    @property
    def share_bytes(self) -> int:
        """What one next hop may take."""
        return self.limit_bytes * self.share_percent // 100


class Payer:
    """
    What the frames that one peer has brought take of the pool, whatever their next hops.

    Shape: `percent` of the pool at most; the rest as of the pool.
    """

    __slots__ = ("feeders", "left_at", "percent", "pool", "used_bytes")

    def __init__(self, pool: Pool, percent: int) -> None:
        self.pool = pool
        self.percent = percent
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
    """
    What one next hop takes of the pool.

    Shape: `used_bytes` charged now, overhead included; `refused` frames since the start that the pool had room for and
    the share had not; `feeders` and `left_at` as of the pool.
    """

    __slots__ = ("feeders", "left_at", "pool", "refused", "used_bytes")

    def __init__(self, pool: Pool) -> None:
        self.used_bytes = 0
        self.refused = 0
        self.pool = pool
        self.feeders: dict[FrameOrigin, float] = {}
        self.left_at = NEVER

    def admit(self, frame_bytes: int, payer: Payer | None = None, *, frames: int = 1) -> bool:
        """Charge frames; False, and nothing charged, when they do not fit into the pool, the share or the part."""
        pool, cost = self.pool, frame_bytes + frames * HELD_OVERHEAD
        if pool.used_bytes + cost > pool.limit_bytes:
            return False
        if self.used_bytes + cost > pool.share_bytes:
            self.refused += frames
            pool.over_share += frames
            return False
        if payer is not None:
            if payer.used_bytes + cost > payer.limit_bytes:
                pool.over_payer += frames
                return False
            payer.used_bytes += cost
        self.used_bytes += cost
        pool.used_bytes += cost
        pool.frames += frames
        return True

    def room(self, payer: Payer | None = None) -> int:
        """Bytes that may still be charged, overhead included."""
        bounds: tuple[Bound, ...] = (self.pool, self) if payer is None else (self.pool, self, payer)
        return min(map(room_in, bounds))

    def release(self, frame_bytes: int, payer: Payer | None = None, *, frames: int = 1) -> None:
        """Take back the charge of admitted frames."""
        cost = frame_bytes + frames * HELD_OVERHEAD
        if payer is not None:
            payer.used_bytes -= cost
        self.used_bytes -= cost
        self.pool.used_bytes -= cost
        self.pool.frames -= frames

    def fed_by(self, origin: FrameOrigin, now: float) -> None:
        """Frames from here had to wait."""
        self.feeders[origin] = self.pool.feeders[origin] = now
        if origin in self.pool.payers:
            self.pool.payers[origin].feeders[origin] = now

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
        """Whether next to nothing finds room any more."""
        return any(room_in(bound) < min(FULL_BYTES, bound.limit_bytes // 8) for bound in (self, self.pool))


Bound: TypeAlias = Pool | Share | Payer


def room_in(bound: Bound) -> int:
    """Bytes that may still be charged."""
    return bound.limit_bytes - bound.used_bytes


def is_tight(bound: Bound, paused: int) -> bool:
    """Whether what those who feed it bring next, all at once but for so many that are paused, may not fit."""
    return room_in(bound) < min(bound.limit_bytes * 3 // 4, _active(bound, paused) * bound.read_cost)


def has_room_for_one(bound: Bound, paused: int, granted: int) -> bool:
    """
    Whether one of the paused may be read again, when so many were allowed to be and have not been yet.

    A little later than it was tight, so that neither comes right after the other.
    """
    needed = min(bound.limit_bytes * 7 // 8, (_active(bound, paused) + 1) * bound.read_cost)
    return room_in(bound) >= needed + granted * bound.read_cost


def forget_feeders(bound: Bound, now: float) -> None:
    """Only those stay who lately brought something."""
    if bound.feeders:
        bound.feeders = {origin: at for origin, at in bound.feeders.items() if now - at < FED_SECONDS}


def _active(bound: Bound, paused: int) -> int:
    return max(1, len(bound.feeders) - paused)


# --- limits ---
# What bounds the pass: bytes that wait and for how long, the largest frame, hops; and what follows from them.


READ_BYTES = 256 * 1024  # what one read may bring; larger reads cost latency, smaller ones system calls


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Shape: `pool_bytes` the hard bound on what is held, `share_percent` of it for one next hop; `max_frame` bytes;
    `max_hops` 1 .. 255; `hold_seconds` for which a frame waits for a next hop at most.
    """

    pool_bytes: int
    max_frame: int
    max_hops: int
    share_percent: int = 50
    hold_seconds: float = HOLD_SECONDS

    @property
    def slab_bytes(self) -> int:
        """Room for a frame that was begun, and one read behind it."""
        return self.max_frame + READ_BYTES

    def make_pool(self) -> Pool:
        """An empty pool with these bounds."""
        return Pool(
            self.pool_bytes,
            share_percent=self.share_percent,
            read_cost=self._read_cost,
            hold_seconds=self.hold_seconds,
        )

    def bound(self, pool: Pool) -> None:
        """A pool has these bounds from now on; what is in it stays, and where that is above them nothing comes in."""
        pool.limit_bytes, pool.share_percent, pool.read_cost = self.pool_bytes, self.share_percent, self._read_cost
        pool.hold_seconds = self.hold_seconds

    @property
    def _read_cost(self) -> int:
        return cost_of_read(READ_BYTES, self.max_frame)


# --- unfinished ---
# The beginnings of frames that have not wholly arrived: what all links together may keep of them.
#
# A link keeps at most one frame's beginning, or what it brought in one read, but there is no end to links, and a
# stranger
# may open many and finish nothing. So all that is kept has a bound of its own. At the bound the link is closed whose
# beginning has been waiting for its rest the longest, those that dialled us before those that we have dialled:
# whoever
# means it is done within milliseconds, however large the frame, and has the message still.


UNFINISHED_MAX_BYTES = 32 * 1024 * 1024  # all links together; a hundred senders of 256 KiB frames at once fit in


class Keeper(Protocol):
    """
    A link, as far as this is concerned.

    Shape: `is_accept` when the peer opened it.
    """

    is_accept: bool

    def close(self, reason: str) -> None:
        """Keep nothing more; must tell `Unfinished.keep` so."""


class PartialFrames:
    """Shape: `kept_bytes` by all keepers now, never above `max_bytes` when `keep` has returned."""

    def __init__(self, max_bytes: int = UNFINISHED_MAX_BYTES) -> None:
        self.kept_bytes = 0
        self._max_bytes = max_bytes
        self._by_strangers: dict[Keeper, int] = {}  # both in the order in which they began to keep something
        self._by_others: dict[Keeper, int] = {}

    def keep(self, keeper: Keeper, size: int) -> None:
        """From now on a keeper keeps so many bytes, 0 when a frame is whole; may close it or another. Cost: O(1)."""
        kept = self._by_strangers if keeper.is_accept else self._by_others
        self.kept_bytes += size - kept.get(keeper, 0)
        if size:
            kept[keeper] = size
        else:
            kept.pop(keeper, None)
        while self.kept_bytes > self._max_bytes:
            oldest = next(iter(self._by_strangers or self._by_others))
            oldest.close("too much kept of unfinished frames by all links together")
