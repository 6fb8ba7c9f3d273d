"""
One hand-over: what the loop took out of the ring, and what it knew at that moment.

Made on the loop, read by the thread that writes; nobody changes it.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.forwarding.ring import Taken
from broker.routing.choose import NOBODY, Principals


class Batch(NamedTuple):
    """
    Shape: `offset` seconds from monotonic to UTC, one for the whole batch, so that durations stay those of the
    monotonic clock; `shed` records that had found no room in the ring, since the start; `principals` of mirrored pairs.
    """

    taken: Taken
    offset: float
    shed: int = 0
    principals: Principals = NOBODY
