"""The parts of a decision one by one: what is hosted here, matching, and choosing among the routes that matched."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from unittest import mock
from uuid import UUID

import pytest

from broker.protocol.layout import NO_GUID
from broker.routing import decide as module
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.decide import (
    AddressHealth,
    Candidate,
    HealthOf,
    Hosted,
    Match,
    RouteChoice,
    RouteClass,
    RoutingContext,
    RoutingFacts,
    choose,
    hosted,
    match,
    pick_instance,
    score,
    wanted_instance,
)
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, Route
from broker.routing.table import RouteTable, build_table

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)

EAST, WEST, NORTH = UUID(int=0xE), UUID(int=0xF), UUID(int=16)
DIALOG = b"d" * 16
ADDRESSED = "tcp://three/Orders"
ORDERS_HERE = hosted({EAST.bytes: ["Orders"]})
NOTHING_HERE = Hosted()
ONE, TWO, THREE = (NetworkAddress(host) for host in ("one", "two", "three"))

MIRRORED = Route("mirrored", ONE, "Orders", EAST, mirror_address=TWO)
TO_ONE = Route("to one", ONE)
TO_TWO = Route("to two", TWO)
BY_TRANSPORT = Route("by transport", TRANSPORT)


def _untried(_address: NetworkAddress) -> AddressHealth:
    return AddressHealth.UNTRIED


def _health(**known: AddressHealth) -> HealthOf:
    return lambda address: known.get(address.host, AddressHealth.UNTRIED)


def _facts(service: str = "Orders", instance: UUID | None = None, *, conversation: bytes = DIALOG) -> RoutingFacts:
    return RoutingFacts(service, NO_GUID if instance is None else instance.bytes, conversation)


def _choose(
    routes: Iterable[Route],
    here: Hosted,
    facts: RoutingFacts,
    health: HealthOf,
    refused: Mapping[NetworkAddress, float] | None = None,
) -> RouteChoice | None:
    refusals = {(facts.to_service, facts.to_broker_instance): refused or {}}
    return choose(routes, facts, RoutingContext(RouteTable(), here, health, is_forwarding=True, refusals=refusals))


def _class(routes: tuple[Route, ...], here: Hosted, facts: RoutingFacts) -> RouteClass | None:
    choice = _choose(routes, here, facts, _untried)
    return None if choice is None else choice.route_class


@pytest.mark.parametrize(
    ("routes", "here", "facts", "expected"),
    [
        # the order of the classes, whatever the order of the routes
        ((BY_TRANSPORT, TO_ONE, AUTO_CREATED_LOCAL, MIRRORED), ORDERS_HERE, _facts(), RouteClass.MIRRORED),
        ((BY_TRANSPORT, TO_ONE, AUTO_CREATED_LOCAL), ORDERS_HERE, _facts(), RouteClass.LOCAL),
        ((BY_TRANSPORT, TO_ONE, AUTO_CREATED_LOCAL), NOTHING_HERE, _facts(ADDRESSED), RouteClass.NETWORK),
        ((BY_TRANSPORT, AUTO_CREATED_LOCAL), NOTHING_HERE, _facts(ADDRESSED), RouteClass.TRANSPORT),
        # LOCAL works only where the service and, if one is named, the broker instance are here
        ((AUTO_CREATED_LOCAL,), ORDERS_HERE, _facts(instance=EAST), RouteClass.LOCAL),
        ((AUTO_CREATED_LOCAL,), ORDERS_HERE, _facts(instance=WEST), None),
        ((AUTO_CREATED_LOCAL,), ORDERS_HERE, _facts("Billing"), None),
        ((AUTO_CREATED_LOCAL,), ORDERS_HERE, _facts("Billing", EAST), None),
        ((AUTO_CREATED_LOCAL, TO_ONE), ORDERS_HERE, _facts(instance=WEST), RouteClass.NETWORK),
        ((Route("l", LOCAL, "Orders", EAST),), ORDERS_HERE, _facts(), RouteClass.LOCAL),
        ((Route("l", LOCAL, "Orders", WEST),), ORDERS_HERE, _facts(), None),
        # TRANSPORT works only where the service name begins with an address
        ((BY_TRANSPORT,), NOTHING_HERE, _facts("Orders"), None),
        ((BY_TRANSPORT,), NOTHING_HERE, _facts("tcp://two:0/Orders"), None),
        ((), ORDERS_HERE, _facts(), None),
    ],
)
@pytest.mark.promise("R3.1", "R3.3", "R3.4", "routing 19", "routing 23")
def test_first_class_that_has_a_member_and_works_is_taken(
    routes: tuple[Route, ...], here: Hosted, facts: RoutingFacts, expected: RouteClass | None
) -> None:
    assert expected == _class(routes, here, facts)


@pytest.mark.promise("routing 20")
def test_mirrored_route_is_taken_with_its_like_only_and_names_no_candidate() -> None:
    second = Route("second", THREE, "Orders", EAST, mirror_address=TWO)
    choice = _choose([Route("plain", ONE, "Orders", EAST), MIRRORED, second], ORDERS_HERE, _facts(), _untried)

    assert RouteChoice(RouteClass.MIRRORED, (MIRRORED, second)) == choice


@pytest.mark.promise("R3.2")
def test_local_class_holds_only_the_local_routes() -> None:
    choice = _choose([TO_ONE, AUTO_CREATED_LOCAL], ORDERS_HERE, _facts(), _untried)

    assert RouteChoice(RouteClass.LOCAL, (AUTO_CREATED_LOCAL,)) == choice


@pytest.mark.promise("R3.4")
def test_transport_leads_to_the_address_in_the_service_name() -> None:
    health = _health(two=AddressHealth.SUPPRESSED)
    candidate = Candidate(NetworkAddress("two", 5022), BY_TRANSPORT, AddressHealth.SUPPRESSED)

    choice = _choose([BY_TRANSPORT], NOTHING_HERE, _facts("TCP://Two:5022/Orders"), health)

    assert RouteChoice(RouteClass.TRANSPORT, (BY_TRANSPORT,), (candidate,)) == choice


@pytest.mark.promise("R1.5", "routing 18")
def test_routes_alike_count_as_one_and_the_first_stands_for_them() -> None:
    first = Route("first", ONE, "Orders", address_text="tcp://one:4022")
    again = Route("again", ONE, "Orders", address_text="TCP://ONE/", weight=9)
    other = Route("other", TWO, "Orders")

    choice = _choose([first, other, again, other], NOTHING_HERE, _facts(), _untried)

    assert choice is not None
    assert (first, other) == choice.routes
    assert {first, other} == {candidate.route for candidate in choice.candidates}


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        (_health(two=AddressHealth.CONNECTED, three=AddressHealth.SUPPRESSED), ["two", "one", "three"]),
        (_health(one=AddressHealth.SUPPRESSED, two=AddressHealth.SUPPRESSED), ["three", None, None]),
        (_health(one=AddressHealth.SUPPRESSED, two=AddressHealth.CONNECTED), ["two", "three", "one"]),
        (_health(two=AddressHealth.LEAVING, three=AddressHealth.SUPPRESSED), ["two", "one", "three"]),
        (_health(one=AddressHealth.LEAVING, two=AddressHealth.CONNECTED), ["two", "one", "three"]),
    ],
)
@pytest.mark.promise("R3.5", "multiple 17")
def test_connected_comes_before_untried_before_suppressed(health: HealthOf, expected: list[str | None]) -> None:
    for n in range(16):
        facts = _facts(conversation=bytes([n]) * 16)
        choice = _choose([TO_ONE, TO_TWO, Route("to three", THREE)], NOTHING_HERE, facts, health)

        assert choice is not None
        found = [candidate.address.host for candidate in choice.candidates]
        assert expected == [name and host for name, host in zip(expected, found, strict=True)]


def test_next_hop_that_does_not_have_the_broker_instance_comes_last_whatever_its_health() -> None:
    health = _health(one=AddressHealth.CONNECTED, two=AddressHealth.CONNECTED, three=AddressHealth.SUPPRESSED)
    for n in range(16):
        facts = _facts(instance=EAST, conversation=bytes([n]) * 16)
        routes = [TO_ONE, TO_TWO, Route("to three", THREE)]
        choice = _choose(routes, NOTHING_HERE, facts, health, refused={TWO: 1.0, ONE: 2.0})

        assert choice is not None
        assert [THREE, TWO, ONE] == [candidate.address for candidate in choice.candidates]


@pytest.mark.promise("R3.5", "multiple 17")
def test_among_equals_the_dialog_decides_and_dialogs_spread() -> None:
    first = Counter[str]()
    for n in range(400):
        facts = _facts(conversation=n.to_bytes(16, "big"))
        forwards = _choose([TO_ONE, TO_TWO], NOTHING_HERE, facts, _untried)
        backwards = _choose([TO_TWO, TO_ONE], NOTHING_HERE, facts, _untried)
        assert forwards is not None
        assert backwards is not None
        assert forwards.candidates == backwards.candidates
        first[forwards.candidates[0].address.host] += 1

    assert {"one", "two"} == set(first)
    assert first["one"] == pytest.approx(200, abs=60)


@pytest.mark.parametrize(
    ("route", "facts", "expected"),
    [
        (Route("r", LOCAL, "Orders", WEST), _facts(instance=EAST), EAST.bytes),
        (Route("r", LOCAL, "Orders", WEST), _facts(), WEST.bytes),
        (AUTO_CREATED_LOCAL, _facts(instance=EAST), EAST.bytes),
        (AUTO_CREATED_LOCAL, _facts(), None),
    ],
)
@pytest.mark.promise("R4.1", "routing 26")
def test_dialog_names_the_wanted_instance_before_the_route_does(
    route: Route, facts: RoutingFacts, expected: bytes | None
) -> None:
    assert expected == wanted_instance(route, facts)


# --- what is hosted here ---


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.promise("multiple 2")
def test_hosted_databases_are_found_by_instance_and_sorted_by_service(order: int) -> None:
    services = {WEST.bytes: ["Orders", "Billing", "Orders"], EAST.bytes: ["Orders"], NORTH.bytes: []}

    here = hosted(dict(list(services.items())[::order]))

    assert {WEST.bytes: {"Orders", "Billing"}, EAST.bytes: {"Orders"}, NORTH.bytes: set()} == here.services_of
    assert here.databases_with == {"Orders": (EAST.bytes, WEST.bytes), "Billing": (WEST.bytes,)}


# --- matching ---


GATEWAY = NetworkAddress("gateway")

BY_NAME = Route("by name", GATEWAY, "Orders")
TO_EAST = Route("to east", GATEWAY, "Orders", EAST)
TO_WEST = Route("to west", GATEWAY, "Orders", WEST)
EVERYTHING = (AUTO_CREATED_LOCAL, BY_NAME, TO_EAST, TO_WEST)


def _match(routes: Iterable[Route], facts: RoutingFacts, here: Hosted = NOTHING_HERE) -> Match:
    return match(build_table(routes, now=NOW), here, facts)


@pytest.mark.parametrize(
    ("facts", "routes", "expected"),
    [
        # step 1: the dialog names a broker instance
        (_facts(instance=EAST), EVERYTHING, Match(1, (TO_EAST,))),
        (_facts(instance=WEST), EVERYTHING, Match(1, (TO_WEST,))),
        # step 2: by name
        (_facts(instance=NORTH), EVERYTHING, Match(2, (BY_NAME,))),
        (_facts(), EVERYTHING, Match(2, (BY_NAME,))),
        # step 3: an open dialog, and broker instances to pick from
        (_facts(), (AUTO_CREATED_LOCAL, TO_EAST), Match(3, (TO_EAST,))),
        (_facts(instance=NORTH), (AUTO_CREATED_LOCAL, TO_EAST), Match(5, (AUTO_CREATED_LOCAL,))),
        # step 5: whatever is for everything
        (_facts("Billing"), EVERYTHING, Match(5, (AUTO_CREATED_LOCAL,))),
        (_facts("Billing", instance=EAST), EVERYTHING, Match(5, (AUTO_CREATED_LOCAL,))),
        (_facts("orders"), EVERYTHING, Match(5, (AUTO_CREATED_LOCAL,))),
        # nothing
        (_facts(), (), Match(7)),
        (_facts(instance=EAST), (TO_WEST,), Match(7)),
        (_facts("Billing"), (BY_NAME, TO_EAST), Match(7)),
    ],
)
@pytest.mark.promise("R2.1", "routing 8")
def test_first_step_that_yields_a_route_ends_the_search(
    facts: RoutingFacts, routes: tuple[Route, ...], expected: Match
) -> None:
    assert expected == _match(routes, facts)


@pytest.mark.promise("routing 8")
def test_every_route_of_the_step_matches() -> None:
    routes = [Route(name, NetworkAddress(name), "Orders", EAST) for name in ("one", "three", "two")]

    assert Match(1, tuple(routes)) == _match([*routes, TO_WEST], _facts(instance=EAST))


@pytest.mark.promise("R2.5")
def test_last_resort_ignores_routes_by_name_of_another_service() -> None:
    last = Route("last", GATEWAY)

    assert Match(5, (last,)) == _match([BY_NAME, last], _facts("Billing"))


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (_facts(instance=NORTH), 6),
        (_facts(), 7),  # only a dialog that names a broker instance is routed as if LOCAL
        (_facts("Billing", instance=NORTH), 7),
    ],
)
@pytest.mark.promise("R2.6")
def test_named_instance_and_a_service_here_are_as_if_local(facts: RoutingFacts, step: int) -> None:
    here = hosted({EAST.bytes: ["Orders"]})

    found = _match([], facts, here)

    assert step == found.step
    assert [("", LOCAL, "Orders")] * (step == 6) == [
        (route.name, route.address, route.remote_service_name) for route in found.routes
    ]


@pytest.mark.promise("R2.3", "routing 11", "multiple 18")
def test_balanced_dialog_matches_the_routes_of_one_instance_only() -> None:
    second_to_east = Route("second to east", NetworkAddress("other"), "Orders", EAST)
    routes = [TO_EAST, TO_WEST, second_to_east]
    found = {_match(routes, _facts(conversation=bytes([n]) * 16)) for n in range(32)}

    assert {Match(3, (second_to_east, TO_EAST), is_balanced=True), Match(3, (TO_WEST,), is_balanced=True)} == found


@pytest.mark.promise("multiple 7")
def test_same_dialog_always_picks_the_same_instance() -> None:
    forwards = _match([TO_EAST, TO_WEST], _facts())
    backwards = _match([TO_WEST, TO_EAST], _facts())

    assert forwards == backwards


@pytest.mark.promise("R2.3")
def test_instances_share_dialogs_by_the_heaviest_of_their_routes() -> None:
    routes = [Route(str(weight), GATEWAY, "Orders", EAST, weight=weight) for weight in (1, 3, 2)]
    table = build_table([*routes, TO_WEST], now=NOW)
    facts = [_facts(conversation=n.to_bytes(16, "big")) for n in range(4000)]

    shares = Counter(match(table, NOTHING_HERE, one).routes[0].broker_instance for one in facts)

    assert shares == pytest.approx({EAST: 3000, WEST: 1000}, abs=120)


@pytest.mark.promise("R2.4")
def test_expired_route_to_the_configuration_service_is_not_asked() -> None:
    ask = Route("ask", LOCAL, BROKER_CONFIGURATION, lifetime=NOW)

    assert _match([ask], _facts(instance=NORTH)).step == 7


@pytest.mark.promise("R2.3")
def test_lower_guid_wins_a_tie_and_so_does_the_lower_address() -> None:
    with mock.patch.object(module, "score", return_value=1.0):
        picked = pick_instance(DIALOG, {WEST.bytes: 1, EAST.bytes: 1})
        choice = _choose([TO_TWO, TO_ONE, Route("to three", THREE)], NOTHING_HERE, _facts(), _untried)

    assert EAST.bytes == picked
    assert choice is not None
    assert [ONE, THREE, TWO] == [candidate.address for candidate in choice.candidates]


@pytest.mark.promise("R2.3")
def test_score_is_the_documented_formula() -> None:
    h = int.from_bytes(sha256(DIALOG + EAST.bytes).digest()[:8], "big")

    assert 7 / -math.log((h + 0.5) / 2**64) == score(DIALOG, EAST.bytes, weight=7)


@pytest.mark.parametrize(
    ("digest", "expected"),
    [(b"\x00" * 32, 1 / -math.log(0.5 / 2**64)), (b"\xff" * 32, math.inf), (b"\x80" + b"\x00" * 31, 1 / math.log(2))],
)
def test_score_is_positive_at_both_ends_of_the_hash(digest: bytes, expected: float) -> None:
    with mock.patch("broker.routing.decide.sha256") as hashing:
        hashing.return_value.digest.return_value = digest
        assert expected == pytest.approx(score(DIALOG, EAST.bytes))


@pytest.mark.promise("R2.3")
def test_score_pins_which_instance_and_address_gateways_of_every_release_pick() -> None:
    """All gateways must pick alike, so the hash is part of the contract: these values never change."""
    by_instance = {instance.bytes: 1 for instance in (EAST, WEST, NORTH)}
    picked = [pick_instance(bytes([n]) * 16, by_instance)[-1] for n in range(8)]
    routes = [TO_ONE, TO_TWO, Route("to three", THREE)]
    choices = [_choose(routes, NOTHING_HERE, _facts(conversation=bytes([n]) * 16), _untried) for n in range(8)]
    order = [" ".join(one.address.host for one in choice.candidates) for choice in choices if choice is not None]

    assert picked == [0xE, 0xF, 0xF, 0xF, 0x10, 0xE, 0x10, 0xF]
    assert order[:4] == ["one three two", "three two one", "two one three", "three two one"]
    assert order[4:] == ["two one three", "three two one", "one three two", "two one three"]
