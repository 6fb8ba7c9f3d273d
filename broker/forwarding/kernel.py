"""
The kernel: one walk over what a read brought.

It finds frame boundaries, checks hops and lifetime, adds one to the hop count in place, looks the route key up in a
flat cache and gathers neighbouring frames of one way into runs: slices of the slab, no Python object per frame. What
is not the plain case (a cache miss, a link frame, a drop) takes the careful path, one frame at a time.

Why it is fast in plain Python: one `unpack` of the last seen name length reads all fields and the route key; the
second word of the prelude (kind, flags, hops) repeats from frame to frame, so its verdict is remembered; a route key
holds the length of its own name, so a wrong guess of that length cannot hit the cache and is an ordinary miss.
What it costs: `make bench`, docs/performance.md.

No I/O and no clock: a frame that leaves in the loop turn in which it came has not aged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct

from broker.errors import PeerError
from broker.flow import Disposition
from broker.forwarding.way import Buffer, Origin, Sink, Way, WayOf
from broker.wire.decoder import check_frame, maybe_length
from broker.wire.layout import (
    CONVERSATION_AT,
    FIRST_DIALOG_KIND,
    GUID_BYTES,
    HEADER_BYTES,
    HOP_COUNT_AT,
    NAME_MAX_BYTES,
    PASS,
    ROUTE_KEY_AT,
    TO_SERVICE_AT,
    Flag,
)

WORDS_MAX = 4096  # remembered second words of the prelude; a peer may invent 2^32 of them
REMEMBERED_MAX_BYTES = 128 * 1024 * 1024  # all remembered ways; past it the cache starts anew: a peer may invent names
REMEMBERED_OVERHEAD = 360  # bytes of one way beside its route key, at worst, as measured with tracemalloc

Ways = dict[bytes, Way]
"""Route key -> way; where the conversation id has a say, a way that has `choices`."""

Resolve = Callable[[bytes, bytes, int, bool], tuple[Way, bool]]
"""(route key, conversation id, kind, is_from_target) -> (way, whether the conversation id had a say)."""

_KEY_HEAD_BYTES = HEADER_BYTES - ROUTE_KEY_AT  # broker instance and name length, before the name
# By length of to_service: length, second word, time_to_live, time_consumed, from_service_length, route key.
_PASS = tuple(Struct(f">IIII60xH18x{_KEY_HEAD_BYTES + length}s").unpack_from for length in range(NAME_MAX_BYTES + 1))


class Batch:
    """
    What one walk leaves behind.

    Shape: `consumed` bytes of whole frames; `received` dialog frames by kind; `touched` sinks that have runs, each
    once; `link_frames` copies of whole link frames in order; `error` set when what follows `consumed` breaks the
    protocol.
    """

    __slots__ = ("consumed", "error", "link_frames", "received", "touched")

    def __init__(self) -> None:
        self.consumed = 0
        self.received: dict[int, int] = {}
        self.touched: list[Sink] = []
        self.link_frames: list[bytes] = []
        self.error: PeerError | None = None

    def gather(self, sink: Sink, run: Buffer) -> None:
        """Add a run of whole frames to a sink."""
        if not sink.runs:
            self.touched.append(sink)
        sink.runs.append(run)

    def close(self, consumed: int, kind: int, frames: int) -> Batch:
        """The walk ends here; `frames` of `kind` are not counted yet."""
        self.consumed = consumed
        self.count(kind, frames)
        return self

    def count(self, kind: int, frames: int) -> None:
        """Count frames of a kind."""
        if frames:
            self.received[kind] = self.received.get(kind, 0) + frames


class _NoSink:
    """Where no frame goes: the sink of a way that only stands for its choices."""

    def __init__(self) -> None:
        self.runs: list[Buffer] = []

    def flush(self, _now: float, _origin: Origin, _way_of: WayOf) -> None:
        """Never called."""
        raise AssertionError("a way that has choices was taken")


class Kernel:
    """
    Walks slabs; remembers only ways, which `forget` empties.

    Shape: `max_frame` bytes, what this instance announced; `max_hops` 1 .. 255; `resolve` decides a miss;
    `drop_way` gives the way of a drop by disposition and kind.
    """

    def __init__(
        self, *, max_frame: int, max_hops: int, resolve: Resolve, drop_way: Callable[[Disposition, int], Way]
    ) -> None:
        self._max_frame = max_frame
        self._max_hops = max_hops
        self._resolve = resolve
        self._drop_way = drop_way
        self._ways: dict[tuple[int, bool], Ways] = {}  # by kind and FROM_TARGET
        self._remembered_bytes = 0
        self._words: dict[int, tuple[Ways, int]] = {}
        self._name_length = 0

    def forget(self) -> None:
        """Drop every remembered way: table, health or services have changed."""
        for ways in self._ways.values():
            ways.clear()
        self._remembered_bytes = 0

    def walk(self, slab: bytearray, end: int) -> Batch:
        """Walk the whole frames in `slab[:end]`. Cost: per run one slice, per frame no object that outlives it."""
        batch = Batch()
        touch, view, words, max_frame = batch.touched.append, memoryview(slab), self._words, self._max_frame
        sink: Sink | None = None  # where the run from `start` on leads
        side: Ways | None = None  # of the `frames` not counted yet, which are of one `kind`
        pos = start = frames = kind = 0
        while True:
            unpack, floor = _PASS[self._name_length], HEADER_BYTES + self._name_length
            from_length = shortest = -1
            try:
                # What lies behind `end` is left over from another read: a frame read from there is never whole.
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
                    way.frames += 1
                    slab[pos + HOP_COUNT_AT] = hop_count
                    frames += 1
                    pos = stop
            except (KeyError, struct.error):
                pass
            if self._guess_again(slab, pos, end):
                continue
            if sink is not None:
                batch.gather(sink, view[start:pos])
                sink = None
            stop = self._careful(slab, pos, end, batch)
            if stop == pos:
                return batch.close(pos, kind, frames)
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

    def _careful(self, slab: bytearray, pos: int, end: int, batch: Batch) -> int:
        """Judge the one frame at `pos`; its end, or `pos` when it is not whole or breaks the protocol."""
        try:
            length = maybe_length(slab, pos, end, self._max_frame)
            if length is None or pos + length > end:
                return pos
            stop = pos + length
            check_frame(slab, pos, stop)
        except PeerError as error:
            batch.error = error
            return pos
        if slab[pos + 4] < FIRST_DIALOG_KIND:
            batch.link_frames.append(bytes(slab[pos:stop]))
        else:
            way = self._judge(slab, pos)
            way.frames += 1
            batch.count(slab[pos + 4], 1)
            batch.gather(way.sink, memoryview(slab)[pos:stop])
        return stop

    def _judge(self, slab: bytearray, pos: int) -> Way:
        """The way of one whole, well-formed dialog frame; what it teaches is remembered for the fast path."""
        _, kind, flags, hop_count, hop_limit, time_to_live, time_consumed, _, _ = PASS.unpack_from(slab, pos)
        if hop_count + 1 > min(hop_limit, self._max_hops):
            return self._drop_way(Disposition.HOPS_EXHAUSTED, kind)
        if time_consumed >= time_to_live:
            return self._drop_way(Disposition.LIFETIME_EXCEEDED, kind)
        ways = self._ways.setdefault((kind, bool(flags & Flag.FROM_TARGET)), {})
        if len(self._words) >= WORDS_MAX:
            self._words.clear()
        self._words[kind << 24 | flags << 16 | hop_count << 8 | hop_limit] = (ways, hop_count + 1)
        slab[pos + HOP_COUNT_AT] = hop_count + 1
        return self.way_of(memoryview(slab)[pos:])

    def way_of(self, frame: Buffer) -> Way:
        """The way of a whole dialog frame by its route key, and its conversation where that has a say."""
        kind, is_from_target = frame[4], bool(frame[5] & Flag.FROM_TARGET)
        ways = self._ways.setdefault((kind, is_from_target), {})
        key = bytes(
            frame[ROUTE_KEY_AT : TO_SERVICE_AT + int.from_bytes(frame[TO_SERVICE_AT - 2 : TO_SERVICE_AT], "big")]
        )
        conversation = bytes(frame[CONVERSATION_AT : CONVERSATION_AT + GUID_BYTES])
        known = ways.get(key)
        if known is not None and known.choices is not None:
            known = known.choices.get(conversation)
        if known is not None:
            return known
        way, is_by_conversation = self._resolve(key, conversation, kind, is_from_target)
        if way.disposition is Disposition.ASKING_FOR_ROUTE:
            return way  # whoever asks has to hear that somebody still wants it: an answer of "none" wears off
        if self._remembered_bytes > REMEMBERED_MAX_BYTES:
            self.forget()
        self._remembered_bytes += len(key) + REMEMBERED_OVERHEAD
        if not is_by_conversation:
            ways[key] = way
            return way
        stand_in = ways.get(key)
        if stand_in is None:
            stand_in = ways[key] = Way(_NoSink(), way.disposition, kind=kind)
            stand_in.choices = {}
        assert stand_in.choices is not None  # whether the conversation has a say is a matter of the key alone
        stand_in.choices[conversation] = way
        return way
