"""What the instance knows about its databases: live routes, hosted services, and when the next route expires."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from broker.control.catalog import MSDB, Catalog, Database, InWriter, Rows, read_rows
from broker.dialog import store
from broker.routing.route import AUTO_CREATED_LOCAL, Route, RouteProperties, create_route

_T = TypeVar("_T")
ORDERS, BILLING = bytes([1]) * 16, bytes([2]) * 16
NOW = datetime.now(UTC)  # lifetimes are hours from here, so that none ends while the tests run


def route(name: str, *, service: str | None = None, lives: float | None = None) -> Route:
    """A route that expires so many seconds from now."""
    made = create_route(name, RouteProperties(service_name=service, address="tcp://far:4022"), now=NOW)
    return made if lives is None else replace(made, lifetime=NOW + timedelta(hours=lives))


def rows(*routes: Route, services: tuple[str, ...] = ()) -> Rows:
    return Rows(
        {route.name: (number, route) for number, route in enumerate(routes)},
        services={name: store.Service(n, name, 1, frozenset()) for n, name in enumerate(services)},
    )


def never(work: Callable[[sqlite3.Connection], _T]) -> Awaitable[_T]:
    raise AssertionError("nothing is written here")


def database(name: str, instance: bytes, known: Rows, in_writer: InWriter = never) -> Database:
    return Database(name, instance, None, in_writer, known)


def catalog(msdb: Rows, *others: Database, on_change: Callable[[], None] = lambda: None) -> Catalog:
    databases = {other.name: other for other in others}
    return Catalog({MSDB: database(MSDB, bytes(16), msdb)} | databases, on_change)


def test_rows_are_read_as_stored(tmp_path: Path) -> None:
    db = store.open_store(tmp_path / "orders.db")
    with store.writing(db):
        store.put_queue(db, "Queue", is_receive_enabled=False)
        store.put_service(db, "Orders", 1, frozenset({"C"}))

    known = read_rows(db)

    assert known.queues == {"Queue": store.Queue(1, "Queue", is_receive_enabled=False)}
    assert known.services == {"Orders": store.Service(1, "Orders", 1, frozenset({"C"}))}
    assert known.routes == {"AutoCreatedLocal": (1, AUTO_CREATED_LOCAL)}
    db.close()


def test_msdb_is_no_database_of_users() -> None:
    orders = database("orders", ORDERS, Rows())

    known = catalog(Rows(), orders)

    assert (known.msdb.name, known.users) == (MSDB, [orders])


def test_tables_hold_live_routes_only_each_database_its_own() -> None:
    live, expired = route("live", service="A", lives=60), route("expired", service="B", lives=-1)
    known = catalog(rows(live, expired), database("orders", ORDERS, rows(route("own"))))

    tables = known.tables()

    assert (tables[MSDB].routes("A"), tables[MSDB].routes("B")) == ((live,), ())
    assert tables["orders"].routes(None) == (route("own"),)


def test_expired_route_stays_listed() -> None:
    known = catalog(rows(route("expired", lives=-1)))

    known.tables()

    assert list(known.msdb.rows.routes) == ["expired"]


@pytest.mark.parametrize(
    ("msdb", "orders", "expected"),
    [
        ((), (), None),
        ((None,), (None,), None),
        ((60,), (), 60),
        ((60,), (30,), 30),
        ((60, 20), (30, None), 20),
        ((-1,), (30,), 30),
        ((-1,), (-1,), None),
    ],
)
def test_next_expiry_is_that_of_the_first_live_route_of_any_database(
    msdb: tuple[float | None, ...], orders: tuple[float | None, ...], expected: float | None
) -> None:
    made = [rows(*(route(str(n), lives=lives) for n, lives in enumerate(lifetimes))) for lifetimes in (msdb, orders)]
    known = catalog(made[0], database("orders", ORDERS, made[1]))

    known.tables()

    assert known.next_expiry == (None if expected is None else NOW + timedelta(hours=expected))


def test_hosted_are_the_services_of_users_databases() -> None:
    known = catalog(
        rows(services=("NotThis",)),
        database("orders", ORDERS, rows(services=("Orders", "Both"))),
        database("billing", BILLING, rows(services=("Both",))),
    )

    here = known.hosted()

    assert here.services_of == {ORDERS: {"Orders", "Both"}, BILLING: {"Both"}}
    assert here.databases_with["Both"] == (ORDERS, BILLING)


def test_change_is_told() -> None:
    told: list[str] = []
    known = catalog(Rows(), on_change=lambda: told.append("changed"))

    known.changed()

    assert told == ["changed"]
