"""Mirrored routes: the back-off by numbers, the transitions at one prober, and the role of this instance."""

import itertools
from collections.abc import Callable

import pytest

from broker.routing.mirrored import (
    EPOCH_MAX,
    EPOCH_TOLD_MAX,
    FIRST_SECONDS,
    LAST_SECONDS,
    LATE,
    LONGEST_STEP,
    PRINCIPAL,
    TRANSITIONS,
    Act,
    AddressState,
    MirroredRoute,
    MirroredRouteState,
    MirrorEvent,
    MirrorRole,
    MirrorSide,
    MirrorState,
    OwnRole,
    ProbeSchedule,
    RoleAnswer,
)

NO_CHANCE, MUCH_CHANCE = 0.0, 1.0 - 2**-53


def plan(chance: float = NO_CHANCE) -> ProbeSchedule[str]:
    return ProbeSchedule(["a", "b"], lambda: chance)


def waits(asking: ProbeSchedule[str], times: int) -> list[float]:
    """Seconds between the questions, each asked when it is due."""
    instants = []
    for _ in range(times):
        assert asking.due is not None
        instants.append(asking.due)
        assert ("a", "b") == asking.take(asking.due)
    return [after - before for before, after in itertools.pairwise(instants)]


def test_both_are_asked_at_once_then_not_before_it_is_due_and_none_before_it_begins_or_after_it_has_stopped() -> None:
    asking = plan()
    assert (None, ()) == (asking.due, asking.take(5.0))

    asking.begin(5.0)
    assert (("a", "b"), (), 5.0 + FIRST_SECONDS) == (asking.take(5.0), asking.take(5.0), asking.due)
    asking.stop()
    assert (None, ()) == (asking.due, asking.take(9.0))

    asking.begin(5.05)  # whom it has just asked, it does not ask again
    assert ((), 5.0 + FIRST_SECONDS) == (asking.take(5.05), asking.due)
    assert ("a", "b") == asking.take(5.0 + FIRST_SECONDS)


@pytest.mark.parametrize(("chance", "factor"), [(NO_CHANCE, 1.0), (0.5, 1.25), (MUCH_CHANCE, 1.5)])
def test_wait_doubles_from_200_ms_to_10_s_and_is_spread(chance: float, factor: float) -> None:
    asking = plan(chance)
    asking.begin(100.0)

    steps = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LONGEST_STEP, LONGEST_STEP]
    assert [step * factor for step in steps] == pytest.approx(waits(asking, 9))
    assert LAST_SECONDS >= LONGEST_STEP * factor


def test_change_starts_the_back_off_again_and_never_puts_off_what_is_due_sooner() -> None:
    asking = plan()
    asking.begin(0.0)
    asking.take(0.0)
    asking.hasten(0.15)
    assert FIRST_SECONDS == asking.due
    waits(asking, 7)

    asking.hasten(20.0)

    assert 20.0 + FIRST_SECONDS == asking.due
    assert [0.2 + 0.2, 0.8] == pytest.approx(waits(asking, 3))


# --- mirrored route ---
# The rules R6.1 to R6.6 as they show at one prober.


A, B = "a:4022", "b:4022"
S = MirroredRouteState


def unused() -> MirroredRoute[str]:
    return MirroredRoute(A, B, lambda: 0.0)


def used(now: float = 0.0) -> MirroredRoute[str]:
    """Both are asked."""
    route = unused()
    assert (A, B) == route.use(now)
    return route


def settled(epoch: int = 5) -> MirroredRoute[str]:
    """A is principal, B its mirror."""
    route = used()
    assert () == route.on_reply(A, "principal", epoch, 0.01)
    assert () == route.on_reply(B, "mirror", epoch, 0.02)
    return route


def test_what_is_heard_before_the_first_use_is_shown_and_not_believed() -> None:
    route = unused()

    assert () == route.on_reply(A, "principal", 5, 0.0)
    assert (None, 0, S.NOT_USED) == (route.principal, route.epoch, route.state)
    assert AddressState(None, 0.0, MirrorRole.PRINCIPAL, 5) == route.seen[A]
    assert (A, B) == route.use(1.0)


# --- R6.3: the principal is out of reach, or denies ---


def test_a_change_is_followed_up_soon_and_an_answer_that_says_nothing_new_does_not_hasten() -> None:
    route = used()
    for _ in range(8):
        route.on_unreachable(A, "refused", route.due or 0.0)
        route.on_time(route.due or 0.0)
    due = route.due or 0.0

    route.on_unreachable(A, "no route to host", due - 5.0)
    same = route.due
    route.on_reply(A, "mirror", 5, due - 5.0)

    assert (due, due - 5.0 + 0.2) == (same, route.due)


# --- R6.4: both claim ---


