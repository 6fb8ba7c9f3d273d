"""
The traffic of a day: how many messages are due by when.

A quiet night with one batch run, a morning that fills, a dip at noon, a busy afternoon, an evening that ends; and
bursts of a minute of the day, three times as much as around them. Pure: the same for the same numbers.
"""

import bisect
import random
from itertools import accumulate

MINUTES = 24 * 60
BURSTS, BURST_FACTOR = 48, 3.0
HOURS = (8, 5, 4, 30, 6, 5, 10, 25, 60, 90, 100, 95, 70, 75, 95, 100, 90, 75, 55, 40, 30, 22, 16, 12)
"""Traffic at the beginning of each hour, as a part of that of the busiest; in between it changes evenly."""


class DayProfile:
    """Shape: `total` messages of the whole day; times are parts of the day, 0 .. 1."""

    def __init__(self, total: int, *, seed: int = 1) -> None:
        self.total = total
        levels = [_level(minute) for minute in range(MINUTES)]
        for minute in random.Random(seed).sample(range(MINUTES), BURSTS):
            levels[minute] *= BURST_FACTOR
        sums = list(accumulate(levels, initial=0.0))
        self._due = [total * one / sums[-1] for one in sums]

    def due_by(self, at: float) -> int:
        """How many messages are due until then. Shape: `at` is cut to 0 .. 1."""
        minute = min(max(at, 0.0), 1.0) * MINUTES
        whole = min(int(minute), MINUTES - 1)
        return round(self._due[whole] + (self._due[whole + 1] - self._due[whole]) * (minute - whole))

    def due_at(self, number: int) -> float:
        """When a message is due. Shape: `number` 0 .. total - 1."""
        after = min(max(1, bisect.bisect_left(self._due, number)), MINUTES)
        begin, end = self._due[after - 1], self._due[after]
        return (after - 1 + (number - begin) / (end - begin)) / MINUTES


def _level(minute: int) -> float:
    hour, part = divmod(minute, 60)
    return HOURS[hour] + (HOURS[(hour + 1) % 24] - HOURS[hour]) * part / 60
