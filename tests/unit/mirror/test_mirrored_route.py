"""The rules R6.1 to R6.6 as they show at one prober."""

from __future__ import annotations

import pytest

from broker.routing.mirrored import (
    EPOCH_MAX,
    EPOCH_TOLD_MAX,
    TRANSITIONS,
    AddressState,
    MirroredRoute,
    MirroredRouteState,
    MirrorEvent,
    MirrorRole,
    MirrorSide,
    MirrorState,
)

A, B = "a:4022", "b:4022"
S = MirroredRouteState
WORDS = {
    MirrorEvent.CLAIMS_HIGHER: ("principal", 1),
    MirrorEvent.CLAIMS_EQUAL: ("principal", 0),
    MirrorEvent.CLAIMS_LOWER: ("principal", -1),
    MirrorEvent.DENIES: ("mirror", 0),
    MirrorEvent.LOST: ("", 0),
}


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


def say(route: MirroredRoute[str], address: str, word: MirrorEvent, now: float) -> tuple[str, ...]:
    role, more = WORDS[word]
    if word is MirrorEvent.LOST:
        return route.on_unreachable(address, "link lost", now)
    return route.on_reply(address, role, route.epoch + more, now)


# --- R6.1: never used ---


def test_first_use_asks_both_and_leads_to_neither() -> None:
    route = unused()

    assert (S.NOT_USED, None, None) == (route.state, route.principal, route.due)
    assert (A, B) == route.use(1.0)
    assert (S.NOT_OPERATIONAL, None) == (route.state, route.principal)


def test_nothing_leaves_while_one_is_a_mirror_and_the_other_silent() -> None:
    route = used()

    route.on_reply(B, "mirror", 5, 0.01)

    assert (None, S.NOT_OPERATIONAL) == (route.principal, route.state)


def test_who_says_principal_is_used() -> None:
    route = used()

    route.on_reply(B, "principal", 5, 0.01)

    assert (B, 5, S.PRINCIPAL_ONLY, None, "") == (route.principal, route.epoch, route.state, route.due, route.alarm)


def test_second_use_asks_nobody() -> None:
    route = used()

    assert () == route.use(0.1)
    assert () == settled().use(0.1)


def test_what_is_heard_before_the_first_use_is_shown_and_not_believed() -> None:
    route = unused()

    assert () == route.on_reply(A, "principal", 5, 0.0)
    assert (None, 0, S.NOT_USED) == (route.principal, route.epoch, route.state)
    assert AddressState(None, 0.0, MirrorRole.PRINCIPAL, 5) == route.seen[A]
    assert (A, B) == route.use(1.0)


# --- R6.2: principal known ---


def test_partner_is_not_contacted_while_the_principal_is_known() -> None:
    route = settled()

    assert None is route.due
    for now in (1.0, 10.0, 1000.0):
        assert () == route.on_time(now)
    assert () == route.on_unreachable(B, "link lost", 1001.0)
    assert () == route.on_reply(B, "unknown", 0, 1002.0)
    assert (A, None) == (route.principal, route.due)


def test_principal_that_repeats_its_claim_raises_the_epoch() -> None:
    route = settled()

    assert () == route.on_reply(A, "principal", 9, 1.0)
    assert (A, 9, "") == (route.principal, route.epoch, route.alarm)


# --- R6.3: the principal is out of reach, or denies ---


@pytest.mark.parametrize("how", ["lost", "mirror", "unknown", "primary", "stale"])
def test_principal_that_declines_is_none_at_once_and_both_are_asked(how: str) -> None:
    route = settled()

    if how == "lost":
        asked = route.on_unreachable(A, "link lost", 1.0)
    elif how == "stale":
        asked = route.on_reply(A, "principal", 4, 1.0)
    else:
        asked = route.on_reply(A, how, 5, 1.0)

    assert {A, B} == set(asked)
    assert (None, S.NOT_OPERATIONAL) == (route.principal, route.state)


def test_partner_is_used_when_it_claims_and_not_before() -> None:
    route = settled()
    route.on_unreachable(A, "link lost", 1.0)

    route.on_reply(B, "mirror", 5, 1.1)
    assert MirrorState.BOTH_DECLINED is route.standing
    route.on_reply(B, "principal", 6, 1.2)

    assert (B, 6, None, S.PRINCIPAL_ONLY) == (route.principal, route.epoch, route.due, route.state)


def test_partner_that_takes_over_is_used_without_a_gap() -> None:
    route = settled()

    assert () == route.on_reply(B, "principal", 6, 1.0)
    assert (B, S.PRINCIPAL_ONLY) == (route.principal, route.state)
    assert () == route.on_reply(A, "mirror", 6, 1.1)
    assert (B, S.OPERATIONAL) == (route.principal, route.state)


