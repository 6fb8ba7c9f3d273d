"""
The few numbers of an instance that are noted every second, whether anybody looks or not: a dozen additions.

`read_counts` reads them on the loop; `add_counts` adds up what workers tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from broker.dialog.trips import MICROSECONDS
from broker.observe.histogram import BUCKETS
from broker.observe.instance import Running
from broker.observe.label import Labels


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


def counts_of(forwarding: Mapping[str, Any], hops: Iterable[tuple[Labels, float]] = ()) -> Counts:
    """The same of the forwarding part of a status, and of samples of the hops; a part that is not told is 0."""
    by_bucket = {labels[-1]: value for labels, value in hops}
    return Counts(
        received=sum(forwarding.get("received", {}).values()),
        forwarded=forwarding.get("forwarded", 0),
        delivered=forwarding.get("delivered", 0),
        dropped=sum(forwarding.get("dropped", {}).values()),
        held=forwarding.get("held", 0),
        pool_bytes=forwarding.get("pool_bytes", 0),
        hops=tuple(by_bucket.get(bucket, 0) for bucket in BUCKETS) if by_bucket else (),
    )


def add_counts(parts: Iterable[Counts]) -> Counts:
    """The sums."""
    told = list(parts)
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in told) for name in _NUMBERS}
    sums |= {name: _added(getattr(part, name) for part in told) for name in _HISTOGRAMS}
    return Counts(**sums)


def _added(parts: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Place by place; those that nobody counts are left out."""
    return tuple(map(sum, zip(*(part for part in parts if part), strict=True)))


def _trips(parts: Iterable[Counter[Any]]) -> tuple[float, ...]:
    """Of all next hops together."""
    counts = [0] * len(BUCKETS)
    for (_, place), count in (one for part in parts for one in part.items()):
        if place != MICROSECONDS:
            counts[place] += count
    return tuple(counts)


_HISTOGRAMS = ("hops", "trips")
_NUMBERS = tuple(field.name for field in fields(Counts) if field.name not in _HISTOGRAMS)
