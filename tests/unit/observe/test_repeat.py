from __future__ import annotations

from typing import Any

import pytest
from structlog import DropEvent

from broker.observe.logs import INTERVAL, RepeatFilter


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def repeats(clock: _Clock) -> RepeatFilter:
    return RepeatFilter(clock)


def _passes(repeats: RepeatFilter, event: str = "connect failed", level: str = "error", **fields: Any) -> Any:
    """What comes out of the filter, None when it is held back."""
    try:
        return dict(repeats(None, level, {"level": level, "event": event, **fields}))
    except DropEvent:
        return None


def test_first_is_told_at_once_and_then_one_a_minute_with_the_number_left_out(
    repeats: RepeatFilter, clock: _Clock
) -> None:
    told = []
    for second in range(200):
        clock.now = 1000.0 + second
        event = _passes(repeats, peer="a")
        if event is not None:
            told.append((second, event.get("suppressed")))

    assert told == [(0, None), (60, 59), (120, 59), (180, 59)]


def test_one_that_comes_seldom_is_always_told_without_a_number(repeats: RepeatFilter, clock: _Clock) -> None:
    told = []
    for _ in range(3):
        told.append(_passes(repeats, peer="a"))
        clock.now += INTERVAL

    assert told == [{"level": "error", "event": "connect failed", "peer": "a"}] * 3


@pytest.mark.parametrize(
    ("other", "held_back"),
    [
        ({"peer": "a"}, True),
        ({"peer": "a", "elapsed_ms": 7}, True),  # a measure
        ({"peer": "b"}, False),
        ({"peer": "a", "event": "link lost"}, False),
        ({"peer": "a", "level": "warning"}, False),
        ({"peer": "a", "initial": True}, False),  # a bool is no measure
        ({"peer": ["a"]}, False),  # cannot be hashed
        ({"peer": "a", "exc_info": (1, 2, 3)}, True),
    ],
)
def test_identical_is_what_has_the_same_fields_but_for_numbers(
    repeats: RepeatFilter, other: dict[str, Any], held_back: Any
) -> None:
    _passes(repeats, peer="a", elapsed_ms=3)

    assert held_back == (_passes(repeats, **other) is None)


@pytest.mark.parametrize("level", ["debug", "info"])
def test_what_is_no_error_always_passes(repeats: RepeatFilter, level: str) -> None:
    assert None not in [_passes(repeats, level=level) for _ in range(3)]


def test_untold_are_handed_out_once_when_their_minute_is_over(repeats: RepeatFilter, clock: _Clock) -> None:
    for number in range(4):
        _passes(repeats, peer="a", attempt=number, exc_info=(1, 2, 3))
    _passes(repeats, peer="b")

    early = repeats.take_untold()
    clock.now += INTERVAL
    late = repeats.take_untold()

    last = {"level": "error", "event": "connect failed", "peer": "a", "attempt": 3, "suppressed": 3}
    assert ([], [last], []) == (early, late, repeats.take_untold())


def test_at_the_end_everything_untold_is_handed_out(repeats: RepeatFilter) -> None:
    for _ in range(2):
        _passes(repeats, peer="a")

    assert [event["suppressed"] for event in repeats.take_untold(everything=True)] == [1]


def test_memory_is_bounded_and_forgets_what_was_not_seen_for_longest(clock: _Clock) -> None:
    repeats = RepeatFilter(clock, kinds_max=2)
    for peer in ("a", "b", "a", "c"):  # c pushes b out
        _passes(repeats, peer=peer)

    assert [_passes(repeats, peer=peer) is not None for peer in ("a", "b", "c")] == [False, True, True]
