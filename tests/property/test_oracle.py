"""
The router and the oracle, written apart from one another, decide alike.

Random situations first, and a proof that they reach every outcome; then cases worked out by hand, one for each choice
that the rules make, because what both have wrong alike no comparison finds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs

from broker.flow import Disposition
from broker.protocol.layout import NO_GUID
from broker.routing.address import LOCAL, TRANSPORT, Keyword, NetworkAddress, parse_address
from broker.routing.decide import AddressHealth, Decision, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.explain import DisplayNames, Explanation, Progress, explain
from broker.routing.route import AUTO_CREATED_LOCAL, Route
from broker.routing.table import RouteChange, RouteTable, build_table
from tests.support.oracle import DYNAMIC_ROUTING_SERVICE, SERVICE_THAT_ASKS, Answer, Instance, answer_of, outcome_of
from tests.support.tiers import examples

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)

CONVERSATION = bytes(range(16))
DB, ID1, ID2, NOWHERE = (UUID(int=number << 120 | 7).bytes for number in (1, 2, 3, 255))
HOST1, HOST2, HOST3 = (NetworkAddress(host, 4022) for host in ("host1", "host2", "host3"))
HOST1_OTHER_PORT = NetworkAddress("host1", 4023)
ADDRESSES = (HOST1, HOST2, HOST3, HOST1_OTHER_PORT)

NOT_LOCAL = {Disposition.FORWARDED, Disposition.FORWARDING_DISABLED, Disposition.PRINCIPAL_UNKNOWN}
NOT_HERE = {Disposition.SERVICE_NOT_HERE, Disposition.INSTANCE_NOT_HERE}


@dataclass(frozen=True)
class Situation:
    """A message, and the instance that has to route it."""

    facts: RoutingFacts
    here: Instance


def surroundings(situation: Situation) -> RoutingContext:
    """The same situation in the router's own words."""
    facts, here = situation.facts, situation.here
    msdb = build_table(here.msdb, now=here.now)
    return RoutingContext(
        table=msdb if facts.database is None else build_table(here.routes[facts.database], now=here.now),
        hosted=hosted(here.services),
        health_of=lambda address: here.health.get(address, AddressHealth.UNTRIED),
        is_forwarding=here.is_forwarding,
        msdb=msdb,
        own=here.own,
    )


def assert_agrees(answer: Answer, decision: Decision) -> None:
    """The decision is the answer, or one of those that the prose leaves open."""
    assert (answer.disposition, answer.step) == (decision.disposition, decision.step)
    assert answer.route == (None if decision.route is None else decision.route.name)
    assert answer.addresses == tuple(candidate.address for candidate in decision.candidates)
    assert decision.database in (answer.databases or [None])


def assert_explains(answer: Answer, facts: RoutingFacts, explanation: Explanation) -> None:
    """What is told is the answer, and so is what is told about each step of the last pass."""
    last = explanation.passes[-1]
    matched = [step for step in last.steps if step.progress is Progress.MATCHED]
    guids: set[str | None] = {str(UUID(bytes=database)) for database in answer.databases}

    assert outcome_of(facts, answer) == explanation.outcome
    assert (answer.disposition, answer.disposition.number) == (explanation.disposition, explanation.number)
    assert (answer.step, answer.route) == (explanation.step, explanation.route)
    assert explanation.next_hop == (str(answer.addresses[0]) if answer.addresses else None)
    assert explanation.database in (guids or {None})
    assert answer.passes == len(explanation.passes)
    assert [answer.step] == [step.step for step in matched]
    for step in last.steps:
        assert len(step.routes) == len({route.name for route in step.routes})
    if answer.step != 6:  # whose route is in no table
        assert answer.matching == tuple(route.name for route in matched[0].routes if route.is_taken)
    if answer.addresses:
        assert answer.addresses == tuple(parse_address(candidate.address) for candidate in last.candidates)


# --- random situations --------------------------------------------------------------------------------------

