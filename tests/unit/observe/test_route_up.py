from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from threading import Thread

import pytest

from broker.observe import metrics as route_up
from broker.observe.metrics import RouteUp
from broker.observe.samples import LabelCap
from broker.routing.address import LOCAL, TRANSPORT, Keyword, NetworkAddress
from broker.routing.route import Route
from broker.routing.table import RouteTable, build_table

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


def _table(*routes: Route) -> RouteTable:
    return build_table(routes, now=NOW)


def test_route_is_up_until_its_address_is_down() -> None:
    metric = RouteUp(LabelCap())
    tables = (_table(_route("r", A), _route("s", B)),)

    before = metric.samples(tables, NONE, now=NOW)
    after = metric.samples(tables, {A}, now=NOW)

    assert before == {("r", "tcp://a:4022"): 1, ("s", "tcp://b:4022"): 1}
    assert after == {("r", "tcp://a:4022"): 0, ("s", "tcp://b:4022"): 1}


def test_both_addresses_of_a_mirrored_route_are_told() -> None:
    samples = RouteUp(LabelCap()).samples((_table(_route("m", A, mirror=B)),), {B}, now=NOW)

    assert samples == {("m", "tcp://a:4022"): 1, ("m", "tcp://b:4022"): 0}


@pytest.mark.parametrize("keyword", [LOCAL, TRANSPORT])
def test_route_without_an_address_is_not_told(keyword: Keyword) -> None:
    assert RouteUp(LabelCap()).samples((_table(_route("r", keyword)),), NONE, now=NOW) == {}


def test_route_is_told_until_it_expires() -> None:
    metric = RouteUp(LabelCap())
    soon, later = NOW + timedelta(seconds=1), NOW + timedelta(seconds=9)
    tables = (_table(_route("later", B, lifetime=later), _route("soon", A, lifetime=soon), _route("r", A)),)

    names = [
        sorted(name for name, _ in metric.samples(tables, NONE, now=now))
        for now in (NOW, soon, later - timedelta.resolution, later)
    ]

    assert names == [["later", "r", "soon"], ["later", "r"], ["later", "r"], ["r"]]


def test_change_of_routes_is_seen() -> None:
    metric = RouteUp(LabelCap())
    kept = _table(_route("r", A))
    metric.samples((kept, _table(_route("old", A))), NONE, now=NOW)

    samples = metric.samples((kept, _table(_route("new", B))), NONE, now=NOW)

    assert samples.keys() == {("r", "tcp://a:4022"), ("new", "tcp://b:4022")}


def test_routes_are_walked_once_for_each_change() -> None:
    """A million routes must not be walked by every scrape."""
    cap = LabelCap(1)
    metric = RouteUp(cap)
    tables = (_table(_route("r", A), _route("s", A)),)

    for _ in range(3):
        metric.samples(tables, NONE, now=NOW)

    assert cap.overflows == 1


def test_no_more_routes_of_a_table_are_walked_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_up, "ROUTES_MAX", 2)
    tables = (_table(*(_route(name, A) for name in "abc")), _table(_route("d", A)))

    samples = RouteUp(LabelCap()).samples(tables, NONE, now=NOW)

    assert {name for name, _ in samples} == {"a", "b", "d"}


def test_routes_past_the_bound_are_one_that_is_down_when_any_is() -> None:
    metric = RouteUp(LabelCap(1))
    tables = (_table(_route("r", A), _route("s", A), _route("t", B)),)

    up = metric.samples(tables, NONE, now=NOW)
    down = metric.samples(tables, {B}, now=NOW)

    assert up == {("r", "tcp://a:4022"): 1, ("other", "tcp://a:4022"): 1, ("other", "other"): 1}
    assert down == {("r", "tcp://a:4022"): 1, ("other", "tcp://a:4022"): 1, ("other", "other"): 0}


def test_others_have_their_turn_while_a_large_table_is_walked() -> None:
    """Nobody is made to give up the interpreter's lock here, so whoever gets it meanwhile was given it."""
    tables = (_table(*(_route(f"r{number}", A) for number in range(10 * route_up.SLICE_ROUTES))),)
    turns, interval = 0, sys.getswitchinterval()
    walk = Thread(target=RouteUp(LabelCap()).samples, args=(tables, NONE), kwargs={"now": NOW})
    sys.setswitchinterval(60.0)
    try:
        walk.start()
        while walk.is_alive():
            turns += 1
            time.sleep(0)
    finally:
        sys.setswitchinterval(interval)

    assert turns >= 10
