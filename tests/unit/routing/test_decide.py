"""
The decision as a whole, case by case.

Cases 1a to 7d are those of "Service Broker Routing Examples", R1 to R16 those of the texts on routing, forwarding and
multiple routes; an id of the tables below begins with the case it proves. Routes of the sending database and of msdb
are two tables: a case names the one that holds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from unittest import mock
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.flow import Disposition
from broker.protocol.layout import NO_GUID
from broker.routing import decide as module
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress, parse_address
from broker.routing.decide import (
    NEVER_ASKED_ABOUT,
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
    decide,
    hosted,
    match,
    pick_instance,
    score,
    wanted_instance,
)
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, Route
from broker.routing.table import RouteTable, build_table

# --- choose ---
# The four classes in their order, routes that count as one, and the order of the addresses that lead on.


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


NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ID1, ID2, ID3 = UUID(int=0x1D1), UUID(int=0x1D2), UUID(int=0x1D3)
SENDER, OTHER = UUID(int=0x5E), UUID(int=0x07)  # two databases of this instance
FORWARDED, DELIVERED = Disposition.FORWARDED, Disposition.DELIVERED
NOT_HERE = Disposition.SERVICE_NOT_HERE

ACL = AUTO_CREATED_LOCAL


def _to(address: str, service: str | None = None, instance: UUID | None = None, *, mirror: str | None = None) -> Route:
    mirror_address = None if mirror is None else NetworkAddress(mirror)
    return Route(address, parse_address(address), service, instance, mirror_address=mirror_address)


def _here(
    routes: Iterable[Route],
    *,
    sender: Iterable[str] = (),
    other: Iterable[str] = (),
    is_forwarding: bool = True,
    health_of: HealthOf = lambda _: AddressHealth.UNTRIED,
) -> RoutingContext:
    databases = hosted({SENDER.bytes: sender, OTHER.bytes: other})
    return RoutingContext(build_table(routes, now=NOW), databases, health_of, is_forwarding)


def _begun(service: str, instance: UUID | None = None, *, conversation: int = 1) -> RoutingFacts:
    """What a conversation begun in the database SENDER says."""
    return replace(_incoming(service, instance, conversation=conversation), database=SENDER.bytes)


def _incoming(service: str, instance: UUID | None = None, *, conversation: int = 1) -> RoutingFacts:
    """What a frame from outside says."""
    return RoutingFacts(service, NO_GUID if instance is None else instance.bytes, conversation.to_bytes(16, "big"))


@dataclass(frozen=True)
class Case:
    """Shape: `goes_to` the next hop's host or the database; None where it goes nowhere."""

    id: str
    facts: RoutingFacts
    here: RoutingContext
    disposition: Disposition
    step: int
    goes_to: str | UUID | None = None


EXAMPLE_3 = (ACL, _to("tcp://partner1", "OrderParts", ID1, mirror="partner2"))
EXAMPLE_4 = (ACL, _to("tcp://forwarding"))
EXAMPLE_5 = (ACL, _to("tcp://server1", "S", ID1), _to("tcp://server2", "S", ID2))
BY_TRANSPORT_of_decide = (_to("TRANSPORT"),)

