"""
Tasks that last as long as what they serve, and what is done when one of them ends all the same.

That a task exists says nothing of what it does, and one that has died says nothing at all. So each of them is kept here
under a name: when it ends by itself, by a bug or because somebody has cancelled it, that is logged, counted, shown, and
it is begun anew, at once the first time and later each time when it dies young. Whoever keeps a task sees to it that
beginning anew is safe: `work` makes a whole new coroutine, which goes by what its owner remembers.

Nothing of a broker is known here. Loop-only, but for `Supervision.note`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import structlog

# --- tasks ---
# Tasks that somebody keeps: each ends by itself, or when all are cancelled; a bug in one is told. Loop-only.


log = structlog.get_logger(__name__)


class TaskGroup:
    """Those that have not ended."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Begin another one."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def cancel(self) -> None:
        """End all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task failed", task=task.get_name(), exc_info=task.exception())


PAUSE_FIRST = 0.1  # seconds before a task that has died is begun anew; twice as long each time it dies young
PAUSE_MAX = 10.0
YOUNG_SECONDS = 60.0  # younger than that it has died young, and for so long a death is told where problems are shown


Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class SupervisedTask:
    """One task, made by `Supervision.keep`. Shape: `failures` how often it has died."""

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
        self._restart: asyncio.TimerHandle | None = None
        self._born_at = 0.0
        self._task: asyncio.Task[None]
        self._begin()

    @property
    def is_running(self) -> bool:
        """Whether it works now."""
        return self._restart is None and not self._task.done()

    @property
    def problem(self) -> str:
        """Why it does not work, or did not a moment ago; empty when all is well."""
        if self._is_over or (self.is_running and self._loop.time() - self._died_at >= YOUNG_SECONDS):
            return ""
        again = "works again" if self.is_running else "is begun anew in a moment"
        return f"has died {self.failures} times, the last time of: {self._reason}; it {again}"

    async def stop(self, *, is_cancelled: bool = True) -> None:
        """End it, or wait until it ends by itself; it is not begun anew."""
        self._is_over = True
        self._supervision.forget(self)
        if self._restart is not None:
            self._restart.cancel()
        if is_cancelled:
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        self._restart = None
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
        self._restart = self._loop.call_later(pause, self._begin)


class Supervision:
    """
    The tasks of one instance.

    Shape: `failures` deaths since the start by name, of tasks that are kept no more as well; of what is kept elsewhere,
    a thread say, whoever keeps it calls `note`.
    """

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self._kept: dict[str, SupervisedTask] = {}

    def keep(self, name: str, work: Work) -> SupervisedTask:
        """Begin a task that is begun anew whenever it ends, until it is stopped. A name is for one task at a time."""
        self._kept[name] = kept = SupervisedTask(self, name, work)
        self.failures.setdefault(name, 0)  # so that the first death is a change from 0
        return kept

    def keep_within(self, stack: AsyncExitStack, name: str, work: Work) -> None:
        """The same, until `stack` ends it."""
        stack.push_async_callback(self.keep(name, work).stop)

    def note(self, name: str) -> None:
        """It has died once more."""
        self.failures[name] += 1

    def forget(self, kept: SupervisedTask) -> None:
        """It is to end; for `Kept.stop`."""
        if self._kept.get(kept.name) is kept:
            del self._kept[kept.name]

    @property
    def problems(self) -> Mapping[str, str]:
        """Of every task that is kept why it does not work or did not a moment ago, by name; empty when all is well."""
        return {name: kept.problem for name, kept in self._kept.items()}

    def status(self) -> list[dict[str, Any]]:
        """Every task that is kept, as plain values."""
        return [
            {"name": name, "running": kept.is_running, "failures": kept.failures, "problem": kept.problem}
            for name, kept in sorted(self._kept.items())
        ]
