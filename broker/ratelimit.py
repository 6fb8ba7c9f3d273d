"""
The one rate limiter: a token bucket.

Buckets bound what peers may cause: bytes and messages that are read, REJECTED frames, log lines. The caller passes the
time and so chooses the clock.

Source: the token bucket of RFC 2697; `charge` allows a debt where refusing would drop something.
"""

from __future__ import annotations


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
