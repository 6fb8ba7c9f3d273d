from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.observe.count import Counts, add_counts, counts_of, read_counts
from broker.observe.histogram import BUCKETS
from tests.unit.observe.conftest import DEAD


async def test_the_counts_of_an_instance(start: Callable[..., Any], take: Callable[..., Any]) -> None:
    instance = await start("one", msdb=f"CREATE ROUTE Far WITH SERVICE_NAME = '//far', ADDRESS = '{DEAD}'")
    take(instance, to_service="//far")
    take(instance, to_service="//absent")

    counts = read_counts(instance)

    forwarder = instance.forwarder
    assert (2, 1, 1, 0) == (counts.received, counts.held, counts.dropped, counts.forwarded)
    assert forwarder.pool.used_bytes == counts.pool_bytes > 0


def test_the_counts_of_the_forwarding_part_of_a_status() -> None:
    part = {"received": {"message": 5, "ack": 2}, "forwarded": 3, "delivered": 1, "dropped": {"no route": 2}, "held": 1}

    assert Counts(received=7, forwarded=3, delivered=1, dropped=2, held=1) == counts_of(part)


def test_what_a_worker_that_never_counted_left_is_nothing() -> None:
    assert Counts() == counts_of({})


def test_counts_are_added_up() -> None:
    one = Counts(1, 2, 3, 4, 5, 6, 7, 8, hops=(1, 0), trips=(0, 2))

    assert Counts(2, 4, 6, 8, 10, 12, 14, 16, (2, 0), (0, 4)) == add_counts([one, one])
    assert Counts(1, hops=(3,)) == add_counts([Counts(1), Counts(hops=(3,))])
    assert Counts() == add_counts([])


def test_the_times_of_frames_are_those_of_the_samples() -> None:
    counts = counts_of({}, [(("0.001",), 3), (("+Inf",), 1), (("sum",), 9.5)])

    assert (len(BUCKETS), 3, 1, 4) == (
        len(counts.hops),
        counts.hops[BUCKETS.index("0.001")],
        counts.hops[-1],
        sum(counts.hops),
    )
