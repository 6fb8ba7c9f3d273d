"""
Back-pressure: links whose frames find little room are not read for a while.

A bound that gets tight, the share of one next hop or the whole pool, has the links that fed the outbox lately held back
until there is room again, for so many seconds at most. If nothing has left by then, what fills it is dead or nearly so:
from then on what does not fit is dropped and nobody is held back, so that a dead next hop does not slow down what its
feeders bring for others. As soon as something leaves, they may be held back again. Dialogs of databases here are never
held back: they send only while their next hop takes frames at once.

A link that is held back for several bounds is read again when the last of them lets it go. Loop-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.forwarding.outbox import Outbox
from broker.forwarding.pool import Bound, is_roomy
from broker.forwarding.way import Origin
from broker.net.link import Link


@dataclass(slots=True)
class _Stall:
    """One tight bound. Shape: `links` held back for it; `timer` ends that, None when it has."""

    timer: asyncio.TimerHandle | None
    links: set[Link] = field(default_factory=set)


class Backpressure:
    """Which links are held back for which bound. Shape: `seconds` a pause lasts at most, 0 for none at all."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stalls: dict[Bound, _Stall] = {}
        self._loop = asyncio.get_running_loop()

    def hold_back(self, outbox: Outbox, origin: Origin) -> None:
        """An outbox finds little room: read no more from those who feed it. May be called in the middle of a pass."""
        bound = outbox.share.bottleneck
        if bound is None or not self._seconds:
            return
        feeders: Iterable[Origin] = (origin,)
        stall = self._stalls.get(bound)
        if stall is None:
            stall = self._stalls[bound] = _Stall(self._loop.call_later(self._seconds, self._give_up, bound))
            feeders = outbox.feeders
        if stall.timer is None:
            return
        for feeder in feeders:
            if isinstance(feeder, Link) and feeder not in stall.links:
                stall.links.add(feeder)
                feeder.pause()

    def drain(self, outbox: Outbox, now: float) -> None:
        """The link of this outbox can send: let frames leave; if any do, it may hold back again."""
        before = len(outbox.held)
        outbox.drain(now)
        if len(outbox.held) < before:
            for bound in (outbox.share, outbox.share.pool):
                stall = self._stalls.get(bound)
                if stall is not None and stall.timer is None:
                    del self._stalls[bound]

    def look_again(self) -> None:
        """Frames have left, moved or expired: where there is room again nobody is held back. Cost: O(tight bounds)."""
        for bound in [bound for bound in self._stalls if is_roomy(bound)]:
            self._let_go(self._stalls.pop(bound))

    def close(self) -> None:
        """Hold nobody back any more."""
        while self._stalls:
            self._let_go(self._stalls.popitem()[1])
        self._seconds = 0.0

    def _give_up(self, bound: Bound) -> None:
        """It had its time."""
        self._let_go(self._stalls[bound])

    def _let_go(self, stall: _Stall) -> None:
        if stall.timer is not None:
            stall.timer.cancel()
            stall.timer = None
        for link in stall.links:
            link.resume()
        stall.links.clear()
