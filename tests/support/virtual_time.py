"""
A real asyncio loop whose time is a number: it jumps to the next timer instead of waiting for it.

What is put into an executor runs at once, in the caller's thread, and its result comes after `executor_delay()` virtual
seconds, so that a test decides what happens while a writer thread works. There is no I/O: a loop with nothing to wait
for is a test that would hang, and fails.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")
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


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a loop of its own; what goes wrong in a callback fails it, and so does a task left behind."""
    loop = VirtualLoop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: problems.append(context))
    try:
        loop.run_until_complete(main(loop))
        assert problems == []
        assert asyncio.all_tasks(loop) == set()
    finally:
        loop.close()


def virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs in virtual time."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtually(lambda _loop: test(*args, **kwargs))

    return run
