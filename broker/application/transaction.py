"""
The application's own connection, used without disturbing it.

Its transaction is joined when there is one, and begun when there is none: IMMEDIATE, so that two writers wait for each
other instead of failing with "database is locked". A transaction that is joined gets the write lock before anything is
read, for the same reason. Its row factory is passed by, none of its settings is changed, and whatever SQLite says of a
file that cannot be used becomes `StoreUnavailableError` with a sentence.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from broker.errors import StoreUnavailableError
from broker.store.fault import is_about_file, sentence
from broker.store.rows import ask, path_of
from broker.store.schema import SCHEMA_VERSION
from broker.store.transaction import BUSY_SECONDS, LOCK_PAUSE, is_busy, take_write_lock

_LOCK = "DELETE FROM broker_received WHERE 0"  # changes nothing, but has to have the write lock
_SAVEPOINT = "broker_call"
_T = TypeVar("_T")


def check_schema(db: sqlite3.Connection) -> None:
    """
    See that a database of the broker lives in this file, as this release knows it.

    Raises:
        StoreUnavailableError: it does not, it is older or newer, or this is no database at all.
    """
    row = look(db, lambda: ask(db, "SELECT schema_version FROM broker_database").fetchone())
    version = None if row is None else row[0]
    if version != SCHEMA_VERSION:
        what = "start the daemon of this release on it" if version and version < SCHEMA_VERSION else "use that release"
        problem = f"its schema has version {version}, this release knows {SCHEMA_VERSION}: {what}"
        raise StoreUnavailableError(path_of(db) or ":memory:", problem)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """
    The application's transaction, begun when there is none; committed here only in autocommit mode.

    In it the database is this connection's alone to write, also when the transaction was joined.

    Raises:
        StoreUnavailableError: the database stayed locked for BUSY_SECONDS, cannot be written, is damaged or none of
            the broker, or the disk is full, also at the COMMIT made here; or the transaction that was joined has read
            before others wrote, so that it can only be begun again.
    """
    try:
        if db.in_transaction:
            _patiently(lambda: db.execute(_LOCK))
            yield
            return
        take_write_lock(db, least=BUSY_SECONDS)
        try:
            yield
            if is_autocommit(db):
                db.execute("COMMIT")  # `commit` does nothing where SQLite's own autocommit is on
        except BaseException:
            if db.in_transaction:  # a full disk may have ended it already
                db.execute("ROLLBACK")
            raise
    except sqlite3.DatabaseError as error:
        blame_file(db, error)
        raise


@contextmanager
def whole(db: sqlite3.Connection) -> Iterator[None]:
    """A transaction in which a call of several writes is done as a whole or, in the application's eyes, not at all."""
    is_joined = db.in_transaction
    with transaction(db):
        if not is_joined:
            yield
            return
        db.execute(f"SAVEPOINT {_SAVEPOINT}")
        try:
            yield
        except BaseException:
            if db.in_transaction:  # a full disk may have ended it already
                db.execute(f"ROLLBACK TO {_SAVEPOINT}")
                db.execute(f"RELEASE {_SAVEPOINT}")
            raise
        db.execute(f"RELEASE {_SAVEPOINT}")


def commit(db: sqlite3.Connection) -> None:
    """
    Commit what the application did on a connection whose transactions the broker ends.

    Raises:
        StoreUnavailableError: the disk is full, the file is locked, damaged or cannot be written: nothing is committed.
    """
    try:
        db.commit()
    except sqlite3.DatabaseError as error:
        blame_file(db, error)
        raise


def look(db: sqlite3.Connection, call: Callable[[], _T]) -> _T:
    """
    What a call reads, with patience.

    Raises:
        StoreUnavailableError: the database stayed locked, cannot be read, or is none of the broker.
    """
    try:
        return _patiently(call)
    except sqlite3.DatabaseError as error:
        blame_file(db, error)
        raise


def blame_file(db: sqlite3.Connection, error: sqlite3.DatabaseError) -> None:
    """
    Tell an error about the file as applications are told; of any other nothing.

    Raises:
        StoreUnavailableError: the file behind the connection cannot be used.
    """
    if is_about_file(error):
        raise StoreUnavailableError(path_of(db) or ":memory:", _sentence(error)) from error


def is_autocommit(db: sqlite3.Connection) -> bool:
    """Whether each statement commits by itself: `isolation_level=None`, or `autocommit=True` from Python 3.12 on."""
    mode = getattr(db, "autocommit", None)
    return mode if isinstance(mode, bool) else db.isolation_level is None


def is_always_open(db: sqlite3.Connection) -> bool:
    """Whether the connection is in a transaction even when nothing was done in it: `autocommit=False`, Python 3.12."""
    return getattr(db, "autocommit", None) is False


def _patiently(call: Callable[[], _T]) -> _T:
    """
    Wait for others longer than the connection's own time-out, which is 5 s unless the application says.

    Inside a transaction that has read, SQLite does not wait at all; but nothing helps once another has written since.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            is_hopeless = not is_busy(error) or error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT
            if is_hopeless or time.monotonic() > deadline:
                raise
            time.sleep(LOCK_PAUSE)


def _sentence(error: sqlite3.DatabaseError) -> str:
    """What SQLite says, with what to do where its words do not tell."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return (
            "this transaction has read before another connection wrote, so it cannot write any more (database is"
            " locked): roll it back and begin it again, with BEGIN IMMEDIATE, or with the broker's call first"
        )
    if code & 0xFF == sqlite3.SQLITE_BUSY:
        return (
            f"another connection has had a write transaction open for more than {BUSY_SECONDS:.0f} s (database is"
            " locked): keep transactions short, and wait for nothing inside them"
        )
    return sentence(error)
