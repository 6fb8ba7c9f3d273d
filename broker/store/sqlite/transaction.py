"""
A write to the file of a database: one transaction, how to wait for those of others, and what its failures mean.

A connection belongs to one thread at a time. Every write is inside `writing`, which begins IMMEDIATE, so that two
writers wait for each other instead of failing. A daemon's connection knows the epoch in which its daemon became the
principal; when the file has another one, another daemon is, and nothing is committed. Where each daemon has its own
file, the epoch proves nothing: there the daemon's role has to be confirmed, when a transaction begins and right before
it is committed.

A file is shared with applications, administrators and backups, so whatever can be wrong with one will be. None of it is
a reason to end: the daemon rests, tries again, and goes on by itself when the cause is gone, unless the sentence that
it logs says otherwise.

Source: SQLite documentation, "Result and Error Codes", "How To Corrupt An SQLite Database File".
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from os import PathLike
from typing import TypeVar

from broker.errors import DemotedError, StoreUnavailableError
from broker.store import sqlite

BUSY_SECONDS = 60.0  # how long a writer waits for another one before the store counts as unavailable
LAPSED = (  # a principal, so that another daemon may be it
    "nothing has confirmed its role within role_timeout: this process or machine stood still, or role_command takes too"
    " long"
)
CHECK_SECONDS = 1.0  # for damage in one file
_T = TypeVar("_T")
_CHECK_STEPS = 1_000  # of the machine in SQLite, between two readings of the clock


class DaemonConnection(sqlite3.Connection):
    """A connection of a daemon; used by this package and `broker.client` alone, others pass it on."""

    epoch: int | None = None  # in which it may write; None = in any
    is_confirmed: Callable[[], bool] | None = None  # whether it may write now; None = always
    lock_waits: sqlite.write_lock.WriteLockWaits | None = None  # what its waits for the write lock are noted in
    arrivals: set[tuple[int, int]] | None = None  # (queue_id, endpoint_id) of what was put into queues, for a `Bell`
    free_orders = range(0)  # the rest of the numbers reserved for messages (`QueueWriter`)


@contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """
    One write transaction: committed at the end, rolled back by an exception.

    Raises:
        sqlite3.OperationalError: others had the file for as long as the connection's own time-out.
        DemotedError: another daemon is the principal by now.
    """
    waits = db.lock_waits if isinstance(db, DaemonConnection) else None
    take_write_lock(db, waits)
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
        DemotedError: another daemon is the principal by now; the transaction is left to the caller.
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
    if isinstance(db, DaemonConnection):
        db.free_orders = range(0)  # they may have been reserved in it
    if db.in_transaction:  # a full disk may have ended it already
        db.execute("ROLLBACK")


def check_epoch(db: sqlite3.Connection) -> None:
    """
    Check that the owner of this connection is still the principal; inside a write transaction that stays so.

    Cost: one SELECT of some microseconds.

    Raises:
        DemotedError: another daemon has taken the database over, or may have.
    """
    check_confirmed(db)
    known = db.epoch if isinstance(db, DaemonConnection) else None
    if known is None:
        return
    found = epoch(db)
    if found != known:
        raise DemotedError(path_of(db), f"another daemon has taken it over: its epoch is {found}, ours was {known}")


def check_confirmed(db: sqlite3.Connection) -> None:
    """
    Check that the role of the owner of this connection is confirmed at this moment.

    Cost: one reading of the clock.

    Raises:
        DemotedError: it is not, so another daemon may have taken the database over.
    """
    if isinstance(db, DaemonConnection) and db.is_confirmed is not None and not db.is_confirmed():
        raise DemotedError(path_of(db), LAPSED)


def epoch(db: sqlite3.Connection) -> int:
    """How often this database has been taken over."""
    return int(db.execute("SELECT epoch FROM broker_database").fetchone()[0])


def take_write_lock(db: sqlite3.Connection, waits: sqlite.write_lock.WriteLockWaits | None = None) -> None:
    """
    BEGIN IMMEDIATE, as `patiently`.

    SQLite's own waiting tries again after up to 0.1 s. A connection that commits and begins again at once, as readers
    do, leaves the lock free for less than a millisecond, which such an attempt rarely meets: others would wait for
    seconds.
    """
    patiently(db, lambda: begin_at_once(db), waits=None if waits is None else lambda _: waits)


def patiently(
    db: sqlite3.Connection,
    call: Callable[[], _T],
    *,
    least: float = 0.0,
    waits: Callable[[str], sqlite.write_lock.WriteLockWaits] | None,
) -> _T:
    """
    A call that is made again, many times, while others have the lock; one process after another (`WriteLockLine`).

    Inside a transaction that has read nothing helps once another has written since.

    Args:
        db: A connection; its own time-out says how long to wait, while others wait for `LINE_SECONDS` at least.
        call: The call.
        least: Seconds to wait at least.
        waits: Returns what notes how long this takes, for a file; called only when another connection has the lock.

    Raises:
        sqlite3.OperationalError: others had the file for so long.
    """
    began, seconds, line, noted = time.monotonic(), least, None, None
    try:
        while True:
            try:
                return call()
            except sqlite3.OperationalError as error:
                is_too_old = error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT and db.in_transaction
                if is_too_old or not is_busy(error):
                    raise
                if line is None:
                    seconds = max(least, ask(db, "PRAGMA busy_timeout").fetchone()[0] / 1000)
                    path = path_of(db)
                    line = sqlite.write_lock.WriteLockLine(path)
                    noted = None if waits is None else waits(path)
                if time.monotonic() >= began + seconds:
                    raise
            if noted is not None:
                noted.go_on()
            line.pause()
    finally:
        if line is not None:
            line.close()
        if noted is not None:
            noted.end()


def begin_at_once(db: sqlite3.Connection) -> None:
    """
    BEGIN IMMEDIATE that waits for nothing, whatever the connection's own time-out.

    While a connection reads, SQLite does not wait for a lock, as its holder might wait for the reader.
    """
    reading = db.cursor()
    try:
        reading.execute("SELECT 1 FROM sqlite_schema")  # no row is fetched, so it goes on
        db.execute("BEGIN IMMEDIATE")
    finally:
        reading.close()


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether another connection has the file now, so that waiting helps; the upper bytes of the code are detail."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def open_watch(path: str | PathLike[str]) -> sqlite3.Connection:
    """A connection that only reads: commits of all other connections change its `data_version`."""
    name = os.path.abspath(path)  # noqa: PTH100 - pathlib takes longer to import than this module
    for mark in "%?#":  # source: SQLite documentation, "Uniform Resource Identifiers (URIs) In SQLite", section 3.1
        name = name.replace(mark, f"%{ord(mark):02x}")
    db = sqlite3.connect(f"file:{name}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA query_only = ON")
    return db


# --- failures ---------------------------------------------------------------------------------------------------

_RESTORE = "put back a backup, or save what can be read with the .recover of the sqlite3 shell"
_SENTENCES = {
    sqlite3.SQLITE_BUSY: (
        "another connection keeps a write transaction open: end it, keep transactions short, and wait for nothing"
        " inside them"
    ),
    sqlite3.SQLITE_FULL: "the disk is full: free some space, nothing else is needed",
    sqlite3.SQLITE_READONLY: (
        "the file cannot be written: the user of this program has to be allowed to write it, its directory, and the"
        " files ending in -wal and -shm next to it"
    ),
    sqlite3.SQLITE_PERM: "the file may not be used: let the user of this program read and write it and its directory",
    sqlite3.SQLITE_AUTH: "the file may not be used: let the user of this program read and write it and its directory",
    sqlite3.SQLITE_CANTOPEN: (
        "the file cannot be opened: it has to be a plain file, or none yet, in a directory that exists and that the"
        " user of this program may write"
    ),
    sqlite3.SQLITE_NOTADB: f"the file is not an SQLite database, or its beginning was overwritten: {_RESTORE}",
    sqlite3.SQLITE_CORRUPT: f"the file is damaged: stop all programs that use it, and {_RESTORE}",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write: see the log of the system, and whether there is room",
    sqlite3.SQLITE_PROTOCOL: "the locks of the file do not work: keep it on a local disk of one machine",
}
_NOT_OURS = (
    "no database of the broker. If a daemon runs on it, the file was deleted under it: do not stop that one, its broker"
    " status says what to do. Otherwise, name it in a daemon's configuration and start that once"
)


def is_about_file(error: sqlite3.DatabaseError) -> bool:
    """True if an error is about the file or the processes that use it; otherwise it is about a statement or values."""
    return not isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError)


def sentence(error: BaseException) -> str:
    """
    Say what is wrong with a file and what to do, with SQLite's own words in brackets, or alone when they say all; an
    error of another kind says all itself.
    """
    if str(error).startswith("no such table: ") and "broker_" in str(error):
        return _NOT_OURS
    known = _SENTENCES.get(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF)
    return str(error) if known is None else f"{known} ({error})"


@contextmanager
def translated(path: str | PathLike[str]) -> Iterator[None]:
    """Raise an error of SQLite as a StoreUnavailableError about this file, with what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), sentence(error)) from error