def test_old_principal_is_used_again_when_it_claims_again() -> None:
    route = settled()
    route.on_unreachable(A, "link lost", 1.0)

    assert () == route.on_reply(A, "principal", 5, 1.1)

    assert (A, 5, "") == (route.principal, route.epoch, route.alarm)


def test_silence_is_asked_again_with_a_wait_that_doubles_to_ten_seconds() -> None:
    route = used()
    instants = []

    for _ in range(12):
        assert route.due is not None
        assert () == route.on_time(route.due - 0.001)
        instants.append(route.due)
        assert (A, B) == route.on_time(route.due)

    waits = [after - before for before, after in zip([0.0, *instants], instants, strict=False)]
    assert [0.2, 0.4, 0.8, 1.6, 3.2, 6.4] == pytest.approx(waits[:6])
    assert all(6.4 < wait <= 10.0 for wait in waits[6:])


def test_both_that_deny_are_asked_on_with_back_off() -> None:
    route = used()
    asks = 0
    now = 0.0
    while now < 60.0:
        for address in (A, B):
            route.on_reply(address, "mirror", 5, now)
        assert route.due is not None
        now = route.due
        asks += len(route.on_time(now))

    assert MirrorState.BOTH_DECLINED is route.standing
    assert 30 > asks


def test_change_is_followed_up_soon() -> None:
    route = used()
    for _ in range(8):
        route.on_unreachable(A, "refused", route.due or 0.0)
        route.on_time(route.due or 0.0)
    now = (route.due or 0.0) - 5.0

    route.on_reply(A, "mirror", 5, now)

    assert now + 0.2 == route.due


def test_answer_that_says_nothing_new_does_not_hasten() -> None:
    route = used()
    for _ in range(8):
        route.on_unreachable(A, "refused", route.due or 0.0)
        route.on_time(route.due or 0.0)
    due = route.due

    route.on_unreachable(A, "no route to host", (due or 0.0) - 5.0)

    assert due == route.due


def test_flapping_makes_no_storm() -> None:
    route = used()
    asks = 2

    for tick in range(1, 6001):  # a minute of changes every 10 ms
        now = tick / 100
        asks += len(route.on_reply(A, "principal", 5, now))
        asks += len(route.on_unreachable(A, "link lost", now))
        asks += len(route.on_reply(B, "mirror", 5, now))

    assert 2 * (60 / 0.2 + 1) >= asks


# --- R6.4: both claim ---


@pytest.mark.parametrize(("ours", "theirs", "principal"), [(5, 6, B), (6, 5, A), (5, 5, A)])
def test_higher_epoch_is_believed_and_of_equal_ones_the_one_in_use(ours: int, theirs: int, principal: str) -> None:
    route = used()

    route.on_reply(A, "principal", ours, 0.01)
    route.on_reply(B, "principal", theirs, 0.02)

    assert (principal, max(ours, theirs)) == (route.principal, route.epoch)
    assert (theirs <= ours) == bool(route.alarm)


def test_equal_epochs_are_alarming_until_a_failover_raises_it() -> None:
    route = settled()
    told = "a:4022 and b:4022 have both claimed to be the principal with epoch 5"

    route.on_reply(B, "principal", 5, 1.0)
    assert (A, told) == (route.principal, route.alarm)
    route.on_unreachable(A, "link lost", 2.0)
    assert (None, told) == (route.principal, route.alarm)
    route.on_reply(B, "principal", 5, 3.0)
    assert (B, told) == (route.principal, route.alarm)
    route.on_reply(A, "principal", 6, 4.0)
    assert (A, "") == (route.principal, route.alarm)


def test_stale_copy_is_not_believed_and_alarming_until_something_else_is_heard_of_it() -> None:
    route = settled()
    route.on_unreachable(A, "link lost", 1.0)

    route.on_reply(B, "principal", 4, 1.1)

    assert (None, 5) == (route.principal, route.epoch)
    assert (
        "b:4022 claims to be the principal with epoch 4 after epoch 5: a stale copy, or one that was restored: if that"
        " was meant, ALTER this route with its two addresses exchanged, or restart this instance, or fail over past 5"
    ) == route.alarm
    route.on_reply(B, "principal", 6, 1.2)
    assert (B, "") == (route.principal, route.alarm)


def test_failovers_are_advised_only_where_there_are_few_to_make() -> None:
    route = settled()
    route.on_reply(B, "principal", 105, 1.0)
    route.on_unreachable(B, "link lost", 1.1)

    route.on_reply(A, "principal", 5, 1.2)
    near = route.alarm
    route.on_reply(A, "principal", 4, 1.3)

    assert near.endswith("or restart this instance, or fail over past 105")
    assert route.alarm.endswith("or restart this instance")


