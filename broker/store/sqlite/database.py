"""
The file of a database: opened, made, locked and watched.

A database is one SQLite file, shared with the application, which keeps conversations through every crash. Opening makes
the file when it is missing, for its owner alone (mode 0600, which SQLite gives its log as well), in WAL mode with
`synchronous=FULL`: what was committed is on the disk. Its tables are in `migration`, a write to it in `transaction`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import time
import uuid
from contextlib import closing, suppress
from pathlib import Path

from broker.errors import NOTHING_STORED, StoreUnavailableError
from broker.files import reported
from broker.protocol.layout import show_guid
from broker.routing.route import AUTO_CREATED_LOCAL, RouteRow
from broker.store.sqlite.metadata import put_routes
from broker.store.sqlite.migration import make_tables, migrate
from broker.store.sqlite.role_file import lost
from broker.store.sqlite.schema import OLDEST_VERSION, SCHEMA_VERSION, has_schema, schema_version
from broker.store.sqlite.transaction import BUSY_SECONDS, DaemonConnection, is_busy, translated, writing

CATALOG = (  # what statements read and change
    "database",
    "queue",
    "message_type",
    "contract",
    "contract_message_type",
    "service",
    "priority",
    "route",
    "permission",
    "remote_service_binding",
    "conversation",  # last: a dry run does without
)
MODE = 0o600  # of a file that is made; one that is there keeps its own
HELD = "another daemon has it open"
NO_FILE = "it is not a plain file"
_MODE_PAUSE = 0.01  # seconds between two attempts to change the mode of a file that others are opening


def open_store(
    path: str | Path, *, broker_instance: uuid.UUID | None = None, may_make: bool = True
) -> DaemonConnection:
    """
    A connection to a database of the broker, which is made when the file or the schema is missing.

    Args:
        path: The file; `:memory:` keeps nothing.
        broker_instance: Its identity, used only when the schema is made; drawn when None.
        may_make: Make what is missing; otherwise that is an error.

    Raises:
        StoreUnavailableError: no such directory, no database, no permission, a newer schema, another identity; an
            older schema that could not be brought up to this release's.
    """
    if may_make and str(path) not in {"", ":memory:"}:
        # When it cannot be made, SQLite reports what is wrong. No descriptor: to close one would end the locks that
        # other threads have on the file.
        with suppress(OSError):
            os.mknod(os.path.realpath(path), stat.S_IFREG | MODE)
    address = path if may_make else f"{Path(path).absolute().as_uri()}?mode=rw"
    with translated(path):
        db = sqlite3.connect(
            address,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=DaemonConnection,
            uri=not may_make,
        )
        try:
            _prepare(db, Path(path), broker_instance, may_make=may_make)
        except BaseException:
            db.close()
            raise
    return db


def lock_store(path: str | Path) -> int:
    """
    Take the lock that only one daemon may have on a database; it ends with the process, however that ends.

    Returns:
        The descriptor of the lock file next to the database; closing it releases the lock.

    Raises:
        StoreUnavailableError: another daemon has it, the file has two names, or the directory cannot be written.
    """
    check_links(path)
    with reported(path):
        descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StoreUnavailableError(str(path), HELD) from None
    return descriptor


def is_locked(path: str | Path) -> bool:
    """Whether a daemon has the lock now; nothing is made or changed."""
    try:
        descriptor = os.open(lock_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock_path(path: str | Path) -> str:
    """Where the lock of the one daemon is, which has this database open."""
    return f"{os.path.realpath(path)}.lock"  # by whichever name, it is one file


def check_links(path: str | Path) -> None:
    """
    See that no other hard link leads to the file: SQLite keeps a log for each name, and two logs destroy the file.

    Raises:
        StoreUnavailableError: there is one, or no file at all but a directory or a device (`NO_FILE`).
    """
    try:
        found = Path(path).stat()
    except OSError:
        return  # none yet; otherwise opening it reports the error
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnavailableError(str(path), NO_FILE)
    if found.st_nlink > 1:
        problem = (
            f"the file has {found.st_nlink} names (hard links), and each would get a separate log, which destroys it:"
            " keep the name next to which the -wal is, and remove the others; a symbolic link does no harm"
        )
        raise StoreUnavailableError(str(path), problem)


def is_sqlite(path: str | Path) -> bool:
    """
    Whether a file is a database of SQLite, or empty, by its beginning; nothing is made or changed.

    It is read through SQLite because closing a file drops all locks that the process has on it, those of an instance
    that runs on it too, and then the next connection that closes removes its write-ahead log.
    Source: SQLite documentation, "How To Corrupt An SQLite Database File", section 2.2.

    Raises:
        sqlite3.Error: it cannot be read.
    """
    address = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db:
        try:
            db.execute("PRAGMA schema_version").fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                raise
            return False
    return True


def copy_of_catalog(path: str | Path, *, is_with_conversations: bool = True) -> sqlite3.Connection:
    """
    A copy in memory of everything that statements read and change, messages left out; no writer waits for it.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    db = sqlite3.connect(":memory:", uri=True, isolation_level=None, check_same_thread=False)
    try:
        db.execute("ATTACH ? AS original", (f"{Path(path).absolute().as_uri()}?mode=ro",))
        make_tables(db)
        db.execute("BEGIN")
        for table in CATALOG if is_with_conversations else CATALOG[:-1]:
            db.execute(f"INSERT INTO main.broker_{table} SELECT * FROM original.broker_{table}")  # noqa: S608
        db.execute("COMMIT")
        db.execute("DETACH original")
    except sqlite3.Error:
        db.close()
        raise
    return db


