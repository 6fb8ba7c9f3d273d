from __future__ import annotations

import pytest

from broker.forwarding.latency import BOUNDS, Latency, quantile

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


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile(NONE, 0.5) is None


def test_only_what_is_new_counts() -> None:
    latency = Latency()
    first = latency.look(histogram(at10=1000))

    second = latency.look(histogram(at0=4, at10=1000))
    third = latency.look(histogram(at0=4, at10=1000))

    assert ((None, None), (None, None)) == (first, third)
    assert all(seconds is not None and seconds <= BOUNDS[0] for seconds in second)


def test_where_nobody_counts_nothing_is_known() -> None:
    latency = Latency()
    latency.look(())

    assert (None, None) == latency.look(())
    assert (None, None) == latency.look(NONE)
