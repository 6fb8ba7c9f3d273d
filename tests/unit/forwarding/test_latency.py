""""""

import pytest

from broker.forwarding.latency import BOUNDS, HopTimes, bucket

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
