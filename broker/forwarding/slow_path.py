"""
The slow path, which both kernels share: every frame that is not plain, one at a time.

A kernel's walk forwards the frames whose entry it has cached. The others come here: a frame with a new route key is
decided by `resolve` and its entry cached, a link frame is copied out, a frame without hops or lifetime takes the entry
of a drop, and a frame that breaks the protocol ends the walk. How a kernel caches is its own: it implements `_recall`,
`_remember` and the three ways to forget. In the kernels the entry of a frame is called its way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import ClassVar

from broker.errors import PeerError
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry, PassResult, conversation_of, route_key_of
from broker.forwarding.held_frames import FROM_TARGET
from broker.forwarding.ring import Ring
from broker.protocol.decoder import check_frame, maybe_length
from broker.protocol.frame import decode_link
from broker.protocol.layout import FIRST_DIALOG_KIND, HOP_COUNT_AT, PASS, FrameKind

_LAST = (FrameKind.FATAL, FrameKind.HELLO)  # a HELLO here is the second one, which no peer may send

Resolve = Callable[[bytes, bytes, int, bool], tuple[ForwardingEntry, bool | None]]
"""
(route key, conversation id, kind, is_from_target) -> (entry, whether the conversation id affected it); None there when
this holds for one frame only and the next has to be resolved again. Must not fail.
"""

DropWay = Callable[[Disposition, int], ForwardingEntry]
"""The entry of a drop, by disposition and kind."""


class SlowPath(ABC):
    """
    The part that all kernels share.

    Args:
        max_frame: Bytes, as this instance announced.
        max_hops: 1 .. 255.
        resolve: Decides a cache miss.
        drop_way: The entry of a drop.
        ring: For the records of the frames that are followed, if any are.
    """

    name: ClassVar[str]  # as `broker status` shows it

    def __init__(
        self, *, max_frame: int, max_hops: int, resolve: Resolve, drop_way: DropWay, ring: Ring | None = None
    ) -> None:
        self._max_frame = max_frame
        self._max_hops = max_hops
        self._resolve = resolve
        self._drop_way = drop_way
        self._ring = ring

    @abstractmethod
    def walk(self, slab: bytearray, end: int) -> PassResult:
        """Walk the whole frames in `slab[:end]`: hops are added in place, runs are gathered at the sinks."""

    @abstractmethod
    def tally(self) -> None:
        """Bring `frames` of every entry up to date; to be called before they are read."""

    @abstractmethod
    def forget(self) -> None:
        """Empty the cache."""

    @abstractmethod
    def forget_services(self, names: AbstractSet[bytes] | None) -> None:
        """Remove the entries of frames to these services; with None, all that are cached by conversation."""

    def entry_of(self, frame: Buffer) -> ForwardingEntry:
        """The entry of a whole dialog frame by its route key, and its conversation where that has a say."""
        kind, is_from_target = frame[4], bool(frame[5] & FROM_TARGET)
        key, conversation = route_key_of(frame), conversation_of(frame)
        known = self._recall(key, conversation, kind, is_from_target)
        return self.learn(key, conversation, kind, is_from_target) if known is None else known

    def learn(self, key: bytes, conversation: bytes, kind: int, is_from_target: bool) -> ForwardingEntry:
        """Decide and cache the entry of a frame that is not cached."""
        way, is_by_conversation = self._resolve(key, conversation, kind, is_from_target)
        if is_by_conversation is not None:
            self._remember(key, conversation if is_by_conversation else None, kind, is_from_target, way)
        return way

    def careful(self, slab: bytearray, pos: int, end: int, batch: PassResult) -> tuple[int, ForwardingEntry | None]:
        """
        Judge the one frame at `pos`: its end, or `pos` when the walk ends there; its entry if it is a dialog frame.

        Bytes after a frame that ends the connection are ignored, as if they were part of it. One walk takes at most as
        many frames this way as an iteration of the loop has time for; the rest is left for the next.
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
                decode_link(link_frame)  # a malformed body ends the walk, like everything that is malformed
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
        """The entry of one whole, well-formed dialog frame, which is cached for the next walk."""
        _, kind, flags, hop_count, hop_limit, time_to_live, time_consumed, _, _ = PASS.unpack_from(slab, pos)
        if hop_count + 1 > min(hop_limit, self._max_hops):
            return self._drop_way(Disposition.HOPS_EXHAUSTED, kind)
        if time_consumed >= time_to_live:
            return self._drop_way(Disposition.LIFETIME_EXCEEDED, kind)
        self._note_hops(kind, flags, hop_count, hop_limit)
        slab[pos + HOP_COUNT_AT] = hop_count + 1
        return self.entry_of(memoryview(slab)[pos:])

    @abstractmethod
    def _note_hops(self, kind: int, flags: int, hop_count: int, hop_limit: int) -> None:
        """A frame with these has a hop left; a kernel may remember that."""

    @abstractmethod
    def _recall(self, key: bytes, conversation: bytes, kind: int, is_from_target: bool) -> ForwardingEntry | None:
        """The cached entry, if there is one."""

    @abstractmethod
    def _remember(
        self, key: bytes, conversation: bytes | None, kind: int, is_from_target: bool, way: ForwardingEntry
    ) -> None:
        """Cache an entry, for this conversation alone where one is given."""
