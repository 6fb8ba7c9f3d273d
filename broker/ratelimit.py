"""
The one rate limiter: a token bucket, and a log that is bounded by one.

Buckets bound what peers may cause: bytes and messages that are read, REJECTED frames, log lines. The caller passes the
time and so chooses the clock.

Source: the token bucket of RFC 2697; `charge` allows a debt where refusing would drop something.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import structlog

BURST = 200  # lines at once
LAST = "last_ts"  # field of a line about earlier ones: when the last of them would have been written
LINES_PER_SECOND = 10  # a thousand refusals a second would fill the disk; the counters have all

log = structlog.get_logger(__name__)


def utc_now() -> str:
    """This instant as log lines have it: RFC 3339 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class TokenBucket:
    """`rate` tokens a second are added, up to `burst`; a rate of 0 means no limit. It begins full."""

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._tokens = burst
        self._at = now

    def allow(self, now: float) -> bool:
        """Take one token, if there is one."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def charge(self, count: float, now: float) -> float:
        """Take so many tokens, also those that are not there yet; returns the seconds until they will have been."""
        if not self.rate:
            return 0.0
        self._fill(now)
        self._tokens -= count
        return max(0.0, -self._tokens / self.rate)

    def _fill(self, now: float) -> None:
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now


class RateLimiter:
    """
    Warnings that anybody who reaches the port can cause, within a rate.

    Attributes:
        left_out: Lines that were not written since the start.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._reported = 0
        self._last = ""
        self._bucket = TokenBucket(LINES_PER_SECOND, BURST, time.monotonic())

    def warning(self, event: str, **fields: object) -> None:
        """Write a line, or count it."""
        if not self._bucket.allow(time.monotonic()):
            self.left_out += 1
            self._last = utc_now()
            return
        if self.left_out > self._reported:
            log.warning("lines left out", count=self.left_out, **{LAST: self._last})
            self._reported = self.left_out
        log.warning(event, **fields)