CASES = [
    # matching
    Case("R1", _begun("S", ID1), _here([_to("tcp://name", "S"), _to("tcp://full", "S", ID1)]), FORWARDED, 1, "full"),
    Case("R2", _begun("S"), _here([*EXAMPLE_5, _to("tcp://name", "S")]), FORWARDED, 2, "name"),
    Case("R3 to the last resort", _begun("S", ID3), _here([*EXAMPLE_5, _to("tcp://last")]), FORWARDED, 5, "last"),
    Case("R3 as if local", _begun("S", OTHER), _here(EXAMPLE_5[1:], other=["S"]), DELIVERED, 6, OTHER),
    Case("R3 delayed", _begun("S", ID3), _here(EXAMPLE_5[1:]), Disposition.NO_ROUTE, 7),
    Case("R4 that database", _begun("S", OTHER), _here([], sender=["S"], other=["S"]), DELIVERED, 6, OTHER),
    Case("R4 without the service", _begun("S", OTHER), _here([], sender=["S"]), DELIVERED, 6, OTHER),
    Case("R4 another instance", _begun("S", ID1), _here([], sender=["S"]), Disposition.INSTANCE_NOT_HERE, 6),
    Case("R4 nowhere here", _begun("S", OTHER), _here([]), Disposition.NO_ROUTE, 7),
    Case("no route and no instance named", _begun("S"), _here([], sender=["S"]), Disposition.NO_ROUTE, 7),
    Case("incoming without any route", _incoming("S"), _here([], sender=["S"]), Disposition.NO_ROUTE, 7),
    # choosing
    Case("R15", _begun("tcp://h:4022/x"), _here(BY_TRANSPORT_of_decide), FORWARDED, 5, "h"),
    Case("R15 no address in the name", _begun("x"), _here(BY_TRANSPORT_of_decide), Disposition.ROUTE_INVALID, 5),
    Case("R15 no address, though the service is here", _begun("x", OTHER), _here(BY_TRANSPORT_of_decide, other=["x"]),
         Disposition.ROUTE_INVALID, 5),
    Case("R15 after LOCAL", _begun("x"), _here([*BY_TRANSPORT_of_decide, ACL]), NOT_HERE, 5),
    Case("R16 network", _incoming("A"), _here([_to("tcp://far")], is_forwarding=False),
         Disposition.FORWARDING_DISABLED, 5),
    Case("R16 TRANSPORT", _incoming("tcp://h/x"), _here(BY_TRANSPORT_of_decide, is_forwarding=False),
         Disposition.FORWARDING_DISABLED, 5),
    Case("R16 mirrored", _incoming("OrderParts", ID1), _here(EXAMPLE_3, is_forwarding=False),
         Disposition.FORWARDING_DISABLED, 1),
    Case("R16 mirrored, forwarding", _incoming("OrderParts", ID1), _here(EXAMPLE_3), Disposition.PRINCIPAL_UNKNOWN, 1),
    Case("forwarding off does not hold what begins here", _begun("A"), _here(EXAMPLE_4, is_forwarding=False),
         FORWARDED, 5, "forwarding"),
    Case("LOCAL fails, a network address is next", _begun("A"), _here([ACL, _to("tcp://next")]), FORWARDED, 5, "next"),
    Case("LOCAL fails for another instance", _begun("A", ID1), _here([ACL, _to("tcp://next")], sender=["A"]),
         FORWARDED, 5, "next"),
    # locating
    Case("sender's own database first", _begun("A"), _here([ACL], sender=["A"], other=["A"]), DELIVERED, 5, SENDER),
    Case("dialog names the database", _begun("A", OTHER), _here([ACL], sender=["A"], other=["A"]), DELIVERED, 5, OTHER),
    Case("route names the database", _begun("A"), _here([_to("LOCAL", "A", OTHER)], sender=["A"], other=["A"]),
         DELIVERED, 3, OTHER),
    Case("route names another instance", _begun("A"), _here([_to("LOCAL", "A", ID1)], sender=["A"]),
         Disposition.INSTANCE_NOT_HERE, 3),
    Case("named database answers that the service is not in it", _incoming("A", OTHER), _here([ACL], sender=["A"]),
         DELIVERED, 5, OTHER),
    Case("and so it does when no database has the service", _incoming("A", OTHER), _here([ACL]), DELIVERED, 5, OTHER),
    Case("instance not hosted here", _incoming("A", ID1), _here([ACL], sender=["A"]),
         Disposition.INSTANCE_NOT_HERE, 5),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    decision = decide(case.facts, case.here)

    goes_to: str | UUID | None = None
    if decision.candidates:
        goes_to = decision.candidates[0].address.host
    elif decision.database is not None:
        goes_to = UUID(bytes=decision.database)
    assert (case.disposition, case.step, case.goes_to) == (decision.disposition, decision.step, goes_to)
    assert not decision.is_by_conversation


def test_decision_names_the_route_it_followed() -> None:
    forwarding = _to("tcp://forwarding")
    here = _here([forwarding, ACL, _to("TRANSPORT")], sender=["A"])

    decided = {service: decide(_begun(service), here).route for service in ("A", "B")}

    assert {"A": ACL, "B": forwarding} == decided


def test_failed_decision_names_the_local_route_that_did_not_work() -> None:
    here = _here([_to("TRANSPORT"), ACL])

    assert decide(_begun("x"), here).route == ACL


# --- 5a, R6: load shared by conversation ---


def _spread(here: RoutingContext, dialogs: int = 2000) -> dict[str, float]:
    """The share of open dialogs to S that each host gets."""
    decided = [decide(_begun("S", conversation=n), here) for n in range(dialogs)]
    hosts = Counter(decision.candidates[0].address.host for decision in decided)
    assert all(decision.is_by_conversation for decision in decided)
    return {host: count / dialogs for host, count in hosts.items()}


def test_5a_open_dialogs_share_the_instances_and_each_names_one_route() -> None:
    here = _here(EXAMPLE_5)
    decision = decide(_begun("S"), here)

    shares = _spread(here)

    assert shares == pytest.approx({"server1": 0.5, "server2": 0.5}, abs=0.05)
    assert (decision.disposition, decision.step, len(decision.candidates)) == (FORWARDED, 3, 1)


# --- R7, R8: several addresses ---


@pytest.mark.parametrize(
    "routes",
    [
        (_to("tcp://one", "S", ID1), _to("tcp://two", "S", ID1)),  # R7: two gateways to one instance
        (_to("tcp://one", "S"), _to("tcp://two", "S")),  # R8: two hosts by name
        (_to("tcp://one"), _to("tcp://two")),
    ],
)
@pytest.mark.parametrize("lost", ["one", "two"])
def test_r7_r8_every_address_is_a_candidate_and_losing_one_leaves_the_other(
    routes: tuple[Route, ...], lost: str
) -> None:
    kept = {"one": "two", "two": "one"}[lost]
    here = _here(routes, health_of=lambda a: AddressHealth.SUPPRESSED if a.host == lost else AddressHealth.CONNECTED)

    for n in range(16):
        decision = decide(_begun("S", conversation=n), here)

        assert [kept, lost] == [candidate.address.host for candidate in decision.candidates]
        assert decision.is_by_conversation


# --- R5: replies ---


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (replace(_incoming("A", ID1), is_from_target=True), "its broker instance is not here"),
        (replace(_incoming("A"), is_from_target=True), "it names no broker instance"),
        (_incoming("A", SENDER), "it is no reply"),
        (replace(_begun("A", OTHER), is_from_target=True), "it did not come from outside"),
    ],
)
def test_r5_everything_else_is_matched(facts: RoutingFacts, why: str) -> None:
    decision = decide(facts, _here([_to("tcp://far", "A")]))

    assert (decision.disposition, decision.step) == (FORWARDED, 2), why