@pytest.mark.parametrize(("ours", "theirs", "principal"), [(5, 6, B), (6, 5, A), (5, 5, A)])
@pytest.mark.promise("R6.4")
def test_higher_epoch_is_believed_and_of_equal_ones_the_one_in_use(ours: int, theirs: int, principal: str) -> None:
    route = used()

    route.on_reply(A, "principal", ours, 0.01)
    route.on_reply(B, "principal", theirs, 0.02)

    assert (principal, max(ours, theirs)) == (route.principal, route.epoch)
    assert (theirs <= ours) == bool(route.alarm)


def test_equal_epochs_are_alarming_until_a_failover_raises_it() -> None:
    route = settled()
    told = "a:4022 and b:4022 have both claimed to be the principal with epoch 5"
    heard = []
    steps: list[Callable[[], tuple[str, ...]]] = [
        lambda: route.on_reply(B, "principal", 5, 1.0),
        lambda: route.on_unreachable(A, "link lost", 2.0),
        lambda: route.on_reply(B, "principal", 5, 3.0),
        lambda: route.on_reply(A, "principal", 6, 4.0),
        lambda: route.on_reply(A, "principal", 9, 5.0),
    ]

    for step in steps:
        assert () == step() or route.principal is None
        heard.append((route.principal, route.epoch, route.alarm))

    assert [(A, 5, told), (None, 5, told), (B, 5, told), (A, 6, ""), (A, 9, "")] == heard


def test_stale_copy_is_not_believed_and_alarming_until_something_else_is_heard_of_it() -> None:
    """Failovers are advised only where there are few to make."""
    route = settled()
    route.on_unreachable(A, "link lost", 1.0)

    route.on_reply(B, "principal", 4, 1.1)
    assert (None, 5) == (route.principal, route.epoch)
    assert route.alarm.startswith("b:4022 claims to be the principal with epoch 4 after epoch 5: a stale copy")
    assert route.alarm.endswith("or restart this instance, or fail over past 5")

    route.on_reply(B, "principal", 105, 1.2)
    assert (B, "") == (route.principal, route.alarm)
    route.on_unreachable(B, "link lost", 1.3)
    for epoch, advice in ((5, ", or fail over past 105"), (4, "")):
        route.on_reply(A, "principal", epoch, 1.4)
        assert route.alarm.endswith(f"or restart this instance{advice}")


def test_addresses_of_one_instance_are_alarming_until_one_of_them_is_another() -> None:
    route = settled()

    route.meet(A, "")  # instances that do not say who they are may be two
    route.meet(B, "")
    assert "" == route.alarm
    route.meet(A, "instance 1")
    assert "" == route.alarm
    route.meet(B, "instance 1")
    route.on_reply(B, "principal", 5, 1.0)
    assert "a:4022 and b:4022 both lead to instance 1: correct one of them" == route.alarm
    route.meet(B, "instance 2")
    assert "both claimed" in route.alarm
    route.meet(B, "instance 1")
    route.on_unreachable(B, "link lost", 2.0)
    assert "lead to" not in route.alarm


# --- R6.5: what is shown ---


def test_problem_is_shown_until_the_next_answer() -> None:
    route = settled()
    assert AddressState(0.0, 0.01, MirrorRole.PRINCIPAL, 5) == route.seen[A]
    assert AddressState(0.0, 0.02, MirrorRole.MIRROR, 5) == route.seen[B]

    route.on_unreachable(B, "connection refused", 1.0)
    assert (S.PRINCIPAL_ONLY, "connection refused") == (route.state, route.seen[B].problem)
    assert MirrorRole.MIRROR is route.seen[B].role
    route.on_reply(B, "mirror", 5, 2.0)
    assert (S.OPERATIONAL, "") == (route.state, route.seen[B].problem)


def test_mirror_that_did_not_answer_when_last_asked_is_none() -> None:
    route = settled()
    route.on_unreachable(A, "link lost", 1.0)

    route.on_reply(A, "principal", 5, 1.1)
    before = route.state
    route.on_reply(B, "mirror", 5, 1.2)

    assert (S.PRINCIPAL_ONLY, S.OPERATIONAL) == (before, route.state)


# --- what nobody should say ---


@pytest.mark.parametrize("epoch", [-1, -(2**63), EPOCH_TOLD_MAX + 1, EPOCH_MAX, 2**64 - 1])
def test_epoch_that_no_pair_can_have_is_not_believed(epoch: int) -> None:
    route = settled()

    route.on_reply(B, "principal", epoch, 1.0)

    assert (A, 5, S.PRINCIPAL_ONLY) == (route.principal, route.epoch, route.state)
    assert AddressState(0.0, 1.0, MirrorRole.UNKNOWN, None, f"answered with the epoch {epoch}") == route.seen[B]


def test_two_equal_addresses_make_no_route() -> None:
    with pytest.raises(ValueError, match="both addresses of a mirrored route are a:4022"):
        MirroredRoute(A, A, lambda: 0.0)


