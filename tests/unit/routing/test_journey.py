"""Ways through instances that are all known, and how they end."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.flow import Disposition
from broker.routing.address import NetworkAddress, parse_address
from broker.routing.decide import RoutingFacts, hosted, pick_instance
from broker.routing.plan import INSTANCES_MAX, JourneyOutcome, Network, Site, conversations
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, Route
from broker.routing.table import build_table
from broker.wire.layout import NO_GUID

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ONE, TWO = UUID(int=1), UUID(int=2)


def to(address: str, service: str | None = "S", instance: UUID | None = None, mirror: str | None = None) -> Route:
    partner = None if mirror is None else NetworkAddress(mirror)
    return Route(f"to {address}", parse_address(address), service, instance, mirror_address=partner)


def site(
    name: str,
    *msdb: Route,
    databases: dict[UUID, tuple[list[str], list[Route]]] | None = None,
    is_forwarding: bool = True,
) -> Site:
    """An instance found at tcp://<name>."""
    databases = databases or {}
    return Site(
        name=name,
        addresses=frozenset({NetworkAddress(name)}),
        msdb=build_table(msdb, now=NOW),
        databases={instance.bytes: build_table(routes, now=NOW) for instance, (_, routes) in databases.items()},
        hosted=hosted({instance.bytes: services for instance, (services, _) in databases.items()}),
        is_forwarding=is_forwarding,
    )


def facts(
    service: str = "S", instance: UUID | None = None, database: UUID | None = None, *, answer: bool = False
) -> RoutingFacts:
    return RoutingFacts(
        service,
        instance.bytes if instance else NO_GUID,
        bytes(16),
        is_from_target=answer,
        database=database.bytes if database else None,
    )


def ends(start: Site, *others: Site, sent: RoutingFacts) -> list[tuple[str, str, str]]:
    found = Network([start, *others]).follow(sent, start)
    return [(end.outcome.name, end.path, str(end.disposition)) for end in found]


TARGET = site("t", AUTO_CREATED_LOCAL, databases={TWO: (["S"], [])})


def test_a_way_through_a_gateway_ends_in_the_database() -> None:
    sender = site("a", databases={ONE: (["R"], [to("tcp://g")])})
    gateway = site("g", to("tcp://t"))

    (end,) = Network([sender, gateway, TARGET]).follow(facts(database=ONE), sender)

    assert (JourneyOutcome.DELIVERED, "a -> g -> t", TWO.bytes) == (end.outcome, end.path, end.database)
    assert [(ONE.bytes, "to tcp://g"), (None, "to tcp://t"), (None, "AutoCreatedLocal")] == [
        (leg.database, leg.route.name if leg.route else None) for leg in end.legs
    ]
    assert () == end.circle


def test_every_address_that_may_be_used_is_followed() -> None:
    sender = site("a", to("tcp://g"), to("tcp://h"))
    found = ends(sender, site("g", to("tcp://t")), site("h"), TARGET, sent=facts())

    assert {("DELIVERED", "a -> g -> t", "delivered"), ("LOST", "a -> h", "no route")} == set(found)


def test_both_partners_of_a_mirrored_pair_are_followed() -> None:
    sender = site("a", to("tcp://t", "S", TWO, mirror="u"))
    found = ends(sender, TARGET, site("u"), sent=facts("S", TWO))

    assert {("DELIVERED", "a -> t", "delivered"), ("LOST", "a -> u", "no route")} == set(found)


