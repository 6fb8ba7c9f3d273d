"""What bounds the pass: bytes that wait and for how long, the largest frame, hops; and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from broker.forwarding.pool import HOLD_SECONDS, Pool, cost_of_read

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
