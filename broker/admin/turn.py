"""
Limits on the threads that each role can take for questions.

A SELECT may take ten seconds, and a caller may ask many at once. Viewers leave a thread to operators and admins, and
viewers and operators together leave one to admins. Callers that have to wait are served in the order of their requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from broker.admin.wanted import role_of_caller
from broker.config.admin_access import AdminRole

_T = TypeVar("_T")


class Turns:
    """
    The threads for questions. Loop-only.

    Args:
        executor: Has them.
        threads: How many, 1 at least; with fewer than three, roles share what there is.
    """

    def __init__(self, executor: Executor, threads: int) -> None:
        self.executor = executor
        # The narrowest first, so that a viewer who waits holds nothing that an operator could have.
        self._limits = {
            AdminRole.VIEWER: asyncio.Semaphore(max(1, threads - 2)),
            AdminRole.OPERATOR: asyncio.Semaphore(max(1, threads - 1)),
        }

    async def run(self, work: Callable[[], _T]) -> _T:
        """What this comes to, in a thread, when it is the turn of whoever asks."""
        async with self.turn():
            return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for it, and keep it until the end of the block."""
        role = role_of_caller()
        async with AsyncExitStack() as stack:
            for highest, limit in self._limits.items():
                if role <= highest:
                    await stack.enter_async_context(limit)
            yield