# Few of everything, so that they meet; and names that only look alike.
SERVICES = (
    "Orders",
    "orders",
    "tcp://host1:4022/Orders",
    "TCP://Host2/Orders",
    "tcp://host3",
    "tcp://host1:0/Orders",
    "host1:4022/Orders",
    "LOCAL",
    DYNAMIC_ROUTING_SERVICE,
    SERVICE_THAT_ASKS,
)
WANTED = "?"  # stands for the service that the message is for
DATABASES = (DB, ID1, ID2)
NAMES = ("A", "B", "AutoCreatedLocal", "a", "b", "c", "é")
# Address and mirror address; a mirrored route may lack the broker instance, as in the examples of the original.
Way = tuple[NetworkAddress | Keyword, NetworkAddress | None]
NETWORK_WAYS: tuple[Way, ...] = tuple((address, None) for address in ADDRESSES)
MIRRORED_WAYS: tuple[Way, ...] = ((HOST1, HOST2), (HOST2, HOST3))
LOCAL_WAYS: tuple[Way, ...] = ((LOCAL, None),) * 4
TRANSPORT_WAYS: tuple[Way, ...] = ((TRANSPORT, None),) * 4
LIFETIMES = (None, None, None, NOW - MOMENT, NOW, NOW + MOMENT)
WEIGHTS = (1, 1, 2, 1000)
Draft = tuple[str | None, bytes | None, Way, tuple[datetime | None, int]]

services = st.sampled_from(SERVICES)
named_services = st.sampled_from((WANTED,) * 2 * len(SERVICES) + SERVICES)
instances = st.sampled_from((*DATABASES, NOWHERE))
ways_with_a_name = st.sampled_from(NETWORK_WAYS + LOCAL_WAYS + MIRRORED_WAYS)
lives_and_weights = st.sampled_from(tuple(product(LIFETIMES, WEIGHTS)))
full_routes = st.tuples(named_services, instances, ways_with_a_name, lives_and_weights)
routes_by_name = st.tuples(named_services, st.none(), ways_with_a_name, lives_and_weights)
routes_of_last_resort = st.tuples(
    st.none(),
    st.none(),
    st.sampled_from(NETWORK_WAYS + LOCAL_WAYS + MIRRORED_WAYS + TRANSPORT_WAYS),
    lives_and_weights,
)
some_routes = full_routes | full_routes | routes_by_name | routes_of_last_resort
drafts = st.lists(some_routes, max_size=len(NAMES)) | st.lists(some_routes, min_size=4, max_size=len(NAMES))
orders = st.sampled_from((NAMES, NAMES[::-1], NAMES[::2] + NAMES[1::2]))
open_or_not = st.sampled_from((NO_GUID,) * 3 + (*DATABASES, NOWHERE))
conversations = st.binary(min_size=16, max_size=16)
senders = st.sampled_from((None,) * 3 + DATABASES)
services_hosted = st.dictionaries(st.sampled_from(DATABASES), st.frozensets(named_services, max_size=3))
healths = st.dictionaries(st.sampled_from(ADDRESSES), st.sampled_from(AddressHealth))
own_addresses = st.sampled_from(((), (HOST1,), (HOST2, HOST3), ADDRESSES)).map(frozenset)


def route(name: str, draft: Draft, wanted: str) -> Route:
    """A legal route: nothing but the way to the configuration service itself is out of bounds."""
    service, instance, (address, mirror), (lifetime, weight) = draft
    service = wanted if service == WANTED else service
    guid = None if instance is None or service == DYNAMIC_ROUTING_SERVICE else UUID(bytes=instance)
    return Route(name, address, service, guid, lifetime, mirror, weight)


@st.composite
def tables(draw: st.DrawFn, wanted: str) -> tuple[Route, ...]:
    """Up to seven routes in any order, most of those with a name to the service wanted."""
    return tuple([route(name, draft, wanted) for name, draft in zip(draw(orders), draw(drafts), strict=False)])


