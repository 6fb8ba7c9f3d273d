"""Kernels side by side: which there are, and one whose ways lead to a shelf for each service or disposition."""

from collections.abc import Callable

import pytest

from broker.flow import Disposition
from broker.forwarding.entry import Buffer, EntryOf, ForwardingEntry, FrameOrigin, PassResult
from broker.forwarding.kernels import KERNELS
from broker.forwarding.slow_path import SlowPath
from broker.protocol.layout import HOP_COUNT_AT

MAX_FRAME = 4096
BEHIND = b"\xff" * 600  # of an earlier read, behind what this one brought

# Where there is a compiler, tests/unit/forwarding/test_kernels.py fails without the compiled one.
EVERY_KERNEL = [
    "python",
    pytest.param("compiled", marks=pytest.mark.skipif("compiled" not in KERNELS, reason="no compiler built it")),
]


Answer = tuple[ForwardingEntry, bool | None]
"""Of `Resolve`."""


class Shelf:
    """A sink that leaves what was gathered where it is."""

    def __init__(self, label: object) -> None:
        self.label = label
        self.runs: list[Buffer] = []

    def flush(self, now: float, origin: FrameOrigin, way_of: EntryOf) -> None:
        raise AssertionError

    def recover(self, now: float, origin: FrameOrigin, way_of: EntryOf) -> None:
        raise AssertionError


class Walker:
    """A kernel whose ways lead to a shelf for each service, or for each disposition; `asked` are its misses."""

    kernel_name = "python"

    def __init__(
        self,
        *,
        is_by_conversation: bool = False,
        max_hops: int = 16,
        forgets_every: int = 0,
        make: Callable[..., SlowPath] | None = None,
    ) -> None:
        self.ways: dict[tuple[object, int], ForwardingEntry] = {}
        self.shelves: dict[object, Shelf] = {}
        self.asked: list[tuple[bytes, bytes, int, bool]] = []
        self._is_by_conversation = is_by_conversation
        self._forgets_every = forgets_every  # misses, as `Kernels` does when too much is remembered
        make = KERNELS[self.kernel_name] if make is None else make
        self.kernel = make(max_frame=MAX_FRAME, max_hops=max_hops, resolve=self._resolve, drop_way=self.way)

    def way(self, label: object, kind: int) -> ForwardingEntry:
        disposition = label if isinstance(label, Disposition) else Disposition.FORWARDED
        shelf = self.shelves.setdefault(label, Shelf(label))
        return self.ways.setdefault((label, kind), ForwardingEntry(shelf, disposition, kind=kind))

    def walk(self, data: bytes) -> tuple[PassResult, dict[object, list[bytes]]]:
        """Walk over a slab that holds this, and then other bytes; what each shelf was given."""
        self.slab = bytearray(data + BEHIND)
        batch = self.kernel.walk(self.slab, len(data))
        shelves = {sink.label: [bytes(run) for run in sink.runs] for sink in batch.touched if isinstance(sink, Shelf)}
        assert len(shelves) == len(batch.touched)
        for sink in batch.touched:
            sink.runs.clear()
        return batch, shelves

    def taken(self) -> dict[tuple[object, int], int]:
        self.kernel.tally()
        return {key: way.frames for key, way in self.ways.items()}

    def _resolve(self, key: bytes, conversation: bytes, kind: int, is_from_target: bool) -> Answer:  # noqa: FBT001 - as `Resolve`
        self.asked.append((key, conversation, kind, is_from_target))
        if self._forgets_every and len(self.asked) % self._forgets_every == 0:
            self.kernel.forget()
        return self.lead(*self.asked[-1])

    def lead(self, key: bytes, conversation: bytes, kind: int, _is_from_target: bool, /) -> Answer:  # noqa: FBT001 - as `Resolve`
        """Where a frame of this key goes, and whether others of the key may go elsewhere."""
        label = conversation if self._is_by_conversation else key[18:].decode()
        way = self.way(label, kind)
        return way, None if way.disposition is Disposition.ASKING_FOR_ROUTE else self._is_by_conversation


def hopped(*frames: bytes) -> bytes:
    """The frames one hop later."""
    later = [bytearray(frame) for frame in frames]
    for frame in later:
        frame[HOP_COUNT_AT] += 1
    return b"".join(later)
