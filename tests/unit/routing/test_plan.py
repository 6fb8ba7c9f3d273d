"""A plan tells which conversations a change of routes would move, and which of them it would harm."""

import dataclasses
from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.flow import Disposition
from broker.protocol.layout import NO_GUID
from broker.routing import plan as module
from broker.routing.address import LOCAL, NetworkAddress, parse_address
from broker.routing.decide import AddressHealth, Decision, RoutingContext, RoutingFacts, decide, hosted, pick_instance
from broker.routing.plan import (
    INSTANCES_MAX,
    Fate,
    JourneyOutcome,
    Network,
    PlannedFlow,
    Site,
    consequence,
    conversations,
    edits,
    plan,
)
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, Route
from broker.routing.table import RouteChange, build_table

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


def test_every_address_that_may_be_used_is_followed() -> None:
    """Ways that meet again are no circle."""
    sender, gateway = site("a", to("tcp://g"), to("tcp://h")), site("g", to("tcp://t"))

    found = ends(sender, gateway, site("h"), TARGET, sent=facts())
    meeting = ends(sender, gateway, site("h", to("tcp://t")), TARGET, sent=facts())

    assert {("DELIVERED", "a -> g -> t", "delivered"), ("LOST", "a -> h", "no route")} == set(found)
    assert ["DELIVERED"] == [outcome for outcome, *_ in meeting]


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


def test_what_waits_for_somebody_elses_answer_is_unknown() -> None:
    asking = site("a", to("tcp://t", BROKER_CONFIGURATION))

    assert [("UNKNOWN", "a", "asking for route")] == ends(asking, TARGET, sent=facts())
    assert [("UNKNOWN", "a", "forwarded")] == ends(site("a", to("tcp://nowhere")), sent=facts())


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


@pytest.mark.parametrize("count", [0, 1, 2, 5, INSTANCES_MAX, INSTANCES_MAX + 9])
def test_every_broker_instance_wins_one_of_the_conversations(count: int) -> None:
    """Up to so many; where there is no choice, one is followed."""
    instances = [UUID(int=number + 1) for number in range(count)]
    tables = [build_table([to("tcp://x", "S", one)], now=NOW) for one in instances]

    found = conversations("S", tables)

    assert max(1, min(count, INSTANCES_MAX)) == len(found)
    weights = {one.bytes: 1 for one in instances}
    if 1 < count <= INSTANCES_MAX:
        assert sorted(weights) == sorted(pick_instance(one, weights) for one in found)


SENDER, EAST, WEST, NORTH = (UUID(int=n) for n in (1, 2, 3, 4))
AT_ONE, AT_TWO, AT_THREE = (NetworkAddress(host) for host in ("one", "two", "three"))
TO_EAST, TO_WEST = Route("east", AT_ONE, "Orders", EAST), Route("west", AT_TWO, "Orders", WEST)
BY_NAME = Route("by name", AT_ONE, "Orders")
MIRRORED = Route("mirrored", AT_ONE, "Orders", EAST, mirror_address=AT_TWO)


def here(*routes: Route, services: Iterable[str] = ("Local",)) -> RoutingContext:
    table = build_table(routes, now=NOW)
    return RoutingContext(table, hosted({SENDER.bytes: services}), lambda _: AddressHealth.UNTRIED, is_forwarding=True)


def flow(
    service: str = "Orders",
    instance: UUID | None = None,
    *,
    has_sent: bool = True,
    conversation: int = 0,
    own: str | None = None,
) -> PlannedFlow:
    to = NO_GUID if instance is None else instance.bytes
    facts = RoutingFacts(service, to, conversation.to_bytes(16, "big"), database=SENDER.bytes)
    return PlannedFlow(str(conversation), facts, has_sent, own)


@pytest.mark.parametrize(
    ("subject", "before", "after", "fate"),
    [
        (flow(), [BY_NAME], [BY_NAME], Fate.KEEPS),
        (flow(), [BY_NAME], [replace(BY_NAME, name="renamed")], Fate.KEEPS),
        (flow(), [BY_NAME], [BY_NAME, Route("more", AT_TWO, "Orders")], Fate.OTHER_PATHS),
        (flow(), [BY_NAME], [Route("other", AT_TWO, "Orders")], Fate.MOVES),
        (flow(), [BY_NAME], [], Fate.LOSES),
        (flow(), [], [], Fate.STAYS_LOST),
        (flow(), [], [BY_NAME], Fate.FINDS),
        # a bound dialog names its target: a route that names it too only changes the way there
        (flow(instance=EAST), [TO_EAST, TO_WEST], [TO_EAST], Fate.KEEPS),
        (flow(instance=EAST), [TO_EAST], [TO_EAST, Route("b", AT_TWO, "Orders", EAST)], Fate.OTHER_PATHS),
        (flow(instance=EAST), [TO_EAST], [Route("moved", AT_THREE, "Orders", EAST)], Fate.OTHER_PATHS),
        (flow(instance=EAST), [TO_EAST], [Route("moved", AT_THREE, "Orders")], Fate.MOVES),
        (flow(instance=EAST), [TO_EAST, TO_WEST], [TO_WEST], Fate.LOSES),
        (flow(instance=EAST), [TO_EAST], [MIRRORED], Fate.OTHER_PATHS),
        (flow(instance=EAST), [MIRRORED], [MIRRORED], Fate.KEEPS),
        # a name-only route ends the balancing: the same next hop, and nobody knows whose
        (flow(), [TO_EAST], [TO_EAST, BY_NAME], Fate.MOVES),
        (flow("Local"), [Route("here", LOCAL)], [Route("here", LOCAL), BY_NAME], Fate.KEEPS),
        (flow("Local"), [Route("here", LOCAL)], [Route("away", AT_ONE)], Fate.MOVES),
    ],
)
def test_fate_of_a_conversation(subject: PlannedFlow, before: list[Route], after: list[Route], fate: Fate) -> None:
    """Harm is done only to those that have sent."""
    one = consequence(subject, here(*before), here(*after))
    unsent = consequence(dataclasses.replace(subject, has_sent=False), here(*before), here(*after))

    assert (fate, fate) == (one.fate, unsent.fate)
    assert (fate in {Fate.MOVES, Fate.LOSES}, False) == (one.is_harm, unsent.is_harm)


