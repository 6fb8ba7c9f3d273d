"""
How long things took lately: quantiles of what fell into the buckets of a histogram since the last look.

Within a bucket all are taken to be spread evenly, as Prometheus does; above the last bound a time is that bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.forwarding.hop import BOUNDS

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
