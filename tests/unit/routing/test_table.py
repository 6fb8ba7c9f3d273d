"""A table holds live routes only, each under what matching asks for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.route import AUTO_CREATED_LOCAL, Route
from broker.routing.table import NO_ROUTES, RouteTable, ServiceRoutes, build_table

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
EAST, WEST = UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"), UUID("6b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")
GATEWAY = NetworkAddress("gateway")


def test_no_routes_make_an_empty_table_that_never_expires() -> None:
    assert RouteTable({}, (), None) == build_table([], now=NOW)


def test_each_shape_of_route_has_its_place() -> None:
    by_name = Route("by name", GATEWAY, "Orders")
    east = Route("east", GATEWAY, "Orders", EAST)
    west = Route("west", GATEWAY, "Orders", WEST)
    billing = Route("billing", LOCAL, "Billing")
    full_only = Route("full only", GATEWAY, "Stock", EAST)

    table = build_table([AUTO_CREATED_LOCAL, by_name, east, west, billing, full_only], now=NOW)

    assert {
        "Orders": ServiceRoutes((by_name,), {EAST.bytes: (east,), WEST.bytes: (west,)}),
        "Billing": ServiceRoutes((billing,), {}),
        "Stock": ServiceRoutes((), {EAST.bytes: (full_only,)}),
    } == table.by_service
    assert table.last_resort == (AUTO_CREATED_LOCAL,)


def test_routes_of_one_place_keep_the_order_given() -> None:
    orders = [Route(name, GATEWAY, "Orders") for name in "bca"]
    full = [Route(name, GATEWAY, "Orders", EAST) for name in "bca"]
    anything = [Route(name, GATEWAY) for name in "bca"]

    table = build_table([*anything, *full, *orders], now=NOW)

    assert tuple(orders) == table.by_service["Orders"].any_instance
    assert tuple(full) == table.by_service["Orders"].by_instance[EAST.bytes]
    assert tuple(anything) == table.last_resort


@pytest.mark.parametrize("other", ["orders", "Orders ", "Órders", ""])
def test_service_names_compare_byte_for_byte(other: str) -> None:
    table = build_table([Route("r", GATEWAY, "Orders")], now=NOW)

    assert table.by_service.get(other, NO_ROUTES) == NO_ROUTES


def test_service_with_the_empty_name_is_not_the_last_resort() -> None:
    table = build_table([Route("r", GATEWAY, "")], now=NOW)

    assert ({""}, ()) == (set(table.by_service), table.last_resort)


@pytest.mark.parametrize(
    ("lifetime", "is_listed"), [(None, True), (NOW + SECOND, True), (NOW, False), (NOW - SECOND, False)]
)
def test_only_live_routes_are_in_the_table(lifetime: datetime | None, is_listed: bool) -> None:  # noqa: FBT001  (a table's column)
    routes = [
        Route("last resort", GATEWAY, lifetime=lifetime),
        Route("by name", GATEWAY, "Orders", lifetime=lifetime),
        Route("full", GATEWAY, "Orders", EAST, lifetime),
    ]

    table = build_table(routes, now=NOW)

    assert (is_listed, is_listed) == (bool(table.by_service), bool(table.last_resort))


def test_table_is_out_of_date_when_the_first_live_route_expires() -> None:
    lifetimes = [NOW + 3 * SECOND, None, NOW - SECOND, NOW + 2 * SECOND, NOW + 4 * SECOND]

    table = build_table([Route("r", GATEWAY, lifetime=lifetime) for lifetime in lifetimes], now=NOW)

    assert table.next_expiry == NOW + 2 * SECOND


def test_table_built_at_its_expiry_is_without_the_route_that_expired() -> None:
    """A chain of rebuilds at `next_expiry` ends: each drops at least one route."""
    routes = [Route(str(after), GATEWAY, lifetime=NOW + after * SECOND) for after in (2, 1)]

    first = build_table(routes, now=NOW)
    second = build_table(routes, now=first.next_expiry or NOW)
    third = build_table(routes, now=second.next_expiry or NOW)

    assert [len(table.last_resort) for table in (first, second, third)] == [2, 1, 0]
    assert third.next_expiry is None
