"""What a fragment is to the receiver."""

from __future__ import annotations

import pytest

from broker.conversation.frames import EARLY_WINDOW, Arrival, after, place
from broker.wire.layout import Flag

LAST = int(Flag.LAST_FRAGMENT)


@pytest.mark.parametrize(
    ("expected", "sequence", "fragment", "arrival"),
    [
        ((0, 0), 0, 0, Arrival.EXPECTED),
        ((5, 2), 5, 2, Arrival.EXPECTED),
        ((5, 2), 5, 1, Arrival.DUPLICATE),
        ((5, 2), 4, 9, Arrival.DUPLICATE),
        ((5, 2), 5, 3, Arrival.EARLY),
        ((5, 2), 6, 0, Arrival.EARLY),
        ((5, 2), 5 + EARLY_WINDOW - 1, 9, Arrival.EARLY),
        ((5, 2), 5 + EARLY_WINDOW, 0, Arrival.TOO_EARLY),
        ((5, 2), 2**64 - 1, 2**32 - 1, Arrival.TOO_EARLY),
    ],
)
def test_place_tells_what_a_fragment_is(
    expected: tuple[int, int], sequence: int, fragment: int, arrival: Arrival
) -> None:
    assert arrival is place(expected, sequence, fragment)


@pytest.mark.parametrize(
    ("where", "flags", "expected"),
    [
        ((0, 0), 0, (0, 1)),
        ((0, 0), LAST, (1, 0)),
        ((7, 3), LAST | Flag.END_DIALOG, (8, 0)),
        ((7, 3), int(Flag.ERROR), (7, 4)),
    ],
)
def test_last_fragment_makes_the_next_message_expected(
    where: tuple[int, int], flags: int, expected: tuple[int, int]
) -> None:
    assert expected == after(where, flags)
