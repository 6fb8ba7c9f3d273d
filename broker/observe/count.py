"""The few numbers of an instance that are noted every second, whether anybody looks or not: a dozen additions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from broker.dialog.send_queue import MICROSECONDS
from broker.observe.histogram import BUCKETS
from broker.observe.instance import Running


@dataclass(frozen=True, slots=True)
class Counts:
    """
    Frames and messages since the start, and what waits now.

    Shape: `received`, `forwarded`, `delivered`, `dropped` dialog frames of the pass; `sent`, `acknowledged` messages of
    the databases here; `held` frames and `pool_bytes` that wait for their next hop now; `hops`, `trips` how many frames
    were here, and acknowledgements under way, for how long: by place in `BUCKETS`, empty where nobody counts.
    """

    received: int = 0
    forwarded: int = 0
    delivered: int = 0
    dropped: int = 0
    sent: int = 0
    acknowledged: int = 0
    held: int = 0
    pool_bytes: int = 0
    hops: tuple[float, ...] = ()
    trips: tuple[float, ...] = ()


def read_counts(instance: Running) -> Counts:
    """At this moment. Loop-only. Cost: the next hops and the services that have sent."""
    forwarder = instance.forwarder
    transmitters = [endpoint.transmitter for endpoint in instance.endpoints.values()]
    return Counts(
        received=forwarder.received.total(),
        forwarded=forwarder.forwarded,
        delivered=forwarder.delivered,
        dropped=forwarder.dropped.total(),
        sent=sum(transmitter.sent.total() for transmitter in transmitters),
        acknowledged=sum(transmitter.acknowledged.total() for transmitter in transmitters),
        held=forwarder.pool.frames,
        pool_bytes=forwarder.pool.used_bytes,
        hops=tuple(forwarder.hop.counts),
        trips=_trips(transmitter.round_trips for transmitter in transmitters),
    )


def _trips(parts: Iterable[Counter[Any]]) -> tuple[float, ...]:
    """Of all next hops together."""
    counts = [0] * len(BUCKETS)
    for (_, place), count in (one for part in parts for one in part.items()):
        if place != MICROSECONDS:
            counts[place] += count
    return tuple(counts)
