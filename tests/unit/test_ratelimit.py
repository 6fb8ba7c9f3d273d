"""A token bucket allows a burst and then a rate, and a debt is paid by time."""

from broker.ratelimit import TokenBucket


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
