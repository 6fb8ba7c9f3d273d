"""What becomes of a key: for every table and frame the same as `broker explain` and `broker routes plan` tell."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.pipeline.plan.key import Origin
from broker.pipeline.plan.ruling import NO_DATABASE, NO_FACTS, NO_INSTANCE, Judge, Key, Way
from broker.pipeline.plan.site import Change
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.choose import Health
from broker.routing.decide import Surroundings
from broker.routing.explain import Names, explain
from broker.routing.facts import Facts, hosted
from broker.routing.fate import UNCHANGED, Fate
from broker.routing.journey import Site
from broker.routing.plan import Flow, consequence
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.property.test_routing import ADDRESSES, INSTANCES, facts, guids, routes, services

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ONE, TWO = (instance.bytes for instance in INSTANCES[:2])
NAMES = {ONE: "orders", TWO: "stock"}


def site(msdb: list[Route], databases: dict[bytes, list[Route]] | None = None, **told: Any) -> Site:
    services_of = {instance: set() for instance in databases or {}} | told.pop("services", {})
    return Site(
        "a",
        told.pop("addresses", frozenset()),
        build_table(msdb, now=NOW),
        {instance: build_table(some, now=NOW) for instance, some in (databases or {}).items()},
        hosted(services_of),
        **{"is_forwarding": True} | told,
    )


def key(question: Facts, *, from_service: str | None = None) -> Key:
    origin = Origin.ARRIVED if question.is_incoming else Origin.HERE
    named = None if question.is_open else question.to_broker_instance
    place = "a", int(origin), question.database, from_service, question.to_service
    return Key(*place, named, question.is_from_target)


def surroundings(one: Site, question: Facts) -> Surroundings:
    table = one.msdb if question.database is None else one.databases[question.database]
    return Surroundings(
        table, one.hosted, lambda _: Health.UNTRIED, one.is_forwarding, msdb=one.msdb, own=one.addresses
    )


tables = st.lists(routes, max_size=8)
sites = st.builds(
    lambda msdb, one, two, services, addresses, is_forwarding: site(
        msdb,
        {ONE: one, TWO: two},
        services=dict(zip((ONE, TWO), services, strict=True)),
        addresses=addresses,
        is_forwarding=is_forwarding,
    ),
    tables,
    tables,
    tables,
    st.tuples(st.sets(services, max_size=3), st.sets(services, max_size=3)),
    st.frozensets(st.sampled_from(ADDRESSES), max_size=1),
    st.booleans(),
)
questions = st.builds(
    lambda one, database: Facts(
        one.to_service, one.to_broker_instance, one.conversation_id, one.is_from_target, database
    ),
    facts,
    st.sampled_from([None, ONE, TWO]),
)


@given(sites, sites, questions, guids)
@settings(max_examples=300)
def test_both_ways_are_those_that_explain_tells_and_the_fate_is_that_of_a_plan(
    before: Site, after: Site, question: Facts, other: bytes
) -> None:
    judge = Judge(Change({"a": before}, {"a": after}, NAMES))

    ruling = judge.rule(key(question), question.conversation_id)

    here, there = surroundings(before, question), surroundings(after, question)
    told = consequence(Flow("", question, has_sent=True), here, there)
    assert (told.fate, told.is_harm, told.is_by_conversation) == (
        ruling.fate,
        ruling.is_harm,
        ruling.is_by_conversation,
    )
    for way, one in ((ruling.before, here), (ruling.after, there)):
        same_as_explained(way, question, one)
    if not ruling.is_by_conversation:
        assert ruling == judge.rule(key(question), other)


def same_as_explained(way: Way | None, question: Facts, here: Surroundings) -> None:
    assert way is not None
    explained = explain(question, here, Names(NAMES))
    assert (explained.outcome, explained.route) == (way.outcome, way.route)
    if explained.database is not None:
        assert (explained.database if explained.is_service_there else None) == way.next_hop
    elif explained.outcome != "held":
        assert explained.next_hop == way.next_hop
    assert explained.outcome != "forwarded" or way.next_hop in way.places


def gateway(*addresses: str, **told: Any) -> Site:
    return site([Route(f"r{number}", NetworkAddress(one), "S") for number, one in enumerate(addresses)], **told)


FACTS = Facts("S", bytes(16), bytes(16))


def test_routes_of_both_tables_are_used_when_the_way_leads_through_this_instance() -> None:
    own = frozenset({NetworkAddress("a")})
    msdb = [Route("on", NetworkAddress("b"), "S")]
    one = site(msdb, {ONE: [Route("self", NetworkAddress("a"), "S")]}, addresses=own)
    question = Facts("S", bytes(16), bytes(16), database=ONE)

    ruling = Judge(Change({"a": one}, {"a": one}, NAMES)).rule(key(question), bytes(16))

    assert ruling.before is not None
    assert (("orders", "self"), ("msdb", "on")) == ruling.before.used
    assert ("tcp://b:4022", Fate.KEEPS) == (ruling.before.next_hop, ruling.fate)


def test_further_addresses_stand_by() -> None:
    one = gateway("b", "c")

    ruling = Judge(Change({"a": one}, {"a": one})).rule(key(FACTS), bytes(16))

    assert ruling.before is not None
    assert {("msdb", "r0"), ("msdb", "r1")} == {*ruling.before.used, *ruling.before.standby}
    assert (1, 1, True) == (len(ruling.before.used), len(ruling.before.standby), ruling.is_by_conversation)


def test_a_mirrored_pair_is_one_next_hop() -> None:
    pair = Route("m", NetworkAddress("b"), "S", INSTANCES[0], mirror_address=NetworkAddress("c"))
    question = Facts("S", ONE, bytes(16))

    ruling = Judge(Change({"a": site([pair])}, {"a": site([pair])})).rule(key(question), bytes(16))

    assert ruling.before is not None
    assert ("tcp://b:4022 or tcp://c:4022", "held") == (ruling.before.next_hop, ruling.before.outcome)
    assert ("tcp://b:4022", "tcp://c:4022") == ruling.before.places


def test_a_database_is_a_next_hop_by_its_name() -> None:
    one = site([Route("here", LOCAL)], {ONE: []}, services={ONE: {"S"}})

    ruling = Judge(Change({"a": one}, {"a": one}, NAMES)).rule(key(FACTS), bytes(16))

    assert ruling.before is not None
    assert ("orders", True, ("orders",)) == (ruling.before.next_hop, ruling.before.is_here, ruling.before.places)


def test_a_service_that_is_dropped_at_this_end_fails_its_conversations() -> None:
    to_b = [Route("r", NetworkAddress("b"), "S")]
    was, will = site([], {ONE: to_b}, services={ONE: {"I"}}), site([], {ONE: to_b})
    question = Facts("S", bytes(16), bytes(16), database=ONE)

    ruling = Judge(Change({"a": was}, {"a": will})).rule(key(question, from_service="I"), bytes(16))

    assert (Fate.FAILS, True) == (ruling.fate, ruling.is_harm)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"origin": Origin.UNKNOWN}, NO_FACTS),
        ({"to_service": None}, NO_FACTS),
        ({"instance": "b"}, NO_INSTANCE),
        ({"instance": None}, NO_INSTANCE),
        ({"origin": Origin.HERE, "database": TWO}, NO_DATABASE),
    ],
)
def test_what_nobody_can_tell_is_told_as_such(changed: dict[str, Any], why: str) -> None:
    one = gateway("b")

    ruling = Judge(Change({"a": one}, {"a": one})).rule(key(FACTS)._replace(**changed), bytes(16))

    assert (why, None, False, False) == (ruling.unplanned, ruling.fate, ruling.is_changed, ruling.is_harm)


@pytest.mark.parametrize(
    ("origin", "database", "is_told", "sender"),
    [
        (Origin.MAYBE_TOLD, ONE, True, None),
        (Origin.MAYBE_TOLD, TWO, False, None),
        (Origin.MAYBE_HERE, ONE, False, ONE),
        (Origin.MAYBE_HERE, TWO, False, None),
        (Origin.HERE, ONE, False, ONE),
        (Origin.ARRIVED, None, False, None),
    ],
)
def test_frames_of_a_database_here_are_decided_once_and_by_its_routes(
    origin: Origin, database: bytes | None, *, is_told: bool, sender: bytes | None
) -> None:
    one = site([], {ONE: []})
    judge = Judge(Change({"a": one}, {"a": one}))
    asked = key(FACTS)._replace(origin=origin, database=database)

    assert (is_told, sender) == (judge.is_told(asked), judge.sender(asked))


def test_a_change_that_leads_in_a_circle_is_a_loop() -> None:
    a, b = NetworkAddress("a"), NetworkAddress("b")
    was, will = gateway("elsewhere", addresses=frozenset({a})), gateway("b", addresses=frozenset({a}))
    back = Site("b", frozenset({b}), build_table([Route("r", a, "S")], now=NOW), {}, hosted({}), is_forwarding=True)

    judge = Judge(Change({"a": was, "b": back}, {"a": will, "b": back}))

    ruling = judge.rule(key(FACTS), bytes(16))
    assert (Fate.MOVES, True) == (ruling.fate, ruling.is_loop)
    assert not judge.rule(key(FACTS)._replace(instance="b"), bytes(16)).is_loop, "its own way does not change"
    assert Fate.KEEPS in UNCHANGED
