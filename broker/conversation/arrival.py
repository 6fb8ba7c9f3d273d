"""
What a fragment is to the receiver: expected, early or a duplicate, by its place `(sequence, fragment)` alone.

What is early is kept within bounds, so that one dialog cannot fill the disk with what may never become a message.
"""

from __future__ import annotations

from enum import IntEnum

from broker.wire.layout import Flag

_LAST = int(Flag.LAST_FRAGMENT)  # an enum's operators are slow, and this is asked of every fragment
EARLY_WINDOW = 4096  # how many messages from the expected one on are taken: `dialog.window` at its widest
EARLY_FRAGMENTS_MAX = 4096  # kept out of order for one side: what that window lets be under way
EARLY_BYTES_MAX = 64 * 1024 * 1024  # likewise, of bodies; a thousand fragments of the default size


class Arrival(IntEnum):
    """What a fragment is to the receiver."""

    EXPECTED = 0
    EARLY = 1
    DUPLICATE = 2
    TOO_EARLY = 3


def place(expected: tuple[int, int], sequence: int, fragment: int) -> Arrival:
    """What a fragment is, given the next expected (sequence, fragment)."""
    if (sequence, fragment) == expected:
        return Arrival.EXPECTED
    if (sequence, fragment) < expected:
        return Arrival.DUPLICATE
    return Arrival.EARLY if sequence < expected[0] + EARLY_WINDOW else Arrival.TOO_EARLY


def after(place: tuple[int, int], flags: int) -> tuple[int, int]:
    """The place that is expected after a fragment with these flags."""
    sequence, fragment = place
    return (sequence + 1, 0) if flags & _LAST else (sequence, fragment + 1)
