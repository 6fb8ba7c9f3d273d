"""
Rows and the file of a connection that may be the application's, whatever it has set on it.

An application's row factory and text factory are its own; what the broker reads is tuples, with text as text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext


def ask(db: sqlite3.Connection, statement: str, parameters: tuple[object, ...] = ()) -> sqlite3.Cursor:
    """Execute with rows as tuples; text is as the connection's text factory makes it."""
    cursor = db.cursor()
    cursor.row_factory = None
    return cursor.execute(statement, parameters)


def plain(db: sqlite3.Connection) -> AbstractContextManager[None]:
    """For code that reads rows on the connection itself: they are tuples, with text as text, while this lasts."""
    return _PLAIN_ALREADY if db.row_factory is None and db.text_factory is str else _made_plain(db)


def path_of(db: sqlite3.Connection) -> str:
    """The file behind a connection; empty for a database in memory."""
    with plain(db):
        path: str = ask(db, "PRAGMA database_list").fetchone()[2]
    return path


_PLAIN_ALREADY = nullcontext()


@contextmanager
def _made_plain(db: sqlite3.Connection) -> Iterator[None]:
    row_factory, text_factory = db.row_factory, db.text_factory
    db.row_factory, db.text_factory = None, str
    try:
        yield
    finally:
        db.row_factory, db.text_factory = row_factory, text_factory
