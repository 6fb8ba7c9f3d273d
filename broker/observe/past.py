"""
The last ten minutes, one row a second, in a ring: so that who begins to look sees what was before.

A row is kept whether anybody looks or not; it costs a dozen additions. Numbers only, so the ring has a bound of some
100 KiB.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from broker.observe.count import Counts
from broker.observe.rate import Rates

ROWS_MAX = 600
_RATED = ("received", "forwarded", "delivered", "dropped", "sent", "acknowledged")
LATENCIES = ("loop_lag_s", "hop_p50_s", "hop_p99_s", "ack_p50_s", "ack_p99_s")
COLUMNS = ("at", *_RATED, "held", "pool_bytes", *LATENCIES)


class StatsHistory:
    """
    The rows, numbered from 1. For one writer.

    Shape: `number` of the last row, 0 before the first.
    """

    def __init__(self) -> None:
        self.number = 0
        self._rates = Rates()
        self._rows: deque[tuple[float | None, ...]] = deque(maxlen=ROWS_MAX)

    def note(self, counts: Counts, latency: dict[str, float | None], *, at: float, now: float) -> None:
        """
        One row.

        Args:
            counts: Of the instance at this moment.
            latency: Seconds by name; None or left out = nobody knows.
            at: UTC seconds since 1970.
            now: Monotonic seconds.
        """
        rates = self._rates.look({name: getattr(counts, name) for name in _RATED}, now)
        row = (round(at, 3), *rates.values(), counts.held, counts.pool_bytes, *map(latency.get, LATENCIES))
        self._rows.append(row)
        self.number += 1

    def since(self, number: int = 0) -> dict[str, Any]:
        """The rows after that number, as many as are left of them."""
        new = min(len(self._rows), max(0, self.number - number))
        return {"columns": COLUMNS, "rows": list(self._rows)[len(self._rows) - new :]}
