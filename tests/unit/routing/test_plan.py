"""A plan tells which conversations a change of routes would move, and which of them it would harm."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.choose import Health
from broker.routing.decide import Surroundings
from broker.routing.facts import Facts, hosted
from broker.routing.plan import Fate, Flow, RouteEdit, consequence, edits, plan
from broker.routing.route import Route
from broker.routing.table import RouteChange, build_table
from broker.wire.layout import NO_GUID

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
SENDER, EAST, WEST, NORTH = (UUID(int=n) for n in (1, 2, 3, 4))
ONE, TWO, THREE = (NetworkAddress(host) for host in ("one", "two", "three"))
TO_EAST, TO_WEST = Route("east", ONE, "Orders", EAST), Route("west", TWO, "Orders", WEST)
BY_NAME = Route("by name", ONE, "Orders")
MIRRORED = Route("mirrored", ONE, "Orders", EAST, mirror_address=TWO)


def here(*routes: Route) -> Surroundings:
    return Surroundings(
        build_table(routes, now=NOW), hosted({SENDER.bytes: ["Local"]}), lambda _: Health.UNTRIED, is_forwarding=True
    )


def flow(
    service: str = "Orders", instance: UUID | None = None, *, has_sent: bool = True, conversation: int = 0
) -> Flow:
    to = NO_GUID if instance is None else instance.bytes
    facts = Facts(service, to, conversation.to_bytes(16, "big"), database=SENDER.bytes)
    return Flow(str(conversation), facts, has_sent)


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
        # a bound dialog names its target: the way there may change by degrees only
        (flow(instance=EAST), [TO_EAST, TO_WEST], [TO_EAST], Fate.KEEPS),
        (flow(instance=EAST), [TO_EAST], [TO_EAST, Route("b", TWO, "Orders", EAST)], Fate.OTHER_PATHS),
        (flow(instance=EAST), [TO_EAST], [Route("moved", THREE, "Orders", EAST)], Fate.MOVES),
        (flow(instance=EAST), [TO_EAST, TO_WEST], [TO_WEST], Fate.LOSES),
        (flow(instance=EAST), [TO_EAST], [MIRRORED], Fate.OTHER_PATHS),
        (flow(instance=EAST), [MIRRORED], [MIRRORED], Fate.KEEPS),
        # a name-only route ends the balancing: the same next hop, and nobody knows whose
        (flow(), [TO_EAST], [TO_EAST, BY_NAME], Fate.MOVES),
        (flow("Local"), [Route("here", LOCAL)], [Route("here", LOCAL), BY_NAME], Fate.KEEPS),
        (flow("Local"), [Route("here", LOCAL)], [Route("away", ONE)], Fate.MOVES),
    ],
)
def test_fate_of_a_conversation(subject: Flow, before: list[Route], after: list[Route], fate: Fate) -> None:
    assert fate == consequence(subject, here(*before), here(*after)).fate


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

    assert edits(changes) == [RouteEdit("east", TO_EAST, changed), RouteEdit("mirrored", None, MIRRORED)]
