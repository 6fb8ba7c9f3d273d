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

from collections.abc import Callable
from struct import Struct

from broker.errors import PeerError
from broker.flow import Disposition
from broker.forwarding.way import Way
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
    Flag,
)

WORDS_MAX = 4096  # remembered second words of the prelude; a peer may invent 2^32 of them
WAYS_MAX = 1_000_000  # remembered ways of each direction; past it the cache starts anew

Ways = dict[bytes, "Way | dict[bytes, Way]"]
"""Route key -> way, or conversation id -> way where the conversation id has a say."""

Resolve = Callable[[bytes, bytes, int, bool], tuple[Way, bool]]
"""(route key, conversation id, kind, is_from_target) -> (way, whether the conversation id had a say)."""

_KEY_HEAD_BYTES = HEADER_BYTES - ROUTE_KEY_AT  # broker instance and name length, before the name
# By length of to_service: length, second word, time_to_live, time_consumed, from_service_length, route key.
_PASS = tuple(Struct(f">IIII60xH18x{_KEY_HEAD_BYTES + length}s").unpack_from for length in range(NAME_MAX_BYTES + 1))


class Batch:
    """
    What one walk leaves behind.

    Shape: `consumed` bytes of whole frames; `touched` ways that have pieces, each once; `link_frames` copies of whole
    link frames in order; `error` set when what follows `consumed` breaks the protocol.
    """

    __slots__ = ("consumed", "error", "link_frames", "touched")

    def __init__(self) -> None:
        self.consumed = 0
        self.touched: list[Way] = []
        self.link_frames: list[bytes] = []
        self.error: PeerError | None = None

    def gather(self, way: Way, run: memoryview, frames: int) -> None:
        """Add a run of `frames` whole frames to a way."""
        if not way.gathered:
            self.touched.append(way)
        way.pieces.append(run)
        way.gathered += frames


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
        self._remembered = 0
        self._words: dict[int, tuple[Ways, int]] = {}
        self._name_length = 0

    def forget(self) -> None:
        """Drop every remembered way: table, health or services have changed."""
        for ways in self._ways.values():
            ways.clear()
        self._remembered = 0

    def walk(self, slab: bytearray, end: int) -> Batch:
        """
        Walk the whole frames in `slab[:end]`.

        Cost: per frame no Python object that outlives it; per run one slice.
        """
        batch = Batch()
        view = memoryview(slab)
        words, max_frame = self._words, self._max_frame
        run: Way | None = None
        pos = start = frames = 0
        while True:
            unpack, floor = _PASS[self._name_length], HEADER_BYTES + self._name_length
            last = end - floor
            try:
                while pos <= last:
                    length, word, time_to_live, time_consumed, from_length, key = unpack(slab, pos)
                    ways, hop_count = words[word]
                    way = ways[key]
                    if (
                        time_consumed >= time_to_live
                        or not floor + from_length <= length <= max_frame
                        or not 0 < from_length <= NAME_MAX_BYTES
                        or pos + length > end
                    ):
                        break
                    if way is not run:
                        if isinstance(way, dict):
                            way = way[bytes(view[pos + CONVERSATION_AT : pos + CONVERSATION_AT + GUID_BYTES])]
                        if way is not run:
                            if run is not None:
                                batch.gather(run, view[start:pos], frames)
                            run, start, frames = way, pos, 0
                    slab[pos + HOP_COUNT_AT] = hop_count
                    frames += 1
                    pos += length
            except KeyError:
                pass
            if run is not None:
                batch.gather(run, view[start:pos], frames)
                run = None
            stop = self._careful(slab, pos, end, batch)
            if stop == pos:
                batch.consumed = pos
                return batch
            pos = stop

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
            batch.gather(self._judge(slab, pos), memoryview(slab)[pos:stop], 1)
        return stop

    def _judge(self, slab: bytearray, pos: int) -> Way:
        """The way of one whole, well-formed dialog frame; what it teaches is remembered for the fast path."""
        _, kind, flags, hop_count, hop_limit, time_to_live, time_consumed, _, name_length = PASS.unpack_from(slab, pos)
        if hop_count + 1 > min(hop_limit, self._max_hops):
            return self._drop_way(Disposition.HOPS_EXHAUSTED, kind)
        if time_consumed >= time_to_live:
            return self._drop_way(Disposition.LIFETIME_EXCEEDED, kind)
        side = (kind, bool(flags & Flag.FROM_TARGET))
        ways = self._ways.setdefault(side, {})
        if len(self._words) >= WORDS_MAX:
            self._words.clear()
        self._words[kind << 24 | flags << 16 | hop_count << 8 | hop_limit] = (ways, hop_count + 1)
        self._name_length = name_length
        slab[pos + HOP_COUNT_AT] = hop_count + 1
        key = bytes(slab[pos + ROUTE_KEY_AT : pos + HEADER_BYTES + name_length])
        conversation = bytes(slab[pos + CONVERSATION_AT : pos + CONVERSATION_AT + GUID_BYTES])
        known = ways.get(key)
        if isinstance(known, dict):
            known = known.get(conversation)
        if known is not None:
            return known
        way, is_by_conversation = self._resolve(key, conversation, *side)
        self._remember(ways, key, conversation if is_by_conversation else None, way)
        return way

    def _remember(self, ways: Ways, key: bytes, conversation: bytes | None, way: Way) -> None:
        if self._remembered >= WAYS_MAX:
            self.forget()
        self._remembered += 1
        if conversation is None:
            ways[key] = way
            return
        by_conversation = ways.setdefault(key, {})
        assert isinstance(by_conversation, dict)  # whether the conversation has a say is a matter of the key alone
        by_conversation[conversation] = way
