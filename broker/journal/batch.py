"""
One hand-over: what the loop took out of the ring, and what it knew at that moment.

Made on the loop, read by the thread that writes; nobody changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from broker.forwarding.ring import RingContents
from broker.routing.decide import NOBODY, Principals


class RingBatch(NamedTuple):
    """
    Shape: `offset` seconds from monotonic to UTC, one for the whole batch, so that durations stay those of the
    monotonic clock; `shed` records that had found no room in the ring, since the start; `principals` of mirrored pairs.
    """

    taken: RingContents
    offset: float
    shed: int = 0
    principals: Principals = NOBODY


class Follower(Protocol):
    """Who makes something else of batches than rows; the journal waits for nobody's collector."""

    def add(self, batch: RingBatch) -> None:
        """In the thread of the writer, behind the rows of the batch; keeps nothing of its memory, and must not fail."""

    def status(self) -> Mapping[str, int]:
        """On the loop: what there is to tell, by the names of NOBODY_FOLLOWS."""

    def close(self, seconds: float) -> None:
        """In any thread, behind the last batch: be done within this time."""


NOBODY_FOLLOWS: Mapping[str, int] = {"spans": 0, "spans_pending": 0, "spans_dropped": 0}
