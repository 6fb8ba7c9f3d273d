"""
How long things took lately: quantiles of what fell into the buckets of a histogram since the last look.

Within a bucket all are taken to be spread evenly, as Prometheus does; above the last bound a time is that bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

# --- hop ---
# How long frames were here: a histogram, counted by the batch.
#
# A batch is handed over in one call stack behind the read that brought it, so its frames share one time, and the
# clock is
# read once for all of them. Where reads bring a frame or two each and follow close on each other, one of them stands
# for
# `SHARED_FRAMES`: timing each took half a microsecond, of the five that the pass takes for a lone frame. A frame that
# had
# to wait counts with the time that it waited. The kernel knows nothing of it.


BOUNDS = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)  # seconds: from the fastest lone frame to what waits for a next hop that restarts

SHARED_FRAMES = 16  # that one time stands for at most, when reads bring fewer
REST_SECONDS = 0.01  # behind which a read is timed for itself


def bucket(seconds: float) -> int:
    """The first of `BOUNDS` that is not below a time, by its place; `len(BOUNDS)` when all are."""
    return bisect_left(BOUNDS, seconds)


class Times:
    """
    A histogram. Changed by its methods only.

    Shape: `counts` by the first of `BOUNDS` that is not below a time, the last of them above all; `seconds` the sum.
    """

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float, times: int) -> None:
        """So many took so long each."""
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.seconds += seconds * times


class HopTimes(Times):
    """
    Of frames. Loop-only.

    Shape: `pending` frames that are handed over, or about to be, and not counted yet, those that wait and those that
    were dropped left out; `due` monotonic seconds from which on the next read is timed, however few frames it brings.
    """

    __slots__ = ("_last", "due", "pending")

    def __init__(self) -> None:
        super().__init__()
        self.pending = 0
        self.due = 0.0
        self._last = 0.0

    def handed_over(self, since: float, now: float) -> None:
        """The batch that was read then is with its next hops; its time stands for all that is pending."""
        self.due = now + REST_SECONDS
        self._last = now - since
        self.settle()

    def settle(self) -> None:
        """Count what is pending, with the last time there is."""
        frames, self.pending = self.pending, 0
        if frames:
            self.observe(self._last, frames)


QUANTILES: Final = (0.5, 0.99)


class Latency:
    """Looks at one histogram again and again. For one caller."""

    def __init__(self) -> None:
        self._before: tuple[float, ...] | None = None

    def look(self, counts: Sequence[float]) -> tuple[float | None, ...]:
        """
        The `QUANTILES` in seconds of what is new; None where nothing is, and at the first look.

        Args:
            counts: By place in `BOUNDS`, and above the last; empty where nothing is counted.
        """
        before, self._before = self._before, tuple(counts)
        if before is None or len(before) != len(counts):
            return (None,) * len(QUANTILES)
        new = [max(0.0, count - old) for count, old in zip(counts, before, strict=True)]
        return tuple(quantile(new, part) for part in QUANTILES)


def quantile(counts: Sequence[float], part: float) -> float | None:
    """The time that this part of all did not exceed; None when there are none."""
    rank, below = part * sum(counts), 0.0
    for place, count in enumerate(counts):
        if count and below + count >= rank:
            if place >= len(BOUNDS):
                return BOUNDS[-1]
            low = BOUNDS[place - 1] if place else 0.0
            return round(low + (BOUNDS[place] - low) * (rank - below) / count, 7)
        below += count
    return None
