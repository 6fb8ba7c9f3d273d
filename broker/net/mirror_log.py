"""
Lines in the log for the changes of one mirrored pair: each at once while they are few, one a second when they are not.

A partner may say one thing and another thousands of times a second. A failover is a handful of changes, and each is
wanted with its instant; so a handful is told as it comes. What is above that is counted, and told once a second by one
line, with the state that holds then. Loop-only.
"""

from __future__ import annotations

import asyncio

import structlog

from broker.routing.address import NetworkAddress
from broker.routing.mirrored import MirroredRoute
from broker.routing.route import MirroredPair

STATE_CHANGED = 144  # the original's event, Broker:Mirrored Route State Changed
AT_ONCE = 8  # lines that may be written at once: two failovers; each is to be had again after a second
PAUSE_SECONDS = 1.0

log = structlog.get_logger(__name__)


class MirrorLog:
    """One pair, whose `route` is looked at."""

    def __init__(
        self, pair: MirroredPair, route: MirroredRoute[NetworkAddress], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._pair = pair
        self._route = route
        self._loop = loop
        self._seen: tuple[object, ...] = ()
        self._changes = 0  # not told yet
        self._left = float(AT_ONCE)
        self._counted_at = loop.time()
        self._summary: asyncio.Handle | None = None

    def look(self) -> None:
        """Something was heard of the pair: if that changed it, say so, now or with what else changes soon."""
        seen = self._route.state, self._route.principal, self._route.alarm
        if seen == self._seen:
            return
        self._seen = seen
        self._changes += 1
        if self._summary is not None:
            return
        now = self._loop.time()
        self._left = min(AT_ONCE, self._left + (now - self._counted_at) / PAUSE_SECONDS)
        self._counted_at = now
        if self._left >= 1.0:
            self._left -= 1.0
            self._say()
        else:
            self._summary = self._loop.call_later(PAUSE_SECONDS, self._sum_up)

    def close(self) -> None:
        """Nothing more is said."""
        if self._summary is not None:
            self._summary.cancel()

    def _sum_up(self) -> None:
        """The line is paid for by the second that was waited."""
        self._summary = None
        self._counted_at = self._loop.time()
        self._say()

    def _say(self) -> None:
        route = self._route
        note = log.warning if route.alarm else log.info
        note(
            "mirrored route state changed",
            number=STATE_CHANGED,
            state=int(route.state),
            state_desc=route.state.name,
            service=self._pair.remote_service_name,
            broker_instance=str(self._pair.broker_instance),
            principal=None if route.principal is None else str(route.principal),
            epoch=route.epoch,
            alarm=route.alarm,
            changes=self._changes,
        )
        self._changes = 0
