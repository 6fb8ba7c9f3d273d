"""
A real asyncio loop whose time is a number: it jumps to the next timer instead of waiting for it.

What is put into an executor runs at once, in the caller's thread, and its result comes after `executor_delay()` virtual
seconds, so that a test decides what happens while a writer thread works. There is no I/O: a loop with nothing to wait
for is a test that would hang, and fails. What is due at one instant is done in the order in which it was planned.

The plan is the loop's own, and leaner than asyncio's: no selector, timers that are compared as plain numbers. A
simulation turns this loop some thousand times for each story.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import wraps
from itertools import count
from typing import Any, ParamSpec

P = ParamSpec("P")
TURNS_MAX = 200_000  # of one instant; who takes more goes round in a circle
WALL_CLOCK = 1_750_000_000.0  # UTC seconds since 1970 at virtual time 0


class Planned:
    """What is to be called, as `asyncio.TimerHandle`. Shape: `due` virtual seconds."""

    __slots__ = ("__weakref__", "arguments", "callback", "context", "due", "is_cancelled")

    def __init__(self, due: float, callback: Callable[..., Any], arguments: tuple[Any, ...], context: Context) -> None:
        self.due = due
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        """It is not called any more, and keeps nothing alive."""
        self.is_cancelled = True
        self.callback, self.arguments = _nothing, ()

    def cancelled(self) -> bool:
        """Whether it is not to be called."""
        return self.is_cancelled

    def when(self) -> float:
        """When it is to be called."""
        return self.due


def _nothing() -> None:
    """Of what is cancelled."""


class VirtualLoop(asyncio.BaseEventLoop):
    """
    The loop.

    Shape: `executor_delay` virtual seconds until the result of work done in an executor comes; `withholds`, if any,
    says whether something that is due is kept from being called, by its context.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__()
        self.executor_delay: Callable[[], float] = lambda: 0.001
        self.withholds: Callable[[Planned], bool] | None = None
        self._ready: deque[Planned] = deque()
        self._plan: list[tuple[float, int, Planned]] = []
        self._numbers = count()
        self._turns = 0  # since time has passed

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def wall_clock(self) -> float:
        """Virtual UTC seconds since 1970, to stand in for `time.time`."""
        return WALL_CLOCK + self._now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Planned:  # type: ignore[override]
        """In the next turn."""
        planned = Planned(self._now, callback, args, copy_context() if context is None else context)
        self._ready.append(planned)
        return planned

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Planned:
        """As `call_soon`, of another thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Planned:  # type: ignore[override]
        """At an instant."""
        planned = Planned(when, callback, args, copy_context() if context is None else context)
        heapq.heappush(self._plan, (when, next(self._numbers), planned))
        return planned

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Planned:
        """In so many seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do it now, and give the result later."""
        future = self.create_future()
        try:
            give, result = future.set_result, func(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            give, result = future.set_exception, error
        self.call_later(self.executor_delay(), lambda: future.done() or give(result))
        return future

    def _run_once(self) -> None:
        """One turn: what is due, and before that the time until something is."""
        ready, plan = self._ready, self._plan
        self._turns += 1
        assert self._turns < TURNS_MAX, "somebody goes round in a circle, and time does not pass"
        while not ready:
            while plan and plan[0][2].is_cancelled:
                heapq.heappop(plan)
            assert plan, "nothing is left to wait for"
            if plan[0][0] > self._now:
                self._now, self._turns = plan[0][0], 0
            self._take_due()
        if plan and plan[0][0] <= self._now:
            self._take_due()
        withholds = self.withholds
        for _ in range(len(ready)):
            planned = ready.popleft()
            if planned.is_cancelled or (withholds is not None and withholds(planned)):
                continue
            try:
                planned.context.run(planned.callback, *planned.arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - told by whoever waits
                self.call_exception_handler({"message": f"{planned.callback} failed", "exception": error})

    def _take_due(self) -> None:
        plan, now = self._plan, self._now
        while plan and plan[0][0] <= now:
            planned = heapq.heappop(plan)[2]
            if not planned.is_cancelled:
                self._ready.append(planned)

    def _advance(self, seconds: float) -> None:
        """Let time pass in the middle of a turn."""
        self._now += seconds

    def _write_to_self(self) -> None:
        """Nobody else's thread is waited for."""


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]], loop: VirtualLoop | None = None) -> None:
    """Run a coroutine in a loop of its own; what goes wrong in a callback fails it, and so does a task left behind."""
    loop = loop or VirtualLoop()
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