# --- R10: expiry ---


# --- several databases here ---


def test_database_with_the_service_is_picked_by_the_dialog_when_nothing_names_one() -> None:
    here = _here([ACL], sender=["A"], other=["A"])

    decided = [decide(_incoming("A", conversation=n), here) for n in range(400)]

    databases = Counter(decision.database for decision in decided)
    assert databases == pytest.approx({SENDER.bytes: 200, OTHER.bytes: 200}, abs=60)
    assert all(decision.is_by_conversation for decision in decided)
    assert decided == [decide(_incoming("A", conversation=n), here) for n in range(400)]


def test_an_own_address_counts_as_connected_and_is_routed_again_by_msdb() -> None:
    here = _here([_to("tcp://me", "S"), _to("tcp://far", "S")], health_of=lambda _: AddressHealth.SUPPRESSED)
    here = replace(here, own=frozenset({NetworkAddress("me")}))

    assert (Disposition.NO_ROUTE, 7) == (decide(_begun("S"), here).disposition, decide(_begun("S"), here).step)


# --- what a cache may keep ---


@pytest.mark.parametrize(
    ("first", "here", "expected"),
    [
        (
            "the instance picked is not here",
            _here([_to("LOCAL", "S", ID1), _to("tcp://server2", "S", ID2)]),
            {Disposition.INSTANCE_NOT_HERE, FORWARDED},
        ),
        (
            "the database picked answers with an error",
            _here([_to("LOCAL", "S", OTHER), _to("tcp://server2", "S", ID2)]),
            {DELIVERED, FORWARDED},
        ),
        (
            "the instance picked has no known principal",
            _here([_to("tcp://a", "S", ID1, mirror="b"), _to("tcp://server2", "S", ID2)]),
            {Disposition.PRINCIPAL_UNKNOWN, FORWARDED},
        ),
        (
            "one of the two is here and forwarding is off",
            _here([_to("LOCAL", "S", OTHER), _to("tcp://server2", "S", ID2)], other=["S"], is_forwarding=False),
            {DELIVERED, Disposition.FORWARDING_DISABLED},
        ),
    ],
)
def test_balanced_decision_is_by_conversation_whatever_becomes_of_it(
    first: str, here: RoutingContext, expected: set[Disposition]
) -> None:
    """A drop remembered for one dialog must not drop the dialogs that pick another instance."""
    decided = [decide(_incoming("S", conversation=n), here) for n in range(32)]

    assert expected == {decision.disposition for decision in decided}, first
    assert all(decision.is_by_conversation for decision in decided)


