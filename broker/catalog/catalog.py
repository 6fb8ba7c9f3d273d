"""
Catalog: the routes, queues, services and permissions of all databases of an instance, in memory as stored.

A `Database` pairs what is known of one file with the way to its connection; msdb is one of them. Rows are changed by
`broker.catalog.execute` alone, which makes the next table in a thread and swaps it in, so that the next frame is routed
by what was just committed (R1.6). A table is for one instant, so the catalog also says when the next route expires
(R1.4). Files may be written by other programs as well: a row that is not a route, or not a principal, is left out with
a warning, and neither stops the instance nor reaches the routing of frames.

Loop-only, except the functions that take a connection.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
import structlog
from msgspec import Struct, field

from broker.ddl.statements import Statement
from broker.routing.decide import Hosted, hosted
from broker.routing.route import SERVICE_BROKER, Route, RouteRow
from broker.routing.table import RouteTable, table_of_rows
from broker.security.grants import ENDPOINT_NAME, PermissionRule, RemoteServiceBinding
from broker.security.principal import PRINCIPAL_MAX
from broker.store.sqlite import metadata
from broker.store.sqlite.metadata import StoredRow, bindings, permissions
from broker.store.sqlite.transaction import translated

MSDB = "msdb"
MESSAGES_MAX = 100  # reported one by one; a script of a million statements would answer with 30 MB
CHUNK_ROWS = 1000  # checked together

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

# The port to a database's connection: while the context is open, no other thread touches it. Not for the loop's thread.
Borrow: TypeAlias = Callable[[], AbstractContextManager[sqlite3.Connection]]


class Auditing(Protocol):
    """Records what a script changes; called in the thread of the script."""

    def note(self, database: str, statement: Statement) -> None:
        """Note that a statement has been executed; nothing is committed yet."""

    def seal(self, statements: int) -> None:
        """This many statements are about to be committed; raises when that cannot be recorded."""


class ScriptStage(StrEnum):
    """The stages of a script."""

    WAITING = "waiting"  # for the script before it
    RUNNING = "running"
    FINISHING = "finishing"  # every statement is executed; the new tables are made, then all of it is committed


class ScriptProgress(Struct, eq=False):
    """
    How far a script is. Written by its thread and read by any: every field is one reference, at worst a moment old.

    Attributes:
        source: As in the places of errors.
        size: Characters, as `position`; 0 when the statements come from no text.
        statements: Carried out so far.
        is_stopped: Set it to have the script end soon, and change nothing.
        seen_by: Records what it changes.
    """

    source: str = "-"
    size: int = 0
    position: int = 0
    statements: int = 0
    stage: ScriptStage = ScriptStage.WAITING
    is_stopped: bool = False
    seen_by: Auditing | None = None


class ScriptMessages:
    """One message for each statement, as long as they are few, of those that change something if they are many."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, str, object, str]] = []
        self._unchanged: list[tuple[int, str, object, str]] = []
        self._more: Counter[tuple[str, str]] = Counter()

    def add(self, what: str, name: object, verb: str) -> None:
        """Add a statement that has been executed."""
        some = self._unchanged if verb == "unchanged" else self._changes
        if len(some) < MESSAGES_MAX:
            some.append((len(self._changes) + len(self._unchanged), what, name, verb))
        else:
            self._more[what, verb] += 1

    def take(self) -> list[str]:
        """Return the messages since the last call; at most one more than `MESSAGES_MAX`."""
        found, more = self._changes + self._unchanged, self._more
        self._changes, self._unchanged, self._more = [], [], Counter()
        more.update((what, verb) for _, what, _, verb in found[MESSAGES_MAX:])
        lines = [f"{what} {name} {verb}" for _, what, name, verb in sorted(found[:MESSAGES_MAX], key=itemgetter(0))]
        kinds = ", ".join(f"{what} {verb} {count:,}" for (what, verb), count in more.items())
        return [*lines, f"{more.total():,} more: {kinds}"] if more else lines


class CatalogRows(Struct, frozen=True):
    """Queues and services of one database as stored, by name; who may do what; and its remote service bindings."""

    queues: Mapping[str, metadata.QueueRow] = field(default_factory=dict)
    services: Mapping[str, metadata.Service] = field(default_factory=dict)
    permissions: tuple[PermissionRule, ...] = ()
    bindings: Mapping[str, RemoteServiceBinding] = field(default_factory=dict)


class Database(Struct):
    """
    One database.

    Attributes:
        broker_instance: 16 bytes.
        path: None when it is in memory only.
        table: All its routes.
        is_served: False while it is being opened or closed with its role.
    """

    name: str
    broker_instance: bytes
    path: Path | None
    borrow: Borrow
    rows: CatalogRows = field(default_factory=CatalogRows)
    table: RouteTable = field(default_factory=RouteTable)
    is_served: bool = True


class FailOver(Protocol):
    """The port to the roles of databases."""

    def check(self, name: str) -> None:
        """
        Check that SET PARTNER FAILOVER may be executed here. For any thread.

        Raises:
            StatementError: it may not.
        """

    async def carry_out(self, name: str) -> str:
        """Step down; returns who is the principal then."""