def damage(db: sqlite3.Connection, *, seconds: float = CHECK_SECONDS) -> str:
    """
    Say what is damaged in a file and what to do, as far as is found within so many seconds; empty when nothing is.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    end = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > end, _CHECK_STEPS)
    try:
        found = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return ""
    finally:
        db.set_progress_handler(None, 0)
    return "" if found == "ok" else f"{_SENTENCES[sqlite3.SQLITE_CORRUPT]} ({' '.join(found.split())})"


# --- connections whose row factory and text factory may be an application's own ------------------------------------


def ask(db: sqlite3.Connection, statement: str, parameters: tuple[object, ...] = ()) -> sqlite3.Cursor:
    """Execute with rows as tuples; text is as the connection's text factory makes it."""
    cursor = db.cursor()
    cursor.row_factory = None
    return cursor.execute(statement, parameters)


def plain(db: sqlite3.Connection) -> AbstractContextManager[None]:
    """While this lasts, rows read on the connection itself are tuples, with text as text."""
    return _PLAIN_ALREADY if db.row_factory is None and db.text_factory is str else _made_plain(db)


def path_of(db: sqlite3.Connection) -> str:
    """Return the file of a connection; empty for a database in memory."""
    with plain(db):
        return str(ask(db, "PRAGMA database_list").fetchone()[2])


_PLAIN_ALREADY = nullcontext()


@contextmanager
def _made_plain(db: sqlite3.Connection) -> Iterator[None]:
    row_factory, text_factory = db.row_factory, db.text_factory
    db.row_factory, db.text_factory = None, str
    try:
        yield
    finally:
        db.row_factory, db.text_factory = row_factory, text_factory
