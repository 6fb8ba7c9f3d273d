"""Rates of counters between two looks at them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping


class Rates:
    """
    What counters grew by, a second, since the last look; for one reader.

    A counter that is smaller than before has begun anew, so all of it is growth. One that was not there at the last
    look grew from 0; at the first look nothing is known.
    """

    def __init__(self) -> None:
        self._before: dict[Hashable, float] | None = None
        self._at = 0.0
        self.seconds = 0.0

    def look(self, counters: Mapping[Hashable, float], now: float) -> dict[Hashable, float | None]:
        """
        The rates by counter; None at the first look.

        Args:
            counters: What they count now; kept until the next look, so never changed by the caller.
            now: Monotonic seconds.

        Cost: O(counters).
        """
        before, self._before = self._before, dict(counters)
        self.seconds, self._at = now - self._at, now
        if before is None or self.seconds <= 0:
            self.seconds = 0.0
            return dict.fromkeys(counters)
        get, seconds = before.get, self.seconds
        rates: dict[Hashable, float | None] = {}
        for key, count in counters.items():
            old = get(key, 0)
            rates[key] = round((count - old if count >= old else count) / seconds, 2)
        return rates
