"""The window: where it begins, how it grows, and what makes it small."""

from __future__ import annotations

import pytest

from broker.conversation.window import FIRST_BYTES, FIRST_FRAMES, LEAST_BYTES, LEAST_FRAMES, Window

MIB = 1024 * 1024


def size(window: Window) -> tuple[int, int]:
    return window.frames, window.bytes


def test_window_begins_small() -> None:
    assert size(Window(1024, 8 * MIB)) == (FIRST_FRAMES, FIRST_BYTES)


@pytest.mark.parametrize(("frames", "size_"), [(1, 1), (FIRST_FRAMES - 1, FIRST_BYTES - 1)])
def test_bounds_below_the_first_window_hold_whatever_happens(frames: int, size_: int) -> None:
    window = Window(frames, size_)

    for loss in (window.shrink, window.collapse):
        loss()
        for _ in range(3):
            assert window.frames <= frames
            assert window.bytes <= size_
            window.grow(1000, MIB)


def test_window_grows_by_what_is_acknowledged_up_to_its_bounds() -> None:
    window = Window(FIRST_FRAMES + 10, FIRST_BYTES + 1000)
    sizes = []

    for frames in (4, 5, 40):
        window.grow(frames, 100 * frames)
        sizes.append(size(window))

    assert sizes == [
        (FIRST_FRAMES + 4, FIRST_BYTES + 400),
        (FIRST_FRAMES + 9, FIRST_BYTES + 900),
        (FIRST_FRAMES + 10, FIRST_BYTES + 1000),
    ]


def test_loss_halves_it_and_from_there_it_grows_by_a_frame_a_round_trip() -> None:
    window = Window(1024, 8 * MIB)

    window.shrink()
    after_loss = size(window)
    for _ in range(32):
        window.grow(1, 1000)

    assert after_loss == (FIRST_FRAMES // 2, FIRST_BYTES // 2)
    assert size(window) == (FIRST_FRAMES // 2 + 1, FIRST_BYTES // 2 + FIRST_BYTES // FIRST_FRAMES)


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


def test_loss_never_stops_it() -> None:
    window = Window(1024, 8 * MIB)

    for _ in range(20):
        window.shrink()

    assert size(window) == (LEAST_FRAMES, LEAST_BYTES)


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