# Built once for every service, as Hypothesis takes longer to look at a new strategy than to draw from it.
TABLES = {service: tables(service) for service in SERVICES}


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """A message that comes from outside or from one of the databases here, to anywhere."""
    facts = RoutingFacts(draw(services), draw(open_or_not), draw(conversations), draw(st.booleans()), draw(senders))
    table = TABLES[facts.to_service]
    here = Instance(
        now=NOW,
        msdb=draw(table),
        routes={} if facts.database is None else {facts.database: draw(table)},
        services={} if facts.database is None else {facts.database: frozenset()},
        health=draw(healths),
        own=draw(own_addresses),
        is_forwarding=draw(st.booleans()),
    )
    hosted_here = {
        database: frozenset(facts.to_service if name == WANTED else name for name in names)
        for database, names in draw(services_hosted).items()
    }
    return Situation(facts, replace(here, services={**here.services, **hosted_here}))


@given(situations())
@settings(max_examples=examples(2000))
def test_the_router_decides_as_the_prose_says(situation: Situation) -> None:
    """Any message, any tables, any services, health, addresses and switch."""
    answer = answer_of(situation.facts, situation.here)

    assert_agrees(answer, decide(situation.facts, surroundings(situation)))


@given(situations())
@settings(max_examples=examples(1000))
def test_explaining_tells_what_the_prose_says(situation: Situation) -> None:
    """Explaining agrees with the oracle, and so with the data path."""
    answer = answer_of(situation.facts, situation.here)

    assert_explains(answer, situation.facts, explain(situation.facts, surroundings(situation), DisplayNames()))


@st.composite
def situations_with_a_past(draw: st.DrawFn) -> tuple[Situation, list[Instance]]:
    """A situation, and what the tables had been like before, twice."""
    situation = draw(situations())
    table, here = TABLES[situation.facts.to_service], situation.here
    earlier = [replace(here, msdb=draw(table), routes={one: draw(table) for one in here.routes}) for _ in range(2)]
    return situation, earlier


@given(changed=situations_with_a_past(), at_once=st.booleans())
@settings(max_examples=examples(500))
def test_how_a_table_came_about_changes_nothing(changed: tuple[Situation, list[Instance]], *, at_once: bool) -> None:
    """Statement after statement, or all in one script, and time goes by: decided as if it had always been so."""
    situation, earlier = changed
    facts, here = situation.facts, situation.here
    history = [*earlier, here]

    msdb = grown_table([instance.msdb for instance in history], at_once=at_once)
    table = msdb
    if facts.database is not None:
        table = grown_table([instance.routes[facts.database] for instance in history], at_once=at_once)
    with_tables = structs.replace(surroundings(situation), table=table, msdb=msdb)

    assert_agrees(answer_of(facts, here), decide(facts, with_tables))


def grown_table(history: list[tuple[Route, ...]], *, at_once: bool) -> RouteTable:
    """What a table becomes by a change for each route that is altered, created or dropped between its states."""
    table = build_table(history[0], now=NOW - MOMENT)
    changes: list[RouteChange] = []
    for before, after in pairwise(history):
        old, new = ({route.name: route for route in state} for state in (before, after))
        changes += [RouteChange(old.get(name), new.get(name)) for name in old | new]
    for batch in [changes] if at_once else [[change] for change in changes]:
        table = table.changed(batch)
    return table.at(NOW)


@given(situations())
@settings(max_examples=examples(300))
def test_nothing_depends_on_the_order_in_which_things_were_made(situation: Situation) -> None:
    """Two gateways with the same routes decide alike; so does one that has been started again."""
    here = situation.here
    backwards = replace(
        here,
        msdb=here.msdb[::-1],
        routes={database: table[::-1] for database, table in here.routes.items()},
        services=dict(reversed([*here.services.items()])),
        health=dict(reversed([*here.health.items()])),
    )

    assert decide(situation.facts, surroundings(situation)) == decide(
        situation.facts, surroundings(Situation(situation.facts, backwards))
    )


# What can come of each step. At steps 1, 3 and 6 there is always a broker instance to look for.
OUTCOMES = {
    0: {Disposition.DELIVERED},
    1: {*NOT_LOCAL, Disposition.DELIVERED, Disposition.INSTANCE_NOT_HERE, Disposition.ROUTE_INVALID},
    2: {*NOT_LOCAL, Disposition.DELIVERED, *NOT_HERE, Disposition.ROUTE_INVALID},
    3: {*NOT_LOCAL, Disposition.DELIVERED, Disposition.INSTANCE_NOT_HERE, Disposition.ROUTE_INVALID},
    4: {Disposition.ASKING_FOR_ROUTE},
    5: {*NOT_LOCAL, Disposition.DELIVERED, *NOT_HERE, Disposition.ROUTE_INVALID},
    6: {Disposition.DELIVERED, Disposition.INSTANCE_NOT_HERE},
    7: {Disposition.NO_ROUTE},
}


