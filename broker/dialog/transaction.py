"""
The application's own connection, used without disturbing it.

Its transaction is joined when there is one, and begun when there is none: IMMEDIATE, so that two writers wait for each
other instead of failing with "database is locked". Its row factory is passed by, none of its settings is changed, and
whatever SQLite says of a file that cannot be used becomes `StoreUnavailableError`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from broker.dialog.store import BUSY_SECONDS, has_schema, is_busy
from broker.errors import StoreUnavailableError

BUSY_PAUSE = 0.002  # seconds between two attempts where the connection itself does not wait (`timeout=0`)

_T = TypeVar("_T")


def check_schema(db: sqlite3.Connection) -> None:
    """
    See that a database of the broker lives in this file.

    Raises:
        StoreUnavailableError: it does not, or this is no database at all.
    """
    try:
        is_ours = _patiently(lambda: has_schema(db))
    except sqlite3.DatabaseError as error:
        raise StoreUnavailableError(_path(db), str(error)) from error
    if not is_ours:
        problem = "no database of the broker; name it in a daemon's configuration and start that once"
        raise StoreUnavailableError(_path(db), problem)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """
    The application's transaction, begun when there is none; committed here only in autocommit mode.

    Raises:
        StoreUnavailableError: the database stayed locked for BUSY_SECONDS, or cannot be written.
    """
    try:
        if db.in_transaction:
            yield
            return
        _patiently(lambda: db.execute("BEGIN IMMEDIATE"))
        try:
            yield
            if _is_autocommit(db):
                db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # a full disk may have ended it already
                db.execute("ROLLBACK")
            raise
    except sqlite3.OperationalError as error:
        raise StoreUnavailableError(_path(db), str(error)) from error


def ask(db: sqlite3.Connection, statement: str, parameters: tuple[object, ...] = ()) -> sqlite3.Cursor:
    """Execute with rows as tuples, whatever row factory the application has set."""
    cursor = db.cursor()
    cursor.row_factory = None
    return cursor.execute(statement, parameters)


def _patiently(call: Callable[[], _T]) -> _T:
    """Wait for others longer than the connection's own time-out, which is 5 s unless the application says."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(BUSY_PAUSE)


def _is_autocommit(db: sqlite3.Connection) -> bool:
    """Whether each statement commits by itself: `isolation_level=None`, or `autocommit=True` from Python 3.12 on."""
    return db.isolation_level is None or getattr(db, "autocommit", None) is True


def _path(db: sqlite3.Connection) -> str:
    return ask(db, "PRAGMA database_list").fetchone()[2] or ":memory:"
