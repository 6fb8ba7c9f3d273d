"""A catalog over databases of its own, to execute scripts on."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from broker.catalog.catalog import MSDB, Catalog, Database
from broker.catalog.execute import ScriptPreview, execute, preview
from broker.ddl.parser import read_script
from broker.errors import StatementError
from broker.routing.route import Route
from broker.store.sqlite.database import broker_instance, open_store
from broker.store.sqlite.transaction import DaemonConnection


class World:
    """msdb, orders and billing, in files or in memory; `changes` counts the notices, `borrowed` the connections."""

    def __init__(self, directory: Path | None = None) -> None:
        self.changes = 0
        self.borrowed: list[str] = []
        paths = {name: directory and directory / f"{name}.db" for name in (MSDB, "orders", "billing")}
        self.dbs = {name: open_store(path or ":memory:") for name, path in paths.items()}
        databases = {
            name: Database(name, broker_instance(db), paths[name], partial(self._borrow, name))
            for name, db in self.dbs.items()
        }
        self.catalog = Catalog(databases, self._on_change, "gw")

    @property
    def db(self) -> DaemonConnection:
        return self.dbs["orders"]

    async def run(self, script: str, *, database: str = "orders", declared: bool = False) -> list[str]:
        return await execute(self.catalog, read_script(script, source="-"), database=database, is_declared=declared)

    async def preview(self, script: str, *, database: str = "orders") -> Mapping[str, ScriptPreview]:
        return await preview(self.catalog, read_script(script, source="-"), database=database)

    async def refusal(self, script: str, *, database: str = "orders", declared: bool = False) -> StatementError:
        """The error in which a script ends; nothing may be left of it."""
        before = self.dump()
        with pytest.raises(StatementError) as caught:
            await self.run(script, database=database, declared=declared)
        assert before == self.dump()
        return caught.value

    def routes(self, database: str = "orders") -> list[str]:
        """Names of the routes, the one that exists everywhere left out."""
        return [route.name for route in self.catalog.databases[database].table if route.name != "AutoCreatedLocal"]

    def route(self, name: str) -> Route:
        (found,) = [route for route in self.catalog.databases["orders"].table if route.name == name]
        return found

    def dump(self) -> dict[str, str]:
        """Everything that is stored."""
        return {name: "\n".join(db.iterdump()) for name, db in self.dbs.items()}

    def queues(self, database: str = "orders") -> dict[str, bool]:
        known = self.catalog.databases[database].rows.queues
        return {name: queue.is_receive_enabled for name, queue in known.items()}

    def services(self) -> dict[str, tuple[str, set[str]]]:
        """Queue and contracts of the services of orders."""
        rows = self.catalog.databases["orders"].rows
        names = {queue.queue_id: name for name, queue in rows.queues.items()}
        return {name: (names[known.queue_id], set(known.contracts)) for name, known in rows.services.items()}

    def close(self) -> None:
        for db in self.dbs.values():
            db.close()

    @contextmanager
    def _borrow(self, name: str) -> Iterator[sqlite3.Connection]:
        self.borrowed.append(name)
        try:
            yield self.dbs[name]
            assert not self.dbs[name].in_transaction, "given back in a transaction"
        finally:
            self.borrowed.remove(name)

    def _on_change(self) -> None:
        self.changes += 1
