"""
Warnings that anybody who reaches the port can cause: so many, and then so many a second; the rest is counted.

A crowd that is refused a thousand times a second would else fill the disk. The counters have all of it.
"""

from __future__ import annotations

import time

import structlog

BURST = 200  # lines at once
LINES_PER_SECOND = 10

log = structlog.get_logger(__name__)


class RateLimiter:
    """Where such warnings are written. Shape: `left_out` since the last line."""

    def __init__(self) -> None:
        self.left_out = 0
        self._lines = float(BURST)
        self._at = time.monotonic()

    def warning(self, event: str, **fields: object) -> None:
        """Write a line, unless there were too many."""
        now = time.monotonic()
        self._lines = min(BURST, self._lines + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        if self._lines < 1:
            self.left_out += 1
            return
        self._lines -= 1
        if self.left_out:
            log.warning("lines left out", count=self.left_out)
            self.left_out = 0
        log.warning(event, **fields)
