from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from broker.control.catalog import Rows
from broker.observe.label import LabelCap
from broker.observe.route_up import RouteUp
from broker.routing.address import LOCAL, TRANSPORT, Keyword, NetworkAddress
from broker.routing.route import Route

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B = NetworkAddress("a"), NetworkAddress("b")
NONE: frozenset[NetworkAddress] = frozenset()


def _route(
    name: str,
    address: NetworkAddress | Keyword,
    *,
    mirror: NetworkAddress | None = None,
    lifetime: datetime | None = None,
) -> Route:
    return Route(name=name, address=address, mirror_address=mirror, lifetime=lifetime)


def _rows(*routes: Route) -> Rows:
    return Rows(routes={route.name: (number, route) for number, route in enumerate(routes)})


def test_route_is_up_until_its_address_is_down() -> None:
    route_up = RouteUp(LabelCap())
    rows = (_rows(_route("r", A), _route("s", B)),)

    before = route_up.samples(rows, NONE, now=NOW)
    after = route_up.samples(rows, {A}, now=NOW)

    assert before == {("r", "tcp://a:4022"): 1, ("s", "tcp://b:4022"): 1}
    assert after == {("r", "tcp://a:4022"): 0, ("s", "tcp://b:4022"): 1}


def test_both_addresses_of_a_mirrored_route_are_told() -> None:
    samples = RouteUp(LabelCap()).samples((_rows(_route("m", A, mirror=B)),), {B}, now=NOW)

    assert samples == {("m", "tcp://a:4022"): 1, ("m", "tcp://b:4022"): 0}


@pytest.mark.parametrize("keyword", [LOCAL, TRANSPORT])
def test_route_without_an_address_is_not_told(keyword: Keyword) -> None:
    assert RouteUp(LabelCap()).samples((_rows(_route("r", keyword)),), NONE, now=NOW) == {}


def test_route_is_told_until_it_expires() -> None:
    route_up = RouteUp(LabelCap())
    soon, later = NOW + timedelta(seconds=1), NOW + timedelta(seconds=9)
    rows = (_rows(_route("later", B, lifetime=later), _route("soon", A, lifetime=soon), _route("r", A)),)

    names = [
        sorted(name for name, _ in route_up.samples(rows, NONE, now=now))
        for now in (NOW, soon, later - timedelta.resolution, later)
    ]

    assert names == [["later", "r", "soon"], ["later", "r"], ["later", "r"], ["r"]]


def test_change_of_routes_is_seen() -> None:
    route_up = RouteUp(LabelCap())
    kept = _rows(_route("r", A))
    route_up.samples((kept, _rows(_route("old", A))), NONE, now=NOW)

    samples = route_up.samples((kept, _rows(_route("new", B))), NONE, now=NOW)

    assert samples.keys() == {("r", "tcp://a:4022"), ("new", "tcp://b:4022")}


def test_routes_are_walked_once_for_each_change() -> None:
    """A million routes must not be walked by every scrape."""
    cap = LabelCap(1)
    route_up = RouteUp(cap)
    rows = (_rows(_route("r", A), _route("s", A)),)

    for _ in range(3):
        route_up.samples(rows, NONE, now=NOW)

    assert cap.overflows == 1


def test_routes_past_the_bound_are_one_that_is_down_when_any_is() -> None:
    route_up = RouteUp(LabelCap(1))
    rows = (_rows(_route("r", A), _route("s", A), _route("t", B)),)

    up = route_up.samples(rows, NONE, now=NOW)
    down = route_up.samples(rows, {B}, now=NOW)

    assert up == {("r", "tcp://a:4022"): 1, ("other", "tcp://a:4022"): 1, ("other", "other"): 1}
    assert down == {("r", "tcp://a:4022"): 1, ("other", "tcp://a:4022"): 1, ("other", "other"): 0}