# --- own role ---
# What follows from what the source of roles says, and when.


HOLD = 10.0
CLAIM, MIRROR, SILENT = (
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


@pytest.mark.parametrize(
    ("word", "act"),
    [
        (CLAIM, Act.STAY),
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

    acts = [heard(own, word, now) for word, now in [(CLAIM, 5.0), (SILENT, 15.0), (SILENT, 15.1)]]

    assert [Act.STAY, Act.STAY, Act.STEP_DOWN] == acts


def test_a_principal_may_act_for_as_long_as_a_word_counts_from_when_it_was_asked_for() -> None:
    own = principal()
    before = [own.is_confirmed(now) for now in (0.0, 10.0)]

    own.on_word(CLAIM, 4.0, 9.0)

    assert [True, True] == before
    assert [True, False] == [own.is_confirmed(now) for now in (14.0, 14.1)]


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("word", [CLAIM, MIRROR, SILENT])
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


@pytest.mark.parametrize("word", [CLAIM, MIRROR, SILENT])
def test_a_word_that_comes_late_says_nothing(word: RoleAnswer) -> None:
    """It was read before this process stood still, and what it says was true then."""
    mirror = OwnRole(hold=HOLD, now=0.0)

    act = mirror.on_word(word, 5.0, 15.1)

    assert (Act.STAY, word.problem or LATE) == (act, mirror.problem)
    assert not mirror.is_late(5.0, 15.0)


def test_a_problem_stays_until_a_word_that_counts() -> None:
    own = principal()

    heard(own, SILENT, 1.0)
    told = own.problem
    heard(own, CLAIM, 2.0)

    assert ("no answer", "") == (told, own.problem)


@pytest.mark.parametrize("is_over", [False, True])
def test_whoever_stepped_down_rests_until_its_partner_has_taken_over(*, is_over: bool) -> None:
    """So a pair which is failed over there and back is not without a principal for the rest of it."""
    own = principal()

    own.on_stepped_down("handed over", 1.0, rest=5.0)
    assert (MirrorRole.MIRROR, 3, "handed over", 6.0) == (own.role, own.epoch, own.problem, own.rests_until)
    own.on_told(3)
    assert Act.STAY is heard(own, CLAIM, 1.1)
    if is_over:
        own.on_told(4)

    assert [Act.TAKE if is_over else Act.STAY, Act.TAKE] == [heard(own, CLAIM, now) for now in (5.9, 6.0)]


def test_what_could_not_be_taken_is_tried_again_after_a_pause() -> None:
    own = OwnRole(hold=HOLD, now=0.0)

    own.on_kept_out("full disk", 1.0, pause=1.0)

    assert [Act.STAY, Act.TAKE] == [heard(own, CLAIM, now) for now in (1.9, 2.0)]
    assert "full disk" == own.problem
    heard(own, MIRROR, 3.0)
    assert "" == own.problem


def test_a_mirror_believes_the_highest_epoch_that_is_told_and_a_principal_its_own() -> None:
    mirror, own = OwnRole(hold=HOLD, now=0.0), principal()

    for epoch in (2, 5, 4):
        mirror.on_told(epoch)
        own.on_told(epoch)

    assert (5, 3) == (mirror.epoch, own.epoch)


# --- role ---
# Roles as PROBE_REPLY spells them.


@pytest.mark.parametrize("text", ["", "Principal", "primary", "principal ", "\x00"])
def test_text_that_names_no_role_is_unknown(text: str) -> None:
    assert MirrorRole.UNKNOWN is MirrorRole.of(text)


# --- the table of transitions ---


MIRRORED = {
    MirrorState.FIRST_DECLINED: MirrorState.SECOND_DECLINED,
    MirrorState.SECOND_DECLINED: MirrorState.FIRST_DECLINED,
    MirrorState.FIRST_PRINCIPAL: MirrorState.SECOND_PRINCIPAL,
    MirrorState.SECOND_PRINCIPAL: MirrorState.FIRST_PRINCIPAL,
}


@pytest.mark.parametrize(("before", "side", "word"), TRANSITIONS)
def test_the_table_is_symmetric_and_only_a_claim_makes_a_principal(
    before: MirrorState, side: MirrorSide, word: MirrorEvent
) -> None:
    after, other = TRANSITIONS[before, side, word], MirrorSide(1 - side.value)

    assert MIRRORED.get(after, after) == TRANSITIONS[MIRRORED.get(before, before), other, word]
    if before is MirrorState.NEVER_USED:
        assert before is after
    elif word is MirrorEvent.CLAIMS_HIGHER:
        assert side is PRINCIPAL[after]
    elif word is MirrorEvent.CLAIMS_EQUAL:
        assert PRINCIPAL.get(before, side) is PRINCIPAL[after]
    else:
        assert PRINCIPAL.get(after) in (None, other)
        assert PRINCIPAL.get(after) is None or after is before
