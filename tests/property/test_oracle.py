"""The router and the oracle, written apart from one another, decide alike in random situations."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from broker.protocol.layout import NO_GUID
from broker.routing.address import LOCAL, TRANSPORT, Keyword, NetworkAddress, parse_address
from broker.routing.decide import AddressHealth, Decision, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.explain import DisplayNames, Explanation, Progress, explain
from broker.routing.route import Route
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


@dataclass(frozen=True)
class Situation:
    """A message, and the instance that has to route it."""

    facts: RoutingFacts
    here: Instance


def surroundings(situation: Situation) -> RoutingContext:
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


# --- random situations ---

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
@pytest.mark.promise(
    "R1.4",
    "R1.5",
    "R2.0",
    "R2.1",
    "R2.2",
    "R2.3",
    "R2.5",
    "R2.6",
    "R2.7",
    "R3.1",
    "R3.2",
    "R3.3",
    "R3.4",
    "R3.5",
    "R3.6",
    "R3.7",
    "R3.8",
    "R4.1",
    "routing 8",
    "routing 18",
    "routing 19",
    "routing 20",
    "routing 26",
    "multiple 17",
)
def test_the_router_decides_as_the_prose_says(situation: Situation) -> None:
    """Any message, any tables, services, health, addresses and switch; explaining and the order of rows included."""
    facts, here = situation.facts, situation.here
    answer = answer_of(facts, here)
    backwards = replace(
        here,
        msdb=here.msdb[::-1],
        routes={database: table[::-1] for database, table in here.routes.items()},
        services=dict(reversed([*here.services.items()])),
        health=dict(reversed([*here.health.items()])),
    )

    decision = decide(facts, surroundings(situation))

    assert_agrees(answer, decision)
    assert_explains(answer, facts, explain(facts, surroundings(situation), DisplayNames({}, str, str)))
    assert decision == decide(facts, surroundings(Situation(facts, backwards)))


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
