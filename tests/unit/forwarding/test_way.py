"""A run of frames falls apart where its length fields say; a way begins with nothing counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.flow import Disposition
from broker.forwarding.sink import DropSink
from broker.forwarding.way import Way, frame_bounds
from broker.wire.frame import Ping, encode_link

MakeFrame = Callable[..., bytes]


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_bounds_follow_the_length_of_each_frame(form: Callable[[bytes], bytes], make_frame: MakeFrame) -> None:
    frames = [make_frame(b"x" * size) for size in (0, 1, 300)] + [encode_link(Ping(b"12345678"))]
    run = form(b"".join(frames))

    bounds = frame_bounds(run)

    assert frames == [bytes(run[start:stop]) for start, stop in bounds]
    assert len(run) == bounds[-1][1]


def test_run_without_frames_has_no_bounds() -> None:
    assert frame_bounds(b"") == []


def test_new_way_has_taken_nothing() -> None:
    sink = DropSink(Disposition.NO_ROUTE, lambda *_: None)

    way = Way(sink, Disposition.NO_ROUTE, kind=0x10)

    assert (sink, Disposition.NO_ROUTE, 0x10, "", 0) == (way.sink, way.disposition, way.kind, way.route, way.frames)