class Catalog:
    """
    All databases of the instance, msdb among them.

    Args:
        databases: By name.
        on_change: Called after every change, when everything is in place.
        endpoint: Name of the endpoint of the instance.

    Attributes:
        is_loaded: Whether the files were read.
        permitted_at: When permissions changed last, of the loop's clock.
        scripts: Those under way, the running one first.
        lock: Held by whatever changes a database.
        mirrors: Databases of which another instance is the principal, with their broker instance where it is known.
        fail_over: Changes that; set by the daemon, which has the roles.
    """

    def __init__(
        self, databases: Mapping[str, Database], on_change: Callable[[], Any], endpoint: str = ENDPOINT_NAME
    ) -> None:
        self.databases = dict(databases)
        self.endpoint = endpoint
        self.next_expiry: datetime | None = None
        self.is_loaded = False
        self.permitted_at = 0.0
        self._permissions: list[tuple[PermissionRule, ...]] = []
        self.scripts: list[ScriptProgress] = []
        self.lock = asyncio.Lock()
        self.mirrors: dict[str, bytes | None] = {}
        self.fail_over: FailOver
        self._on_change = on_change

    @property
    def msdb(self) -> Database:
        """The database whose routes incoming frames are matched against."""
        return self.databases[MSDB]

    @property
    def users(self) -> list[Database]:
        """The databases that hold services and conversations."""
        return [database for name, database in self.databases.items() if name != MSDB]

    @property
    def leads_out(self) -> bool:
        """Whether a route leads to another instance."""
        return any(route.addresses for database in self.databases.values() for route in database.table)

    def tables(self) -> dict[str, RouteTable]:
        """
        The tables of all databases at this moment; notes when the first route expires.

        Cost: O(log of the routes) for each database.
        """
        now = datetime.now(UTC)
        tables = {name: database.table.at(now) for name, database in self.databases.items()}
        self.next_expiry = min((table.next_expiry for table in tables.values() if table.next_expiry), default=None)
        return tables

    def hosted(self, asking: Iterable[str] = ()) -> Hosted:
        """
        The services that are here, by broker instance.

        Args:
            asking: Databases that ask for routes, msdb among them or not: there is the service in whose name they do,
                and of msdb nothing else.
        """
        services = {one.broker_instance: set(one.rows.services) for one in self.users if one.is_served}
        for database in (self.databases[name] for name in asking):
            if database.is_served:
                services.setdefault(database.broker_instance, set()).add(SERVICE_BROKER)
        return hosted(services, mirrors=filter(None, self.mirrors.values()))

    async def load(self) -> None:
        """
        Read all files, and notify of the change.

        Raises:
            StoreUnavailableError: one cannot be read.
        """
        async with self.lock:
            for database in self.databases.values():
                await self._read(database)
            self.is_loaded = True
            self.changed()

    async def add(self, database: Database) -> None:
        """
        Add a database, which is read now, without notice.

        Raises:
            StoreUnavailableError: it cannot be read.
        """
        async with self.lock:
            await self._read(database)
            self.databases[database.name] = database

    async def remove(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        """Close a database and forget it, after the scripts that use it."""
        async with self.lock:
            self.databases.pop(name, None)
            await close()

    async def _read(self, database: Database) -> None:
        def read() -> tuple[CatalogRows, RouteTable]:
            with translated(str(database.path)), database.borrow() as db:
                return read_rows(db), read_table(db, database=database.name, now=datetime.now(UTC))

        database.rows, database.table = await asyncio.to_thread(read)

    async def close(self) -> None:
        """End the scripts under way; they change nothing from then on. After this no connection is borrowed."""
        for progress in self.scripts:
            progress.is_stopped = True
        async with self.lock:
            self.scripts.clear()

    def changed(self) -> None:
        """Notify that rows of some database or settings are new, or a route has expired."""
        permissions = [one.rows.permissions for one in self.databases.values()]
        if permissions != self._permissions:
            self._permissions, self.permitted_at = permissions, asyncio.get_running_loop().time()
        self._on_change()


def read_rows(db: sqlite3.Connection) -> CatalogRows:
    """Everything that is stored except routes; a rule about what is not a principal is left out, with a warning."""
    rules, unreadable = permissions(db)
    for principal in unreadable:
        log.warning("stored principal cannot be read", principal=principal[:PRINCIPAL_MAX])
    return CatalogRows(metadata.queues(db), metadata.services(db), rules, bindings(db))


def read_table(db: sqlite3.Connection, *, database: str, now: datetime) -> RouteTable:
    """
    The table of all routes that are stored.

    Cost: some microseconds a route; no more memory than the table.
    """
    return table_of_rows(sound_rows(metadata.routes(db), database=database), now=now)


def sound_rows(stored: Iterable[StoredRow], *, database: str) -> Iterator[RouteRow]:
    """
    The rows that are routes, in their order.

    Cost: well below a microsecond for each, as long as the addresses are few.
    """
    stored = iter(stored)
    while chunk := list(islice(stored, CHUNK_ROWS)):
        rows: Sequence[RouteRow | None] = _converted(chunk, list[RouteRow]) or [
            _converted(one, RouteRow) for one in chunk
        ]
        for row, one in zip(rows, chunk, strict=True):
            if row is not None and row.has_addresses:
                yield row
            else:
                log.warning("stored route ignored", database=database, route=str(one[0]), address=str(one[4]))


def stored_route(stored: StoredRow | None) -> Route | None:
    """The route of a row; None when there is no row, or none that is a route."""
    row = None if stored is None else _converted(stored, RouteRow)
    return row.route_to(row.remote_service_name) if row is not None and row.has_addresses else None


def _converted(value: object, shape: type[_T]) -> _T | None:
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return None
