"""
What this instance knows about its databases: their routes, queues and services, in memory as stored.

A `Database` pairs what is known of one file with the way to its connection; msdb is one of them. Whoever changes rows
does it through `broker.catalog.execute`, which makes the next table beside the traffic and swaps it in with
`Catalog.adopt`, so that the next frame is routed by what was just committed (R1.6). A table is for one instant, so the
catalog also tells when the next route expires (R1.4).

Loop-only, except the functions that take a connection.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from broker.ddl.statements import Statement
from broker.errors import StatementError, StoreUnavailableError
from broker.routing.decide import Hosted, hosted
from broker.routing.route import SERVICE_BROKER, WEIGHT_RANGE, Route, RouteRow, has_addresses, route_of
from broker.routing.table import RouteTable, table_of_rows
from broker.security.grants import ENDPOINT_NAME, PermissionRule, RemoteServiceBinding
from broker.security.principal import PRINCIPAL_MAX
from broker.store.sqlite import metadata
from broker.store.sqlite.metadata import bindings, permissions
from broker.store.sqlite.transaction import sentence

# --- progress ---
# How far a script is, and what it has done so far in words, both bounded whatever the size of the script.
#
# The thread that carries out the script writes here, and anybody may read: every field is one reference, so what is
# read
# is at worst a moment old.


MESSAGES_MAX = 100  # told one by one; a script of a million statements would answer with 30 MB


class Auditing(Protocol):
    """Records what a script changes; called in the thread of the script."""

    def note(self, database: str, statement: Statement) -> None:
        """A statement was carried out; nothing is committed yet."""

    def seal(self, statements: int) -> None:
        """This many statements are about to be committed; raises when that cannot be recorded."""


class ScriptStage(StrEnum):
    """Where a script is."""

    WAITING = "waiting"  # for the script before it
    RUNNING = "running"
    FINISHING = "finishing"  # everything is carried out; the new tables are made, then all of it is committed


class ScriptProgress(Struct, eq=False):
    """
    A script under way.

    Shape: `source` as in the places of errors; `size` and `position` characters, 0 when the statements come from no
    text; `statements` carried out so far. Whoever sets `is_stopped` has the script end, and change nothing, soon;
    `seen_by` records what it changes.
    """

    source: str = "-"
    size: int = 0
    position: int = 0
    statements: int = 0
    stage: ScriptStage = ScriptStage.WAITING
    is_stopped: bool = False
    seen_by: Auditing | None = None


class ScriptMessages:
    """One message for each statement, as long as they are few; of the others their number by kind."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._more: Counter[tuple[str, str]] = Counter()

    def add(self, what: str, name: object, verb: str) -> None:
        """A statement was carried out."""
        if len(self._first) < MESSAGES_MAX:
            self._first.append(f"{what} {name} {verb}")
        else:
            self._more[what, verb] += 1

    def lines(self) -> list[str]:
        """The messages; at most one more than `MESSAGES_MAX`."""
        if not self._more:
            return self._first
        kinds = ", ".join(f"{what} {verb} {count:,}" for (what, verb), count in self._more.items())
        return [*self._first, f"{self._more.total():,} more: {kinds}"]


# --- stored ---
# Routes and permissions as they are found in a file that others may write as well.
#
# What this program stores has passed `check_route`. A row that another hand has put there may hold anything; one that
# is
# no route is left out with a warning, and neither stops the instance nor reaches the pass.


CHUNK_ROWS = 1000  # looked at together
_LATEST = 253_402_300_799.0  # the end of the year 9999, the last that Python knows

_Instance: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Instant: TypeAlias = Annotated[float, Meta(ge=0.0, le=_LATEST)]
_Weight: TypeAlias = Annotated[int, Meta(ge=WEIGHT_RANGE[0], le=WEIGHT_RANGE[1])]
_Row: TypeAlias = tuple[str, str | None, _Instance | None, _Instant | None, str, str | None, _Weight]


def sound_rows(rows: Iterable[RouteRow], *, database: str) -> Iterator[RouteRow]:
    """
    The rows that are routes, in their order.

    Cost: well below a microsecond for each, as long as the addresses are few.
    """
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK_ROWS)):
        has_types = _is(chunk, list[_Row])
        for row in chunk:
            if (has_types or _is(row, _Row)) and has_addresses(row):
                yield row
            else:
                import structlog  # noqa: PLC0415 - slow to import: see broker.cli.group

                log = structlog.get_logger(__name__)
                log.warning("stored route ignored", database=database, route=str(row[0]), address=str(row[4]))


def sound_permissions(db: sqlite3.Connection) -> tuple[PermissionRule, ...]:
    """The rules that are stored, with a warning about each principal that is none."""
    rules, unreadable = permissions(db)
    for principal in unreadable:
        import structlog  # noqa: PLC0415 - slow to import: see broker.cli.group

        log = structlog.get_logger(__name__)
        log.warning("stored principal cannot be read", principal=principal[:PRINCIPAL_MAX])
    return rules


