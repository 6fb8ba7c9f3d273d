"""What a walk leaves behind."""

from __future__ import annotations

from broker.forwarding.entry import PassResult
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
