"""
How long acknowledgements took, by next hop: counts that can be added up, as other counters of a database can.

Pure. One entry for each next hop and each bound of a histogram that was met.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from broker.forwarding.hop import bucket
from broker.forwarding.outbox import Destination

MICROSECONDS = -1
"""In place of a bucket: the sum of the times, in whole microseconds."""
ENTRIES_MAX = 20_000  # some thousand next hops; with ADDRESS 'TRANSPORT' services may name any number of them

Trips: TypeAlias = Counter[tuple[Destination | None, int]]


def note_trip(trips: Trips, next_hop: Destination | None, seconds: float) -> None:
    """A frame sent there once was acknowledged after so long; past the bound it is noted under None."""
    if len(trips) >= ENTRIES_MAX and (next_hop, MICROSECONDS) not in trips:
        next_hop = None
    trips[next_hop, bucket(seconds)] += 1
    trips[next_hop, MICROSECONDS] += int(seconds * 1e6)