def stored_route(row: RouteRow | None) -> Route | None:
    """The route of a row; None when there is no row, or none that is a route."""
    return route_of(row) if row is not None and _is(row, _Row) and has_addresses(row) else None


def _is(value: Any, shape: Any) -> bool:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True


MSDB = "msdb"

# The port to a database's connection: while the context is open, no other thread touches it. Not for the loop's thread.
Borrow: TypeAlias = Callable[[], AbstractContextManager[sqlite3.Connection]]


class CatalogRows(Struct, frozen=True):
    """Queues and services of one database as stored, by name; who may do what; and its remote service bindings."""

    queues: Mapping[str, metadata.QueueRow] = field(default_factory=dict)
    services: Mapping[str, metadata.Service] = field(default_factory=dict)
    permissions: tuple[PermissionRule, ...] = ()
    bindings: Mapping[str, RemoteServiceBinding] = field(default_factory=dict)


class Database(Struct):
    """
    One database.

    Shape: `broker_instance` 16 bytes; `path` None when it lives in memory only; `table` all its routes; `is_served`
    unless it is about to come or go with its role.
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
        Whether SET PARTNER FAILOVER may be carried out here. For any thread.

        Raises:
            StatementError: it may not.
        """

    async def carry_out(self, name: str) -> str:
        """Step down, and tell who is the principal then."""


class _NoRoles:
    """Where databases have no partners."""

    def check(self, name: str) -> None:
        raise StatementError(1416, f"the database {name!r} is not mirrored")

    async def carry_out(self, name: str) -> str:
        raise AssertionError(name)


def read_rows(db: sqlite3.Connection) -> CatalogRows:
    """What is stored but routes."""
    return CatalogRows(metadata.queues(db), metadata.services(db), sound_permissions(db), bindings(db))


def read_table(db: sqlite3.Connection, *, database: str, now: datetime) -> RouteTable:
    """
    The table of all routes that are stored.

    Cost: some microseconds a route; no more memory than the table.
    """
    return table_of_rows(sound_rows(metadata.routes(db), database=database), now=now)


class Catalog:
    """
    All databases of the instance, msdb among them; `on_change` is called after every change, all in place.

    Shape: `is_loaded` once the files were read; `scripts` those under way, the running one first; `mirrors` databases
    of which another instance is the principal, by name, with their broker instance where it is known; `fail_over`
    changes that; `endpoint` the name of that of the instance. Whoever changes a database holds `lock`.
    """

    def __init__(
        self, databases: Mapping[str, Database], on_change: Callable[[], Any], endpoint: str = ENDPOINT_NAME
    ) -> None:
        import asyncio  # noqa: PLC0415 - slow to import, and most who make a reader do not run it here

        self.databases = dict(databases)
        self.endpoint = endpoint
        self.next_expiry: datetime | None = None
        self.is_loaded = False
        self.scripts: list[ScriptProgress] = []
        self.lock = asyncio.Lock()
        self.mirrors: dict[str, bytes | None] = {}
        self.fail_over: FailOver = _NoRoles()
        self._on_change = on_change

    @property
    def msdb(self) -> Database:
        """The database whose routes incoming frames are matched against."""
        return self.databases[MSDB]

    @property
    def users(self) -> list[Database]:
        """The databases that hold services and conversations."""
        return [database for name, database in self.databases.items() if name != MSDB]

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
        Read all files, and tell of it.

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
        One more database, read now; nobody is told yet.

        Raises:
            StoreUnavailableError: it cannot be read.
        """
        async with self.lock:
            await self._read(database)
            self.databases[database.name] = database

    async def remove(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        """A database goes behind the scripts that use it: it is closed, and no more here."""
        async with self.lock:
            self.databases.pop(name, None)
            await close()

    async def _read(self, database: Database) -> None:
        def read() -> tuple[CatalogRows, RouteTable]:
            try:
                with database.borrow() as db:
                    return read_rows(db), read_table(db, database=database.name, now=datetime.now(UTC))
            except sqlite3.Error as error:
                raise StoreUnavailableError(str(database.path), sentence(error)) from error

        import asyncio  # noqa: PLC0415 - slow to import, and most who make a reader do not run it here

        database.rows, database.table = await asyncio.to_thread(read)

    async def close(self) -> None:
        """End the scripts under way; they change nothing any more. Behind this no connection is borrowed."""
        for progress in self.scripts:
            progress.is_stopped = True
        async with self.lock:
            self.scripts.clear()

    def changed(self) -> None:
        """Rows of some database are new, or a route has expired."""
        self._on_change()
