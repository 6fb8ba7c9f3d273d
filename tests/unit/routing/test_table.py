"""A table finds the live routes under what matching asks for, and a changed table says what a new one would."""

from datetime import UTC, datetime, timedelta
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.routing import table as module
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.route import AUTO_CREATED_LOCAL, Route
from broker.routing.table import FOLD_MIN, SMALL, Layered, RouteChange, RouteTable, build_table

# --- layered ---
# A changed copy says what a dictionary would say, and the one it was made from stays as it was.


keys = st.integers(0, 5)
changes = st.dictionaries(keys, st.none() | st.integers())


@given(st.dictionaries(keys, st.integers()), st.lists(changes, max_size=6), st.sampled_from([1, FOLD_MIN]))
def test_changed_copies_say_what_a_dictionary_would(
    base: dict[int, int], steps: list[dict[int, int | None]], fold_min: int
) -> None:
    """Whether changes are folded into the whole or not."""
    layered, expected = Layered(base), dict(base)
    for step in steps:
        before, said = layered, dict(layered)
        with mock.patch.object(module, "FOLD_MIN", fold_min):
            layered = layered.changed(step)
        assert dict(before) == said
        expected = {key: value for key, value in {**expected, **step}.items() if value is not None}

    assert expected == dict(layered)
    assert [expected.get(key) for key in range(6)] == [layered.get(key) for key in range(6)]


NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
EAST, WEST = UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"), UUID("6b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")
GATEWAY = NetworkAddress("gateway")


@pytest.mark.parametrize("more", [0, SMALL], ids=["packed together", "packed by instance"])
@pytest.mark.promise("R1.7", "multiple 1")
def test_each_shape_of_route_has_its_place(more: int) -> None:
    by_name = Route("by name", GATEWAY, "Orders")
    east = Route("east", GATEWAY, "Orders", EAST, weight=3)
    west = Route("west", GATEWAY, "Orders", WEST)
    others = [Route(f"other {n}", GATEWAY, "Orders", UUID(int=n + 1)) for n in range(more)]
    billing = Route("billing", LOCAL, "Billing")

    table = build_table([AUTO_CREATED_LOCAL, west, by_name, east, billing, *others], now=NOW)

    assert table.routes("Orders") == (by_name,)
    assert (table.routes("Orders", EAST.bytes), table.routes("Orders", WEST.bytes)) == ((east,), (west,))
    assert table.instances("Orders") == {EAST.bytes: 3, WEST.bytes: 1} | {UUID(int=n + 1).bytes: 1 for n in range(more)}
    assert (table.routes("Billing"), table.instances("Billing")) == ((billing,), {})
    assert table.routes(None) == (AUTO_CREATED_LOCAL,)
    assert {AUTO_CREATED_LOCAL, west, by_name, east, billing, *others} == set(table)
    assert table.count == 5 + more
    assert table.addresses(1) <= table.addresses(table.count) == {GATEWAY}


def test_service_with_the_empty_name_is_not_the_last_resort() -> None:
    table = build_table([Route("r", GATEWAY, "")], now=NOW)

    assert (len(table.routes("")), table.routes(None)) == (1, ())


names = st.sampled_from("abcdefgh")
routes = st.builds(
    Route,
    name=names,
    address=st.just(LOCAL) | st.builds(NetworkAddress, st.sampled_from(["one", "two"])),
    remote_service_name=st.none() | st.sampled_from(["Orders", "Billing"]),
    broker_instance=st.none() | st.sampled_from([EAST, WEST]),
    lifetime=st.none() | st.sampled_from([NOW, NOW + SECOND, NOW + 2 * SECOND]),
    weight=st.integers(1, 3),
)


def _said(table: RouteTable) -> list[object]:
    asked = [(service, instance) for service in (None, "Orders", "Billing") for instance in (None, EAST, WEST)]
    found = [table.routes(service, None if instance is None else instance.bytes) for service, instance in asked]
    weights = [table.instances(service) for service in ("Orders", "Billing")]
    return [found, weights, table.count, table.addresses(table.count), sorted(route.name for route in table)]


@given(st.dictionaries(names, routes), st.lists(st.dictionaries(names, st.none() | routes, max_size=8), max_size=4))
def test_a_changed_table_says_what_a_new_one_would(
    base: dict[str, Route], steps: list[dict[str, Route | None]]
) -> None:
    """
    Statement by statement, many at once or all at once: the outcome is the same, and older tables do not change. And it
    says in which services it differs from the one before, also when time has passed.
    """
    held = {name: Route(name, route.address, *_rest(route)) for name, route in base.items()}
    table = build_table(held.values(), now=NOW)
    for step in steps:
        before, said = table, _said(table)
        changes = []
        for name, wanted in step.items():
            new = None if wanted is None else Route(name, wanted.address, *_rest(wanted))
            changes.append(RouteChange(held.pop(name, None), new))
            if new is not None:
                held[name] = new
        table = table.changed(changes)
        assert _said(before) == said
        for one, other in ((table, before), (table.at(NOW + SECOND), before), (before.at(NOW + 2 * SECOND), before)):
            differing = one.differing(other)
            assert differing is not None
            same = {None, "Orders", "Billing"} - differing
            assert [_live(one, service) for service in same] == [_live(other, service) for service in same]

    anew = build_table(held.values(), now=NOW)
    assert _said(anew) == _said(table)
    assert _said(anew.at(NOW + SECOND)) == _said(table.at(NOW + SECOND))
    assert anew.next_expiry == table.next_expiry
    assert table.differing(anew) is None


def _live(table: RouteTable, service: str | None) -> list[object]:
    return [
        *(table.routes(service, None if instance is None else instance.bytes) for instance in (None, EAST, WEST)),
        None if service is None else table.lone(service),
    ]


def _rest(route: Route) -> tuple[str | None, UUID | None, datetime | None, None, int]:
    return route.remote_service_name, route.broker_instance, route.lifetime, None, route.weight
