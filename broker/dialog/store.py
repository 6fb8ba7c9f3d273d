"""
A database of the broker: one SQLite file, shared with the application, which keeps conversations through every crash.

Opening makes the file when it is missing, in WAL mode with `synchronous=FULL`: what was committed is on the disk. This
module knows the schema's version, the database's identity and its catalog (queues, services, routes); what happens to
messages is in `broker.dialog.receiving` and `broker.dialog.sending`, what applications do in
`broker.dialog.application`.

A connection belongs to one thread at a time. Every write is inside `writing`, which begins IMMEDIATE, so that two
writers wait for each other instead of failing.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker.errors import StoreUnavailableError
from broker.routing.route import AUTO_CREATED_LOCAL, RouteRow, row_of

SCHEMA_VERSION = 1
BUSY_SECONDS = 60.0  # how long a writer waits for another one before the store counts as unavailable
_MODE_PAUSE = 0.01  # seconds between two attempts to change the mode of a file that others are opening


@dataclass(frozen=True, slots=True)
class Queue:
    """Shape: `is_receive_enabled` is STATUS = ON."""

    queue_id: int
    name: str
    is_receive_enabled: bool


@dataclass(frozen=True, slots=True)
class Service:
    """Shape: `contracts` it accepts as a target, empty = any."""

    service_id: int
    name: str
    queue_id: int
    contracts: frozenset[str]


def open_store(path: str | Path, *, broker_instance: uuid.UUID | None = None) -> sqlite3.Connection:
    """
    A connection to a database of the broker, which is made when the file or the schema is missing.

    Args:
        path: The file; `:memory:` keeps nothing.
        broker_instance: Its identity, used only when the schema is made; drawn when None.

    Raises:
        StoreUnavailableError: no such directory, no database, no permission, a newer schema, another identity.
    """
    try:
        db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), str(error)) from error
    try:
        _prepare(db, broker_instance)
        _check_identity(db, str(path), broker_instance)
    except sqlite3.Error as error:
        db.close()
        raise StoreUnavailableError(str(path), str(error)) from error
    except StoreUnavailableError:
        db.close()
        raise
    return db


def lock_store(path: str | Path) -> int:
    """
    Take the lock that only one daemon may have on a database; it ends with the process, however that ends.

    Returns:
        The descriptor of the lock file beside the database; closing it gives the lock back.

    Raises:
        StoreUnavailableError: another daemon has it, or the directory cannot be written.
    """
    name = f"{path}.lock"
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailableError(str(path), error.strerror or str(error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StoreUnavailableError(str(path), "another daemon has it open") from None
    return descriptor


def open_watch(path: str | Path) -> sqlite3.Connection:
    """A connection that only looks: commits of all other connections change its `data_version`."""
    db = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    db.execute("PRAGMA query_only = ON")
    return db


def copy_of_catalog(path: str | Path) -> sqlite3.Connection:
    """
    A copy in memory of everything that statements read and change, messages left out; nobody waits for it.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    db = sqlite3.connect(":memory:", uri=True, isolation_level=None, check_same_thread=False)
    db.execute("ATTACH ? AS original", (f"{Path(path).absolute().as_uri()}?mode=ro",))
    _make_tables(db)
    db.execute("BEGIN")
    for table in ("database", "queue", "service", "route", "conversation"):
        db.execute(f"INSERT INTO main.broker_{table} SELECT * FROM original.broker_{table}")  # noqa: S608
    db.execute("COMMIT")
    db.execute("DETACH original")
    return db


def has_schema(db: sqlite3.Connection) -> bool:
    """Whether a database of the broker lives in this file."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'broker_database'").fetchone() is not None


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether somebody else has the file now, so that waiting helps; the upper bytes of the code are detail."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


@contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """One write transaction: committed at the end, rolled back by an exception."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk may have ended it already
            db.execute("ROLLBACK")
        raise


def broker_instance(db: sqlite3.Connection) -> bytes:
    """The identity of this database."""
    instance: bytes = db.execute("SELECT broker_instance FROM broker_database").fetchone()[0]
    return instance


def settle_fragment_size(db: sqlite3.Connection, configured: int) -> int:
    """
    The fragment size by which this database sends from now on.

    The far side may have some fragments of a message, so a message that was cut once must always be cut alike: the
    size configured before holds until no message of several fragments waits any more.
    """
    with writing(db):
        db.execute(
            "UPDATE broker_database SET fragment_size = ?1 WHERE fragment_size IS NULL OR NOT EXISTS"
            " (SELECT 1 FROM broker_transmission WHERE length(message_body) > min(fragment_size, ?1))",
            (configured,),
        )
        size: int = db.execute("SELECT fragment_size FROM broker_database").fetchone()[0]
        return size


def _prepare(db: sqlite3.Connection, instance: uuid.UUID | None) -> None:
    """The mode of the file, and its schema when it has none."""
    _use_write_ahead_log(db)
    db.execute("PRAGMA synchronous = FULL")
    with writing(db):
        if not has_schema(db):
            _create(db, instance or uuid.uuid4())


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
    if version != SCHEMA_VERSION:
        problem = f"its schema has version {version}; this release knows {SCHEMA_VERSION}: use a newer release"
        raise StoreUnavailableError(path, problem)
    if configured is not None and instance != configured.bytes:
        problem = f"its broker instance is {uuid.UUID(bytes=instance)}, the configuration says {configured}"
        raise StoreUnavailableError(path, problem)


