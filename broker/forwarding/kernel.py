"""
The kernel: one walk over the bytes of a read.

It finds frame boundaries, checks hops and lifetime, adds one to the hop count in place, and looks the route key up in
a flat cache. It gathers neighbouring frames of one sink into runs: slices of the slab, no Python object per frame. Any
other case (a cache miss, a link frame, a drop) takes the slow path, one frame at a time. In this module `way` is the
`ForwardingEntry` of a frame.

Why it is fast in plain Python: one `unpack` of the last seen name length reads all fields and the route key. The second
word of the prelude (kind, flags, hops) repeats from frame to frame, so its verdict is remembered. A route key contains
the length of its name, so a wrong guess of that length cannot hit the cache and is an ordinary miss. `make bench`
measures the costs: docs/performance.md.

No I/O and no clock: a frame that leaves in the loop iteration in which it came has not aged.
"""

from __future__ import annotations

import struct
from collections.abc import Set as AbstractSet
from struct import Struct
from typing import cast

from broker.forwarding.entry import ForwardingEntry, PassResult, Sink
from broker.forwarding.ring import Ring
from broker.forwarding.slow_path import DropWay, Resolve, SlowPath
from broker.protocol.layout import (
    CONVERSATION_AT,
    GUID_BYTES,
    HEADER_BYTES,
    HOP_COUNT_AT,
    NAME_MAX_BYTES,
    ROUTE_KEY_AT,
    TO_SERVICE_AT,
    Flag,
)

WORDS_MAX = 4096  # remembered second words of the prelude; a peer may invent 2^32 of them

Ways = dict[bytes, ForwardingEntry]
"""Route key -> way; where the conversation id has a say, a way that has `choices`."""

_NO_SINK = cast("Sink", object())  # of a way that only has choices: it gets no frames
_KEY_HEAD_BYTES = HEADER_BYTES - ROUTE_KEY_AT  # broker instance and name length, before the name
# By length of to_service: length, second word, time_to_live, time_consumed, from_service_length, route key.
_PASS = tuple(Struct(f">IIII60xH18x{_KEY_HEAD_BYTES + length}s").unpack_from for length in range(NAME_MAX_BYTES + 1))


