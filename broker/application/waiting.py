"""
How a call waits for a message: cheaply, and for just as long as it was asked to.

`Waiting` is a generator that yields the seconds to pause, so that the synchronous call sleeps and the asynchronous one
gives its loop back. Between two pauses it reads `PRAGMA data_version`, which changes with every commit of another
connection and costs a few microseconds; only then, and every RELOOK_SECONDS, does it look into the queue: the end of a
rest or of a reader process changes nothing in the file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, nullcontext
from typing import TypeAlias, TypeVar

from broker.application.transaction import is_always_open, look
from broker.store.database import open_watch
from broker.store.rows import ask, path_of

PAUSE_SECONDS = (0.001, 0.02)  # between two looks at the version: first, and at most
RELOOK_SECONDS = 0.25  # between two looks into the queue when nothing has changed in the file

_T = TypeVar("_T")
Waiting: TypeAlias = Generator[float, None, _T]


def waiting(
    db: sqlite3.Connection, is_there: Callable[[sqlite3.Connection], bool], take: Callable[[], list[_T]], wait: float
) -> Waiting[list[_T]]:
    """
    What `take` gives once it gives something, or nothing when `wait` seconds are over.

    Args:
        db: The application's connection; while this waits, no transaction is open on it that was not before.
        is_there: Whether there is anything to take, asked on a connection that sees what is committed.
        take: Takes it, inside the application's transaction; leaves no transaction open when somebody was faster.
        wait: Seconds. Inside a transaction that is open nothing new can be seen, so it looks once; where one is always
            open (`autocommit=False`), the looks are on a connection of their own.
    """
    deadline = time.monotonic() + wait
    path = path_of(db) if is_always_open(db) else ""
    if db.in_transaction and not path:
        return take()
    with closing(open_watch(path)) if path else nullcontext(db) as watch:

        def _version() -> int:
            return int(ask(watch, "PRAGMA data_version").fetchone()[0])

        pause, longest = PAUSE_SECONDS
        version = look_at = None
        while True:
            now = time.monotonic()
            current = look(db, _version)
            if current != version or look_at is None or now >= look_at:
                version, look_at = current, now + RELOOK_SECONDS
                if look(db, lambda: is_there(watch)) and (taken := take()):
                    return taken
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            yield min(pause, left)
            pause = min(longest, pause * 1.5)


def wait_here(steps: Waiting[_T]) -> _T:
    """Run to the end, sleeping in this thread."""
    while True:
        try:
            pause = next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        time.sleep(pause)