# --- mirrors here ---


def _with_mirror(here: RoutingContext) -> RoutingContext:
    """ID1 is a mirror here."""
    return replace(here, hosted=replace(here.hosted, mirrors=frozenset({ID1.bytes})))


@pytest.mark.parametrize(
    ("facts", "routes", "step"),
    [
        (_incoming("S", ID1), [ACL], 5),
        (_incoming("S", ID1), [_to("LOCAL", "S", ID1)], 1),
        (_incoming("S"), [_to("LOCAL", "S", ID1)], 3),
        (_incoming("S", ID1), [], 6),
        (replace(_incoming("S", ID1), is_from_target=True), [], 0),
        (replace(_incoming("S", ID1), is_from_target=True), [_to("tcp://far", "S")], 0),
        (_begun("S", ID1), [ACL], 5),
    ],
)
def test_what_is_for_a_mirror_here_is_refused(facts: RoutingFacts, routes: list[Route], step: int) -> None:
    """Whether other databases have the service or not."""
    for other in ([], ["S"]):
        decision = decide(facts, _with_mirror(_here(routes, other=other)))

        assert (Disposition.DATABASE_IS_MIRROR, step, None) == (decision.disposition, decision.step, decision.database)


def test_a_mirror_is_in_nobody_s_way() -> None:
    for facts in (_incoming("S", OTHER), replace(_incoming("S", OTHER), is_from_target=True), _incoming("S")):
        decision = decide(facts, _with_mirror(_here([ACL], other=["S"])))

        assert (DELIVERED, OTHER.bytes) == (decision.disposition, decision.database)


# --- mirrored routes ---

PAIR = _to("tcp://first", "S", ID1, mirror="second")
FIRST, SECOND = NetworkAddress("first"), NetworkAddress("second")


def _led(here: RoutingContext, principal: NetworkAddress, *, own: Iterable[NetworkAddress] = ()) -> RoutingContext:
    assert PAIR.pair is not None
    return replace(here, principals={PAIR.pair: principal}, own=frozenset(own), msdb=here.table)


@pytest.mark.parametrize("facts", [_begun("S", ID1), _begun("S"), _incoming("S", ID1)])
@pytest.mark.parametrize("principal", [FIRST, SECOND])
def test_everything_goes_to_the_principal(facts: RoutingFacts, principal: NetworkAddress) -> None:
    decision = decide(facts, _led(_here([PAIR, ACL], health_of=lambda _: AddressHealth.SUPPRESSED), principal))

    assert (FORWARDED, PAIR) == (decision.disposition, decision.route)
    assert [(principal, AddressHealth.SUPPRESSED)] == [(one.address, one.health) for one in decision.candidates]
    assert not decision.is_by_conversation


def test_what_arrives_for_a_principal_elsewhere_is_forwarded_only_where_forwarding_is_on() -> None:
    here = _led(_here([PAIR], is_forwarding=False), FIRST)

    assert Disposition.FORWARDING_DISABLED is decide(_incoming("S", ID1), here).disposition


@pytest.mark.parametrize("facts", [_begun("S", OTHER), _incoming("S", OTHER), _incoming("S")])
def test_what_comes_to_the_principal_itself_is_delivered(facts: RoutingFacts) -> None:
    """Both partners may have the same routes."""
    route = _to("tcp://first", "S", OTHER, mirror="second")
    assert route.pair is not None
    here = _here([route], other=["S"], is_forwarding=False)
    here = replace(here, principals={route.pair: FIRST}, own=frozenset({FIRST}), msdb=here.table)

    decision = decide(facts, here)

    assert (DELIVERED, OTHER.bytes, route) == (decision.disposition, decision.database, decision.route)


