"""
What this instance knows about its databases: their routes, queues and services, in memory as stored.

A `Database` pairs what is known of one file with the way to its connection; msdb is one of them. Whoever changes rows
does it through `broker.control.execute`, which makes the next table beside the traffic and swaps it in with
`Catalog.adopt`, so that the next frame is routed by what was just committed (R1.6). A table is for one instant, so the
catalog also tells when the next route expires (R1.4).

Loop-only, except the functions that take a connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from msgspec import Struct, field

from broker.control.progress import ScriptProgress
from broker.control.stored import sound_permissions, sound_rows
from broker.errors import StatementError, StoreUnavailableError
from broker.routing.decide import Hosted, hosted
from broker.routing.route import SERVICE_BROKER
from broker.routing.table import RouteTable, table_of_rows
from broker.security.binding import RemoteServiceBinding
from broker.security.grants import ENDPOINT_NAME, PermissionRule
from broker.store import metadata
from broker.store.fault import sentence
from broker.store.permission import bindings

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
        import asyncio  # noqa: PLC0415 - slow to import: see broker.cli.group

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

        import asyncio  # noqa: PLC0415 - slow to import: see broker.cli.group

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