def test_two_alarms_are_both_told() -> None:
    route = settled()
    route.on_reply(B, "principal", 5, 1.0)
    route.on_reply(B, "principal", 1, 2.0)

    assert 2 == len(route.alarm.split("; "))


def test_addresses_of_one_instance_are_alarming_until_one_of_them_is_another() -> None:
    route = settled()

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


def test_instances_that_do_not_tell_who_they_are_may_be_two() -> None:
    route = settled()

    route.meet(A, "")
    route.meet(B, "")

    assert "" == route.alarm


# --- R6.5: what is shown ---


def test_answers_and_their_times_are_shown() -> None:
    route = settled()

    assert {
        A: AddressState(0.0, 0.01, MirrorRole.PRINCIPAL, 5),
        B: AddressState(0.0, 0.02, MirrorRole.MIRROR, 5),
    } == route.seen
    assert S.OPERATIONAL is route.state


def test_problem_is_shown_until_the_next_answer() -> None:
    route = settled()

    route.on_unreachable(B, "connection refused", 1.0)
    assert (S.PRINCIPAL_ONLY, "connection refused") == (route.state, route.seen[B].problem)
    assert MirrorRole.MIRROR is route.seen[B].role
    route.on_reply(B, "mirror", 5, 2.0)
    assert (S.OPERATIONAL, "") == (route.state, route.seen[B].problem)


def test_problem_without_words_is_one_too() -> None:
    route = settled()

    route.on_unreachable(B, "", 1.0)

    assert (S.PRINCIPAL_ONLY, "out of reach") == (route.state, route.seen[B].problem)


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


def test_highest_epoch_is_believed() -> None:
    route = settled()

    route.on_reply(B, "principal", EPOCH_TOLD_MAX, 1.0)

    assert (B, EPOCH_TOLD_MAX) == (route.principal, route.epoch)


def test_claim_of_an_impossible_epoch_ends_no_pair() -> None:
    """Whoever makes it; the other address goes on, and the next failover is believed."""
    route = used()
    route.on_reply(B, "principal", 7, 0.1)

    route.on_reply(A, "principal", EPOCH_MAX, 0.2)
    during = route.principal
    route.on_unreachable(A, "link lost", 0.3)
    route.on_reply(B, "principal", 8, 0.4)

    assert (B, B, 8, "") == (during, route.principal, route.epoch, route.alarm)


def test_text_that_is_no_role_is_unknown() -> None:
    route = used()

    route.on_reply(A, "primary", 5, 0.1)

    assert (None, MirrorRole.UNKNOWN) == (route.principal, route.seen[A].role)


def test_addresses_may_be_in_any_order() -> None:
    route = MirroredRoute(B, A, lambda: 0.0)

    asked = route.use(0.0)
    route.on_reply(B, "principal", 5, 0.01)

    assert ((B, A), B) == (asked, route.principal)


def test_two_equal_addresses_make_no_route() -> None:
    with pytest.raises(ValueError, match="both addresses of a mirrored route are a:4022"):
        MirroredRoute(A, A, lambda: 0.0)


# --- the table, walked ---


def at(standing: MirrorState) -> MirroredRoute[str]:
    """A route in this state, with an epoch above 0 behind it."""
    route = unused()
    if standing is MirrorState.NEVER_USED:
        return route
    route.use(0.0)
    if standing is MirrorState.ASKING_BOTH:
        return route
    first, second = (B, A) if standing in (MirrorState.SECOND_DECLINED, MirrorState.SECOND_PRINCIPAL) else (A, B)
    route.on_reply(first, "principal", 5, 0.01)
    if standing in (MirrorState.FIRST_PRINCIPAL, MirrorState.SECOND_PRINCIPAL):
        return route
    route.on_unreachable(first, "link lost", 0.02)
    if standing is MirrorState.BOTH_DECLINED:
        route.on_reply(second, "mirror", 5, 0.03)
    return route


@pytest.mark.parametrize(
    ("before", "side", "word"),
    [
        key
        for key in TRANSITIONS
        # Of a route of which nothing was ever believed the epoch is 0, and no claim is lower.
        if not (key[0] in (MirrorState.NEVER_USED, MirrorState.ASKING_BOTH) and key[2] is MirrorEvent.CLAIMS_LOWER)
    ],
)
def test_every_step_of_the_table_is_taken(before: MirrorState, side: MirrorSide, word: MirrorEvent) -> None:
    route = at(before)
    assert before is route.standing

    say(route, route.addresses[side.value], word, 0.5)

    assert TRANSITIONS[before, side, word] is route.standing
