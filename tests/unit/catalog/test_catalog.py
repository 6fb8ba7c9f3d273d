"""What the instance knows about its databases: live routes, hosted services, and when the next route expires."""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple, replace
from structlog.testing import capture_logs

from broker.catalog.catalog import (
    CHUNK_ROWS,
    MESSAGES_MAX,
    MSDB,
    Borrow,
    Catalog,
    CatalogRows,
    Database,
    ScriptMessages,
    sound_rows,
    stored_route,
)
from broker.routing.address import NetworkAddress
from broker.routing.route import AUTO_CREATED_LOCAL, SERVICE_BROKER, Route, RouteProperties, RouteRow, create_route
from broker.routing.table import build_table
from broker.store.sqlite import metadata
from broker.store.sqlite.database import open_store

ORDERS, BILLING = bytes([1]) * 16, bytes([2]) * 16
NOW = datetime.now(UTC)  # lifetimes are hours from here, so that none ends while the tests run


def route(name: str, *, service: str | None = None, lives: float | None = None) -> Route:
    """A route that expires so many seconds from now."""
    made = create_route(name, RouteProperties(service_name=service, address="tcp://far:4022"), now=NOW)
    return made if lives is None else replace(made, lifetime=NOW + timedelta(hours=lives))


def never() -> AbstractContextManager[sqlite3.Connection]:
    raise AssertionError("nothing is written here")


def database(
    name: str, instance: bytes, *routes: Route, services: tuple[str, ...] = (), borrow: Borrow = never
) -> Database:
    known = CatalogRows(services={name: metadata.Service(n, name, 1, frozenset()) for n, name in enumerate(services)})
    return Database(name, instance, None, borrow, known, build_table(routes, now=NOW))


def catalog(*databases: Database, on_change: Callable[[], None] = lambda: None) -> Catalog:
    return Catalog({one.name: one for one in databases}, on_change)


@pytest.mark.promise("R1.1", "routing 1")
def test_tables_find_live_routes_only_each_database_its_own() -> None:
    live, expired = route("live", service="A", lives=60), route("expired", service="B", lives=-1)
    known = catalog(database(MSDB, bytes(16), live, expired), database("orders", ORDERS, route("own")))

    tables = known.tables()

    assert (tables[MSDB].routes("A"), tables[MSDB].routes("B")) == ((live,), ())
    assert {"live", "expired"} == {one.name for one in tables[MSDB]}
    assert tables["orders"].routes(None) == (route("own"),)


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
    made = [[route(str(n), lives=lives) for n, lives in enumerate(lifetimes)] for lifetimes in (msdb, orders)]
    known = catalog(database(MSDB, bytes(16), *made[0]), database("orders", ORDERS, *made[1]))

    known.tables()

    assert known.next_expiry == (None if expected is None else NOW + timedelta(hours=expected))


async def test_loading_reads_every_file_and_tells_once(tmp_path: Path) -> None:
    told: list[bool] = []
    with closing(open_store(tmp_path / "msdb.db")) as db:
        db.execute("INSERT INTO broker_route (name, address) VALUES ('odd', 'nonsense')")  # by another program
        known = catalog(
            database(MSDB, bytes(16), borrow=lambda: nullcontext(db)), on_change=lambda: told.append(known.is_loaded)
        )
        await known.load()

    assert (list(known.msdb.table), told) == ([AUTO_CREATED_LOCAL], [True])


def test_who_asks_for_routes_has_the_service_in_whose_name_it_asks_and_msdb_nothing_else() -> None:
    known = catalog(
        database(MSDB, bytes(16), services=("NotThis",)),
        database("orders", ORDERS, services=("Orders",)),
        database("billing", BILLING, services=("Billing",)),
    )

    here = known.hosted({MSDB, "orders"})

    assert known.hosted().services_of == {ORDERS: {"Orders"}, BILLING: {"Billing"}}
    assert here.services_of == {bytes(16): {SERVICE_BROKER}, ORDERS: {"Orders", SERVICE_BROKER}, BILLING: {"Billing"}}


async def test_databases_come_and_go_behind_scripts() -> None:
    catalog = Catalog({}, lambda: None)
    with closing(open_store(":memory:")) as db:
        await catalog.add(Database("orders", ORDERS, None, lambda: nullcontext(db), is_served=False))
    catalog.mirrors["orders"] = ORDERS
    assert ({}, frozenset({ORDERS})) == (catalog.hosted().services_of, catalog.hosted().mirrors)

    catalog.databases["orders"].is_served = True
    catalog.mirrors.clear()
    assert ({ORDERS}, frozenset()) == (set(catalog.hosted().services_of), catalog.hosted().mirrors)
    locked: list[bool] = []

    async def close() -> None:
        locked.append(catalog.lock.locked())

    await catalog.remove("orders", close)

    assert ([True], {}) == (locked, catalog.databases)


def test_many_messages_are_counted_by_kind() -> None:
    messages = ScriptMessages()
    for number in range(MESSAGES_MAX + 1999):
        messages.add("route", number, "created")
    messages.add("queue", "q", "dropped")

    assert messages.take()[MESSAGES_MAX:] == ["2,000 more: route created 1,999, queue dropped 1"]
    assert messages.take() == []


def test_a_change_is_named_even_after_many_statements_that_change_nothing() -> None:
    messages = ScriptMessages()
    for number in range(MESSAGES_MAX):
        messages.add("route", number, "unchanged")
    messages.add("route", "r", "replaced")

    told = messages.take()

    assert ["route r replaced", "1 more: route unchanged 1"] == told[MESSAGES_MAX - 1 :]


# --- rows of other programs ---


GOOD: list[Any] = ["r", "S", bytes(15) + b"\1", 1.0e9, "tcp://a:1", "tcp://b:1", 5]


@pytest.mark.parametrize(
    ("place", "values"),
    [
        (0, [b"r"]),
        (1, [7]),
        (2, [b"short", "text"]),
        (3, ["never", float("inf"), -1.0]),
        (4, ["nonsense", 5]),
        (5, ["LOCAL", ""]),
        (6, [0, None]),
    ],
)
def test_row_that_is_no_route_is_left_out_with_a_warning(place: int, values: list[object]) -> None:
    good: Any = tuple(GOOD)
    for value in values:
        odd: Any = (*GOOD[:place], value, *GOOD[place + 1 :])

        with capture_logs() as logs:
            rows = list(sound_rows([good, odd, good], database="orders"))

        assert ([good, good], None) == (list(map(astuple, rows)), stored_route(odd))
        assert [("orders", str(odd[0]))] == [(entry["database"], entry["route"]) for entry in logs]


def test_rows_keep_their_order_through_chunks() -> None:
    routes = [Route(str(number), NetworkAddress("a")) for number in range(2 * CHUNK_ROWS + 1)]
    rows = [astuple(RouteRow.of(route)) for route in routes]

    assert list(map(astuple, sound_rows(iter(rows), database="orders"))) == rows
    assert ("7", None) == ((found := stored_route(rows[7])) and found.name, stored_route(None))
