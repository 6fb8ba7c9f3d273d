"""The two ends of the pass that are no next hop take every frame once, in order, and keep nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin
from broker.forwarding.outbox import DatabaseSink, DropSink
from broker.protocol.layout import FrameKind

MakeFrame = Callable[..., bytes]

DATABASE = b"d" * 16


class Silent:
    """An origin that is told nothing."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        raise AssertionError


def no_way(_frame: Buffer) -> ForwardingEntry:
    raise AssertionError


def no_drop(frame: Buffer, disposition: Disposition, origin: FrameOrigin | None) -> None:
    raise AssertionError


def test_database_gets_copies_of_its_frames_in_the_order_of_arrival(make_frame: MakeFrame) -> None:
    delivered: list[tuple[bytes, list[bytes], FrameOrigin]] = []
    frames = [make_frame(bytes([n])) for n in range(3)]
    slab, origin = bytearray(b"".join(frames)), Silent()
    cut = len(frames[0] + frames[1])
    sink = DatabaseSink(DATABASE, lambda *what: delivered.append(what), no_drop)
    sink.runs += [memoryview(slab)[:cut], memoryview(slab)[cut:]]

    sink.flush(0.0, origin, no_way)
    slab[:] = bytes(len(slab))

    assert [(DATABASE, frames, origin)] == delivered
    assert sink.runs == []


def test_every_dropped_frame_is_counted_under_the_reason_of_its_sink(make_frame: MakeFrame) -> None:
    dropped: list[tuple[bytes, Disposition, FrameOrigin | None]] = []
    frames = [make_frame(bytes([n])) for n in range(3)]
    origin = Silent()
    sink = DropSink(Disposition.HOPS_EXHAUSTED, lambda frame, why, whose: dropped.append((bytes(frame), why, whose)))
    sink.runs += [frames[0], b"".join(frames[1:])]

    sink.flush(0.0, origin, no_way)

    assert [(frame, Disposition.HOPS_EXHAUSTED, origin) for frame in frames] == dropped
    assert sink.runs == []


def test_what_a_database_did_not_take_is_dropped_and_counts_as_not_delivered(make_frame: MakeFrame) -> None:
    dropped: list[tuple[bytes, Disposition, FrameOrigin | None]] = []
    frames = [make_frame(bytes([n])) for n in range(3)]
    origin = Silent()

    def deliver(database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        raise RuntimeError

    sink = DatabaseSink(DATABASE, deliver, lambda frame, why, whose: dropped.append((bytes(frame), why, whose)))
    way = ForwardingEntry(sink, Disposition.DELIVERED, kind=FrameKind.MESSAGE)
    way.frames = 5
    sink.runs += [frames[0], b"".join(frames[1:])]

    with pytest.raises(RuntimeError):
        sink.flush(0.0, origin, lambda _: way)
    sink.recover(0.0, origin, lambda _: way)

    assert [(frame, Disposition.STORE_FAILED, origin) for frame in frames] == dropped
    assert (2, []) == (way.frames, sink.runs)
