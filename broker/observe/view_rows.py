"""
Rows of the views of an instance for a statement, which runs in a thread, while the values belong to the loop.

`LoopReader` has the loop copy what a view needs, in steps short enough not to hold up traffic; rows are made of it in
the thread. What is copied is whole: a frame that waits with the times that it had at that moment.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from broker.dialog.endpoint import Endpoint
from broker.errors import StoreUnavailableError
from broker.observe.instance import Running
from broker.observe.snapshot import read_snapshot
from broker.observe.views import SNAPSHOT_VIEWS, MemoryView, Row, RowSource
from broker.store.sqlite.lookup import handles_of
from broker.store.sqlite.transaction import open_watch

ANSWER_SECONDS = 10.0  # for the loop to answer; a loop that is busy for longer has other troubles
SENDERS_A_STEP = 256  # dialogs asked about at once: a few milliseconds of the loop

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

    def transmission_statuses(self) -> Mapping[bytes, str]:
        """
        Return the status of each dialog that has something to send, by its conversation_handle.

        Raises:
            StoreUnavailableError: a file that cannot be read.
        """
        statuses: dict[bytes, str] = {}
        for endpoint in self._on_loop(lambda: list(self._instance.endpoints.values())):
            by_endpoint = dict(self._statuses(endpoint))
            if by_endpoint:
                handles = _handles(endpoint.path, by_endpoint)
                statuses.update((handle, by_endpoint[endpoint_id]) for endpoint_id, handle in handles)
        return statuses

    def _statuses(self, endpoint: Endpoint) -> Iterator[tuple[int, str]]:
        waiting = iter(self._on_loop(lambda: list(endpoint.transmitter.senders)))
        while step := list(islice(waiting, SENDERS_A_STEP)):
            yield from self._on_loop(partial(_read_statuses, endpoint, step))

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


def _read_statuses(endpoint: Endpoint, endpoint_ids: Iterable[int]) -> list[tuple[int, str]]:
    transmitter = endpoint.transmitter
    senders = [transmitter.senders.get(endpoint_id) for endpoint_id in endpoint_ids]
    return [(sender.endpoint_id, transmitter.status_of(sender)) for sender in senders if sender is not None]


def _handles(path: Path, endpoint_ids: Iterable[int]) -> list[tuple[int, bytes]]:
    """Return the conversation_handle of each endpoint that still exists."""
    try:
        with closing(open_watch(path)) as db:
            return handles_of(db, endpoint_ids)
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), str(error)) from error
