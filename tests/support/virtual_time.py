"""
A real asyncio loop whose time is a number: it jumps to the next timer instead of waiting for it.

What is put into an executor runs at once, in the caller's thread, and its result comes after `executor_delay()` virtual
seconds, so that a test decides what happens while a writer thread works. There is no I/O: a loop with nothing to wait
for is a test that would hang, and fails.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

WALL_CLOCK = 1_750_000_000.0  # UTC seconds since 1970 at virtual time 0


class _Jump(selectors.SelectSelector):
    """Waits for nothing: lets virtual time pass instead."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is left to wait for"
        self._advance(max(0.0, timeout))
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. Shape: `executor_delay` virtual seconds until the result of work done in an executor comes."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jump(self._advance))
        self.executor_delay: Callable[[], float] = lambda: 0.001

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def wall_clock(self) -> float:
        """Virtual UTC seconds since 1970, to stand in for `time.time`."""
        return WALL_CLOCK + self._now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do it now, and give the result later."""
        future = self.create_future()
        try:
            give, result = future.set_result, func(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to the one who awaits
            give, result = future.set_exception, error
        self.call_later(self.executor_delay(), lambda: future.done() or give(result))
        return future

    def _advance(self, seconds: float) -> None:
        self._now += seconds


class VirtualPolicy(asyncio.DefaultEventLoopPolicy):
    """Gives every test of a module a loop of its own with virtual time."""

    def new_event_loop(self) -> VirtualLoop:
        """A loop at virtual time 0."""
        return VirtualLoop()
