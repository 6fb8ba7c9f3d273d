"""The window: where it begins, how it grows, and what makes it small."""

import pytest

from broker.conversation.window import (
    DOUBLINGS_KEPT,
    FIRST_BYTES,
    FIRST_FRAMES,
    FLOOR,
    LEAST_BYTES,
    LEAST_FRAMES,
    Backoff,
    RoundTrip,
    Window,
)

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


def test_first_measurement_has_a_wide_margin_and_later_ones_are_smoothed() -> None:
    first, measured = trip(1.0), trip(1.0, 2.0)

    assert (first.smoothed, first.variation, first.timeout) == (1.0, 0.5, 3.0)
    assert measured.variation == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)
    assert measured.smoothed == pytest.approx(0.875 * 1.0 + 0.125 * 2.0)
    assert measured.timeout == pytest.approx(1.125 + 4 * 0.625)
    assert trip(0.3, 0.1, 0.2).least == 0.1


def test_wait_is_never_below_the_floor_nor_above_the_cap() -> None:
    assert trip(*[0.001] * 50).timeout == FLOOR
    assert trip(100.0).timeout == BACKOFF.cap
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


MIB = 1024 * 1024


def size(window: Window) -> tuple[int, int]:
    return window.frames, window.bytes


def test_window_begins_small_and_grows_by_what_is_acknowledged_up_to_its_bounds() -> None:
    window = Window(FIRST_FRAMES + 10, FIRST_BYTES + 1000)
    sizes = [size(window)]

    for frames in (4, 5, 40):
        window.grow(frames, 100 * frames)
        sizes.append(size(window))

    assert sizes == [
        (FIRST_FRAMES, FIRST_BYTES),
        (FIRST_FRAMES + 4, FIRST_BYTES + 400),
        (FIRST_FRAMES + 9, FIRST_BYTES + 900),
        (FIRST_FRAMES + 10, FIRST_BYTES + 1000),
    ]


@pytest.mark.promise(3)
def test_loss_halves_it_and_from_there_it_grows_by_a_frame_a_round_trip() -> None:
    """And never stops it."""
    window = Window(1024, 8 * MIB)

    window.shrink()
    after_loss = size(window)
    for _ in range(32):
        window.grow(1, 1000)

    assert after_loss == (FIRST_FRAMES // 2, FIRST_BYTES // 2)
    assert size(window) == (FIRST_FRAMES // 2 + 1, FIRST_BYTES // 2 + FIRST_BYTES // FIRST_FRAMES)
    for _ in range(20):
        window.shrink()
    assert size(window) == (LEAST_FRAMES, LEAST_BYTES)


def test_acknowledgements_from_before_a_loss_do_not_count_towards_growth_after_it() -> None:
    window = Window(1024, 8 * MIB)
    frames = []

    for loss in (window.shrink, window.shrink, window.collapse):
        loss()
        window.resume()
        window.grow(window.frames - 1, 1000)
        frames.append(window.frames)
    window.grow(1, 1000)

    assert frames == [FIRST_FRAMES // 2, FIRST_FRAMES // 4, FIRST_FRAMES // 8]
    assert window.frames == FIRST_FRAMES // 8 + 1


def test_after_silence_it_begins_anew_and_doubles_up_to_half_of_what_it_was() -> None:
    window = Window(1024, 8 * MIB)
    sizes = []

    window.collapse()
    for _ in range(5):
        sizes.append(window.frames)
        window.grow(window.frames, 1000 * window.frames)

    assert sizes == [LEAST_FRAMES, 8, 16, 32, 33]


def test_further_silence_does_not_make_less_of_what_it_was() -> None:
    window = Window(1024, 8 * MIB)

    for _ in range(5):
        window.collapse()
    collapsed = size(window)
    window.resume()

    assert collapsed == (LEAST_FRAMES, LEAST_BYTES)
    assert size(window) == (FIRST_FRAMES // 2, FIRST_BYTES // 2)


def test_resuming_makes_no_window_smaller_nor_larger_than_its_bounds() -> None:
    large, small = Window(1024, 8 * MIB), Window(2, 1000)
    for window in (large, small):
        window.collapse()
    large.grow(100, 2 * MIB)
    grown = size(large)

    for window in (large, small):
        window.resume()

    assert (size(large), size(small)) == (grown, (2, 1000))


def test_smaller_bounds_cut_it_and_larger_ones_let_it_grow() -> None:
    """What is in flight stays; how quickly it grows is forgotten only as far as the bounds say."""
    window = Window(1024, 8 * MIB)

    window.bound(10, 1000)
    cut = size(window)
    window.bound(20, 2000)
    window.grow(100, 10_000)

    assert ((10, 1000), (20, 2000)) == (cut, size(window))


def test_a_window_that_grows_slowly_goes_on_slowly_within_other_bounds() -> None:
    window = Window(1024, 8 * MIB)
    window.shrink()
    after_loss = size(window)

    window.bound(512, 4 * MIB)
    window.grow(1, 1000)

    assert after_loss == size(window)
