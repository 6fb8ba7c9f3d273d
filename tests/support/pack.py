"""Packs of frames, as an outbox makes them."""

import math
from collections.abc import Sequence

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry
from broker.forwarding.held_frames import Lane, Pack, copy_key, hold
from broker.forwarding.outbox import DropSink
from broker.protocol.layout import CONVERSATION_AT, PLACE_END, FrameKind

WAY = ForwardingEntry(DropSink(Disposition.NO_ROUTE, lambda *_: None), Disposition.NO_ROUTE, kind=FrameKind.MESSAGE)


def pack_of(
    frames: Sequence[bytes], now: float, *, name: bytes = b"12345678", ways: Sequence[ForwardingEntry] = ()
) -> Pack:
    """These frames, which come now; each in a lane of its own, by `WAY` or by ways of their own."""
    ways = ways or [WAY] * len(frames)
    starts = [sum(map(len, frames[:index])) for index in range(len(frames))]
    keys = [copy_key(frame) for frame in frames]
    return Pack(
        name=name,
        data=b"".join(frames),
        starts=starts,
        keys=keys,
        lanes=[
            Lane(way, copy_key(frame)[PLACE_END - CONVERSATION_AT :], None)
            for way, frame in zip(ways, frames, strict=True)
        ],
        since=now,
        deadline=min(hold(frame, now, WAY).deadline for frame in frames),
        latest=math.inf,
        longest=max(map(len, frames)),
        arrival=None,
        quota=None,
    )
