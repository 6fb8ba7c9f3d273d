"""
Transactions on the application's own connection, with its settings unchanged.

A call joins the connection's transaction when there is one, and begins one when there is none: IMMEDIATE, so that two
writers wait for each other instead of failing with "database is locked". A transaction that is joined gets the write
lock before anything is read, for the same reason. The connection's row factory is not used, and none of its settings is
changed. An error of SQLite about the file becomes `StoreUnavailableError` with a sentence. If other connections kept
the file locked too long it becomes `StoreBusyError`, which names the process that writes to it.
A call that waits longer than two seconds says so with `logging`, at level WARNING.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from broker.errors import StoreBusyError, StoreUnavailableError
from broker.store import sqlite
from broker.store.sqlite.schema import SCHEMA_VERSION
from broker.store.sqlite.transaction import (
    BUSY_SECONDS,
    DaemonConnection,
    ask,
    begin_at_once,
    is_about_file,
    path_of,
    patiently,
    sentence,
)

_TOO_OLD = (
    "this transaction has read before another connection wrote, so it can no longer write: roll it back and begin it"
    " again, with BEGIN IMMEDIATE, or with the broker's call first"
)
_LOCK = "DELETE FROM broker_received WHERE 0"  # changes nothing, but has to have the write lock
_SAVEPOINT = "broker_call"
_UNSAFE = {0: "OFF", 1: "NORMAL"}  # PRAGMA synchronous of a connection whose commits are not on the disk at once
_T = TypeVar("_T")


def check_schema(db: sqlite3.Connection) -> None:
    """
    Check that this is a database of the broker, with the schema of this release.

    Raises:
        StoreUnavailableError: it is not one, it is older or newer, or this is not a database at all.
    """
    row = look(db, lambda: ask(db, "SELECT schema_version FROM broker_database").fetchone())
    check_version(db, None if row is None else row[0])


def check_version(db: sqlite3.Connection, version: int | None) -> None:
    """
    Check the version of a database's schema, which another query has read; None where it has none.

    Raises:
        StoreUnavailableError: it is not that of this release.
    """
    if version != SCHEMA_VERSION:
        what = "start the daemon of this release on it" if version and version < SCHEMA_VERSION else "use that release"
        problem = f"its schema has version {version}, this release knows {SCHEMA_VERSION}: {what}"
        raise StoreUnavailableError(path_of(db) or ":memory:", problem)


def check_durable(db: sqlite3.Connection) -> None:
    """
    Check that what this connection commits is on the disk before the daemon finds it.

    What is sent and then lost with the power leaves its number to the next message, which the far side, which has the
    lost one, takes for a duplicate: it would be acknowledged and never be read, without any sign of it.

    Raises:
        StoreUnavailableError: its `PRAGMA synchronous` is below FULL.
    """
    if isinstance(db, DaemonConnection):
        return  # a daemon's own
    mode = _UNSAFE.get(ask(db, "PRAGMA synchronous").fetchone()[0])
    if mode is not None:
        problem = (
            f"this connection has PRAGMA synchronous = {mode}, so a loss of power could take back what was sent"
            " already, and the next message be lost: set PRAGMA synchronous = FULL on it before its transaction, or"
            " send on another connection"
        )
        raise StoreUnavailableError(path_of(db) or ":memory:", problem)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """
    The application's transaction, begun when there is none; committed here only in autocommit mode.

    In it only this connection can write to the database, also when the transaction was joined.

    Raises:
        StoreBusyError: the database stayed locked for BUSY_SECONDS, or the connection's own time-out if that is longer.
        StoreUnavailableError: the database cannot be written, is damaged or not one of the broker, or the disk is full,
            also at the COMMIT made here; or the transaction that was joined has read before others wrote, so that it
            can only be begun again.
    """
    try:
        if db.in_transaction:
            _patiently(db, lambda: db.execute(_LOCK))
            yield
            return
        _patiently(db, lambda: begin_at_once(db))
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
    """A transaction in which a call of several writes is done as a whole or, as the application sees it, not at all."""
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
    began = time.monotonic()
    try:
        db.commit()
    except sqlite3.DatabaseError as error:
        blame_file(db, error, time.monotonic() - began)
        raise


def look(db: sqlite3.Connection, call: Callable[[], _T]) -> _T:
    """
    Run a call that only reads, and wait while others have the file.

    Raises:
        StoreBusyError: the database stayed locked for BUSY_SECONDS.
        StoreUnavailableError: it cannot be read, or is not one of the broker.
    """
    try:
        return _patiently(db, call)
    except sqlite3.DatabaseError as error:
        blame_file(db, error)
        raise


def blame_file(db: sqlite3.Connection, error: sqlite3.DatabaseError, waited_s: float | None = None) -> None:
    """
    Raise an error about the file as StoreUnavailableError; do nothing for any other.

    Args:
        db: The application's connection.
        error: What SQLite said.
        waited_s: How long the call has waited for other writers; None = as long as the connection itself waits.

    Raises:
        StoreUnavailableError: the file of the connection cannot be used.
    """
    if is_about_file(error):
        waited_s = ask(db, "PRAGMA busy_timeout").fetchone()[0] / 1000 if waited_s is None else waited_s
        raise unavailable(path_of(db) or ":memory:", error, waited_s) from error


def is_autocommit(db: sqlite3.Connection) -> bool:
    """Whether each statement commits by itself: `isolation_level=None`, or `autocommit=True` from Python 3.12 on."""
    mode = getattr(db, "autocommit", None)
    return mode if isinstance(mode, bool) else db.isolation_level is None


def is_always_open(db: sqlite3.Connection) -> bool:
    """Whether the connection is in a transaction even when nothing was done in it: `autocommit=False`, Python 3.12."""
    return getattr(db, "autocommit", None) is False


def _patiently(db: sqlite3.Connection, call: Callable[[], _T]) -> _T:
    """Wait for others longer than the connection's own time-out, which is 5 s unless the application says."""
    began = time.monotonic()
    try:
        # The lambda imports that module only where another connection has the lock.
        return patiently(db, call, least=BUSY_SECONDS, waits=lambda path: sqlite.write_lock.warned_waits(path))  # noqa: PLW0108
    except sqlite3.OperationalError as error:
        blame_file(db, error, time.monotonic() - began)
        raise


# --- errors about the file ---


def unavailable(path: str, error: sqlite3.Error, waited_s: float) -> StoreUnavailableError:
    """The error for what SQLite says of a file, after a call has waited so long for other writers."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreUnavailableError(path, _TOO_OLD)
    if code & 0xFF != sqlite3.SQLITE_BUSY:
        return StoreUnavailableError(path, sentence(error))
    holder = sqlite.write_lock.holder_of(path)
    others = f"others were writing for all of the {waited_s:.1f} s that this call waited, so nothing was done"
    who = sqlite.write_lock.who_writes(holder)
    advice = "end that, keep transactions short, wait for nothing inside them, and call again"
    return StoreBusyError(path, f"{others}; {who}: {advice}", waited_s, holder and holder.pid)
