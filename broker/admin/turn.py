"""
Whose turn it is: questions of those who may only ask never take all threads.

A SELECT may take ten seconds, and who may ask may ask many at once. One thread is left for those who may change
something, so that somebody who is there to mend the instance gets an answer. Those who have to wait are served in the
order in which they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

from broker.admin.wanted import is_for_viewer

_T = TypeVar("_T")


class Turns:
    """
    The threads for questions. Loop-only.

    Args:
        executor: Has them.
        threads: How many, 1 at least; with one only there is none to keep.
    """

    def __init__(self, executor: Executor, threads: int) -> None:
        self.executor = executor
        self._viewers = asyncio.Semaphore(max(1, threads - 1))

    async def run(self, work: Callable[[], _T]) -> _T:
        """What this comes to, in a thread, when it is the turn of whoever asks."""
        async with self.turn():
            return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    def turn(self) -> AbstractAsyncContextManager[Any]:
        """Wait for it, and keep it until the end of the block."""
        return self._viewers if is_for_viewer() else nullcontext()