@pytest.mark.parametrize(
    ("end", "disposition"),
    [
        (site("x"), Disposition.NO_ROUTE),
        (site("x", to("tcp://y"), is_forwarding=False), Disposition.FORWARDING_DISABLED),
        (site("x", AUTO_CREATED_LOCAL), Disposition.SERVICE_NOT_HERE),
        (site("x", to("TRANSPORT", None)), Disposition.ROUTE_INVALID),
        (site("x", to("tcp://x")), Disposition.ROUTE_INVALID),
        (site("x", to("LOCAL", "S", TWO)), Disposition.INSTANCE_NOT_HERE),
        (site("x", to("LOCAL", "S", ONE), databases={ONE: ([], [])}), Disposition.SERVICE_NOT_FOUND),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_delivered_is_lost_for_a_reason(end: Site, disposition: Disposition) -> None:
    path = "a -> x -> x" if end.msdb.routes("S") and disposition is Disposition.ROUTE_INVALID else "a -> x"

    assert [("LOST", path, str(disposition))] == ends(site("a", to("tcp://x")), end, sent=facts())


def test_what_leads_to_an_unknown_address_is_unknown() -> None:
    assert [("UNKNOWN", "a", "forwarded")] == ends(site("a", to("tcp://nowhere")), sent=facts())


def test_what_waits_for_somebody_elses_answer_is_unknown() -> None:
    asking = site("a", to("tcp://t", BROKER_CONFIGURATION))

    assert [("UNKNOWN", "a", "asking for route")] == ends(asking, TARGET, sent=facts())


@pytest.mark.parametrize(
    ("last", "sent", "needs"),
    [
        (site("a", AUTO_CREATED_LOCAL), facts(), {"has_all_services"}),
        (site("a", AUTO_CREATED_LOCAL), facts("S", TWO), {"has_all_instances"}),
        (site("a"), facts("S", TWO), {"has_all_services", "has_all_instances"}),
        (site("a", to("LOCAL", "S", ONE), databases={ONE: ([], [])}), facts(), set()),
    ],
)
def test_what_services_and_databases_not_told_could_change_is_unknown(
    last: Site, sent: RoutingFacts, needs: set[str]
) -> None:
    less = {
        "has_all_services": replace(last, has_all_services=False),
        "has_all_instances": replace(last, has_all_instances=False),
    }

    unknown = {
        flag for flag, one in less.items() if Network([one]).follow(sent, one)[0].outcome is JourneyOutcome.UNKNOWN
    }

    assert needs == unknown


def test_a_circle_is_told_with_the_part_that_repeats() -> None:
    start, a, b = site("s", to("tcp://a")), site("a", to("tcp://b")), site("b", to("tcp://a"))

    (end,) = Network([start, a, b]).follow(facts(), start)

    assert (JourneyOutcome.CIRCLE, "s -> a -> b -> a") == (end.outcome, end.path)
    assert ["a", "b", "a"] == [leg.site.name for leg in end.circle]


def test_ways_that_meet_again_are_no_circle() -> None:
    start = site("s", to("tcp://a"), to("tcp://b"))
    found = ends(start, site("a", to("tcp://t")), site("b", to("tcp://t")), TARGET, sent=facts())

    assert 1 == len(found)
    assert "DELIVERED" == found[0][0]


def test_a_route_to_the_instance_itself_is_decided_again_by_msdb() -> None:
    sender = site("a", to("tcp://t"), databases={ONE: (["R"], [to("tcp://a")])})

    assert [("DELIVERED", "a -> a -> t", "delivered")] == ends(sender, TARGET, sent=facts(database=ONE))


def test_an_answer_needs_no_route_where_its_database_is() -> None:
    closed = site("c", databases={ONE: (["R"], [])})
    start = site("a", to("tcp://c", "R"))

    assert [("LOST", "a -> c", "no route")] == ends(start, closed, sent=facts("R"))
    assert [("DELIVERED", "a -> c", "delivered")] == ends(start, closed, sent=facts("R", ONE, answer=True))


def test_two_sites_at_one_address_both_count() -> None:
    twin = replace(site("b"), addresses=TARGET.addresses)
    found = ends(site("a", to("tcp://t")), TARGET, twin, sent=facts())

    assert {"a -> t", "a -> b"} == {path for _, path, _ in found}


def test_a_network_knows_the_addresses_of_its_sites() -> None:
    network = Network([TARGET])

    assert (True, False) == (network.knows(NetworkAddress("t")), network.knows(NetworkAddress("t", 1)))


@pytest.mark.parametrize("count", [2, 5, INSTANCES_MAX])
def test_every_broker_instance_wins_one_of_the_conversations(count: int) -> None:
    instances = [UUID(int=number + 1) for number in range(count)]
    tables = [build_table([to("tcp://x", "S", one)], now=NOW) for one in instances]

    found = conversations("S", tables)

    weights = {one.bytes: 1 for one in instances}
    assert sorted(weights) == sorted(pick_instance(one, weights) for one in found)


def test_so_many_instances_are_followed_and_no_more() -> None:
    table = build_table([to("tcp://x", "S", UUID(int=number + 1)) for number in range(INSTANCES_MAX + 9)], now=NOW)

    assert INSTANCES_MAX == len(conversations("S", [table]))


def test_without_a_choice_one_conversation_is_enough() -> None:
    assert [bytes(16)] == conversations("S", [build_table([to("tcp://x", "S", ONE)], now=NOW)])
