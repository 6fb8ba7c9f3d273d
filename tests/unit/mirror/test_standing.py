"""The table of transitions: whole, symmetric, reachable, and true to the rules it spells out."""

from __future__ import annotations

import pytest

from broker.routing.mirrored import ASKING, ON_USE, PRINCIPAL, TRANSITIONS, MirrorEvent, MirrorSide, MirrorState

MIRRORED = {
    MirrorState.FIRST_DECLINED: MirrorState.SECOND_DECLINED,
    MirrorState.SECOND_DECLINED: MirrorState.FIRST_DECLINED,
    MirrorState.FIRST_PRINCIPAL: MirrorState.SECOND_PRINCIPAL,
    MirrorState.SECOND_PRINCIPAL: MirrorState.FIRST_PRINCIPAL,
}
DECLINES = (MirrorEvent.CLAIMS_LOWER, MirrorEvent.DENIES, MirrorEvent.LOST)
EVERY = [(before, side, word) for before in MirrorState for side in MirrorSide for word in MirrorEvent]


def other(side: MirrorSide) -> MirrorSide:
    return MirrorSide(1 - side.value)


def test_every_state_has_an_answer_to_every_input() -> None:
    assert set(EVERY) == set(TRANSITIONS)
    assert set(MirrorState) == set(ON_USE)


def test_every_state_is_reached_from_the_first_use() -> None:
    reached = {MirrorState.NEVER_USED, ON_USE[MirrorState.NEVER_USED]}
    while more := {after for (before, _, _), after in TRANSITIONS.items() if before in reached} - reached:
        reached |= more

    assert set(MirrorState) == reached


def test_a_state_is_one_of_three() -> None:
    assert {MirrorState.NEVER_USED, *ASKING, *PRINCIPAL} == set(MirrorState)
    assert not ASKING & set(PRINCIPAL)


@pytest.mark.parametrize(("before", "side", "word"), EVERY)
def test_the_two_addresses_are_treated_alike(before: MirrorState, side: MirrorSide, word: MirrorEvent) -> None:
    after = TRANSITIONS[before, side, word]
    turned = TRANSITIONS[MIRRORED.get(before, before), other(side), word]

    assert MIRRORED.get(after, after) == turned


@pytest.mark.parametrize(("before", "side", "word"), EVERY)
def test_only_who_claims_becomes_principal(before: MirrorState, side: MirrorSide, word: MirrorEvent) -> None:
    after = TRANSITIONS[before, side, word]

    if before is MirrorState.NEVER_USED:
        assert before is after
    elif word is MirrorEvent.CLAIMS_HIGHER:
        assert side is PRINCIPAL[after]
    elif word is MirrorEvent.CLAIMS_EQUAL:
        assert PRINCIPAL.get(before, side) is PRINCIPAL[after]
    else:
        assert PRINCIPAL.get(after) in (None, other(side))
        assert PRINCIPAL.get(after) is None or after is before


@pytest.mark.parametrize("side", MirrorSide)
@pytest.mark.parametrize("word", DECLINES)
def test_principal_that_declines_is_none_from_then_on(side: MirrorSide, word: MirrorEvent) -> None:
    (before,) = (standing for standing, principal in PRINCIPAL.items() if principal is side)

    assert TRANSITIONS[before, side, word] in ASKING


def test_using_it_again_changes_nothing() -> None:
    assert {standing: standing for standing in MirrorState if standing is not MirrorState.NEVER_USED} == {
        before: after for before, after in ON_USE.items() if before is not MirrorState.NEVER_USED
    }
    assert MirrorState.ASKING_BOTH is ON_USE[MirrorState.NEVER_USED]