def test_the_random_situations_reach_every_outcome_of_every_step() -> None:
    """An agreement about what never happens would say nothing. The same situations at every run."""
    reached: dict[int, set[Disposition]] = {step: set() for step in OUTCOMES}
    steps_of_second_pass: set[int] = set()

    @given(situations())
    @settings(max_examples=5000, derandomize=True, phases=[Phase.generate])
    def visit(situation: Situation) -> None:
        answer = answer_of(situation.facts, situation.here)
        reached[answer.step].add(answer.disposition)
        if answer.passes == 2:
            steps_of_second_pass.add(answer.step)

    visit()

    assert OUTCOMES == reached
    assert {1, 2, 3, 5, 7} <= steps_of_second_pass  # step 6 is rare, and worked out by hand below


# --- cases by hand ------------------------------------------------------------------------------------------


def sent(to: str = "Orders", instance: bytes = NO_GUID) -> RoutingFacts:
    """A message of a conversation begun in the database."""
    return RoutingFacts(to, instance, CONVERSATION, database=DB)


def arrived(to: str = "Orders", instance: bytes = NO_GUID, *, is_from_target: bool = False) -> RoutingFacts:
    """A message from outside."""
    return RoutingFacts(to, instance, CONVERSATION, is_from_target)


def instance(*table: Route, msdb: Iterable[Route] = (), **more: Any) -> Instance:
    """An instance with one database, which has a service of its own."""
    return Instance(**{"now": NOW, "msdb": (*msdb,), "routes": {DB: table}, "services": {DB: {"Own"}}, **more})


def full(name: str, address: NetworkAddress | Keyword, broker_instance: bytes, **more: Any) -> Route:
    return Route(name, address, "Orders", UUID(bytes=broker_instance), **more)


def by_name(name: str, address: NetworkAddress | Keyword, service: str = "Orders", **more: Any) -> Route:
    return Route(name, address, service, **more)


def last_resort(name: str, address: NetworkAddress | Keyword, **more: Any) -> Route:
    return Route(name, address, **more)


def forwarded(step: int, route: str, *addresses: NetworkAddress, passes: int = 1) -> Answer:
    return Answer(Disposition.FORWARDED, step, route, addresses, passes=passes)


def delivered(step: int, route: str | None, *databases: bytes, passes: int = 1) -> Answer:
    return Answer(Disposition.DELIVERED, step, route, databases=frozenset(databases), passes=passes)


ASKED = by_name("asked", HOST3, DYNAMIC_ROUTING_SERVICE)
MIRRORED = full("mirrored", HOST1, ID1, mirror_address=HOST2)
TO_SELF = by_name("to self", HOST1)
SHARED: dict[str, Any] = {"services": {ID1: {"Orders"}, ID2: {"Orders"}, DB: {"Own"}}}
INVALID, OFF = Disposition.ROUTE_INVALID, Disposition.FORWARDING_DISABLED

