"""What statements about routes make of routes: made, made again, altered, dropped, and what cannot be done."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.ddl.parser import parse_script
from broker.ddl.route_play import play_route
from broker.errors import UnknownNameError
from broker.routing.address import NetworkAddress
from broker.routing.route import PropertyError, Route

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def played(script: str) -> tuple[dict[str, Route], list[bool]]:
    routes: dict[str, Route] = {}
    statements: list[Any] = parse_script(script)
    return routes, [play_route(routes, statement, NOW) for statement in statements]


def test_a_route_is_made_and_its_lifetime_counts_from_now() -> None:
    routes, done = played("CREATE ROUTE r WITH SERVICE_NAME = 'S', LIFETIME = 60, ADDRESS = 'tcp://h'")

    expected = Route("r", NetworkAddress("h"), "S", lifetime=NOW + timedelta(seconds=60), address_text="tcp://h")
    assert ({"r": expected}, [True]) == (routes, done)


def test_a_route_made_again_replaces_the_first() -> None:
    routes, _ = played(
        "CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://h'; CREATE ROUTE r WITH ADDRESS = 'LOCAL'"
    )

    assert [(None, "LOCAL")] == [(route.remote_service_name, route.address_text) for route in routes.values()]


def test_a_route_is_altered_in_what_is_named_only() -> None:
    routes, _ = played(
        "CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://h'; ALTER ROUTE r WITH ADDRESS = 'tcp://i'"
    )

    assert ("S", NetworkAddress("i")) == (routes["r"].remote_service_name, routes["r"].address)


def test_a_dropped_route_is_gone_and_one_that_was_not_there_is_told() -> None:
    routes, done = played("CREATE ROUTE r WITH ADDRESS = 'LOCAL'; DROP ROUTE r; DROP ROUTE r")

    assert ({}, [True, True, False]) == (routes, done)


@pytest.mark.parametrize(
    ("script", "error", "number"),
    [
        ("ALTER ROUTE r WITH ADDRESS = 'LOCAL'", UnknownNameError, 15151),
        ("CREATE ROUTE r WITH ADDRESS = 'http://h'", PropertyError, 9744),
    ],
)
def test_what_cannot_be_done_is_refused(
    script: str, error: type[UnknownNameError | PropertyError], number: int
) -> None:
    with pytest.raises(error) as caught:
        played(script)

    assert number == caught.value.number
