"""What a walk leaves behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry, PassOrigin, PassResult, frame_bounds, rejected
from broker.forwarding.outbox import DropSink
from broker.protocol.frame import Ping, Rejected, encode_link
from tests.support.kernel import Shelf


def test_new_batch_has_nothing() -> None:
    batch = PassResult()

    assert (0, {}, [], [], None) == (batch.consumed, batch.received, batch.touched, batch.link_frames, batch.error)


def test_sink_is_touched_once_however_many_runs_it_gets() -> None:
    batch, one, two = PassResult(), Shelf("one"), Shelf("two")

    for sink, run in ((two, b"1"), (one, b"2"), (two, b"3")):
        batch.gather(sink, run)

    assert [two, one] == batch.touched
    assert ([b"1", b"3"], [b"2"]) == (two.runs, one.runs)


def test_frames_are_counted_by_kind_and_none_leave_no_trace() -> None:
    batch = PassResult()

    batch.count(0x10, 2)
    batch.count(0x11, 0)
    closed = batch.close(300, 0x10, 5)

    assert (batch, 300, {0x10: 7}) == (closed, closed.consumed, closed.received)


# --- test_way ---
# A run of frames falls apart where its length fields say; a way begins with nothing counted.


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

    way = ForwardingEntry(sink, Disposition.NO_ROUTE, kind=0x10)

    assert (sink, Disposition.NO_ROUTE, 0x10, "", 0) == (way.sink, way.disposition, way.kind, way.route, way.frames)


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_sender_is_advised_which_frame_it_was_and_why(form: Callable[[bytes], bytes], make_frame: MakeFrame) -> None:
    frame = make_frame(message_id=b"m" * 16, conversation_id=b"c" * 16, sequence_number=2**40, fragment_number=7)

    advice = rejected(form(frame), Disposition.POOL_LIMIT)

    assert Rejected(b"m" * 16, b"c" * 16, 2**40, 7, 11289, "pool limit exceeded") == advice


def test_frames_of_a_database_here_have_spent_no_hop() -> None:
    assert (0, 1) == tuple(PassOrigin(1.0, "", is_from_here).hops for is_from_here in (True, False))
