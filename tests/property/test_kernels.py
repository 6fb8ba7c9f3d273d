"""
The two kernels are one: any stream, cut anywhere, forgotten at any time, comes to the same in both.

Compared after every walk: the batch, what each sink was given, the slab, the questions asked, the count of each way and
what was recorded of which frames.
Where they lead is a matter of the route key and says everything there is: one way for many names, a way for each
conversation, a drop, a question that is out.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry, UnknownOrigin
from broker.forwarding.kernel import Kernel
from broker.forwarding.ring import Ring
from broker.forwarding.slow_path import SlowPath
from broker.protocol.frame import Ping, Rejected, encode_dialog, encode_link
from broker.protocol.layout import NO_GUID, Flag, FrameKind
from tests.support.forwarding import PLAIN
from tests.support.kernel import MAX_FRAME, Answer, Shelf, Walker
from tests.support.tiers import examples
from tests.support.visits import decode

compiled = pytest.importorskip("broker.forwarding.compiled_kernel", reason="no compiler built it")

MAX_HOPS = 8
SHELVES = 3
FORGETS = st.sampled_from(["all", "some", "choices"])
SHORT = replace(PLAIN, to_service="a", from_service="f")


ANY_WAY = ForwardingEntry(Shelf(None), Disposition.FORWARDED, kind=FrameKind.MESSAGE)


class Side(Walker):
    """One kernel with ways and shelves of its own; `read` tells everything that can be seen of it."""

    def __init__(self, make: Callable[..., SlowPath], *, is_tight: bool, ring: Ring | None, forgets_every: int) -> None:
        super().__init__(make=partial(make, ring=ring), max_hops=MAX_HOPS, forgets_every=forgets_every)
        self.ring = ring
        self.slab = bytearray(2 * MAX_FRAME)
        self._walks = 0
        self._is_tight = is_tight  # the slab ends where the read ended: whoever reads on is found by `make sanitize`

    def way(self, label: object, kind: int) -> ForwardingEntry:
        return super().way(label, min(kind, 0x13))

    def lead(self, key: bytes, conversation: bytes, kind: int, is_from_target: bool, /) -> Answer:  # noqa: FBT001 - as `Resolve`
        choice = (sum(key) + kind + is_from_target) % 8
        if choice == 0:
            return self.way(Disposition.NO_ROUTE, kind), False
        if choice == 1:
            return self.way(Disposition.ASKING_FOR_ROUTE, kind), None
        if choice in (2, 3):
            return self.way(conversation[0] % SHELVES, kind), True
        return self.way(choice % SHELVES, kind), False

    def read(self, data: bytes) -> tuple[object, ...]:
        if self._is_tight:
            self.slab = bytearray(data)
        self.slab[: len(data)] = data
        if self.ring is not None:
            self._walks += 1
            self.ring.begin(self._walks, UnknownOrigin(), is_from_here=False)
        batch = self.kernel.walk(self.slab, len(data))
        touched = [sink.label for sink in batch.touched if isinstance(sink, Shelf)]
        given = [b"".join(sink.runs) for sink in batch.touched]
        for sink in batch.touched:
            sink.runs.clear()
        assert all(not shelf.runs for shelf in self.shelves.values())
        told = batch.consumed, batch.received, touched, given, batch.link_frames, repr(batch.error)
        return *told, bytes(self.slab), list(self.asked), list(self.ways)

    def forget(self, what: str) -> None:
        """Everything, some of the names that were asked for, or what is by conversation."""
        if what == "all":
            self.kernel.forget()
        else:
            names = frozenset(key[18:] for key, *_ in self.asked[::2])
            self.kernel.forget_services(names if what == "some" else None)

    def records(self) -> tuple[object, ...]:
        """What is in the ring, each record with what it says of its way."""
        if self.ring is None:
            return ()
        used, shed, taken = self.ring.used, self.ring.shed, self.ring.take()
        told = [
            (record.entry.sink.label, record.entry.kind, record.disposition, replace(record, entry=ANY_WAY))
            for record in decode(taken)
            if record.entry is not None and isinstance(record.entry.sink, Shelf)
        ]
        return used, shed, taken.arrivals, told


FRAMES = st.builds(
    lambda name, from_name, fields, body: encode_dialog(
        replace(SHORT, to_service="n" * name, from_service="f" * from_name, **fields), body
    ),
    st.one_of(st.integers(1, 2), st.integers(1, 4), st.integers(1, 512)),
    st.sampled_from([1, 1, 2, 512]),
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from([*[FrameKind.MESSAGE] * 3, FrameKind.ACK, FrameKind.FAULT, 0x13, 0x42, 0xFF]),
            "flags": st.sampled_from([0, 0, 2, 1, Flag.TRACE, 0xFF]),
            "conversation_id": st.sampled_from([bytes([n]) * 16 for n in range(4)]),
            "to_broker_instance": st.sampled_from([NO_GUID, NO_GUID, b"\1" * 16]),
            "hop_count": st.sampled_from([0, 0, 0, 1, 7, 8, 255]),
            "hop_limit": st.sampled_from([16, 16, 16, 0, 1, 8, 255]),
            "time_to_live": st.sampled_from([60_000, 60_000, 60_000, 0, 5, 2**32 - 1]),
            "time_consumed": st.sampled_from([0, 0, 0, 4, 5, 2**32 - 1]),
        }
    ),
    st.binary(max_size=40),
)
LINK_FRAMES = st.sampled_from([encode_link(Ping(b"12345678")), encode_link(Rejected(code=1))])
STREAMS = st.lists(st.one_of(FRAMES, FRAMES, FRAMES, FRAMES, LINK_FRAMES), min_size=1, max_size=6).flatmap(
    lambda frames: st.lists(st.sampled_from(frames), max_size=24).map(b"".join)
)


def broken(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    """The stream with some bytes changed, wherever they are."""
    changed = bytearray(data)
    for at, value in changes:
        if changed:
            changed[at % len(changed)] = value
    return bytes(changed)


CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=2)
RINGS = st.one_of(st.none(), st.tuples(st.sampled_from([0, 300, 3000, 1 << 20]), st.sampled_from([0.0, 0.3, 0.6, 1.0])))


def compare(
    data: bytes,
    cuts: list[int],
    forgets: dict[int, str],
    hash_bits: int,
    *,
    forgets_every: int = 0,
    is_tight: bool = True,
    ring: tuple[int, float] | None = (3000, 1.0),
) -> None:
    """Feed both as a link does: what is not whole is kept and goes before the next read."""

    def colliding(**arguments: object) -> SlowPath:
        kernel: SlowPath = compiled.CompiledKernel(**arguments, hash_bits=hash_bits)
        return kernel

    slow, fast = (
        Side(
            make,
            is_tight=is_tight,
            ring=None if ring is None else Ring(ring[0], sample=ring[1]),
            forgets_every=forgets_every,
        )
        for make in (Kernel, colliding)
    )
    kept, at = b"", 0
    for number, cut in enumerate([*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]):
        while at < cut and len(kept) < 2 * MAX_FRAME:
            read = min(cut - at, 2 * MAX_FRAME - len(kept))
            kept, at = kept + data[at : at + read], at + read
            left = slow.read(kept)
            assert left == fast.read(kept)
            consumed = left[0]
            assert isinstance(consumed, int)
            kept = kept[consumed:]
            if left[5] != "None":
                at = len(data)
        if number in forgets:
            for side in (slow, fast):
                side.forget(forgets[number])
            assert slow.records() == fast.records()
            if forgets[number] == "all":
                assert {key: way.frames for key, way in slow.ways.items()} == {
                    key: way.frames for key, way in fast.ways.items()
                }
    assert slow.taken() == fast.taken()
    assert slow.records() == fast.records()


@settings(max_examples=examples(600))
@given(
    data=st.one_of(
        st.builds(broken, STREAMS, CHANGES),
        st.builds(broken, STREAMS, CHANGES),
        st.binary(max_size=600),
        st.lists(FRAMES, min_size=1, max_size=2).map(b"".join),
    ),
    cuts=st.one_of(*[st.lists(st.integers(0, 1 << 16), max_size=6)] * 3, st.just(list(range(300)))),
    forgets=st.dictionaries(st.integers(0, 6), FORGETS, max_size=4),
    hash_bits=st.sampled_from([0, 1, 3, 64]),
    forgets_every=st.sampled_from([0, 0, 1, 5]),
    is_tight=st.booleans(),
    ring=RINGS,
)
def test_both_kernels_make_the_same_of_any_stream(
    data: bytes,
    cuts: list[int],
    forgets: dict[int, str],
    hash_bits: int,
    forgets_every: int,
    *,
    is_tight: bool,
    ring: tuple[int, float] | None,
) -> None:
    compare(data, cuts, forgets, hash_bits, forgets_every=forgets_every, is_tight=is_tight, ring=ring)


@pytest.mark.parametrize("length", range(1, 513))
def test_both_kernels_make_the_same_of_a_name_of_every_length(length: int) -> None:
    frame = encode_dialog(replace(SHORT, to_service="n" * length), b"body")

    compare((frame * 2 + encode_dialog(SHORT, b"")) * 2, [len(frame), 2 * len(frame)], {}, 64)
