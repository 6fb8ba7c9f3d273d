"""Hints name what is there and almost fits, or what is missing; who needs none gets none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, Pass, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.explain import EXPIRED_TOLD, hints_for
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.wire.layout import NO_GUID

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
HERE = UUID(int=7).bytes
FAR = NetworkAddress("far")
CREATE = "CREATE ROUTE in msdb, with this SERVICE_NAME, or without one for all that no other route names"


def hints(*routes: Route, service: str = "Billing", services: Any = (), instance: bytes = NO_GUID) -> list[str]:
    """For a message from outside, at an instance with one database that does not forward."""
    known = hosted({HERE: services})
    here = RoutingContext(build_table(routes, now=NOW), known, lambda _: AddressHealth.UNTRIED, is_forwarding=False)
    passes: list[Pass] = []
    decide(RoutingFacts(service, instance, bytes(16)), here, passes)
    return list(hints_for(passes[-1], known, "msdb"))


def test_who_matches_nothing_is_told_what_is_missing() -> None:
    assert [CREATE] == hints()


@pytest.mark.parametrize("name", ["billing", "BILLING", " Billing "])
def test_a_route_to_almost_that_name_is_named(name: str) -> None:
    assert [f"msdb has a route to {name!r}: names compare byte for byte", CREATE] == hints(Route("a", FAR, name))


def test_a_service_of_almost_that_name_is_named() -> None:
    told = hints(Route("a", LOCAL), services=["billing", "Other"])

    assert ["there is a service 'billing' here: names compare byte for byte"] == told


def test_a_service_of_almost_that_name_in_the_database_that_gets_it_is_named() -> None:
    told = hints(Route("a", LOCAL), services=["billing"], instance=HERE)

    assert ["there is a service 'billing' in that database: names compare byte for byte"] == told


def test_expired_routes_are_named_and_only_some_of_many() -> None:
    routes = [Route(f"r{n}", FAR, "Billing", lifetime=NOW - timedelta(1)) for n in range(EXPIRED_TOLD + 2)]

    told = [hint for hint in hints(*routes) if "expired" in hint]

    assert EXPIRED_TOLD == len(told)
    assert "route r0 has expired: ALTER ROUTE with a new LIFETIME brings it back" == told[0]


def test_a_switch_that_is_off_is_named() -> None:
    told = hints(Route("a", FAR, "Billing"))

    assert ["set endpoint.message_forwarding = true to let this instance pass on what is for others"] == told


def test_who_is_delivered_needs_no_hint() -> None:
    assert [] == hints(Route("a", LOCAL), Route("b", FAR, "billing"), services=["Billing", "billing"])


def test_who_leaves_needs_no_hint() -> None:
    known = hosted({HERE: ["billing"]})
    table = build_table([Route("a", FAR)], now=NOW)
    here = RoutingContext(table, known, lambda _: AddressHealth.UNTRIED, is_forwarding=True)
    passes: list[Pass] = []
    decide(RoutingFacts("Billing", NO_GUID, bytes(16)), here, passes)

    assert [] == list(hints_for(passes[-1], known, "msdb"))
