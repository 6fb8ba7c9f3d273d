"""Part of `broker.observe.metrics`."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack

from broker.supervision import Supervision

# --- lag2 ---
# Part of `broker.observe.metrics`.


TICK_SECONDS = 0.1


WINDOW_TICKS = 150  # 15 s: the usual time between two scrapes, so that no late tick falls between them


class LoopLag:
    """Loop-only. `run` keeps time until it is cancelled."""

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=WINDOW_TICKS)

    @property
    def seconds(self) -> float:
        """The worst of the last `WINDOW_TICKS` ticks."""
        return max(self._late, default=0.0)

    def start(self, stack: AsyncExitStack, supervision: Supervision | None = None) -> None:
        """Keep time until `stack` ends it."""
        (supervision or Supervision()).keep_within(stack, "loop lag", self.run)

    async def run(self) -> None:
        """Tick for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.note(loop.time() - due)

    def note(self, late: float) -> None:
        """One tick came so many seconds late; the loop's clock may be a little early."""
        self._late.append(max(0.0, late))
