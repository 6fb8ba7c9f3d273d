"""
Timers, and supervised tasks: a task that must not end is restarted when it does.

A task that died is silent, so each one is kept under a name. When it ends, by an exception or because it was cancelled,
that is logged, counted and shown, and the task is started again: at once the first time, after a growing pause when it
keeps dying young. `work` makes a new coroutine for each start; its owner sees to it that a restart is safe.

Loop-only, except `Supervision.note`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import structlog

log = structlog.get_logger(__name__)

PAUSE_FIRST = 0.1  # seconds before a task that died is started again; doubled each time it dies young
PAUSE_MAX = 10.0
YOUNG_SECONDS = 60.0  # a task that lived less died young; a death is shown as a problem for as long

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Timer:
    """
    One call in the future; another plan replaces it. Loop-only.

    Attributes:
        due: Loop time of the call; None while there is none.
    """

    __slots__ = ("_handle", "due")

    def __init__(self) -> None:
        self.due: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def at(self, due: float | None, act: Callable[..., object], *args: object) -> None:
        """Call at this loop time, with None never; a plan that is right stays, or it might never come true."""
        if due != self.due:
            self.cancel()
            if due is not None:
                self.due = due
                self._handle = asyncio.get_running_loop().call_at(due, self._run, act, args)

    def after(self, seconds: float, act: Callable[..., object], *args: object) -> None:
        """Call in so many seconds."""
        self.at(asyncio.get_running_loop().time() + seconds, act, *args)

    def cancel(self) -> None:
        """Call never."""
        if self._handle is not None:
            self._handle.cancel()
        self.due = self._handle = None

    def _run(self, act: Callable[..., object], args: tuple[object, ...]) -> None:
        self.due = self._handle = None
        act(*args)


class TaskGroup:
    """Tasks that each end by themselves or when all are cancelled; an exception in one is logged. Loop-only."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start another task."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def cancel(self) -> None:
        """Cancel all and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task failed", task=task.get_name(), exc_info=task.exception())


class SupervisedTask:
    """One task, made by `Supervision.keep`; `failures` counts how often it died."""

    def __init__(self, supervision: Supervision, name: str, work: Work) -> None:
        self.name = name
        self.failures = 0
        self._supervision = supervision
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._young = 0  # deaths in a row that came early
        self._died_at = float("-inf")
        self._reason = ""
        self._restart = Timer()
        self._born_at = 0.0
        self._task: asyncio.Task[None]
        self._begin()

    @property
    def is_running(self) -> bool:
        """True while the task runs."""
        return self._restart.due is None and not self._task.done()

    @property
    def problem(self) -> str:
        """Why it is not running, or was not a moment ago; empty when it is well."""
        if self._is_over or (self.is_running and self._loop.time() - self._died_at >= YOUNG_SECONDS):
            return ""
        state = "works again" if self.is_running else "is started again in a moment"
        return f"has died {self.failures} times, the last time of: {self._reason}; it {state}"

    async def stop(self, *, is_cancelled: bool = True) -> None:
        """Cancel it, or wait until it ends by itself; it is not started again."""
        self._is_over = True
        self._supervision.forget(self)
        self._restart.cancel()
        if is_cancelled:
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        self._born_at = self._loop.time()
        self._task = self._loop.create_task(self._work(), name=self.name)
        self._task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._is_over:
            if error is not None:
                log.error("task failed", task=self.name, reason=repr(error), exc_info=error)
            return
        now = self._loop.time()
        is_young = now - self._born_at < YOUNG_SECONDS
        self._young = self._young + 1 if is_young else 1
        pause = min(PAUSE_MAX, PAUSE_FIRST * 2 ** min(self._young - 1, 10))
        self.failures += 1
        self._died_at = now
        self._reason = "it was cancelled" if task.cancelled() else "it has ended" if error is None else repr(error)
        self._supervision.note(self.name)
        trace = {} if error is None else {"exc_info": error}
        log.error("task failed", task=self.name, reason=self._reason, restart_in_s=pause, **trace)
        self._restart.after(pause, self._begin)


class Supervision:
    """
    The tasks of one instance.

    `failures` counts deaths since the start by name, also of tasks that were stopped since. The owner of something that
    is supervised elsewhere, for example a thread, calls `note`.
    """

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self._kept: dict[str, SupervisedTask] = {}

    def keep(self, name: str, work: Work) -> SupervisedTask:
        """Start a task and restart it whenever it ends, until it is stopped. A name is for one task at a time."""
        self._kept[name] = kept = SupervisedTask(self, name, work)
        self.failures.setdefault(name, 0)  # so that the first death is a change from 0
        return kept

    def keep_within(self, stack: AsyncExitStack, name: str, work: Work) -> None:
        """`keep`, and stop it when `stack` closes."""
        stack.push_async_callback(self.keep(name, work).stop)

    def note(self, name: str) -> None:
        """Count one more death."""
        self.failures[name] += 1

    def forget(self, kept: SupervisedTask) -> None:
        """Remove a task that is being stopped; called by `SupervisedTask.stop`."""
        if self._kept.get(kept.name) is kept:
            del self._kept[kept.name]

    @property
    def problems(self) -> Mapping[str, str]:
        """`SupervisedTask.problem` of every task, by name."""
        return {name: kept.problem for name, kept in self._kept.items()}

    def status(self) -> list[dict[str, Any]]:
        """Every task as plain values."""
        return [
            {"name": name, "running": kept.is_running, "failures": kept.failures, "problem": kept.problem}
            for name, kept in sorted(self._kept.items())
        ]
