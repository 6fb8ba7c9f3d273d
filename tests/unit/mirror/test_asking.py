"""The back-off by numbers: 200 ms to 10 s, spread, and never two questions to one address within 200 ms."""

from __future__ import annotations

import itertools

import pytest

from broker.routing.mirrored import FIRST_SECONDS, LAST_SECONDS, LONGEST_STEP, ProbeSchedule

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


def test_nobody_is_asked_before_it_begins_or_after_it_has_stopped() -> None:
    asking = plan()

    assert (None, ()) == (asking.due, asking.take(5.0))
    asking.begin(5.0)
    asking.stop()
    assert (None, ()) == (asking.due, asking.take(9.0))


def test_both_are_asked_at_once_and_then_not_before_it_is_due() -> None:
    asking = plan()
    asking.begin(5.0)

    assert ("a", "b") == asking.take(5.0)
    assert () == asking.take(5.0)
    assert 5.0 + FIRST_SECONDS == asking.due


@pytest.mark.parametrize(("chance", "factor"), [(NO_CHANCE, 1.0), (0.5, 1.25), (MUCH_CHANCE, 1.5)])
def test_wait_doubles_from_200_ms_to_10_s_and_is_spread(chance: float, factor: float) -> None:
    asking = plan(chance)
    asking.begin(100.0)

    steps = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LONGEST_STEP, LONGEST_STEP]
    assert [step * factor for step in steps] == pytest.approx(waits(asking, 9))
    assert LAST_SECONDS >= LONGEST_STEP * factor


def test_two_probers_do_not_ask_in_step() -> None:
    one, other = plan(0.1), plan(0.9)
    one.begin(0.0)
    other.begin(0.0)

    apart = [b - a for a, b in zip(waits(one, 6), waits(other, 6), strict=True)]

    assert all(seconds > 0.05 for seconds in apart)


def test_change_starts_the_back_off_again() -> None:
    asking = plan()
    asking.begin(0.0)
    waits(asking, 8)

    asking.hasten(20.0)

    assert 20.0 + FIRST_SECONDS == asking.due
    assert [0.2 + 0.2, 0.8] == pytest.approx(waits(asking, 3))


def test_change_never_puts_off_what_is_due_sooner() -> None:
    asking = plan()
    asking.begin(0.0)
    asking.take(0.0)

    asking.hasten(0.15)

    assert FIRST_SECONDS == asking.due


def test_beginning_again_does_not_ask_whom_it_has_just_asked() -> None:
    asking = plan()
    asking.begin(0.0)
    asking.take(0.0)
    asking.stop()

    asking.begin(0.05)

    assert () == asking.take(0.05)
    assert FIRST_SECONDS == asking.due
    assert ("a", "b") == asking.take(FIRST_SECONDS)
