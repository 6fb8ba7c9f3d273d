"""What follows from what the source of roles says, and when."""

from __future__ import annotations

from itertools import product

import pytest

from broker.mirror.own_role import ON_WORD, Act, OwnRole, Word
from broker.mirror.role import Role

HOLD = 10.0
PRINCIPAL, MIRROR, SILENT = Word(Role.PRINCIPAL), Word(Role.MIRROR), Word(Role.UNKNOWN, problem="no answer")


def principal(now: float = 0.0, *, epoch: int = 3) -> OwnRole:
    own = OwnRole(hold=HOLD, now=now)
    own.on_taken(epoch, now)
    return own


def test_every_word_has_a_consequence_for_whoever_is_principal_or_mirror() -> None:
    assert set(product((Role.PRINCIPAL, Role.MIRROR), Role)) == set(ON_WORD)


@pytest.mark.parametrize(
    ("word", "act"),
    [(PRINCIPAL, Act.TAKE), (Word(Role.PRINCIPAL, 9), Act.TAKE), (MIRROR, Act.STAY), (SILENT, Act.STAY)],
)
def test_a_mirror_takes_over_by_a_word_alone(word: Word, act: Act) -> None:
    assert act is OwnRole(hold=HOLD, now=0.0).on_word(word, 1e6)


@pytest.mark.parametrize(
    ("word", "act"),
    [
        (PRINCIPAL, Act.STAY),
        (Word(Role.PRINCIPAL, 3), Act.STAY),
        (Word(Role.PRINCIPAL, 4), Act.STEP_DOWN),
        (MIRROR, Act.STEP_DOWN),
        (SILENT, Act.STAY),
    ],
)
def test_a_principal_steps_down_for_another_role_or_another_principal_in_between(word: Word, act: Act) -> None:
    assert act is principal().on_word(word, 1.0)


def test_a_principal_that_nothing_confirms_steps_down_when_its_word_is_stale() -> None:
    own = principal()

    acts = [own.on_word(word, now) for word, now in [(PRINCIPAL, 5.0), (SILENT, 15.0), (SILENT, 15.1)]]

    assert [Act.STAY, Act.STAY, Act.STEP_DOWN] == acts


def test_a_problem_stays_until_a_word_that_counts() -> None:
    own = principal()

    own.on_word(SILENT, 1.0)
    told = own.problem
    own.on_word(PRINCIPAL, 2.0)

    assert ("no answer", "") == (told, own.problem)


def test_whoever_stepped_down_rests_before_it_takes_over_again() -> None:
    own = principal()

    own.on_stepped_down("handed over", 1.0, rest=5.0)

    assert (Role.MIRROR, 3, "handed over", 6.0) == (own.role, own.epoch, own.problem, own.rests_until)
    assert [Act.STAY, Act.TAKE] == [own.on_word(PRINCIPAL, now) for now in (5.9, 6.0)]


def test_the_rest_is_over_once_the_partner_has_taken_over() -> None:
    """So that a pair which is failed over there and back is not without a principal for the rest of it."""
    own = principal()
    own.on_stepped_down("handed over", 1.0, rest=5.0)

    own.on_told(3)
    still = own.on_word(PRINCIPAL, 1.1)
    own.on_told(4)

    assert [Act.STAY, Act.TAKE] == [still, own.on_word(PRINCIPAL, 1.2)]


def test_what_could_not_be_taken_is_tried_again_after_a_pause() -> None:
    own = OwnRole(hold=HOLD, now=0.0)

    own.on_kept_out("full disk", 1.0, pause=1.0)

    assert [Act.STAY, Act.TAKE] == [own.on_word(PRINCIPAL, now) for now in (1.9, 2.0)]
    assert "full disk" == own.problem
    own.on_word(MIRROR, 3.0)
    assert "" == own.problem


def test_a_mirror_believes_the_highest_epoch_that_is_told_and_a_principal_its_own() -> None:
    mirror, own = OwnRole(hold=HOLD, now=0.0), principal()

    for epoch in (2, 5, 4):
        mirror.on_told(epoch)
        own.on_told(epoch)

    assert (5, 3) == (mirror.epoch, own.epoch)
