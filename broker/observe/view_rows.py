"""
Rows of the views of an instance for a statement, which runs in a thread, while the values belong to the loop.

`LoopReader` has the loop copy what a view needs, in steps short enough not to hold up traffic; rows are made of it in
the thread. What is copied is whole: a frame that waits with the times that it had at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from broker.observe.instance import Running
from broker.observe.snapshot import read_snapshot
from broker.observe.views import SNAPSHOT_VIEWS, MemoryView, Row, RowSource

ANSWER_SECONDS = 10.0  # for the loop to answer; a loop that is busy for longer has other troubles

_T = TypeVar("_T")


class LoopReader:
    """Reads an instance for other threads. Made on the loop; its methods are for threads."""

    def __init__(self, instance: Running) -> None:
        self._instance = instance
        self._loop = asyncio.get_running_loop()

    def by_view(self) -> dict[str, RowSource]:
        """Return the source of the rows of each view."""
        return {view.name: partial(self.rows, view) for view in SNAPSHOT_VIEWS}

    def rows(self, view: MemoryView) -> Iterator[Row]:
        """The rows of a view."""
        return view.rows(self._on_loop(lambda: read_snapshot(self._instance, view.sections)))

    def _on_loop(self, read: Callable[[], _T]) -> _T:
        """Call a function on the loop, and return its result."""
        answer: Future[_T] = Future()

        def call() -> None:
            try:
                answer.set_result(read())
            except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return answer.result(ANSWER_SECONDS)