CASES = {
    "R1.1 a route of msdb is none for what begins in a database": (
        (sent(), instance(msdb=[by_name("a", HOST1)])),
        Answer(Disposition.NO_ROUTE, 7),
    ),
    "R1.1 a route of a database is none for what arrives": (
        (arrived(), instance(by_name("a", HOST1))),
        Answer(Disposition.NO_ROUTE, 7),
    ),
    "R1.2 names compare byte for byte": (
        (sent(), instance(by_name("a", HOST1, "orders"))),
        Answer(Disposition.NO_ROUTE, 7),
    ),
    "R1.4 a route is live just before its instant": (
        (sent(), instance(by_name("a", HOST1, lifetime=NOW + MOMENT))),
        forwarded(2, "a", HOST1),
    ),
    "R1.4 a route is expired at its instant": (
        (sent(), instance(by_name("a", HOST1, lifetime=NOW))),
        Answer(Disposition.NO_ROUTE, 7),
    ),
    "R2.0 a reply to a database here is delivered before any matching": (
        (arrived(instance=DB, is_from_target=True), instance(msdb=[by_name("a", HOST1)])),
        delivered(0, None, DB),
    ),
    "R2.0 a reply that begins here is matched": (
        (structs.replace(sent(instance=DB), is_from_target=True), instance(by_name("a", HOST1))),
        forwarded(2, "a", HOST1),
    ),
    "R2.1 a full route comes before one by name": (
        (sent(instance=ID1), instance(by_name("a", HOST1), full("b", HOST2, ID1))),
        forwarded(1, "b", HOST2),
    ),
    "R2.2 a route by name turns balancing off": (
        (sent(), instance(full("a", HOST1, ID1), full("b", HOST2, ID2), by_name("c", HOST3))),
        forwarded(2, "c", HOST3),
    ),
    "R2.3 the heaviest route weighs, even where it is identical to another": (
        (sent(), instance(full("a", HOST1, ID1), full("b", HOST1, ID1, weight=1000), full("c", HOST2, ID2))),
        forwarded(3, "a", HOST1),
    ),
    "R2.3 likewise for the other instance": (
        (sent(), instance(full("a", HOST1, ID1), full("b", HOST2, ID2), full("c", HOST2, ID2, weight=1000))),
        forwarded(3, "b", HOST2),
    ),
    "R2.4 the configuration service is asked before the last resort": (
        (sent(), instance(ASKED, last_resort("a", LOCAL), services={DB: {"Orders"}})),
        Answer(Disposition.ASKING_FOR_ROUTE, 4, "asked"),
    ),
    "R2.4 nobody asks about the service that asks": (
        (arrived(SERVICE_THAT_ASKS), instance(msdb=[ASKED, last_resort("a", HOST1)])),
        forwarded(5, "a", HOST1),
    ),
    "R2.6 a service that is here is as if LOCAL for who names an instance": (
        (sent("Own", DB), instance()),
        delivered(6, "", DB),
    ),
    "R2.6 though the instance may be elsewhere": (
        (sent("Own", ID1), instance()),
        Answer(Disposition.INSTANCE_NOT_HERE, 6, ""),
    ),
    "R3.1 a mirrored route comes before LOCAL and holds the message": (
        (sent(instance=ID1), instance(MIRRORED, full("a", LOCAL, ID1), **SHARED)),
        Answer(Disposition.PRINCIPAL_UNKNOWN, 1, "mirrored"),
    ),
    "R3.2 LOCAL comes before a network address": (
        (sent(), instance(by_name("a", HOST1), by_name("b", LOCAL), services={DB: {"Orders"}})),
        delivered(2, "b", DB),
    ),
    "R3.3 a network address comes before TRANSPORT": (
        (sent("tcp://host2/x"), instance(last_resort("a", TRANSPORT), last_resort("b", HOST1))),
        forwarded(5, "b", HOST1),
    ),
    "R3.5 connected before not yet tried before suppressed": (
        (
            sent(),
            instance(
                *(by_name(name, host) for name, host in zip("abc", (HOST1, HOST2, HOST3), strict=True)),
                health={HOST2: AddressHealth.SUPPRESSED, HOST3: AddressHealth.CONNECTED},
            ),
        ),
        forwarded(2, "c", HOST3, HOST1, HOST2),
    ),
    "R3.6 TRANSPORT takes the address from the service name": (
        (sent("TCP://Host2/x"), instance(last_resort("a", TRANSPORT))),
        forwarded(5, "a", HOST2),
    ),
    "R3.6 a name that holds no address leads nowhere": (
        (sent(), instance(last_resort("a", TRANSPORT))),
        Answer(INVALID, 5, "a"),
    ),
    "R3.7 LOCAL without the service goes on to the network": (
        (sent(), instance(by_name("a", LOCAL), by_name("b", HOST1))),
        forwarded(2, "b", HOST1),
    ),
    "R3.7 LOCAL without the service and nothing else": (
        (sent(), instance(by_name("a", LOCAL))),
        Answer(Disposition.SERVICE_NOT_HERE, 2, "a"),
    ),
    "R3.8 what arrives is dropped while forwarding is off": (
        (arrived(), instance(msdb=[by_name("a", HOST1)], is_forwarding=False)),
        Answer(OFF, 2, "a"),
    ),
    "R3.8 even when its principal is not known": (
        (arrived(instance=ID1), instance(msdb=[MIRRORED], is_forwarding=False)),
        Answer(OFF, 1, "mirrored"),
    ),
    "R3.8 even when the address is that of this very instance": (
        (arrived(), instance(msdb=[TO_SELF], own=frozenset({HOST1}), is_forwarding=False)),
        Answer(OFF, 2, "to self"),
    ),
    "R3.8 what begins here is not": (
        (sent(), instance(by_name("a", HOST1), is_forwarding=False)),
        forwarded(2, "a", HOST1),
    ),
    "R3.9 an own address is routed again by msdb": (
        (sent(), instance(TO_SELF, msdb=[last_resort("a", HOST2)], own=frozenset({HOST1}))),
        forwarded(5, "a", HOST2, passes=2),
    ),
    "R3.9 and then forwarding must be active": (
        (sent(), instance(TO_SELF, msdb=[by_name("a", HOST2)], own=frozenset({HOST1}), is_forwarding=False)),
        Answer(OFF, 2, "a", passes=2),
    ),
    "R3.9 and never a third time": (
        (sent(), instance(TO_SELF, msdb=[TO_SELF], own=frozenset({HOST1}))),
        Answer(INVALID, 2, "to self", passes=2),
    ),
    "R3.9 an own address counts as connected": (
        (
            sent(),
            instance(TO_SELF, by_name("a", HOST2), own=frozenset({HOST1}), health={HOST1: AddressHealth.SUPPRESSED}),
        ),
        Answer(Disposition.NO_ROUTE, 7, passes=2),
    ),
    "R3.9 the second time as if LOCAL": (
        (sent(instance=ID2), instance(full("a", HOST1, ID2), own=frozenset({HOST1}), **SHARED)),
        delivered(6, "", ID2, passes=2),
    ),
    "R4.1 the named database gets it while another has the service": (
        (sent(instance=DB), instance(by_name("a", LOCAL), **SHARED)),
        delivered(2, "a", DB),
    ),
    "R4.1 the named database gets it while none has the service": (
        (sent(instance=DB), instance(by_name("a", LOCAL))),
        delivered(2, "a", DB),
    ),
    "R4.1 the route names the database": (
        (sent(), instance(full("a", LOCAL, ID2), **SHARED)),
        delivered(3, "a", ID2),
    ),
    "R4.2 the database of the conversation comes first": (
        (sent("Own"), instance(AUTO_CREATED_LOCAL, services={ID1: {"Own"}, DB: {"Own"}})),
        delivered(5, "AutoCreatedLocal", DB),
    ),
    "R4.2 then any other": (
        (sent(), instance(AUTO_CREATED_LOCAL, **SHARED)),
        delivered(5, "AutoCreatedLocal", ID1, ID2),
    ),
    "R4.3 a database that is not here": (
        (arrived(instance=NOWHERE), instance(msdb=[AUTO_CREATED_LOCAL], **SHARED)),
        Answer(Disposition.INSTANCE_NOT_HERE, 5, "AutoCreatedLocal"),
    ),
}
by_hand = pytest.mark.parametrize(("situation", "expected"), CASES.values(), ids=CASES)


@by_hand
def test_the_oracle_knows_the_case(situation: tuple[RoutingFacts, Instance], expected: Answer) -> None:
    """The answer is the one worked out by hand."""
    facts, here = situation

    assert expected == answer_of(facts, here)


@by_hand
def test_the_router_knows_the_case(situation: tuple[RoutingFacts, Instance], expected: Answer) -> None:
    """The same, without the oracle between."""
    facts, here = situation

    assert_agrees(expected, decide(facts, surroundings(Situation(facts, here))))
