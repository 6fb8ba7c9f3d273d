"""
A write to the file of a database: one transaction, and how to wait for those of others.

A connection belongs to one thread at a time. Every write is inside `writing`, which begins IMMEDIATE, so that two
writers wait for each other instead of failing. A daemon's connection knows the epoch in which its daemon became the
principal; when the file has another one, somebody else is, and nothing is committed. Where each has a file of its own,
the epoch tells nothing: there the daemon's role has to be confirmed, when a transaction begins and right before it is
committed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker.errors import DemotedError
from broker.store.rows import ask

BUSY_SECONDS = 60.0  # how long a writer waits for another one before the store counts as unavailable
LOCK_PAUSE = 0.001  # seconds between two attempts to take the write lock, at most
LOCK_PAUSE_FIRST = 0.0001  # most commits of others are over within a millisecond: the first waits are short
LAPSED = (  # a principal, so that somebody else may be it
    "nothing has confirmed its role within role_timeout: this process or machine stood still, or role_command takes too"
    " long"
)


class DaemonConnection(sqlite3.Connection):
    """
    A connection of a daemon; what it looks like inside is for this package and for `broker.application` alone.

    Shape: `epoch` in which it may write, None = in any; `is_confirmed` whether it may now, None = always.
    """

    epoch: int | None = None
    is_confirmed: Callable[[], bool] | None = None


@contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """
    One write transaction: committed at the end, rolled back by an exception.

    Raises:
        sqlite3.OperationalError: others had the file for as long as the connection's own time-out.
        DemotedError: somebody else is the principal by now.
    """
    take_write_lock(db)
    try:
        check_epoch(db)
        yield
        commit(db)
    except BaseException:
        roll_back(db)
        raise


def begin_within(db: sqlite3.Connection, seconds: float) -> None:
    """
    Begin to write, and wait for others for so long at most; the connection's own time-out is as it was afterwards.

    Raises:
        sqlite3.OperationalError: others had the file for so long.
        DemotedError: somebody else is the principal by now; the transaction is left to the caller.
    """
    (usual,) = db.execute("PRAGMA busy_timeout").fetchone()
    db.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
    try:
        db.execute("BEGIN IMMEDIATE")
    finally:
        db.execute(f"PRAGMA busy_timeout = {usual}")
    check_epoch(db)


def commit(db: sqlite3.Connection) -> None:
    """
    End what `begin_within` has begun: all of it is on the disk.

    Raises:
        sqlite3.Error: it is not.
        DemotedError: nor may it be; the transaction is left to the caller.
    """
    check_confirmed(db)
    db.execute("COMMIT")


def roll_back(db: sqlite3.Connection) -> None:
    """Undo what `begin_within` has begun, unless it is over."""
    if db.in_transaction:  # a full disk may have ended it already
        db.execute("ROLLBACK")


def check_epoch(db: sqlite3.Connection) -> None:
    """
    See that whoever has this connection is still the principal; inside a write transaction that stays so.

    Cost: one SELECT of some microseconds.

    Raises:
        DemotedError: somebody else has taken the database over, or may have.
    """
    check_confirmed(db)
    known = db.epoch if isinstance(db, DaemonConnection) else None
    if known is None:
        return
    found = epoch(db)
    if found != known:
        path = str(db.execute("PRAGMA database_list").fetchone()[2])
        raise DemotedError(path, f"another daemon has taken it over: its epoch is {found}, ours was {known}")


def check_confirmed(db: sqlite3.Connection) -> None:
    """
    See that the role of whoever has this connection is confirmed at this moment.

    Cost: one look at the clock.

    Raises:
        DemotedError: it is not, so somebody else may have taken the database over.
    """
    if isinstance(db, DaemonConnection) and db.is_confirmed is not None and not db.is_confirmed():
        raise DemotedError(str(db.execute("PRAGMA database_list").fetchone()[2]), LAPSED)


def epoch(db: sqlite3.Connection) -> int:
    """How often somebody has taken this database over."""
    found: int = db.execute("SELECT epoch FROM broker_database").fetchone()[0]
    return found


def take_write_lock(db: sqlite3.Connection, *, least: float = 0.0) -> None:
    """
    BEGIN IMMEDIATE, with many short attempts.

    SQLite's own waiting looks again after up to 0.1 s. Who commits and begins again at once, as readers do, leaves the
    lock free for less than a millisecond, so that such a look rarely meets it and others would wait for seconds.

    Args:
        db: A connection without a transaction; its own time-out says how long to wait, and is as it was afterwards.
        least: Seconds to wait at least.

    Raises:
        sqlite3.OperationalError: others had the file for so long.
    """
    patience: int = ask(db, "PRAGMA busy_timeout").fetchone()[0]
    deadline = time.monotonic() + max(least, patience / 1000)
    pause = LOCK_PAUSE_FIRST
    db.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(pause)
                pause = min(LOCK_PAUSE, 2 * pause)
            else:
                return
    finally:
        db.execute(f"PRAGMA busy_timeout = {patience}")


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether somebody else has the file now, so that waiting helps; the upper bytes of the code are detail."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