def _create(db: sqlite3.Connection, instance: uuid.UUID) -> None:
    _make_tables(db)
    db.execute(
        "INSERT INTO broker_database (id, schema_version, broker_instance, create_date) VALUES (1, ?, ?, ?)",
        (SCHEMA_VERSION, instance.bytes, time.time()),
    )
    put_routes(db, [row_of(AUTO_CREATED_LOCAL)])


def _make_tables(db: sqlite3.Connection) -> None:
    from importlib.resources import files  # noqa: PLC0415 - a slow import, for once in the life of a file

    script = files("broker.dialog").joinpath("schema.sql").read_text(encoding="utf-8")
    for statement in _statements(script):
        db.execute(statement)


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would commit the transaction around it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# --- catalog ------------------------------------------------------------------------------------------------


_QUEUES = "SELECT queue_id, name, is_receive_enabled FROM broker_queue"
_SERVICES = "SELECT service_id, name, queue_id, contracts FROM broker_service"


def queues(db: sqlite3.Connection) -> dict[str, Queue]:
    """The queues by name."""
    return {row[1]: _queue(row) for row in db.execute(_QUEUES)}


def services(db: sqlite3.Connection) -> dict[str, Service]:
    """The services by name."""
    return {row[1]: _service(row) for row in db.execute(_SERVICES)}


def find_queue(db: sqlite3.Connection, name: str) -> Queue | None:
    """The queue of this name."""
    row = db.execute(f"{_QUEUES} WHERE name = ?", (name,)).fetchone()
    return None if row is None else _queue(row)


def find_service(db: sqlite3.Connection, name: str) -> Service | None:
    """The service of this name."""
    row = db.execute(f"{_SERVICES} WHERE name = ?", (name,)).fetchone()
    return None if row is None else _service(row)


def find_service_of(db: sqlite3.Connection, queue_id: int) -> str | None:
    """The name of a service that uses this queue."""
    row = db.execute("SELECT name FROM broker_service WHERE queue_id = ? ORDER BY name", (queue_id,)).fetchone()
    return None if row is None else str(row[0])


def put_queue(db: sqlite3.Connection, name: str, *, is_receive_enabled: bool) -> None:
    """Make a queue, or change the one of this name."""
    db.execute(
        "INSERT INTO broker_queue (name, is_receive_enabled) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET is_receive_enabled = excluded.is_receive_enabled",
        (name, is_receive_enabled),
    )


def put_service(db: sqlite3.Connection, name: str, queue_id: int, contracts: frozenset[str]) -> None:
    """Make a service, or change the one of this name."""
    db.execute(
        "INSERT INTO broker_service (name, queue_id, contracts) VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET queue_id = excluded.queue_id, contracts = excluded.contracts",
        (name, queue_id, json.dumps(sorted(contracts))),
    )


def drop_queue(db: sqlite3.Connection, name: str) -> None:
    """Remove a queue and what waits in it."""
    db.execute(
        "DELETE FROM broker_message WHERE queue_id = (SELECT queue_id FROM broker_queue WHERE name = ?)", (name,)
    )
    db.execute("DELETE FROM broker_queue WHERE name = ?", (name,))


def drop_service(db: sqlite3.Connection, name: str) -> None:
    """Remove a service."""
    db.execute("DELETE FROM broker_service WHERE name = ?", (name,))


_ROUTES = (
    "SELECT name, remote_service_name, broker_instance, lifetime, address, mirror_address, weight FROM broker_route"
)


def routes(db: sqlite3.Connection) -> Iterator[RouteRow]:
    """All routes as stored, expired ones included; those of one service stand together."""
    return db.execute(f"{_ROUTES} ORDER BY remote_service_name")


def find_route(db: sqlite3.Connection, name: str) -> RouteRow | None:
    """The route of this name."""
    return find_routes(db, [name]).get(name)


def find_routes(db: sqlite3.Connection, names: Sequence[str]) -> dict[str, RouteRow]:
    """The routes of these names, some hundreds at most, by name."""
    marks = ",".join("?" * len(names))
    return {row[0]: row for row in db.execute(f"{_ROUTES} WHERE name IN ({marks})", names)}


def put_routes(db: sqlite3.Connection, rows: Iterable[RouteRow]) -> None:
    """Make routes, or change those of the same names."""
    db.executemany(
        "INSERT INTO broker_route"
        " (name, remote_service_name, broker_instance, lifetime, address, mirror_address, weight)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
        " remote_service_name = excluded.remote_service_name, broker_instance = excluded.broker_instance,"
        " lifetime = excluded.lifetime, address = excluded.address, mirror_address = excluded.mirror_address,"
        " weight = excluded.weight",
        rows,
    )


def drop_route(db: sqlite3.Connection, name: str) -> None:
    """Remove a route."""
    db.execute("DELETE FROM broker_route WHERE name = ?", (name,))


def _queue(row: tuple[int, str, int]) -> Queue:
    queue_id, name, is_receive_enabled = row
    return Queue(queue_id, name, bool(is_receive_enabled))


def _service(row: tuple[int, str, int, str]) -> Service:
    service_id, name, queue_id, contracts = row
    return Service(service_id, name, queue_id, frozenset(json.loads(contracts)))
