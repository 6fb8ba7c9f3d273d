"""What follows from what the source of roles says, and when."""

from __future__ import annotations

from itertools import product

import pytest

from broker.routing.mirrored import LATE, ON_WORD, Act, MirrorRole, OwnRole, RoleAnswer

HOLD = 10.0
PRINCIPAL, MIRROR, SILENT = (
    RoleAnswer(MirrorRole.PRINCIPAL),
    RoleAnswer(MirrorRole.MIRROR),
    RoleAnswer(MirrorRole.UNKNOWN, problem="no answer"),
)


def principal(now: float = 0.0, *, epoch: int = 3) -> OwnRole:
    own = OwnRole(hold=HOLD, now=now)
    own.on_taken(epoch, now)
    return own


def heard(own: OwnRole, word: RoleAnswer, now: float) -> Act:
    """A word that came as soon as it was asked for."""
    return own.on_word(word, now, now)


def test_every_word_has_a_consequence_for_whoever_is_principal_or_mirror() -> None:
    assert set(product((MirrorRole.PRINCIPAL, MirrorRole.MIRROR), MirrorRole)) == set(ON_WORD)


@pytest.mark.parametrize(
    ("word", "act"),
    [(PRINCIPAL, Act.TAKE), (RoleAnswer(MirrorRole.PRINCIPAL, 9), Act.TAKE), (MIRROR, Act.STAY), (SILENT, Act.STAY)],
)
def test_a_mirror_takes_over_by_a_word_alone(word: RoleAnswer, act: Act) -> None:
    assert act is heard(OwnRole(hold=HOLD, now=0.0), word, 1e6)


@pytest.mark.parametrize(
    ("word", "act"),
    [
        (PRINCIPAL, Act.STAY),
        (RoleAnswer(MirrorRole.PRINCIPAL, 3), Act.STAY),
        (RoleAnswer(MirrorRole.PRINCIPAL, 4), Act.STEP_DOWN),
        (MIRROR, Act.STEP_DOWN),
        (SILENT, Act.STAY),
    ],
)
def test_a_principal_steps_down_for_another_role_or_another_principal_in_between(word: RoleAnswer, act: Act) -> None:
    assert act is heard(principal(), word, 1.0)


def test_a_principal_that_nothing_confirms_steps_down_when_its_word_is_stale() -> None:
    own = principal()

    acts = [heard(own, word, now) for word, now in [(PRINCIPAL, 5.0), (SILENT, 15.0), (SILENT, 15.1)]]

    assert [Act.STAY, Act.STAY, Act.STEP_DOWN] == acts


def test_a_principal_may_act_for_as_long_as_a_word_counts_from_when_it_was_asked_for() -> None:
    own = principal()
    before = [own.is_confirmed(now) for now in (0.0, 10.0)]

    own.on_word(PRINCIPAL, 4.0, 9.0)

    assert [True, True] == before
    assert [True, False] == [own.is_confirmed(now) for now in (14.0, 14.1)]


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("word", [PRINCIPAL, MIRROR, SILENT])
def test_whoever_has_lapsed_steps_down_whatever_it_hears_then(word: RoleAnswer, *, is_seen: bool) -> None:
    """Somebody else may have been the principal meanwhile, also when a writer thread has not noticed."""
    own = principal()
    if is_seen:
        own.is_confirmed(10.1)

    act = heard(own, word, 10.1)

    assert (Act.STEP_DOWN, False) == (act, own.is_confirmed(10.1))


def test_whoever_has_lapsed_may_not_act_before_it_has_taken_over_anew() -> None:
    own = principal()
    own.is_confirmed(10.1)

    own.hold = 1000.0
    still = own.is_confirmed(10.2)
    own.on_stepped_down("lapsed", 10.3, rest=0.0)
    own.on_taking(10.4)

    assert (False, True) == (still, own.is_confirmed(10.5))


def test_whoever_stepped_down_may_not_act_while_its_file_is_still_open() -> None:
    """Whoever copies the file once this instance says that it is a mirror would miss what is stored then."""
    own = principal()

    own.on_stepped_down("no principal any more", 1.0, rest=0.0)

    assert not own.is_confirmed(1.0)


@pytest.mark.parametrize("hold", [HOLD, float("inf")])
def test_a_word_by_which_the_database_is_taken_again_confirms(hold: float) -> None:
    own = OwnRole(hold=hold, now=0.0)
    own.on_stepped_down("handed over", 1.0, rest=0.0)

    own.on_taken(4, 2.0)

    assert own.is_confirmed(3.0)


@pytest.mark.parametrize("word", [PRINCIPAL, MIRROR, SILENT])
def test_a_word_that_comes_late_says_nothing(word: RoleAnswer) -> None:
    """It was read before this process stood still, and what it says was true then."""
    mirror = OwnRole(hold=HOLD, now=0.0)

    act = mirror.on_word(word, 5.0, 15.1)

    assert (Act.STAY, word.problem or LATE) == (act, mirror.problem)


@pytest.mark.parametrize("now", [0.0, 1e9])
def test_whoever_needs_nobodys_word_never_lapses(now: float) -> None:
    own = OwnRole(hold=float("inf"), now=0.0)
    own.on_taken(1, 0.0)

    assert (True, Act.STAY) == (own.is_confirmed(now), heard(own, PRINCIPAL, now))


def test_a_problem_stays_until_a_word_that_counts() -> None:
    own = principal()

    heard(own, SILENT, 1.0)
    told = own.problem
    heard(own, PRINCIPAL, 2.0)

    assert ("no answer", "") == (told, own.problem)


def test_whoever_stepped_down_rests_before_it_takes_over_again() -> None:
    own = principal()

    own.on_stepped_down("handed over", 1.0, rest=5.0)

    assert (MirrorRole.MIRROR, 3, "handed over", 6.0) == (own.role, own.epoch, own.problem, own.rests_until)
    assert [Act.STAY, Act.TAKE] == [heard(own, PRINCIPAL, now) for now in (5.9, 6.0)]


def test_the_rest_is_over_once_the_partner_has_taken_over() -> None:
    """So that a pair which is failed over there and back is not without a principal for the rest of it."""
    own = principal()
    own.on_stepped_down("handed over", 1.0, rest=5.0)

    own.on_told(3)
    still = heard(own, PRINCIPAL, 1.1)
    own.on_told(4)

    assert [Act.STAY, Act.TAKE] == [still, heard(own, PRINCIPAL, 1.2)]


def test_what_could_not_be_taken_is_tried_again_after_a_pause() -> None:
    own = OwnRole(hold=HOLD, now=0.0)

    own.on_kept_out("full disk", 1.0, pause=1.0)

    assert [Act.STAY, Act.TAKE] == [heard(own, PRINCIPAL, now) for now in (1.9, 2.0)]
    assert "full disk" == own.problem
    heard(own, MIRROR, 3.0)
    assert "" == own.problem


def test_a_mirror_believes_the_highest_epoch_that_is_told_and_a_principal_its_own() -> None:
    mirror, own = OwnRole(hold=HOLD, now=0.0), principal()

    for epoch in (2, 5, 4):
        mirror.on_told(epoch)
        own.on_told(epoch)

    assert (5, 3) == (mirror.epoch, own.epoch)
