"""Warnings that strangers cause do not fill the disk, and how many were left out is told."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker import ratelimit as stranger_log
from broker.ratelimit import BURST, LINES_PER_SECOND, RateLimiter, TokenBucket, utc_now


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stranger_log, "time", clock)
    return clock


def test_crowd_is_counted_instead(clock: Clock) -> None:
    lines, before = RateLimiter(), utc_now()

    with capture_logs() as logs:
        for number in range(BURST + 1000):
            lines.warning("connection refused", peer=number)
        assert (BURST, 1000) == (len(logs), lines.left_out)
        clock.now += 1.0
        for _ in range(100):
            lines.warning("connection refused")

    assert {"event": "connection refused", "peer": 0, "log_level": "warning"} == logs[0]
    assert {"event": "lines left out", "count": 1000, "log_level": "warning"}.items() <= logs[BURST].items()
    assert before < logs[BURST]["last_ts"] < utc_now()
    assert (BURST + 1 + LINES_PER_SECOND, 1100 - LINES_PER_SECOND) == (len(logs), lines.left_out)


def test_bucket_allows_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(rate=10, burst=3, now=0.0)

    at_once = [bucket.allow(0.0) for _ in range(5)]

    assert [True, True, True, False, False] == at_once
    assert [False, True, False] == [bucket.allow(0.05), bucket.allow(0.15), bucket.allow(0.15)]
    assert [True, True, True, False] == [bucket.allow(100.0) for _ in range(4)]


def test_debt_is_paid_by_time() -> None:
    bucket = TokenBucket(rate=10, burst=10, now=0.0)

    waits = [bucket.charge(10, 0.0), bucket.charge(5, 0.0), bucket.charge(0, 0.25), bucket.charge(0, 5.0)]

    assert [0.0, 0.5, 0.25, 0.0] == waits
    assert 0.0 == TokenBucket(rate=0, burst=0, now=0.0).charge(1000, 0.0)
