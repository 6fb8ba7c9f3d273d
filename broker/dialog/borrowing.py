"""The connection of a database, used by others between two turns of its writer thread: in that thread, or lent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TypeVar

from broker.dialog.store_port import Store
from broker.store.transaction import Connection

_T = TypeVar("_T")


def checked(store: Store, work: Callable[[Connection], _T]) -> Callable[[], _T]:
    """The work, for the writer thread; raises StoreUnavailableError when what it commits would not be found again."""

    def do_in_writer() -> _T:
        return work(store.lend())

    return do_in_writer


@contextmanager
def borrowed(store: Store, writer: Executor) -> Iterator[Connection]:
    """
    The connection, while the one thread of `writer` stands still; for another thread than the loop's.

    Whoever has it needs nothing of the loop to give it back, so it is given back even when the loop has ended.

    Raises:
        StoreUnavailableError: what would be committed now would not be found again.
    """
    stands, may_go = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands.set()
        may_go.wait()

    writer.submit(stand_still)
    stands.wait()
    try:
        yield store.lend()
    finally:
        may_go.set()
