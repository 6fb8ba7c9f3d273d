""""""

from __future__ import annotations

import pytest

from broker.forwarding.latency import BOUNDS, REST_SECONDS, HopTimes, Latency, bucket, quantile

# --- hop ---
# A batch is counted with the time behind its read, a frame that waited with the time it waited.


@pytest.mark.parametrize(
    ("seconds", "bound"),
    [(0.0, 0), (0.00005, 0), (0.000051, 1), (0.001, BOUNDS.index(0.001)), (300.0, len(BOUNDS) - 1), (301, len(BOUNDS))],
)
def test_time_is_counted_below_its_bound(seconds: float, bound: int) -> None:
    times = HopTimes()

    times.observe(seconds, 3)

    assert {number: count for number, count in enumerate(times.counts) if count} == {bound: 3}
    assert times.seconds == 3 * seconds


def test_batch_is_counted_once() -> None:
    times = HopTimes()
    times.pending = 5

    times.handed_over(7.0, 7.01)
    times.handed_over(8.0, 8.02)

    assert (5, 0) == (sum(times.counts), times.pending)
    assert times.seconds == pytest.approx(0.05)


def test_what_is_pending_is_counted_with_the_last_time() -> None:
    times = HopTimes()
    times.handed_over(7.0, 7.25)
    times.pending = 3

    times.count_pending()
    times.count_pending()

    assert times.counts[bucket(0.25)] == 3
    assert times.seconds == pytest.approx(0.75)


def test_next_read_is_timed_after_a_rest() -> None:
    times = HopTimes()

    times.handed_over(7.0, 7.25)

    assert times.due == 7.25 + REST_SECONDS


NONE = [0.0] * (len(BOUNDS) + 1)


def histogram(**counts: int) -> list[float]:
    """Counts by place: `at4=10` are ten in the fifth bucket."""
    return [counts.get(f"at{place}", 0) for place in range(len(NONE))]


@pytest.mark.parametrize(
    ("counts", "part", "seconds"),
    [
        (histogram(at0=10), 0.5, BOUNDS[0] / 2),
        (histogram(at4=10), 1.0, BOUNDS[4]),
        (histogram(at4=10), 0.5, (BOUNDS[3] + BOUNDS[4]) / 2),
        (histogram(at0=99, at9=1), 0.99, BOUNDS[0]),
        (histogram(at0=98, at9=2), 0.99, (BOUNDS[8] + BOUNDS[9]) / 2),
        (histogram(at20=3), 0.5, BOUNDS[-1]),
    ],
)
def test_a_quantile_lies_in_the_bucket_where_its_rank_falls(counts: list[float], part: float, seconds: float) -> None:
    assert pytest.approx(seconds) == quantile(counts, part)


def test_only_what_is_new_counts() -> None:
    latency = Latency()
    first = latency.update(histogram(at10=1000))

    second = latency.update(histogram(at0=4, at10=1000))
    third = latency.update(histogram(at0=4, at10=1000))

    assert ((None, None), (None, None)) == (first, third)
    assert all(seconds is not None and seconds <= BOUNDS[0] for seconds in second)
