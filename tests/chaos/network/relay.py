"""
The packets of impaired ways: which pass, when, and how often. No sockets and no clock in here.

A frame is an Ethernet frame with an IPv4 packet. What happens to it is decided when it comes, by the impairment of its
way at that moment and by dice of that way alone, so that the same frames in the same order have the same fate again;
only a cut holds for those as well that are under way already.

The order of a way is kept, whatever delay and jitter say, but for what is reordered: that is held back for
`HELD_BACK` seconds, and whatever comes meanwhile passes it.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from itertools import count

from tests.chaos.network.fragmentation_needed import fragmentation_needed
from tests.chaos.network.impairment import WHOLE, Counts, Impairment

ADDRESSES = slice(26, 34)  # of an Ethernet frame with IPv4: source and destination
LENGTH = slice(16, 18)  # likewise: total length of the packet, big-endian
HELD_BACK = 0.02  # seconds; longer than the gap between packets of a busy connection
QUEUE_SECONDS = 1.0  # of traffic in front of a slow link
PENDING_BYTES = 64 << 20  # of all delayed frames together


@dataclass(slots=True)
class Way:
    """
    One direction between two hosts; changed by `Relay` alone.

    Shape: `last_at` the instant of the latest frame that keeps its order; `free_at` when the slow link is done with all
    that it has been given.
    """

    dice: random.Random
    impairment: Impairment = WHOLE
    counts: Counts = field(default_factory=Counts)
    last_at: float = 0.0
    free_at: float = 0.0


class Relay:
    """
    All impaired ways. Shape: instants are monotonic seconds, given by the caller; `pending_bytes` what waits for its
    time, never more than PENDING_BYTES.
    """

    def __init__(self, seed: int) -> None:
        self.pending_bytes = 0
        self._seed = seed
        self._ways: dict[bytes, Way] = {}
        self._pending: list[tuple[float, int, bytes, Way]] = []
        self._numbers = count()

    def impair(self, source: str, destination: str, impairment: Impairment) -> None:
        """From the next frame on; the dice go on where they were."""
        self._way(source, destination).impairment = impairment

    def counts(self, source: str, destination: str) -> Counts:
        """What became of the frames of a way so far."""
        return self._way(source, destination).counts

    def take(self, frame: bytes, now: float) -> list[bytes]:
        """What is to be sent at once because of this frame: itself, twice, an answer to its sender, or nothing yet."""
        way = self._ways.get(frame[ADDRESSES])
        if way is None:
            return [frame]
        told, counts = way.impairment, way.counts
        if told.mtu is not None and not told.is_cut and int.from_bytes(frame[LENGTH], "big") > told.mtu:
            counts.too_large += 1
            return [fragmentation_needed(frame, told.mtu)] if told.is_mtu_told else []
        copies = _copies(way)
        size = copies * len(frame)
        send_at = self._time(way, now, size) if copies else None
        if send_at is None:
            return []
        if send_at <= now:
            counts.carried += copies
            return [frame] * copies
        for _ in range(copies):
            heapq.heappush(self._pending, (send_at, next(self._numbers), frame, way))
        self.pending_bytes += size
        return []

    def due(self, now: float) -> list[bytes]:
        """The delayed frames whose time has come, in their order."""
        found = []
        while self._pending and self._pending[0][0] <= now:
            _, _, frame, way = heapq.heappop(self._pending)
            self.pending_bytes -= len(frame)
            if way.impairment.is_cut:
                way.counts.cut += 1
            else:
                way.counts.carried += 1
                found.append(frame)
        return found

    @property
    def next_due(self) -> float | None:
        """When the next delayed frame is to be sent; None while there is none."""
        return self._pending[0][0] if self._pending else None

    def _way(self, source: str, destination: str) -> Way:
        key = IPv4Address(source).packed + IPv4Address(destination).packed
        if key not in self._ways:
            self._ways[key] = Way(random.Random(f"{self._seed} {source} {destination}"))
        return self._ways[key]

    def _time(self, way: Way, now: float, size: int) -> float | None:
        """When to send so many bytes; None when there is no room for them to wait."""
        told, send_at = way.impairment, now
        if self.pending_bytes + size > PENDING_BYTES:
            way.counts.overflowed += 1
            return None
        if told.rate is not None:
            start = max(now, way.free_at)
            if start - now > QUEUE_SECONDS:
                way.counts.overflowed += 1
                return None
            send_at = way.free_at = start + size / told.rate
        send_at += told.delay
        if told.jitter:
            send_at += way.dice.uniform(0.0, told.jitter)
        if told.reordering and way.dice.random() < told.reordering:
            way.counts.reordered += 1
            return send_at + HELD_BACK
        way.last_at = max(way.last_at, send_at)
        return way.last_at


def _copies(way: Way) -> int:
    """How many of a frame go on: none, one or two."""
    told, counts, happens = way.impairment, way.counts, way.dice.random
    if told.is_cut:
        counts.cut += 1
        return 0
    if told.loss and happens() < told.loss:
        counts.lost += 1
        return 0
    if told.duplication and happens() < told.duplication:
        counts.duplicated += 1
        return 2
    return 1
