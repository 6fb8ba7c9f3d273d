"""The careful path by itself: one frame at a time, whatever a kernel remembers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.errors import FrameMalformedError
from broker.flow import Disposition
from broker.forwarding import slow_path as careful
from broker.forwarding.entry import ForwardingEntry, PassResult
from broker.forwarding.slow_path import SlowPath
from broker.protocol.frame import Fatal, Hello, Ping, encode_link
from broker.protocol.layout import Flag, FrameKind
from tests.support.kernel import Walker, hopped

MakeFrame = Callable[..., bytes]
PING = encode_link(Ping(b"12345678"))


class Notebook(SlowPath):
    """Takes every frame the careful path, and remembers in a dictionary."""

    name = "notebook"

    def walk(self, slab: bytearray, end: int) -> PassResult:
        batch, pos, stop = PassResult(), -1, 0
        while stop != pos:
            pos = stop
            stop, way = self.careful(slab, pos, end, batch)
            if way is not None:
                batch.gather(way.sink, memoryview(slab)[pos:stop])
        return batch.close(pos, 0, 0)

    def tally(self) -> None:
        pass

    def _note_hops(self, kind: int, flags: int, hop_count: int, hop_limit: int) -> None:
        self.hops = (kind, flags, hop_count, hop_limit)

    def _recall(self, key: bytes, conversation: bytes, kind: int, is_from_target: bool) -> ForwardingEntry | None:  # noqa: FBT001 - as `Resolve`
        known: dict[object, ForwardingEntry] = self.__dict__.setdefault("known", {})
        place = key, kind, is_from_target
        return known.get((*place, None)) or known.get((*place, conversation))

    def _remember(
        self,
        key: bytes,
        conversation: bytes | None,
        kind: int,
        is_from_target: bool,  # noqa: FBT001 - as `Resolve`
        way: ForwardingEntry,
    ) -> None:
        self.known[key, kind, is_from_target, conversation] = way

    def _clear(self) -> None:
        self.known.clear()

    known: dict[object, ForwardingEntry]


def test_every_frame_is_judged_by_itself(make_frame: MakeFrame) -> None:
    walker = Walker(make=Notebook)
    frame = make_frame(to_service="A")
    spent = make_frame(to_service="A", time_to_live=0)
    looping = make_frame(to_service="A", hop_count=16)

    batch, shelves = walker.walk(frame + PING + spent + looping + frame)

    assert {
        "A": [hopped(frame)] * 2,
        Disposition.LIFETIME_EXCEEDED: [spent],
        Disposition.HOPS_EXHAUSTED: [looping],
    } == shelves
    assert ([PING], {FrameKind.MESSAGE: 4}, None) == (batch.link_frames, batch.received, batch.error)
    assert [2, 1, 1] == list(walker.taken().values())


def test_the_walk_ends_before_what_is_not_whole_and_before_what_is_no_frame(make_frame: MakeFrame) -> None:
    frame = make_frame()

    for tail, error in ((b"", None), (frame[:7], None), (frame[:-1], None), (b"\0" * 8, FrameMalformedError)):
        batch, _ = Walker(make=Notebook).walk(frame + tail)
        assert (len(frame), error) == (batch.consumed, batch.error and type(batch.error))


@pytest.mark.parametrize("is_by_conversation", [False, True])
def test_way_is_asked_for_once_and_after_forgetting_again(*, is_by_conversation: bool, make_frame: MakeFrame) -> None:
    walker = Walker(make=Notebook, is_by_conversation=is_by_conversation)
    frame = make_frame(flags=Flag.FROM_TARGET)

    ways = [walker.kernel.entry_of(frame) for _ in range(2)]
    walker.kernel.forget()
    ways.append(walker.kernel.entry_of(memoryview(frame)))

    key = bytes(16) + len("//test/Target").to_bytes(2, "big") + b"//test/Target"
    assert [(key, b"c" * 16, FrameKind.MESSAGE, True)] * 2 == walker.asked
    assert ways == [*walker.ways.values()] * 3


def test_past_the_bound_remembering_starts_anew(make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(careful, "REMEMBERED_MAX_BYTES", 0)
    walker = Walker(make=Notebook)

    for service in "ABBA":
        walker.kernel.entry_of(make_frame(to_service=service))

    assert [b"A", b"B", b"A"] == [key[18:] for key, *_ in walker.asked]


def test_what_holds_for_one_frame_only_is_not_remembered(make_frame: MakeFrame) -> None:
    walker = Walker(make=Notebook)
    walker.ways["A", FrameKind.MESSAGE] = walker.way(Disposition.ASKING_FOR_ROUTE, FrameKind.MESSAGE)

    walker.walk(make_frame(to_service="A") * 3)

    assert 3 == len(walker.asked)


@pytest.mark.parametrize(
    "last", [encode_link(Fatal(code=1, text="over")), encode_link(Hello())], ids=["FATAL", "HELLO"]
)
@pytest.mark.parametrize("make", [Notebook, None])
def test_nothing_counts_behind_what_ends_the_connection(
    last: bytes, make: type[SlowPath] | None, make_frame: MakeFrame
) -> None:
    walker = Walker(make=make)
    frame = make_frame(to_service="A")
    data = frame + PING + last + frame + PING + frame[:50]

    batch, shelves = walker.walk(data)

    assert ([PING, last], None, {FrameKind.MESSAGE: 1}) == (batch.link_frames, batch.error, batch.received)
    assert ({"A": [hopped(frame)]}, len(data)) == (shelves, batch.consumed)


def test_the_walk_ends_before_a_link_frame_whose_body_is_none(make_frame: MakeFrame) -> None:
    walker = Walker(make=Notebook)
    frame = make_frame(to_service="A")
    probe = b"\0\0\0\x09" + bytes([FrameKind.PROBE, 0, 0, 0]) + b"\xff"

    batch, shelves = walker.walk(PING + frame + probe + frame)

    assert ([PING], {"A": [hopped(frame)]}) == (batch.link_frames, shelves)
    assert (len(PING + frame), FrameMalformedError) == (batch.consumed, type(batch.error))
