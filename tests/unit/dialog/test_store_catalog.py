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
    find_route,
    open_store,
    put_queue,
    put_route,
    put_service,
    queues,
    routes,
    services,
)
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.route import AUTO_CREATED_LOCAL, Route

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
    put_route(db, route)

    assert route == routes(db)[route.name][1] == find_route(db, route.name)


def test_route_that_is_put_again_keeps_its_id_and_nothing_else(db: sqlite3.Connection) -> None:
    put_route(db, ROUTES[-1])
    before = routes(db)["it's"][0]

    put_route(db, Route("it's", LOCAL))

    assert (before, Route("it's", LOCAL)) == routes(db)["it's"]


def test_route_that_does_not_exist_is_not_found(db: sqlite3.Connection) -> None:
    assert find_route(db, "autocreatedlocal") is None


def test_dropped_route_is_gone(db: sqlite3.Connection) -> None:
    put_route(db, Route("r", LOCAL))

    drop_route(db, "AutoCreatedLocal")

    assert list(routes(db)) == ["r"]
