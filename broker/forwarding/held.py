"""
The frames that wait in one outbox: in the order of leaving, each copy once, the earliest deadline at hand.

A held frame is never changed: how long it has lived is worked out when it leaves, is looked at, or takes another way.
Deadlines are a heap that is swept now and then, not a timer each; a frame that leaves stays in the heap until its time
or until such leftovers are a third of it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from broker.forwarding.places import Place
from broker.forwarding.pool import Payer
from broker.forwarding.way import Arrival, Buffer, Way
from broker.wire.layout import CONVERSATION_AT, MESSAGE_ID_AT, PLACE_END, TIME_CONSUMED_AT, TIME_TO_LIVE_AT, TIMES, Flag

TIME_MAX = 2**32 - 1  # ms; what the field can say
_FROM_TARGET = int(Flag.FROM_TARGET)  # as a plain number: `&` with an enum costs a microsecond, for each held frame


class Held(NamedTuple):
    """
    One waiting frame.

    Shape: `frame` as it came, this hop spent; `since` monotonic seconds at which it came; `deadline` at which its
    lifetime ends; `way` it is counted under when it leaves; `arrival` of its visit, whatever ways it took, None
    without a ring; `place` it shares with the others of its dialog, None when a database here has sent it; `payer`
    whose part of the pool it takes, None where that has no limit.
    """

    frame: bytes
    since: float
    deadline: float
    way: Way
    arrival: Arrival | None = None
    place: Place | None = None
    payer: Payer | None = None

    def waited_ms(self, now: float) -> int:
        """Whole milliseconds since it came."""
        return int((now - self.since) * 1000)

    def time_consumed(self, now: float) -> int:
        """Milliseconds it has lived, the time it waited here included."""
        return min(
            TIME_MAX, int.from_bytes(self.frame[TIME_CONSUMED_AT : TIME_CONSUMED_AT + 4], "big") + self.waited_ms(now)
        )

    def aged(self, now: float) -> bytearray:
        """A copy of the frame with the time it waited written into it."""
        frame = bytearray(self.frame)
        frame[TIME_CONSUMED_AT : TIME_CONSUMED_AT + 4] = self.time_consumed(now).to_bytes(4, "big")
        return frame


def hold(frame: Buffer, now: float, way: Way, arrival: Arrival | None = None, place: Place | None = None) -> Held:
    """A copy of a frame that begins to wait now."""
    time_to_live, time_consumed = TIMES.unpack_from(frame, TIME_TO_LIVE_AT)
    return Held(bytes(frame), now, now + (time_to_live - time_consumed) / 1000, way, arrival, place)


def copy_key(frame: Buffer) -> bytes:
    """What makes two frames copies of each other: conversation, sequence, fragment, kind and direction."""
    return bytes(frame[CONVERSATION_AT:PLACE_END]) + bytes((frame[4], frame[5] & _FROM_TARGET))


def message_id(frame: Buffer) -> bytes:
    """What tells copies apart: each transmission has its own."""
    return bytes(frame[MESSAGE_ID_AT:CONVERSATION_AT])


class HeldQueue:
    """Held frames in the order in which they came, by `copy_key`."""

    __slots__ = ("_by_key", "_deadlines")

    def __init__(self) -> None:
        self._by_key: OrderedDict[bytes, Held] = OrderedDict()
        self._deadlines: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._by_key.values())

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def add(self, held: Held) -> None:
        """Put a frame at the end; no copy of it may be here. Cost: O(log n)."""
        key = copy_key(held.frame)
        self._by_key[key] = held
        heapq.heappush(self._deadlines, (held.deadline, key))

    def remove(self, held: Held) -> None:
        """Take a frame out, wherever it stands. Cost: O(1), leftovers among the deadlines included."""
        del self._by_key[copy_key(held.frame)]
        if 2 * len(self._deadlines) > 3 * len(self._by_key):
            self._deadlines = [(left.deadline, key) for key, left in self._by_key.items()]
            heapq.heapify(self._deadlines)

    def has(self, held: Held) -> bool:
        """Whether this very one is here still, and not a later copy."""
        return self._by_key.get(copy_key(held.frame)) is held

    def replace(self, held: Held, other: Held) -> None:
        """Put another one of the same frame where this one stands."""
        self._by_key[copy_key(held.frame)] = other

    def take_due(self, now: float, most: int) -> list[Held]:
        """Take out what has reached its deadline, the earliest first, so many at most. Cost: O(log n) each."""
        due: list[Held] = []
        while len(due) < most and self._deadlines and self._deadlines[0][0] <= now:
            _, key = heapq.heappop(self._deadlines)
            held = self._by_key.get(key)
            if held is not None and held.deadline <= now:  # else it has left, and this may be a later copy
                del self._by_key[key]
                due.append(held)
        return due