def broker_instance(db: sqlite3.Connection) -> bytes:
    """The identity of this database."""
    return bytes(db.execute("SELECT broker_instance FROM broker_database").fetchone()[0])


def origin(db: sqlite3.Connection) -> tuple[bytes, float]:
    """The identity of this database, and when it was made, UTC seconds."""
    instance, created = db.execute("SELECT broker_instance, create_date FROM broker_database").fetchone()
    return instance, created


def fix_fragment_size(db: sqlite3.Connection, configured: int) -> int:
    """
    The fragment size by which this database sends from now on.

    The far side may have some fragments of a message, so a message that was cut once must always be cut in the same
    way. Therefore the size configured before applies as long as a message of several fragments waits.
    """
    if db.execute("SELECT fragment_size FROM broker_database").fetchone()[0] == configured:
        return configured  # the messages that wait need not be read
    with writing(db):
        db.execute(
            "UPDATE broker_database SET fragment_size = ?1 WHERE fragment_size IS NULL OR NOT EXISTS"
            " (SELECT 1 FROM broker_transmission"
            " WHERE coalesce(body_length, length(message_body)) > min(fragment_size, ?1))",
            (configured,),
        )
        return int(db.execute("SELECT fragment_size FROM broker_database").fetchone()[0])


def _prepare(db: DaemonConnection, path: Path, instance: uuid.UUID | None, *, may_make: bool) -> None:
    """Set the mode of the file, make its schema when it has none, and migrate an older one of this identity."""
    if not may_make and not has_schema(db):
        raise lost(path)
    _use_write_ahead_log(db)
    db.execute("PRAGMA synchronous = FULL")
    with writing(db):
        if not has_schema(db):
            _create(db, instance or uuid.uuid4())
    _check_identity(db, str(path), instance)
    if schema_version(db) < SCHEMA_VERSION:
        migrate(db, path)


def _use_write_ahead_log(db: sqlite3.Connection) -> None:
    """Changing the mode needs the file for itself, and SQLite does not wait for that as it waits for a writer."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(_MODE_PAUSE)
        else:
            return


def _check_identity(db: sqlite3.Connection, path: str, configured: uuid.UUID | None) -> None:
    version, instance = db.execute("SELECT schema_version, broker_instance FROM broker_database").fetchone()
    if not OLDEST_VERSION <= version <= SCHEMA_VERSION:
        problem = (
            f"its schema has version {version}, this release knows {SCHEMA_VERSION}, and nothing was changed: use a"
            " newer release, or put back the backup that was made before that one was used"
        )
        raise StoreUnavailableError(path, problem)
    if configured is not None and instance != configured.bytes:
        problem = f"its broker instance is {show_guid(instance)}, the configuration says {show_guid(configured)}"
        raise StoreUnavailableError(path, problem)


def _create(db: sqlite3.Connection, instance: uuid.UUID) -> None:
    make_tables(db)
    db.execute(
        "INSERT INTO broker_database (id, schema_version, broker_instance, create_date) VALUES (1, ?, ?, ?)",
        (SCHEMA_VERSION, instance.bytes, time.time()),
    )
    put_routes(db, [RouteRow.of(AUTO_CREATED_LOCAL)])


_PAGE = "docs/how-to/back-up-and-restore.md"
_FILE_GONE = (
    "if it was renamed, rename it back, and the daemon goes on; if it was deleted, do not stop the daemon, which has"
    f" the only copy open, and save that first: see Save a deleted file in {_PAGE}"
)
_FILE_REPLACED = (
    "if the former one was deleted and is wanted, save it before the daemon stops, which has the only copy open: see"
    f" Save a deleted file in {_PAGE}. Otherwise, stop the daemon and all other programs that use the database, and see"
    " Move or copy a file there"
)
_LOG_LOST = (
    "stop all other programs that use the database, then the daemon with SIGTERM, which writes what it has into the"
    f" file: see When the file fails in {_PAGE}"
)


class FileWatch:
    """
    Whether the path of a database still leads to the file that was open when this was made.

    A file that was renamed, deleted or replaced stays open, and SQLite goes on committing to it: what is stored then is
    lost with the process. So nothing may be acknowledged unless the path led to the open file after the commit. The
    same holds for its write-ahead log, which is as much a part of the database as the file.

    Source: SQLite documentation, "How To Corrupt An SQLite Database File", sections 1.4 and 2.4.
    """

    def __init__(self, path: Path) -> None:
        log = Path(f"{path}-wal")  # a file system without shared memory has none
        self._path = path
        self._numbers = {file: _file_number(file) for file in (path, log) if file is path or file.exists()}

    def check(self) -> None:
        """
        Check that both are still there. Cost: two system calls.

        Raises:
            StoreUnavailableError: one is not; says what to do.
        """
        for file, known in self._numbers.items():
            number = _file_number(file)
            if number != known:
                is_log, is_gone = file is not self._path, number is None
                what = f"write-ahead log {file}" if is_log else "file"
                happened = "is gone" if is_gone else "was replaced by another one"
                remedy = _LOG_LOST if is_log else _FILE_GONE if is_gone else _FILE_REPLACED
                problem = f"the {what} {happened} while it is in use, so {NOTHING_STORED}: {remedy}"
                raise StoreUnavailableError(str(self._path), problem)


def _file_number(path: Path) -> tuple[int, int] | None:
    """Device and inode."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
