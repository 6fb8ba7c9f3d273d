"""The careful path by itself: one frame at a time, whatever a kernel remembers."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import pytest

from broker.forwarding.entry import ForwardingEntry, PassResult
from broker.forwarding.slow_path import SlowPath
from broker.protocol.frame import Fatal, Hello, Ping, encode_link
from broker.protocol.layout import FrameKind
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
        batch.consumed = pos
        return batch

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

    def forget(self) -> None:
        raise AssertionError

    def forget_services(self, names: AbstractSet[bytes] | None) -> None:
        raise AssertionError

    known: dict[object, ForwardingEntry]


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
