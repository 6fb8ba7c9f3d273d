"""What the compiled kernel has of its own: a table that grows and collides, counts that wait, runs that are copied."""

from functools import partial
from typing import Any

import pytest

from broker.forwarding.entry import ForwardingEntry
from broker.protocol import layout
from broker.protocol.layout import FrameKind
from tests.support.forwarding import make_frame
from tests.support.kernel import MAX_FRAME, Walker, hopped

module = pytest.importorskip("broker.forwarding.compiled_kernel", reason="no compiler built it")

HASH_BITS = [0, 1, 5, 64]


def walker_of(hash_bits: int = 64, **arguments: Any) -> Walker:
    return Walker(make=partial(module.CompiledKernel, hash_bits=hash_bits), **arguments)


@pytest.mark.usefixtures("is_patient")
@pytest.mark.parametrize("hash_bits", HASH_BITS)
@pytest.mark.parametrize("count", [31, 32, 33, 600])
def test_conversations_keep_their_ways_while_the_table_grows(hash_bits: int, count: int) -> None:
    walker = walker_of(hash_bits, is_by_conversation=True)
    guids = [number.to_bytes(16, "big") for number in range(count)]
    frames = [make_frame(conversation_id=guid) for guid in guids]

    for _ in range(3):
        _, shelves = walker.walk(b"".join(frames))
        assert {guid: [hopped(frame)] for guid, frame in zip(guids, frames, strict=True)} == shelves

    assert count == len(walker.asked)
    assert {(guid, FrameKind.MESSAGE): 3 for guid in guids} == walker.taken()


def test_neighbours_leave_as_a_slice_of_the_slab_and_others_as_one_copy() -> None:
    walker = walker_of()
    together, apart = make_frame(to_service="A"), make_frame(to_service="B")
    walker.walk(together + apart)
    slab = bytearray(together * 2 + apart)

    walker.kernel.walk(slab, len(slab))
    alone = walker.shelves["A"].runs.pop()
    slab = bytearray(apart + together + apart)
    walker.shelves["B"].runs.clear()
    walker.kernel.walk(slab, len(slab))
    (copied,) = walker.shelves["B"].runs

    assert isinstance(alone, memoryview)
    assert isinstance(copied, bytes)
    assert hopped(apart, apart) == copied


def test_walk_that_failed_leaves_nothing_to_the_next() -> None:
    walker = walker_of()
    good = make_frame(to_service="A")
    walker.walk(good)
    bad = good[: layout.TO_SERVICE_AT] + b"\xff" + good[layout.TO_SERVICE_AT + 1 :]

    with pytest.raises(UnicodeDecodeError):
        walker.walk(good + bad)
    batch, shelves = walker.walk(good)

    assert ({"A": [hopped(good)]}, {FrameKind.MESSAGE: 1}) == (shelves, batch.received)
    assert {("A", FrameKind.MESSAGE): 3} == walker.taken()


def test_nobody_can_move_the_slab_during_a_walk() -> None:
    walker = walker_of()
    way = walker.way("A", FrameKind.MESSAGE)

    def resolve(*_: object) -> tuple[ForwardingEntry, bool]:
        walker.slab.extend(bytes(1 << 20))
        return way, False

    kernel = module.CompiledKernel(max_frame=MAX_FRAME, max_hops=16, resolve=resolve, drop_way=walker.way)
    walker.kernel = kernel

    with pytest.raises(BufferError):
        walker.walk(make_frame())


def test_layout_that_differs_or_an_end_outside_the_slab_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (-1, 1000):
        with pytest.raises(AssertionError):
            walker_of().kernel.walk(bytearray(make_frame()), end)
    monkeypatch.setattr(layout, "ROUTE_KEY_AT", 97)

    with pytest.raises(AssertionError):
        walker_of()
