"""That something may have left or ended, for whoever waits until enough has. Loop-only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Stirred:
    """Set whenever a link stirs, and at every tick."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Look again, whoever waits."""
        self._event.set()

    async def until(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait until it is so, for so many seconds at most; looked at whenever something has stirred."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_so():
                    self._event.clear()
                    await self._event.wait()
