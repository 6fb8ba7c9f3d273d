"""
The journal of one process: a ring that the pass writes into, a thread that makes files of it, and what empties the one
into the other.

The loop looks at the ring now and then, from `SLOW_SECONDS` down to `FAST_SECONDS` apart: half as long as before when
more than half of it was used, twice as long when less than an eighth was. So the pass itself is asked nothing. What the
writer has no room for stays in the ring, where the next records are shed and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from broker.forwarding.ring import Ring
from broker.forwarding.way import FrameOrigin
from broker.journal.batch import NOBODY_FOLLOWS, Follower, RingBatch
from broker.journal.plan import JournalPlan
from broker.journal.writer import Writer
from broker.routing.decide import NOBODY, Principals

SLOW_SECONDS, FAST_SECONDS = 0.1, 0.003  # between two looks
COPY_MAX = 64 * 1024  # bytes of records that are copied out of the ring; for more, the ring gets other memory instead
CLOSE_SECONDS = 10.0  # for what was recorded to be written when the instance stops ...
FOLLOWER_SECONDS = 3.0  # ... and for what else was made of it to be sent

log = structlog.get_logger(__name__)


class Journal:
    """
    Loop-only.

    Shape: `ring` for the pass; `principals` tells where mirrored pairs lead now, given once there is somebody to ask.
    """

    def __init__(
        self, plan: JournalPlan, *, adjacent_of: Callable[[FrameOrigin], str], follower: Follower | None = None
    ) -> None:
        self.ring = Ring(plan.ring_bytes, sample=plan.sample, adjacent_of=adjacent_of)
        self.principals: Callable[[], Principals] = lambda: NOBODY
        self._plan = plan
        self._follower = follower
        self._writer = Writer(plan, follower=follower)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SLOW_SECONDS

    @property
    def shed(self) -> int:
        """Records since the start that found no room, or could not be written."""
        return self.ring.shed + self._writer.lost

    def start(self) -> None:
        """Begin to write."""
        self._writer.start()
        self._timer = self._loop.call_later(self._pause, self._look)

    def use(self, plan: JournalPlan) -> None:
        """
        Write by this plan from now on; what was recorded before is written by the one before.

        Instance, memory and decoder stay as they are. Where the sample is another one, the kernels have to be made anew
        behind this.
        """
        if self.ring.used:
            self._hand_over(is_last=True)
        self._plan = replace(plan, buffer_bytes=self._plan.buffer_bytes, decoder=self._plan.decoder)
        self.ring.resample(plan.sample)
        self._writer.use(self._plan)

    async def close(self) -> None:
        """Write everything that was recorded, within `CLOSE_SECONDS`, and be done with what follows it."""
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over(is_last=True)
        self._writer.stop()
        if not await asyncio.to_thread(self._writer.join, CLOSE_SECONDS):
            log.error("journal is not written to its end", records=self._writer.pending, waited_s=CLOSE_SECONDS)
        if self._follower is not None:
            await asyncio.to_thread(self._follower.close, FOLLOWER_SECONDS)

    def status(self) -> Mapping[str, Any]:
        """What there is to tell, as in a status."""
        writer = self._writer
        return {
            "directory": str(self._plan.directory),
            "sample": self._plan.sample,
            "records": writer.records,
            "pending": writer.pending,
            "shed": self.shed,
            "files": writer.files,
            "bytes": writer.bytes,
            "errors": writer.errors,
            "removed_files": writer.removed,
            "failures": writer.failures,
            "problem": writer.trouble,
            **(NOBODY_FOLLOWS if self._follower is None else self._follower.status()),
        }

    def _look(self) -> None:
        """Empty the ring, and look again when that is likely to be worth it."""
        used, capacity = self.ring.used, len(self.ring.buffer)
        if used:
            self._hand_over()
        if 2 * used > capacity:
            self._pause = max(FAST_SECONDS, self._pause / 2)
        elif 8 * used < capacity:
            self._pause = min(SLOW_SECONDS, self._pause * 2)
        self._timer = self._loop.call_later(self._pause, self._look)

    def _hand_over(self, *, is_last: bool = False) -> None:
        """What is in the ring is the writer's from now on, if that has room for it."""
        ring, writer = self.ring, self._writer
        if ring.used <= COPY_MAX or is_last:
            if ring.used > writer.room and not is_last:
                return
            taken = ring.take()
        else:
            empty = writer.maybe_buffer()
            if empty is None:
                return
            taken = ring.swap(empty)
        offset = time.time() - time.monotonic()
        writer.offer(RingBatch(taken, offset, ring.shed, self.principals()))
