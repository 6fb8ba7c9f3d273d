"""How long to wait for an acknowledgement: RFC 6298 by numbers."""

from __future__ import annotations

import pytest

from broker.conversation.window import DOUBLINGS_KEPT, FLOOR, Backoff, RoundTrip

BACKOFF = Backoff(first=4.0, cap=64.0)


def trip(*seconds: float) -> RoundTrip:
    """After these measurements."""
    trip = RoundTrip(BACKOFF)
    for one in seconds:
        trip.measure(one)
    return trip


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 4.0), (1, 8.0), (2, 16.0), (3, 32.0), (4, 64.0), (5, 64.0), (10**9, 64.0)]
)
def test_wait_doubles_up_to_the_cap(attempts: int, seconds: float) -> None:
    unmeasured = trip()
    unmeasured.attempts = attempts

    assert seconds == unmeasured.timeout


def test_first_measurement_is_believed_with_a_wide_margin() -> None:
    measured = trip(1.0)

    assert (measured.smoothed, measured.variation, measured.timeout) == (1.0, 0.5, 3.0)


def test_later_measurements_are_smoothed() -> None:
    measured = trip(1.0, 2.0)

    assert measured.variation == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)
    assert measured.smoothed == pytest.approx(0.875 * 1.0 + 0.125 * 2.0)
    assert measured.timeout == pytest.approx(1.125 + 4 * 0.625)


def test_wait_is_never_below_the_floor_nor_above_the_cap() -> None:
    assert trip(*[0.001] * 50).timeout == FLOOR
    assert trip(100.0).timeout == BACKOFF.cap


def test_cap_below_the_floor_holds() -> None:
    hasty = RoundTrip(Backoff(0.05, 0.1))
    hasty.measure(0.001)

    assert hasty.timeout == 0.1


def test_patience_is_the_wait_without_floor_and_doubling() -> None:
    measured = trip(*[0.04] * 50)
    measured.time_out()

    assert 0.05 <= measured.patience < FLOOR < measured.timeout
    assert trip().patience == trip().timeout


def test_patience_covers_ways_of_different_speed() -> None:
    """Two gateways, one ten times as slow: what takes the slow one is not lost when the other has answered."""
    assert trip(*[0.01, 0.1] * 20).patience > 0.1


def test_measurement_ends_the_doubling_and_other_progress_in_part() -> None:
    measured, unmeasured = trip(), trip()
    for one in (measured, unmeasured):
        for _ in range(6):
            one.time_out()

    measured.measure(0.5)
    unmeasured.progress()

    assert (measured.attempts, unmeasured.attempts) == (0, DOUBLINGS_KEPT)


def test_way_slower_than_the_first_wait_is_found() -> None:
    """Each frame is sent again before its answer comes, until one is waited for long enough to be measured."""
    way = RoundTrip(Backoff(1.0, 64.0))
    slow = 7.0
    frames = 0
    while way.smoothed is None:
        frames += 1
        elapsed = way.timeout
        if elapsed > slow:
            way.measure(slow)
            continue
        while elapsed < slow:
            way.time_out()
            elapsed += way.timeout
        way.progress()

    assert frames <= 3


def test_shortest_round_trip_is_remembered() -> None:
    assert trip(0.3, 0.1, 0.2).least == 0.1
