"""The four classes in their order, routes that count as one, and the order of the addresses that lead on."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.decide import (
    AddressHealth,
    Candidate,
    HealthOf,
    Hosted,
    RouteChoice,
    RouteClass,
    RoutingFacts,
    choose,
    hosted,
    wanted_instance,
)
from broker.routing.route import AUTO_CREATED_LOCAL, Route
from broker.wire.layout import NO_GUID

EAST, WEST = UUID(int=0xE), UUID(int=0xF)
DIALOG = b"d" * 16
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


def _class(routes: tuple[Route, ...], here: Hosted, facts: RoutingFacts) -> RouteClass | None:
    choice = choose(routes, here, facts, _untried)
    return None if choice is None else choice.route_class


ADDRESSED = "tcp://three/Orders"


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
def test_first_class_that_has_a_member_and_works_is_taken(
    routes: tuple[Route, ...], here: Hosted, facts: RoutingFacts, expected: RouteClass | None
) -> None:
    assert expected == _class(routes, here, facts)


def test_mirrored_route_is_taken_with_its_like_only_and_names_no_candidate() -> None:
    second = Route("second", THREE, "Orders", EAST, mirror_address=TWO)
    choice = choose([Route("plain", ONE, "Orders", EAST), MIRRORED, second], ORDERS_HERE, _facts(), _untried)

    assert RouteChoice(RouteClass.MIRRORED, (MIRRORED, second)) == choice


def test_local_class_holds_only_the_local_routes() -> None:
    choice = choose([TO_ONE, AUTO_CREATED_LOCAL], ORDERS_HERE, _facts(), _untried)

    assert RouteChoice(RouteClass.LOCAL, (AUTO_CREATED_LOCAL,)) == choice


def test_transport_leads_to_the_address_in_the_service_name() -> None:
    choice = choose(
        [BY_TRANSPORT], NOTHING_HERE, _facts("TCP://Two:5022/Orders"), _health(two=AddressHealth.SUPPRESSED)
    )

    candidate = Candidate(NetworkAddress("two", 5022), BY_TRANSPORT, AddressHealth.SUPPRESSED)
    assert RouteChoice(RouteClass.TRANSPORT, (BY_TRANSPORT,), (candidate,)) == choice


def test_routes_alike_count_as_one_and_the_first_stands_for_them() -> None:
    first = Route("first", ONE, "Orders", address_text="tcp://one:4022")
    again = Route("again", ONE, "Orders", address_text="TCP://ONE/", weight=9)
    other = Route("other", TWO, "Orders")

    choice = choose([first, other, again, other], NOTHING_HERE, _facts(), _untried)

    assert choice is not None
    assert (first, other) == choice.routes
    assert {first, other} == {candidate.route for candidate in choice.candidates}


def test_one_address_is_one_candidate_whatever_the_number_of_routes_to_it() -> None:
    by_name, full = Route("by name", ONE, "Orders"), Route("full", ONE, "Orders", EAST)

    choice = choose([by_name, full], NOTHING_HERE, _facts(), _untried)

    assert RouteChoice(RouteClass.NETWORK, (by_name, full), (Candidate(ONE, by_name, AddressHealth.UNTRIED),)) == choice


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
def test_connected_comes_before_untried_before_suppressed(health: HealthOf, expected: list[str | None]) -> None:
    for n in range(16):
        facts = _facts(conversation=bytes([n]) * 16)
        choice = choose([TO_ONE, TO_TWO, Route("to three", THREE)], NOTHING_HERE, facts, health)

        assert choice is not None
        assert expected == [
            name and candidate.address.host for name, candidate in zip(expected, choice.candidates, strict=True)
        ]


def test_candidates_tell_their_health() -> None:
    choice = choose([TO_ONE, TO_TWO], NOTHING_HERE, _facts(), _health(one=AddressHealth.CONNECTED))

    assert choice is not None
    assert (
        Candidate(ONE, TO_ONE, AddressHealth.CONNECTED),
        Candidate(TWO, TO_TWO, AddressHealth.UNTRIED),
    ) == choice.candidates


def test_among_equals_the_dialog_decides_and_dialogs_spread() -> None:
    first = Counter[str]()
    for n in range(400):
        facts = _facts(conversation=n.to_bytes(16, "big"))
        forwards = choose([TO_ONE, TO_TWO], NOTHING_HERE, facts, _untried)
        backwards = choose([TO_TWO, TO_ONE], NOTHING_HERE, facts, _untried)
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
def test_dialog_names_the_wanted_instance_before_the_route_does(
    route: Route, facts: RoutingFacts, expected: bytes | None
) -> None:
    assert expected == wanted_instance(route, facts)


def test_principal_is_the_only_candidate_of_a_mirrored_route() -> None:
    second = Route("second", TWO, "Orders", EAST, mirror_address=THREE)
    assert MIRRORED.pair is not None
    assert second.pair is not None
    both = {MIRRORED.pair: TWO, second.pair: THREE}

    for principals, expected in (
        ({}, ()),
        (both, (Candidate(TWO, MIRRORED, AddressHealth.SUPPRESSED),)),
        ({second.pair: THREE}, (Candidate(THREE, second, AddressHealth.UNTRIED),)),
    ):
        choice = choose(
            [MIRRORED, second], ORDERS_HERE, _facts(), _health(two=AddressHealth.SUPPRESSED), principals=principals
        )
        assert choice == RouteChoice(RouteClass.MIRRORED, (MIRRORED, second), expected)