def test_principal_that_is_here_without_its_database_gets_nothing() -> None:
    """It said so a moment ago, and is none now."""
    here = _led(_here([PAIR]), FIRST, own=[FIRST])
    mirror = replace(here, hosted=hosted({}, mirrors=[ID1.bytes]))

    assert Disposition.INSTANCE_NOT_HERE is decide(_incoming("S", ID1), here).disposition
    assert Disposition.DATABASE_IS_MIRROR is decide(_incoming("S", ID1), mirror).disposition


def test_partner_here_sends_on_to_the_principal() -> None:
    here = _led(_here([PAIR]), SECOND, own=[FIRST])

    assert [SECOND] == [one.address for one in decide(_begun("S", ID1), here).candidates]


# --- facts ---
# What a frame says about where it wants to go, and what this instance hosts.


EAST_of_facts, WEST_of_facts, NORTH = b"e" * 16, b"w" * 16, b"n" * 16


def test_hosted_databases_are_found_by_instance_and_by_service() -> None:
    here = hosted({WEST_of_facts: ["Orders", "Billing", "Orders"], EAST_of_facts: ["Orders"], NORTH: []})

    assert {WEST_of_facts: {"Orders", "Billing"}, EAST_of_facts: {"Orders"}, NORTH: set()} == here.services_of
    assert here.databases_with == {"Orders": (EAST_of_facts, WEST_of_facts), "Billing": (WEST_of_facts,)}


def test_databases_of_a_service_are_sorted_however_they_were_given() -> None:
    forwards = hosted({EAST_of_facts: ["Orders"], NORTH: ["Orders"], WEST_of_facts: ["Orders"]})
    backwards = hosted({WEST_of_facts: ["Orders"], NORTH: ["Orders"], EAST_of_facts: ["Orders"]})

    assert (forwards.databases_with["Orders"], backwards.databases_with["Orders"]) == (
        (EAST_of_facts, NORTH, WEST_of_facts),
    ) * 2


# --- match ---
# The steps of matching one by one, their order, and the balancing of step 3.


NORTH_of_match = UUID(int=16)
GATEWAY = NetworkAddress("gateway")

BY_NAME = Route("by name", GATEWAY, "Orders")
TO_EAST = Route("to east", GATEWAY, "Orders", EAST)
TO_WEST = Route("to west", GATEWAY, "Orders", WEST)
EVERYTHING = (AUTO_CREATED_LOCAL, BY_NAME, TO_EAST, TO_WEST)


def _table(routes: Iterable[Route]) -> RouteTable:
    return build_table(routes, now=NOW)


def _facts_of_match(
    instance: UUID | None = None, *, service: str = "Orders", conversation: bytes = DIALOG
) -> RoutingFacts:
    return RoutingFacts(service, NO_GUID if instance is None else instance.bytes, conversation)


@pytest.mark.parametrize(
    ("facts", "routes", "expected"),
    [
        # step 1: the dialog names a broker instance
        (_facts_of_match(EAST), EVERYTHING, Match(1, (TO_EAST,))),
        (_facts_of_match(WEST), EVERYTHING, Match(1, (TO_WEST,))),
        # step 2: by name
        (_facts_of_match(NORTH_of_match), EVERYTHING, Match(2, (BY_NAME,))),
        (_facts_of_match(), EVERYTHING, Match(2, (BY_NAME,))),
        # step 3: an open dialog, and broker instances to pick from
        (_facts_of_match(), (AUTO_CREATED_LOCAL, TO_EAST), Match(3, (TO_EAST,))),
        (_facts_of_match(NORTH_of_match), (AUTO_CREATED_LOCAL, TO_EAST), Match(5, (AUTO_CREATED_LOCAL,))),
        # step 5: whatever is for everything
        (_facts_of_match(service="Billing"), EVERYTHING, Match(5, (AUTO_CREATED_LOCAL,))),
        (_facts_of_match(EAST, service="Billing"), EVERYTHING, Match(5, (AUTO_CREATED_LOCAL,))),
        (_facts_of_match(service="orders"), EVERYTHING, Match(5, (AUTO_CREATED_LOCAL,))),
        # nothing
        (_facts_of_match(), (), Match(7)),
        (_facts_of_match(EAST), (TO_WEST,), Match(7)),
        (_facts_of_match(service="Billing"), (BY_NAME, TO_EAST), Match(7)),
    ],
)
def test_first_step_that_yields_a_route_ends_the_search(
    facts: RoutingFacts, routes: tuple[Route, ...], expected: Match
) -> None:
    assert expected == match(_table(routes), NOTHING_HERE, facts)


