"""The traffic of a day by its profile."""

from __future__ import annotations

import pytest

from broker.bench.load.day_profile import BURST_FACTOR, HOURS, MINUTES, DayProfile

TOTAL = 1_000_000
PROFILE = DayProfile(TOTAL)


def of_hour(hour: int) -> int:
    return PROFILE.due_by((hour + 1) / 24) - PROFILE.due_by(hour / 24)


def test_a_day_has_all_messages_and_nothing_before_or_after() -> None:
    assert [0, 0, TOTAL, TOTAL] == [PROFILE.due_by(at) for at in (-1.0, 0.0, 1.0, 2.0)]
    assert TOTAL == sum(map(of_hour, range(24)))


def test_busy_hours_have_many_times_the_traffic_of_quiet_ones() -> None:
    assert 24 == len(HOURS)
    assert of_hour(10) > 8 * of_hour(2 - 1)


def test_a_burst_has_more_than_the_minutes_around_it() -> None:
    minutes = [PROFILE.due_by((one + 1) / MINUTES) - PROFILE.due_by(one / MINUTES) for one in range(MINUTES)]

    bursts = [
        one
        for one in range(1, MINUTES - 1)
        if minutes[one] > 0.8 * BURST_FACTOR * max(minutes[one - 1], minutes[one + 1])
    ]

    assert 20 < len(bursts) <= 48


@pytest.mark.parametrize("number", [0, 1, 2, 12_345, 500_000, TOTAL - 1])
def test_a_message_is_due_at_the_moment_by_which_so_many_are_due(number: int) -> None:
    assert number == pytest.approx(PROFILE.due_by(PROFILE.due_at(number)), abs=1)


def test_moments_are_in_their_order() -> None:
    moments = [PROFILE.due_at(number) for number in range(0, TOTAL, 997)]

    assert sorted(moments) == moments
    assert 0 <= moments[0]
    assert moments[-1] < 1


def test_the_same_numbers_make_the_same_day() -> None:
    again, other = DayProfile(TOTAL), DayProfile(TOTAL, seed=2)

    assert PROFILE.due_by(0.3) == again.due_by(0.3)
    assert PROFILE.due_by(0.3) != other.due_by(0.3)