@pytest.mark.parametrize("instance", [None, SENDER])
@pytest.mark.parametrize(
    ("before", "after", "fate"),
    [
        (["Local"], [], Fate.LOSES),
        ([], ["Local"], Fate.FINDS),
        ([], [], Fate.STAYS_LOST),
        (["Local"], ["Local", "Other"], Fate.KEEPS),
    ],
)
def test_a_route_to_a_database_without_the_service_is_none(
    instance: UUID | None, before: list[str], after: list[str], fate: Fate
) -> None:
    """A database answers with an error when it was named and does not have the service (R4.1)."""
    local = Route("here", LOCAL)

    one = consequence(flow("Local", instance), here(local, services=before), here(local, services=after))

    assert fate == one.fate


def test_a_dialog_fails_when_its_own_service_goes() -> None:
    both = flow(own="Local"), flow(own="Local", has_sent=False)

    gone = [consequence(one, here(BY_NAME), here(BY_NAME, services=[])) for one in both]
    never_there = consequence(both[0], here(BY_NAME, services=[]), here(BY_NAME, services=[]))

    assert [(Fate.FAILS, True), (Fate.FAILS, False)] == [(one.fate, one.is_harm) for one in gone]
    assert Fate.KEEPS == never_there.fate


def test_a_new_instance_moves_only_the_dialogs_that_pick_it() -> None:
    """Rendezvous hashing: of n + 1 instances the new one takes its share, and nobody else moves."""
    before, after = here(TO_EAST, TO_WEST), here(TO_EAST, TO_WEST, Route("north", AT_THREE, "Orders", NORTH))

    made = plan([(flow(conversation=n), before, after) for n in range(300)], kept=1000)

    assert set(made.fates) == {Fate.KEEPS, Fate.MOVES}
    assert 60 < made.fates[Fate.MOVES] == made.harmed == len(made.consequences) < 140
    assert {one.after.candidates[0].address for one in made.consequences} == {AT_THREE}


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[RoutingFacts]:
    """What was decided, in order."""
    facts_of_all: list[RoutingFacts] = []

    def deciding(facts: RoutingFacts, where: RoutingContext) -> Decision:
        facts_of_all.append(facts)
        return decide(facts, where)

    monkeypatch.setattr(module, "decide", deciding)
    return facts_of_all


def test_conversations_that_are_alike_are_decided_once(decided: list[RoutingFacts]) -> None:
    """A million conversations with a few services take a few decisions, but for those of which each picks its own."""
    flows = [flow("Local" if n % 2 else "Orders", conversation=n) for n in range(100)]

    made = plan([(one, here(BY_NAME), here()) for one in flows], kept=100)

    assert ({Fate.LOSES: 50, Fate.STAYS_LOST: 50}, 2 * 2) == (made.fates, len(decided))
    assert [str(n) for n in range(0, 100, 2)] == [one.flow.name for one in made.consequences]
    plan([(flow(conversation=n), here(TO_EAST), here(TO_EAST, TO_WEST)) for n in range(10)], kept=100)
    assert 2 * 2 + 2 * 10 == len(decided)


def test_what_is_remembered_of_alike_ones_is_bounded(
    monkeypatch: pytest.MonkeyPatch, decided: list[RoutingFacts]
) -> None:
    monkeypatch.setattr(module, "ALIKE_MAX", 1)
    local = Route("here", LOCAL)
    flows = [flow(service) for service in ["Local", "Orders"] * 2]

    made = plan([(one, here(BY_NAME, local), here(local)) for one in flows], kept=9)

    assert ({Fate.KEEPS: 2, Fate.LOSES: 2}, 2 * 3) == (made.fates, len(decided))


def test_harm_comes_first_and_lists_are_bounded() -> None:
    before, after = here(BY_NAME), here()
    flows = [flow(has_sent=n >= 5, conversation=n) for n in range(10)]

    made = plan([(one, before, after) for one in flows], kept=3)

    assert (made.fates, made.harmed) == ({Fate.LOSES: 10}, 5)
    assert [one.flow.name for one in made.consequences] == ["5", "6", "7", "0", "1", "2"]


def test_edits_fold_the_steps_of_a_script() -> None:
    changed = Route("east", AT_TWO, "Orders", EAST)
    changes = [
        RouteChange(None, BY_NAME),
        RouteChange(TO_EAST, changed),
        RouteChange(BY_NAME, None),
        RouteChange(TO_WEST, None),
        RouteChange(None, TO_WEST),
        RouteChange(None, MIRRORED),
    ]

    assert {"east": RouteChange(TO_EAST, changed), "mirrored": RouteChange(None, MIRRORED)} == edits(changes)