def test_every_route_of_the_step_matches() -> None:
    routes = [Route(name, NetworkAddress(name), "Orders", EAST) for name in ("one", "three", "two")]

    assert Match(1, tuple(routes)) == match(_table([*routes, TO_WEST]), NOTHING_HERE, _facts_of_match(EAST))


def test_last_resort_ignores_routes_by_name_of_another_service() -> None:
    last = Route("last", GATEWAY)

    assert Match(5, (last,)) == match(_table([BY_NAME, last]), NOTHING_HERE, _facts_of_match(service="Billing"))


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (_facts_of_match(NORTH_of_match), 6),
        (_facts_of_match(), 7),  # only a dialog that names a broker instance is routed as if LOCAL
        (_facts_of_match(NORTH_of_match, service="Billing"), 7),
    ],
)
def test_named_instance_and_a_service_here_are_as_if_local(facts: RoutingFacts, step: int) -> None:
    here = hosted({EAST.bytes: ["Orders"]})

    found = match(_table([]), here, facts)

    assert step == found.step
    assert [("", LOCAL, "Orders")] * (step == 6) == [
        (route.name, route.address, route.remote_service_name) for route in found.routes
    ]


def test_balanced_dialog_matches_the_routes_of_one_instance_only() -> None:
    second_to_east = Route("second to east", NetworkAddress("other"), "Orders", EAST)
    table = _table([TO_EAST, TO_WEST, second_to_east])
    found = {match(table, NOTHING_HERE, _facts_of_match(conversation=bytes([n]) * 16)) for n in range(32)}

    assert {Match(3, (second_to_east, TO_EAST), is_balanced=True), Match(3, (TO_WEST,), is_balanced=True)} == found


def test_same_dialog_always_picks_the_same_instance() -> None:
    forwards = match(_table([TO_EAST, TO_WEST]), NOTHING_HERE, _facts_of_match())
    backwards = match(_table([TO_WEST, TO_EAST]), NOTHING_HERE, _facts_of_match())

    assert forwards == backwards


def _share_of_east(routes: list[Route], dialogs: int = 6000) -> float:
    """The part of the dialogs that take a route to EAST."""
    table = _table(routes)
    found = [match(table, NOTHING_HERE, _facts_of_match(conversation=n.to_bytes(16, "big"))) for n in range(dialogs)]
    return Counter(one.routes[0].broker_instance for one in found)[EAST] / dialogs


def test_instances_share_dialogs_by_the_heaviest_of_their_routes() -> None:
    routes = [Route(str(weight), GATEWAY, "Orders", EAST, weight=weight) for weight in (1, 3, 2)]

    assert _share_of_east([*routes, TO_WEST]) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("service", sorted(NEVER_ASKED_ABOUT))
def test_nobody_asks_about_the_service_that_is_asked_or_the_one_that_asks(service: str) -> None:
    table = _table([Route("ask", LOCAL, BROKER_CONFIGURATION), AUTO_CREATED_LOCAL])
    facts = RoutingFacts(service, NO_GUID, DIALOG)

    assert match(table, NOTHING_HERE, facts).step == (2 if service == BROKER_CONFIGURATION else 5)


def test_expired_route_to_the_configuration_service_is_not_asked() -> None:
    ask = Route("ask", LOCAL, BROKER_CONFIGURATION, lifetime=NOW)

    assert match(_table([ask]), NOTHING_HERE, _facts_of_match(NORTH_of_match)).step == 7


def test_lower_guid_wins_a_tie() -> None:
    with mock.patch.object(module, "score", return_value=1.0):
        picked = pick_instance(DIALOG, {WEST.bytes: 1, EAST.bytes: 1})

    assert EAST.bytes == picked


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
        value = score(DIALOG, EAST.bytes)

    assert expected == pytest.approx(value)
    assert value > 0


def test_score_pins_which_instance_gateways_of_every_release_pick() -> None:
    """All gateways must pick alike, so the hash is part of the contract: these values never change."""
    by_instance = {instance.bytes: 1 for instance in (EAST, WEST, NORTH_of_match)}
    picked = [pick_instance(bytes([n]) * 16, by_instance)[-1] for n in range(8)]

    assert picked == [0xE, 0xF, 0xF, 0xF, 0x10, 0xE, 0x10, 0xF]
