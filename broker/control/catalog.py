"""
What this instance knows about its databases: their routes, queues and services, in memory as stored.

A `Database` pairs the rows of one file with the writer thread that may touch it; msdb is one of them, with routes
alone. Whoever changes rows does it through `broker.control.execute`, which reads them back and calls `Catalog.changed`,
so that the next frame is routed by what was just committed (R1.6). A table holds live routes only, so the catalog also
tells when the next one expires (R1.4).

Loop-only, except what is handed to a database's writer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from broker.dialog import store
from broker.routing.facts import Hosted, hosted
from broker.routing.route import Route
from broker.routing.table import RouteTable, build_table

MSDB = "msdb"

_T = TypeVar("_T")


class InWriter(Protocol):
    """The port to the thread that owns a database's connection."""

    def __call__(self, work: Callable[[sqlite3.Connection], _T]) -> Awaitable[_T]:
        """Run `work` there, between two of its turns."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The catalog of one database as stored. Shape: `routes` by name, expired ones included, each with its route_id."""

    routes: Mapping[str, tuple[int, Route]] = field(default_factory=dict)
    queues: Mapping[str, store.Queue] = field(default_factory=dict)
    services: Mapping[str, store.Service] = field(default_factory=dict)


def read_rows(db: sqlite3.Connection) -> Rows:
    """What is stored; for the thread that owns the connection."""
    return Rows(store.routes(db), store.queues(db), store.services(db))


@dataclass(slots=True)
class Database:
    """One database. Shape: `broker_instance` 16 bytes; `path` None when it lives in memory only."""

    name: str
    broker_instance: bytes
    path: Path | None
    in_writer: InWriter
    rows: Rows = field(default_factory=Rows)

    def table(self, now: datetime) -> RouteTable:
        """Its live routes, indexed."""
        return build_table((route for _, route in self.rows.routes.values()), now=now)


class Catalog:
    """All databases of the instance, msdb among them; `on_change` is called after every change, all in place."""

    def __init__(self, databases: Mapping[str, Database], on_change: Callable[[], Any]) -> None:
        self.databases = dict(databases)
        self.next_expiry: datetime | None = None
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
        """The live routes of every database at this moment; notes when the first of them expires."""
        now = datetime.now(UTC)
        tables = {name: database.table(now) for name, database in self.databases.items()}
        self.next_expiry = min((table.next_expiry for table in tables.values() if table.next_expiry), default=None)
        return tables

    def hosted(self) -> Hosted:
        """The services that are here, by broker instance."""
        return hosted({database.broker_instance: database.rows.services for database in self.users})

    def changed(self) -> None:
        """Rows of some database are new, or a route has expired."""
        self._on_change()
