"""The table of transitions: whole, symmetric, reachable, and true to the rules it spells out."""

from __future__ import annotations

import pytest

from broker.mirror.standing import ASKING, ON_USE, PRINCIPAL, TRANSITIONS, Side, Standing, Word

MIRRORED = {
    Standing.FIRST_DECLINED: Standing.SECOND_DECLINED,
    Standing.SECOND_DECLINED: Standing.FIRST_DECLINED,
    Standing.FIRST_PRINCIPAL: Standing.SECOND_PRINCIPAL,
    Standing.SECOND_PRINCIPAL: Standing.FIRST_PRINCIPAL,
}
DECLINES = (Word.CLAIMS_LOWER, Word.DENIES, Word.LOST)
EVERY = [(before, side, word) for before in Standing for side in Side for word in Word]


def other(side: Side) -> Side:
    return Side(1 - side.value)


def test_every_state_has_an_answer_to_every_input() -> None:
    assert set(EVERY) == set(TRANSITIONS)
    assert set(Standing) == set(ON_USE)


def test_every_state_is_reached_from_the_first_use() -> None:
    reached = {Standing.NEVER_USED, ON_USE[Standing.NEVER_USED]}
    while more := {after for (before, _, _), after in TRANSITIONS.items() if before in reached} - reached:
        reached |= more

    assert set(Standing) == reached


def test_a_state_is_one_of_three() -> None:
    assert {Standing.NEVER_USED, *ASKING, *PRINCIPAL} == set(Standing)
    assert not ASKING & set(PRINCIPAL)


@pytest.mark.parametrize(("before", "side", "word"), EVERY)
def test_the_two_addresses_are_treated_alike(before: Standing, side: Side, word: Word) -> None:
    after = TRANSITIONS[before, side, word]
    turned = TRANSITIONS[MIRRORED.get(before, before), other(side), word]

    assert MIRRORED.get(after, after) == turned


@pytest.mark.parametrize(("before", "side", "word"), EVERY)
def test_only_who_claims_becomes_principal(before: Standing, side: Side, word: Word) -> None:
    after = TRANSITIONS[before, side, word]

    if before is Standing.NEVER_USED:
        assert before is after
    elif word is Word.CLAIMS_HIGHER:
        assert side is PRINCIPAL[after]
    elif word is Word.CLAIMS_EQUAL:
        assert PRINCIPAL.get(before, side) is PRINCIPAL[after]
    else:
        assert PRINCIPAL.get(after) in (None, other(side))
        assert PRINCIPAL.get(after) is None or after is before


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("word", DECLINES)
def test_principal_that_declines_is_none_from_then_on(side: Side, word: Word) -> None:
    (before,) = (standing for standing, principal in PRINCIPAL.items() if principal is side)

    assert TRANSITIONS[before, side, word] in ASKING


def test_using_it_again_changes_nothing() -> None:
    assert {standing: standing for standing in Standing if standing is not Standing.NEVER_USED} == {
        before: after for before, after in ON_USE.items() if before is not Standing.NEVER_USED
    }
    assert Standing.ASKING_BOTH is ON_USE[Standing.NEVER_USED]
