"""
The careful path, which both kernels share: whatever is not plain, one frame at a time.

A kernel's walk takes the frames whose way it remembers. The others come here: a frame of a new route is decided by
`resolve` and its way remembered, a link frame is copied out, a frame without hops or lifetime takes the way of a drop,
and what breaks the protocol ends the walk. What a kernel remembers and how is its own: it gives `_recall`, `_remember`
and `_clear`; how much it may remember is decided here, the same for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from broker.errors import PeerError
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry, PassResult
from broker.forwarding.ring import Ring
from broker.protocol.decoder import check_frame, maybe_length
from broker.protocol.frame import decode_link
from broker.protocol.layout import (
    CONVERSATION_AT,
    FIRST_DIALOG_KIND,
    GUID_BYTES,
    HOP_COUNT_AT,
    PASS,
    ROUTE_KEY_AT,
    TO_SERVICE_AT,
    Flag,
    FrameKind,
)

_LAST = (FrameKind.FATAL, FrameKind.HELLO)  # a HELLO that comes here is the second one, which no peer may say
FROM_TARGET = int(Flag.FROM_TARGET)  # as a plain number: `&` with an enum costs a microsecond

REMEMBERED_MAX_BYTES = 128 * 1024 * 1024  # all remembered ways; past it the cache starts anew: a peer may invent names
REMEMBERED_OVERHEAD = 360  # bytes of one way beside its route key, at worst, in either kernel, as measured

Resolve = Callable[[bytes, bytes, int, bool], tuple[ForwardingEntry, bool | None]]
"""
(route key, conversation id, kind, is_from_target) -> (way, whether the conversation id had a say); None there when this
holds for one frame only and the next has to be asked for. Must not fail.
"""

DropWay = Callable[[Disposition, int], ForwardingEntry]
"""The way of a drop, by disposition and kind."""


class SlowPath(ABC):
    """
    What every kernel does and has. Remembers only ways, which `forget` empties.

    Shape: `name` what `broker status` shows; `max_frame` bytes, what this instance announced; `max_hops` 1 .. 255;
    `resolve` decides a miss; `ring` takes the records of the frames that are followed, where somebody follows any.
    """

    name: ClassVar[str]

    def __init__(
        self, *, max_frame: int, max_hops: int, resolve: Resolve, drop_way: DropWay, ring: Ring | None = None
    ) -> None:
        self._max_frame = max_frame
        self._max_hops = max_hops
        self._resolve = resolve
        self._drop_way = drop_way
        self._ring = ring
        self._remembered_bytes = 0

    @abstractmethod
    def walk(self, slab: bytearray, end: int) -> PassResult:
        """Walk the whole frames in `slab[:end]`: hops are added in place, runs are gathered at the sinks."""

    @abstractmethod
    def tally(self) -> None:
        """Bring `frames` of every way up to date; whoever reads them calls it first."""

    def forget(self) -> None:
        """Drop every remembered way: table, health or services have changed."""
        self._clear()
        self._remembered_bytes = 0

    def way_of(self, frame: Buffer) -> ForwardingEntry:
        """The way of a whole dialog frame by its route key, and its conversation where that has a say."""
        kind, is_from_target = frame[4], bool(frame[5] & FROM_TARGET)
        key = bytes(
            frame[ROUTE_KEY_AT : TO_SERVICE_AT + int.from_bytes(frame[TO_SERVICE_AT - 2 : TO_SERVICE_AT], "big")]
        )
        conversation = bytes(frame[CONVERSATION_AT : CONVERSATION_AT + GUID_BYTES])
        known = self._recall(key, conversation, kind, is_from_target)
        if known is not None:
            return known
        way, is_by_conversation = self._resolve(key, conversation, kind, is_from_target)
        if is_by_conversation is None:
            return way
        if self._remembered_bytes > REMEMBERED_MAX_BYTES:
            self.forget()
        self._remembered_bytes += len(key) + REMEMBERED_OVERHEAD
        self._remember(key, conversation if is_by_conversation else None, kind, is_from_target, way)
        return way

    def careful(self, slab: bytearray, pos: int, end: int, batch: PassResult) -> tuple[int, ForwardingEntry | None]:
        """
        Judge the one frame at `pos`: its end, `pos` when the walk ends there; its way if it is a dialog frame.

        Nothing counts that comes behind a frame which ends the connection, so all of it is taken as part of that. No
        more is taken care of in one walk than a turn of the loop has time for: what is left is for the next.
        """
        if not batch.care_left:
            return pos, None
        batch.care_left -= 1
        try:
            length = maybe_length(slab, pos, end, self._max_frame)
            if length is None or pos + length > end:
                return pos, None
            stop = pos + length
            check_frame(slab, pos, stop)
            if slab[pos + 4] < FIRST_DIALOG_KIND:
                link_frame = bytes(slab[pos:stop])
                if link_frame[4] in _LAST:
                    batch.link_frames.append(link_frame)
                    return end, None
                decode_link(link_frame)  # a body that is none ends the walk, like everything that is malformed
                batch.link_frames.append(link_frame)
                return stop, None
        except PeerError as error:
            batch.error = error
            return pos, None
        hop_count = slab[pos + HOP_COUNT_AT]
        way = self._judge(slab, pos)
        if self._ring is not None:
            self._ring.enter(slab, pos, way, hop_count)
        way.frames += 1
        batch.count(slab[pos + 4], 1)
        return stop, way

    def _judge(self, slab: bytearray, pos: int) -> ForwardingEntry:
        """The way of one whole, well-formed dialog frame; what it teaches is remembered for the next walk."""
        _, kind, flags, hop_count, hop_limit, time_to_live, time_consumed, _, _ = PASS.unpack_from(slab, pos)
        if hop_count + 1 > min(hop_limit, self._max_hops):
            return self._drop_way(Disposition.HOPS_EXHAUSTED, kind)
        if time_consumed >= time_to_live:
            return self._drop_way(Disposition.LIFETIME_EXCEEDED, kind)
        self._note_hops(kind, flags, hop_count, hop_limit)
        slab[pos + HOP_COUNT_AT] = hop_count + 1
        return self.way_of(memoryview(slab)[pos:])

    @abstractmethod
    def _note_hops(self, kind: int, flags: int, hop_count: int, hop_limit: int) -> None:
        """A frame with these has a hop left."""

    @abstractmethod
    def _recall(self, key: bytes, conversation: bytes, kind: int, is_from_target: bool) -> ForwardingEntry | None:  # noqa: FBT001 - as `Resolve`
        """The way that is remembered, if one is."""

    @abstractmethod
    def _remember(
        self,
        key: bytes,
        conversation: bytes | None,
        kind: int,
        is_from_target: bool,  # noqa: FBT001 - as `Resolve`
        way: ForwardingEntry,
    ) -> None:
        """Remember a way, for this conversation alone where one is given."""

    @abstractmethod
    def _clear(self) -> None:
        """Remember nothing."""
