"""Messages that would go round: new ones only, for every conversation where it has a say."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from broker.pipeline.plan.loop import Loops
from broker.pipeline.plan.site import Change
from broker.routing.address import NetworkAddress
from broker.routing.choose import Health
from broker.routing.decide import Decision, Surroundings, decide
from broker.routing.facts import Facts, hosted
from broker.routing.journey import Site
from broker.routing.match import pick_instance
from broker.routing.route import Route
from broker.routing.table import build_table

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FACTS = Facts("S", bytes(16), bytes(16))
ONE, TWO = UUID(int=1), UUID(int=2)


def site(name: str, *routes: Route) -> Site:
    address = frozenset({NetworkAddress(name)})
    return Site(name, address, build_table(routes, now=NOW), {}, hosted({}), is_forwarding=True)


def to(host: str, instance: UUID | None = None, *, mirror: str | None = None) -> Route:
    second = None if mirror is None else NetworkAddress(mirror)
    return Route(f"to-{host}", NetworkAddress(host), "S", instance, mirror_address=second)


def change(before: list[Site], after: list[Site]) -> Change:
    return Change({one.name: one for one in before}, {one.name: one for one in after})


def decision(one: Site, facts: Facts = FACTS) -> Decision:
    here = Surroundings(
        one.msdb, one.hosted, lambda _: Health.UNTRIED, is_forwarding=True, msdb=one.msdb, own=one.addresses
    )
    return decide(facts, here)


@pytest.mark.parametrize(
    ("was", "will", "is_new"),
    [("out", "b", True), ("b", "b", False), ("b", "out", False), ("out", "elsewhere", False)],
)
def test_a_loop_counts_when_it_was_not_there_before(was: str, will: str, *, is_new: bool) -> None:
    back = site("b", to("a"))
    after = site("a", to(will))

    loops = Loops(change([site("a", to(was)), back], [after, back]))

    assert is_new == loops.appears("a", FACTS, decision(after))


def test_a_loop_is_found_behind_every_address_and_over_several_instances() -> None:
    others = [site("b", to("c")), site("c", to("a"))]
    after = site("a", to("out"), to("b"))

    loops = Loops(change([site("a", to("out")), *others], [after, *others]))

    assert loops.appears("a", FACTS, decision(after))


def test_a_loop_over_a_mirrored_pair_counts_whoever_is_principal() -> None:
    facts = Facts("S", ONE.bytes, bytes(16))
    after = site("a", to("out", ONE, mirror="b"))
    back = site("b", to("a"))

    loops = Loops(change([site("a", to("out")), back], [after, back]))

    assert loops.appears("a", facts, decision(after, facts))


def test_of_conversations_that_pick_their_target_only_those_that_go_round_count() -> None:
    after = site("a", to("out", ONE), to("b", TWO))
    back = site("b", to("a"))
    loops = Loops(change([site("a", to("out")), back], [after, back]))

    for number in range(20):
        facts = Facts("S", bytes(16), number.to_bytes(16, "big"))
        picked = pick_instance(facts.conversation_id, {ONE.bytes: 1, TWO.bytes: 1})
        assert (picked == TWO.bytes) == loops.appears("a", facts, decision(after, facts))


def test_where_the_choice_is_made_later_some_conversation_is_enough() -> None:
    after = site("a", to("b"))
    back = site("b", to("out", ONE), to("a", TWO))

    loops = Loops(change([site("a", to("out")), back], [after, back]))

    assert loops.appears("a", FACTS, decision(after))
