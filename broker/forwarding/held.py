"""
One waiting frame.

A held frame is never changed: how long it has lived is worked out when it leaves, is looked at, or takes another way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from broker.forwarding.places import DialogPlacement
from broker.forwarding.pool import Payer
from broker.forwarding.way import Buffer, ForwardingEntry, PassOrigin
from broker.protocol.layout import (
    CONVERSATION_AT,
    ENDS_AT,
    HEADER_BYTES,
    MESSAGE_ID_AT,
    PLACE_END,
    TIME_CONSUMED_AT,
    TIME_TO_LIVE_AT,
    TIMES,
    Flag,
)

TIME_MAX = 2**32 - 1  # ms; what the field can say
_NAME_LENGTHS = Struct(">76xH34xH").unpack_from  # of from_service and to_service
_FROM_TARGET = int(Flag.FROM_TARGET)  # as a plain number: `&` with an enum costs a microsecond, for each held frame


class Held(NamedTuple):
    """
    One waiting frame.

    Shape: `frame` as it came, this hop spent; `since` monotonic seconds at which it came; `deadline` at which its
    lifetime ends, or this instance drops it; `way` it is counted under when it leaves; `arrival` of its visit, whatever
    ways it took, None without a ring; `place` it shares with the others of its dialog, None when a database here has
    sent it; `payer` whose part of the pool it takes, None where that has no limit.
    """

    frame: bytes
    since: float
    deadline: float
    way: ForwardingEntry
    arrival: PassOrigin | None = None
    place: DialogPlacement | None = None
    payer: Payer | None = None

    def waited_ms(self, now: float) -> int:
        """Whole milliseconds since it came."""
        return waited_ms(self.since, now)

    def time_consumed(self, now: float) -> int:
        """Milliseconds it has lived, the time it waited here included."""
        return min(
            TIME_MAX, int.from_bytes(self.frame[TIME_CONSUMED_AT : TIME_CONSUMED_AT + 4], "big") + self.waited_ms(now)
        )

    def aged(self, now: float) -> bytearray:
        """A copy of the frame with the time it waited written into it."""
        frame = bytearray(self.frame)
        self.age(frame, 0, now)
        return frame

    # --- as a piece of a queue, like a `Pack` ---

    @property
    def data(self) -> bytes:
        """What leaves."""
        return self.frame

    @property
    def frames(self) -> int:
        """How many."""
        return 1

    def age(self, data: bytearray, at: int, now: float) -> None:
        """Write the time it waited into its copy that stands there."""
        at += TIME_CONSUMED_AT
        data[at : at + 4] = self.time_consumed(now).to_bytes(4, "big")

    def begun(self, sent: int) -> tuple[int, int]:
        """See `Pack.begun`."""
        return (1, len(self.frame)) if sent else (0, 0)

    def by_dialog(self, frames: int) -> Iterable[tuple[ForwardingEntry, DialogPlacement | None, int]]:
        """See `Pack.by_dialog`."""
        return ((self.way, self.place, frames),)

    def helds(self) -> Iterable[Held]:
        """See `Pack.helds`."""
        return (self,)


def hold(  # noqa: PLR0917 - as the fields of `Held`
    frame: Buffer,
    now: float,
    way: ForwardingEntry,
    arrival: PassOrigin | None = None,
    place: DialogPlacement | None = None,
    payer: Payer | None = None,
    latest: float = math.inf,
) -> Held:
    """A copy of a frame that begins to wait now; it is dropped at `latest`, if its lifetime does not end before."""
    time_to_live, time_consumed = TIMES.unpack_from(frame, TIME_TO_LIVE_AT)
    deadline = min(now + (time_to_live - time_consumed) / 1000, latest)
    return Held(bytes(frame), now, deadline, way, arrival, place, payer)


def waited_ms(since: float, now: float) -> int:
    """Whole milliseconds from then on."""
    return int((now - since) * 1000)


def copy_key(frame: Buffer) -> bytes:
    """What makes two frames copies of each other: both ends, conversation, sequence, fragment, kind and direction."""
    ends_end = HEADER_BYTES + sum(_NAME_LENGTHS(frame))
    return bytes(frame[CONVERSATION_AT:PLACE_END]) + copy_ending(frame[4], frame[5], bytes(frame[ENDS_AT:ends_end]))


def copy_ending(kind: int, flags: int, ends: bytes) -> bytes:
    """
    The end of a `copy_key`, which the frames of one kind, dialog and direction share.

    A conversation id alone does not tell dialogs apart: a peer may name that of another's. Python's hash is keyed.
    """
    return bytes((kind, flags & _FROM_TARGET)) + hash(ends).to_bytes(8, "big", signed=True)


def message_id(frame: Buffer) -> bytes:
    """What tells copies apart: each transmission has its own."""
    return bytes(frame[MESSAGE_ID_AT:CONVERSATION_AT])
