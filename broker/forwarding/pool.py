"""
The bounded pool: how many bytes the frames waiting here may take, all next hops together and each by itself.

Every held frame is charged its own bytes and a fixed overhead for what Python needs to hold it, so that the bound
holds for the process and not only for payload: many small frames cannot take more memory than few large ones.
`MESSAGE_FORWARD_SIZE` of the original. A next hop has no more than its share, so that a dead one leaves room for the
others. Loop-only; changed by outboxes alone.
"""

from __future__ import annotations

from typing import TypeAlias

# Bytes a held frame costs beside itself: its bytes object, its tuple, its place in the queue under its key, and its
# place among the deadlines, half a place more for one that has left and is not forgotten yet. Measured with tracemalloc
# on CPython 3.11 (451 at worst) and rounded up.
HELD_OVERHEAD = 480

TIGHT_BYTES = 256 * 1024  # less room than this is tight: one more read of a link may not fit


class Pool:
    """
    A counter with a bound.

    Shape: `used_bytes` charged now, overhead included; `frames` held now; `limit_bytes` the bound; `share_percent` of
    it that one next hop may take; `over_share` frames since the start that only a share had no room for.
    """

    __slots__ = ("frames", "limit_bytes", "over_share", "share_percent", "used_bytes")

    def __init__(self, limit_bytes: int, *, share_percent: int = 100) -> None:
        self.limit_bytes = limit_bytes
        self.share_percent = share_percent
        self.used_bytes = 0
        self.frames = 0
        self.over_share = 0

    @property
    def share_bytes(self) -> int:
        """What one next hop may take."""
        return self.limit_bytes * self.share_percent // 100


class Share:
    """
    What one next hop takes of the pool.

    Shape: `used_bytes` charged now, overhead included; `refused` frames since the start that the pool had room for and
    the share had not.
    """

    __slots__ = ("pool", "refused", "used_bytes")

    def __init__(self, pool: Pool) -> None:
        self.used_bytes = 0
        self.refused = 0
        self.pool = pool

    def admit(self, frame_bytes: int) -> bool:
        """Charge one frame; False, and nothing charged, when it does not fit into the pool or the share."""
        pool, cost = self.pool, frame_bytes + HELD_OVERHEAD
        if pool.used_bytes + cost > pool.limit_bytes:
            return False
        if self.used_bytes + cost > pool.share_bytes:
            self.refused += 1
            pool.over_share += 1
            return False
        self.used_bytes += cost
        pool.used_bytes += cost
        pool.frames += 1
        return True

    def release(self, frame_bytes: int) -> None:
        """Take back the charge of one admitted frame."""
        self.used_bytes -= frame_bytes + HELD_OVERHEAD
        self.pool.used_bytes -= frame_bytes + HELD_OVERHEAD
        self.pool.frames -= 1

    @property
    def limit_bytes(self) -> int:
        """The bound."""
        return self.pool.share_bytes

    @property
    def bottleneck(self) -> Bound | None:
        """The bound that is tight for what comes next, its own before that of the pool; None when neither is."""
        if is_tight(self):
            return self
        return self.pool if is_tight(self.pool) else None


Bound: TypeAlias = Pool | Share


def is_tight(bound: Bound) -> bool:
    """Whether what one read of a link brings may not fit any more."""
    return bound.limit_bytes - bound.used_bytes < _margin(bound)


def is_roomy(bound: Bound) -> bool:
    """Whether there is room again: more than it takes to be tight, so that neither comes right after the other."""
    return bound.limit_bytes - bound.used_bytes >= 2 * _margin(bound)


def _margin(bound: Bound) -> int:
    return min(TIGHT_BYTES, bound.limit_bytes // 8)
