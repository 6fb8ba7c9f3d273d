"""
So much in one turn of the loop: when links end or fall due in crowds, everybody else has their turn in between.

Loop-only.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from broker.net.link import Link
from broker.net.link_state import LinkState

ENDS = 16  # links that end in one turn; each takes some 50 us, most of it to tell of it
RENEW_SECONDS = 0.05  # after which the loop is asked again to tell of a socket: see `Transport.renew_reader`
RENEWALS = 512  # in one turn
LOOK_SECONDS = 0.001  # of one turn, to look at links one after the other

OnFailed = Callable[[Link, Exception], None]


class LoopFairness:
    """
    Args:
        on_failed: Told of a bug in what is done for one link; the others have their turn all the same.
    """

    def __init__(self, on_failed: OnFailed) -> None:
        self._on_failed = on_failed
        self._ended: deque[Link] = deque()
        self._done = 0  # in this turn
        self._turn: asyncio.Handle | None = None
        self._heard: deque[Link] = deque()
        self._renewal: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    def wind_up(self, link: Link) -> None:
        """End a link whose peer is gone: now, or in one of the next turns when many have ended in this one."""
        self._ended.append(link)
        if self._turn is None:
            self._turn = self._loop.call_soon(self._next)
        if self._done < ENDS and len(self._ended) == 1:
            self._done += 1
            self._end()

    async def tick(self, links: Iterable[Link]) -> None:
        """It is time for all these links, in as many turns as that takes."""
        await self.visit(links, _tick)

    async def visit(self, links: Iterable[Link], look: Callable[[Link], None]) -> None:
        """Look at all these links, in as many turns as that takes."""
        due = time.monotonic() + LOOK_SECONDS
        for link in links:
            try:
                look(link)
            except Exception as error:  # noqa: BLE001 - the bug of one link is not to be that of all
                self._on_failed(link, error)
            if time.monotonic() >= due:
                await asyncio.sleep(0)
                due = time.monotonic() + LOOK_SECONDS

    def renew_soon(self, link: Link) -> None:
        """A link was read: see soon that the loop will tell of more."""
        self._heard.append(link)
        if self._renewal is None:
            self._renewal = self._loop.call_later(RENEW_SECONDS, self._renew)

    def close(self) -> None:
        """Whoever has ended is closed by somebody else."""
        self._ended.clear()
        if self._renewal is not None:
            self._renewal.cancel()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _next(self) -> None:
        """Another turn."""
        self._turn = None
        self._done = min(len(self._ended), ENDS)
        if self._done:
            self._turn = self._loop.call_soon(self._next)
        for _ in range(self._done):
            self._end()

    def _end(self) -> None:
        link = self._ended.popleft()
        try:
            link.wind_up()
        except Exception as error:  # noqa: BLE001 - as above
            self._on_failed(link, error)

    def _renew(self) -> None:
        for _ in range(min(len(self._heard), RENEWALS)):
            link = self._heard.popleft()
            try:
                link.renew()
            except Exception as error:  # noqa: BLE001 - as above
                self._on_failed(link, error)
        self._renewal = self._loop.call_soon(self._renew) if self._heard else None


def _tick(link: Link) -> None:
    if link.state is not LinkState.CLOSED:
        link.tick(asyncio.get_running_loop().time())
