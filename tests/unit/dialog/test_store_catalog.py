"""The catalog of a database comes back as it was put: queues, services, routes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from broker.dialog.store import (
    Queue,
    Service,
    drop_queue,
    drop_route,
    drop_service,
    find_queue,
    find_route,
    find_routes,
    find_service,
    find_service_of,
    open_store,
    put_queue,
    put_routes,
    put_service,
    queues,
    routes,
    services,
)
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.route import AUTO_CREATED_LOCAL, Route, row_of

INSTANCE = UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")
OTHER = UUID("6b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_store(path)
    yield connection
    connection.close()


def test_queue_comes_back_as_put_and_keeps_its_id(db: sqlite3.Connection) -> None:
    put_queue(db, "Orders", is_receive_enabled=True)
    put_queue(db, "Billing", is_receive_enabled=False)
    before = queues(db)

    put_queue(db, "Orders", is_receive_enabled=False)

    orders, billing = before["Orders"], before["Billing"]
    assert (Queue(orders.queue_id, "Orders", True), Queue(billing.queue_id, "Billing", False)) == (orders, billing)
    assert {"Orders": Queue(orders.queue_id, "Orders", False), "Billing": billing} == queues(db)


def test_dropped_queue_takes_its_messages_along_and_no_others(db: sqlite3.Connection) -> None:
    for name in ("Orders", "Billing"):
        put_queue(db, name, is_receive_enabled=True)
        db.execute(
            "INSERT INTO broker_message (queue_id, endpoint_id, message_sequence_number, message_type_name,"
            " message_enqueue_time, message_body) VALUES (?, 1, 0, 'T', 0, x'')",
            (queues(db)[name].queue_id,),
        )

    drop_queue(db, "Orders")

    billing = queues(db)["Billing"].queue_id
    assert list(queues(db)) == ["Billing"]
    assert db.execute("SELECT queue_id FROM broker_message").fetchall() == [(billing,)]


def test_service_comes_back_as_put_and_keeps_its_id(db: sqlite3.Connection) -> None:
    put_service(db, "//shop/Orders", 1, frozenset({"b", "a"}))
    put_service(db, "//shop/orders", 1, frozenset())
    before = services(db)

    put_service(db, "//shop/Orders", 2, frozenset({"'c'"}))

    first, second = before["//shop/Orders"], before["//shop/orders"]
    assert Service(first.service_id, "//shop/Orders", 1, frozenset({"a", "b"})) == first
    assert {
        "//shop/Orders": Service(first.service_id, "//shop/Orders", 2, frozenset({"'c'"})),
        "//shop/orders": Service(second.service_id, "//shop/orders", 1, frozenset()),
    } == services(db)


def test_dropped_service_is_gone(db: sqlite3.Connection) -> None:
    put_service(db, "A", 1, frozenset())
    put_service(db, "a", 1, frozenset())

    drop_service(db, "A")

    assert list(services(db)) == ["a"]


ROUTES = [
    AUTO_CREATED_LOCAL,
    Route("r", TRANSPORT, lifetime=datetime(2093, 1, 19, 3, 14, 7, 123457, tzinfo=UTC)),
    Route("r", NetworkAddress("::1", 4023), "//shop/Órders", weight=1000, address_text="TCP://[::1]:4023/"),
    Route("r", LOCAL, "S", INSTANCE, datetime(1999, 12, 31, tzinfo=UTC)),
    Route(
        "it's",
        NetworkAddress("east"),
        "S",
        INSTANCE,
        mirror_address=NetworkAddress("west"),
        address_text="tcp://East",
        mirror_address_text="tcp://WEST:4022/",
    ),
]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.address_text)
def test_route_comes_back_as_put(db: sqlite3.Connection, route: Route) -> None:
    put_routes(db, [row_of(route)])

    assert row_of(route) in set(routes(db))
    assert row_of(route) == find_route(db, route.name)


def _route_id(db: sqlite3.Connection) -> int:
    (number,) = db.execute("SELECT route_id FROM broker_route WHERE name = 'it''s'").fetchone()
    return int(number)


def test_route_that_is_put_again_keeps_its_id_and_nothing_else(db: sqlite3.Connection) -> None:
    put_routes(db, [row_of(ROUTES[-1])])
    before = _route_id(db)

    put_routes(db, [row_of(Route("it's", LOCAL))])

    assert (before, row_of(Route("it's", LOCAL))) == (_route_id(db), find_route(db, "it's"))


def test_routes_of_one_service_stand_together(db: sqlite3.Connection) -> None:
    put_routes(db, [row_of(Route(f"r{number}", LOCAL, "ABC"[number % 3])) for number in range(9)])

    services = [row[1] for row in routes(db)]

    assert services == [None, *"AAABBBCCC"]


def test_several_routes_are_found_at_once(db: sqlite3.Connection) -> None:
    put_routes(db, [row_of(Route(name, LOCAL)) for name in ("a", "b", "c")])

    assert find_routes(db, ["a", "c", "x"]) == {name: row_of(Route(name, LOCAL)) for name in ("a", "c")}


def test_queue_and_service_are_found_by_name(db: sqlite3.Connection) -> None:
    put_queue(db, "Q", is_receive_enabled=False)
    put_service(db, "S", queues(db)["Q"].queue_id, frozenset({"C"}))

    assert (find_queue(db, "Q"), find_service(db, "S")) == (queues(db)["Q"], services(db)["S"])
    assert (find_queue(db, "q"), find_service(db, "s")) == (None, None)


def test_service_of_a_queue_is_found(db: sqlite3.Connection) -> None:
    for name in ("B", "A"):
        put_service(db, name, 1, frozenset())

    assert (find_service_of(db, 1), find_service_of(db, 2)) == ("A", None)


def test_route_that_does_not_exist_is_not_found(db: sqlite3.Connection) -> None:
    assert find_route(db, "autocreatedlocal") is None


def test_dropped_route_is_gone(db: sqlite3.Connection) -> None:
    put_routes(db, [row_of(Route("r", LOCAL))])

    drop_route(db, "AutoCreatedLocal")

    assert [row[0] for row in routes(db)] == ["r"]