class Kernel(SlowPath):
    """The kernel in plain Python. Counts on the ways themselves."""

    name = "python"

    def __init__(
        self, *, max_frame: int, max_hops: int, resolve: Resolve, drop_way: DropWay, ring: Ring | None = None
    ) -> None:
        super().__init__(max_frame=max_frame, max_hops=max_hops, resolve=resolve, drop_way=drop_way, ring=ring)
        self._ways: dict[tuple[int, bool], Ways] = {}  # by kind and FROM_TARGET
        self._words: dict[int, tuple[Ways, int]] = {}
        self._name_length = 0

    def tally(self) -> None:
        """Do nothing: the walk counts on the ways themselves."""

    def forget(self) -> None:
        """See `SlowPath`."""
        for ways in self._ways.values():
            ways.clear()

    def forget_services(self, names: AbstractSet[bytes] | None) -> None:
        """See `SlowPath`."""
        for ways in self._ways.values():
            for key, way in list(ways.items()):
                if way.choices is not None if names is None else key[_KEY_HEAD_BYTES:] in names:
                    del ways[key]

    def walk(self, slab: bytearray, end: int) -> PassResult:
        """Walk the whole frames in `slab[:end]`. Cost: per run one slice, per frame no object that outlives it."""
        batch, view, words = PassResult(), memoryview(slab), self._words
        touch, max_frame, ring = batch.touched.append, self._max_frame, self._ring
        sink: Sink | None = None  # where the run from `start` on leads
        side: Ways | None = None  # of the `frames` not counted yet, which are of one `kind`
        pos = start = frames = kind = 0
        while True:
            unpack, floor = _PASS[self._name_length], HEADER_BYTES + self._name_length
            from_length = shortest = -1
            try:
                # Bytes after `end` are left over from another read: a frame read from there is never whole.
                while True:
                    length, word, time_to_live, time_consumed, next_from_length, key = unpack(slab, pos)
                    ways, hop_count = words[word]
                    way = ways[key]
                    stop = pos + length
                    if next_from_length != from_length:
                        if not 0 < next_from_length <= NAME_MAX_BYTES:
                            break
                        from_length, shortest = next_from_length, floor + next_from_length
                    if stop > end or not shortest <= length <= max_frame or time_consumed >= time_to_live:
                        break
                    if way.sink is not sink or ways is not side:
                        if way.choices is not None:
                            way = way.choices[bytes(view[pos + CONVERSATION_AT : pos + CONVERSATION_AT + GUID_BYTES])]
                        if way.sink is not sink:
                            if sink is not None:  # `gather`, written out: it may run for nearly every frame
                                if not sink.runs:
                                    touch(sink)
                                sink.runs.append(view[start:pos])
                            sink, start = way.sink, pos
                        if ways is not side:
                            batch.count(kind, frames)
                            side, kind, frames = ways, word >> 24, 0
                    if ring is not None:
                        ring.enter(slab, pos, way, hop_count - 1)
                    way.frames += 1
                    slab[pos + HOP_COUNT_AT] = hop_count
                    frames, pos = frames + 1, stop
            except (KeyError, struct.error):
                pass
            if self._guess_again(slab, pos, end):
                continue
            if sink is not None:
                batch.gather(sink, view[start:pos])
                sink = None
            stop = self._take_care(slab, pos, end, batch)
            if stop == pos:
                batch.consumed = pos
                batch.count(kind, frames)
                return batch
            pos = stop

    def _guess_again(self, slab: bytearray, pos: int, end: int) -> bool:
        """Whether the frame at `pos` has a name of another length than the last one; then that is the guess."""
        if end - pos < HEADER_BYTES:
            return False
        name_length = int.from_bytes(slab[pos + TO_SERVICE_AT - 2 : pos + TO_SERVICE_AT], "big")
        if name_length == self._name_length or not 0 < name_length <= NAME_MAX_BYTES:
            return False
        self._name_length = name_length
        return True

    def _take_care(self, slab: bytearray, pos: int, end: int, batch: PassResult) -> int:
        """The slow path for the one frame at `pos`; its end, or `pos` when the walk ends there."""
        stop, way = self.careful(slab, pos, end, batch)
        if way is not None:
            batch.gather(way.sink, memoryview(slab)[pos:stop])
        return stop

    def _note_hops(self, kind: int, flags: int, hop_count: int, hop_limit: int) -> None:
        if len(self._words) >= WORDS_MAX:
            self._words.clear()
        word = kind << 24 | flags << 16 | hop_count << 8 | hop_limit
        self._words[word] = (self._side(kind, is_from_target=bool(flags & Flag.FROM_TARGET)), hop_count + 1)

    def _side(self, kind: int, *, is_from_target: bool) -> Ways:
        return self._ways.setdefault((kind, is_from_target), {})

    def _recall(self, key: bytes, conversation: bytes, kind: int, is_from_target: bool) -> ForwardingEntry | None:
        known = self._side(kind, is_from_target=is_from_target).get(key)
        return known if known is None or known.choices is None else known.choices.get(conversation)

    def _remember(
        self, key: bytes, conversation: bytes | None, kind: int, is_from_target: bool, way: ForwardingEntry
    ) -> None:
        ways = self._side(kind, is_from_target=is_from_target)
        if conversation is None:
            ways[key] = way
            return
        stand_in = ways.get(key)
        if stand_in is None:
            stand_in = ways[key] = ForwardingEntry(_NO_SINK, way.disposition, kind=kind)
            stand_in.choices = {}
        assert stand_in.choices is not None  # whether the conversation has a say is a matter of the key alone
        stand_in.choices[conversation] = way
