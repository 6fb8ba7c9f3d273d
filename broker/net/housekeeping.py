"""
What the forwarder leaves to the loop: another slice of its work in a later turn, and links that failed in a pass.

Loop-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from broker.forwarding.forwarder import Forwarder
from broker.forwarding.way import Outlet
from broker.net.link import Link

REPORT_SECONDS = 1.0  # between two traces of the same kind of failure; all are counted

log = structlog.get_logger(__name__)


class DeferredWork:
    """Shape: `failures` of what must not fail, since the start."""

    def __init__(self) -> None:
        self.failures = 0
        self._forwarder: Forwarder
        self._after: Callable[[], None]
        self._turn: asyncio.Handle | None = None
        self._reported: dict[type[Exception], float] = {}
        self._loop = asyncio.get_running_loop()

    def start(self, forwarder: Forwarder, after: Callable[[], None]) -> None:
        """From now on this forwarder has its turns; `after` is called behind each, when there may be more room."""
        self._forwarder = forwarder
        self._after = after

    def again(self) -> None:
        """Give the forwarder a turn, not in this call."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._work)

    def report(self, outlet: Outlet | None, error: Exception) -> None:
        """Something failed in the middle of a pass: say so, and close the link, if it was one, when that is over."""
        self.failures += 1
        now = self._loop.time()
        if now - self._reported.get(type(error), float("-inf")) >= REPORT_SECONDS:
            self._reported[type(error)] = now
            log.error("pass went on without", link=getattr(outlet, "number", None), exc_info=error)
        if isinstance(outlet, Link):
            self._loop.call_soon(outlet.close, f"could not be written to: {type(error).__name__}: {error}")

    def _work(self) -> None:
        self._turn = None
        self._forwarder.work(self._loop.time())
        self._after()
