"""A plan tells which conversations a change of routes would move, and which of them it would harm."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.routing import plan as module
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, Decision, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.plan import Fate, PlannedEdit, PlannedFlow, consequence, edits, plan
from broker.routing.route import Route
from broker.routing.table import RouteChange, build_table
from broker.wire.layout import NO_GUID

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
SENDER, EAST, WEST, NORTH = (UUID(int=n) for n in (1, 2, 3, 4))
ONE, TWO, THREE = (NetworkAddress(host) for host in ("one", "two", "three"))
TO_EAST, TO_WEST = Route("east", ONE, "Orders", EAST), Route("west", TWO, "Orders", WEST)
BY_NAME = Route("by name", ONE, "Orders")
MIRRORED = Route("mirrored", ONE, "Orders", EAST, mirror_address=TWO)


def here(*routes: Route, services: Iterable[str] = ("Local",)) -> RoutingContext:
    return RoutingContext(
        build_table(routes, now=NOW),
        hosted({SENDER.bytes: services}),
        lambda _: AddressHealth.UNTRIED,
        is_forwarding=True,
    )


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
        (flow(), [BY_NAME], [BY_NAME, Route("more", TWO, "Orders")], Fate.OTHER_PATHS),
        (flow(), [BY_NAME], [Route("other", TWO, "Orders")], Fate.MOVES),
        (flow(), [BY_NAME], [], Fate.LOSES),
        (flow(), [], [], Fate.STAYS_LOST),
        (flow(), [], [BY_NAME], Fate.FINDS),
        # a bound dialog names its target: a route that names it too only changes the way there
        (flow(instance=EAST), [TO_EAST, TO_WEST], [TO_EAST], Fate.KEEPS),
        (flow(instance=EAST), [TO_EAST], [TO_EAST, Route("b", TWO, "Orders", EAST)], Fate.OTHER_PATHS),
        (flow(instance=EAST), [TO_EAST], [Route("moved", THREE, "Orders", EAST)], Fate.OTHER_PATHS),
        (flow(instance=EAST), [TO_EAST], [Route("moved", THREE, "Orders")], Fate.MOVES),
        (flow(instance=EAST), [TO_EAST, TO_WEST], [TO_WEST], Fate.LOSES),
        (flow(instance=EAST), [TO_EAST], [MIRRORED], Fate.OTHER_PATHS),
        (flow(instance=EAST), [MIRRORED], [MIRRORED], Fate.KEEPS),
        # a name-only route ends the balancing: the same next hop, and nobody knows whose
        (flow(), [TO_EAST], [TO_EAST, BY_NAME], Fate.MOVES),
        (flow("Local"), [Route("here", LOCAL)], [Route("here", LOCAL), BY_NAME], Fate.KEEPS),
        (flow("Local"), [Route("here", LOCAL)], [Route("away", ONE)], Fate.MOVES),
    ],
)
def test_fate_of_a_conversation(subject: PlannedFlow, before: list[Route], after: list[Route], fate: Fate) -> None:
    assert fate == consequence(subject, here(*before), here(*after)).fate


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


def test_dialogs_to_one_service_from_two_fare_by_their_own() -> None:
    before, after = here(BY_NAME, services=["Local", "Other"]), here(BY_NAME, services=["Other"])

    made = plan([(flow(own=own), before, after) for own in ("Other", "Local", "Other", "Local")], kept=9)

    assert {Fate.KEEPS: 2, Fate.FAILS: 2} == made.fates


@pytest.mark.parametrize(("has_sent", "is_harm"), [(True, True), (False, False)])
def test_harm_is_done_to_conversations_that_have_sent(has_sent: bool, is_harm: bool) -> None:  # noqa: FBT001  (a table's column)
    for after in ([], [Route("by name", TWO, "Orders")]):
        one = consequence(flow(has_sent=has_sent), here(BY_NAME), here(*after))
        assert is_harm == one.is_harm


def test_a_new_instance_moves_only_the_dialogs_that_pick_it() -> None:
    """Rendezvous hashing: of n + 1 instances the new one takes its share, and nobody else moves."""
    before, after = here(TO_EAST, TO_WEST), here(TO_EAST, TO_WEST, Route("north", THREE, "Orders", NORTH))

    made = plan([(flow(conversation=n), before, after) for n in range(300)], kept=1000)

    assert set(made.fates) == {Fate.KEEPS, Fate.MOVES}
    assert 60 < made.fates[Fate.MOVES] == made.harmed == len(made.consequences) < 140
    assert {one.after.candidates[0].address for one in made.consequences} == {THREE}


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


def test_conversations_that_pick_are_decided_one_by_one(decided: list[RoutingFacts]) -> None:
    plan([(flow(conversation=n), here(TO_EAST), here(TO_EAST, TO_WEST)) for n in range(10)], kept=100)

    assert 2 * 10 == len(decided)


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
    changed = Route("east", TWO, "Orders", EAST)
    changes = [
        RouteChange(None, BY_NAME),
        RouteChange(TO_EAST, changed),
        RouteChange(BY_NAME, None),
        RouteChange(TO_WEST, None),
        RouteChange(None, TO_WEST),
        RouteChange(None, MIRRORED),
    ]

    assert edits(changes) == [PlannedEdit("east", TO_EAST, changed), PlannedEdit("mirrored", None, MIRRORED)]
