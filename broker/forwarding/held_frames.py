"""
Frames that wait: one by one (`Held`), or together as they came (`Pack`), and the outbox in which each dialog waits.

The frames that a read brings for one next hop mostly wait and leave as a whole. So they are kept as they came, and of
each frame only the facts that are needed at once: where it begins, its copy key, and its dialog. Everything else, its
deadline included, is computed from its bytes when it is needed. Held frames and packs are never changed: how long a
frame has lived is computed when it leaves, is shown, or is rerouted. When a pack has left in part, a new one is made of
the rest.

Several addresses may lead to a service; health decides which of them a dialog takes, and health changes while frames
wait. A later frame of the dialog must leave after those that wait, and a second copy of one of them is recognised only
by the queue that has the first. So `DialogAffinity` remembers the outbox of each direction of a dialog that has frames
waiting. While an outbox is rerouted in slices, a dialog has frames in two; then it is the one that they leave, until
the last of them has left. Only frames from other instances count: frames of a database here follow its own decisions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple, TypeAlias

from broker.forwarding.entry import Buffer, ForwardingEntry, PassOrigin, Sink, conversation_of, route_key_of
from broker.forwarding.pool import PoolQuota
from broker.protocol.layout import (
    CONVERSATION_AT,
    ENDS_AT,
    HEADER_BYTES,
    PLACE_END,
    TIME_CONSUMED_AT,
    TIME_TO_LIVE_AT,
    TIMES,
    Flag,
)

TIME_MAX = 2**32 - 1  # ms, the largest value of the field

FROM_TARGET = int(Flag.FROM_TARGET)  # as a plain number: `&` with an enum costs a microsecond, for each held frame
_MILLISECONDS = Struct(">I")
name_lengths = Struct(">76xH34xH").unpack_from  # of from_service and to_service


class DialogPlacement:
    """Where one direction of a dialog waits."""

    __slots__ = ("count", "key", "next", "outbox")

    def __init__(self, key: int, outbox: Sink) -> None:
        self.key = key
        self.outbox = outbox
        self.count = 0  # frames that wait there
        self.next: DialogPlacement | None = None  # where the later ones wait, while a reroute is under way


class DialogAffinity:
    """The placements of all dialogs that have frames waiting, by `affinity_key`. Loop-only; changed by outboxes."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[int, DialogPlacement] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def outbox_of(self, key: int) -> Sink | None:
        """The outbox in which the next frame of this dialog has to wait; None when none of its frames waits."""
        placement = self._by_key.get(key)
        return None if placement is None else placement.outbox

    def enter(self, key: int, outbox: Sink, frames: int = 1) -> DialogPlacement:
        """Frames of this dialog begin to wait in an outbox."""
        placement = self._by_key.get(key)
        if placement is None:
            placement = self._by_key[key] = DialogPlacement(key, outbox)
        while placement.outbox is not outbox:
            if placement.next is None:
                placement.next = DialogPlacement(key, outbox)
            placement = placement.next
        placement.count += frames
        return placement

    def leave(self, placement: DialogPlacement, frames: int = 1) -> None:
        """Frames that waited there have left, or were dropped."""
        placement.count -= frames
        if placement.count:
            return
        previous = self._by_key[placement.key]
        if previous is not placement:
            while previous.next is not placement:
                assert previous.next is not None  # it was entered
                previous = previous.next
            previous.next = placement.next
        elif placement.next is None:
            del self._by_key[placement.key]
        else:
            self._by_key[placement.key] = placement.next


class Held(NamedTuple):
    """One waiting frame, as it came with this hop spent. In a queue it has the interface of a `Pack` of one."""

    frame: bytes
    since: float  # monotonic seconds at which it came
    deadline: float  # when its lifetime ends, or this instance drops it
    entry: ForwardingEntry  # it is counted under when it leaves
    arrival: PassOrigin | None = None  # of its visit, however often it was rerouted; None without a ring
    placement: DialogPlacement | None = None  # shared with its dialog; None when a database here sent it
    quota: PoolQuota | None = None  # it is charged to; None where that peer has no limit

    def waited_ms(self, now: float) -> int:
        """Whole milliseconds since it came."""
        return _waited_ms(self.since, now)

    def time_consumed(self, now: float) -> int:
        """Milliseconds it has lived, the time it waited here included."""
        before = int.from_bytes(self.frame[TIME_CONSUMED_AT : TIME_CONSUMED_AT + 4], "big")
        return min(TIME_MAX, before + self.waited_ms(now))

    def aged(self, now: float) -> bytearray:
        """A copy of the frame with the time it waited written into it."""
        frame = bytearray(self.frame)
        self.age(frame, 0, now)
        return frame

    @property
    def data(self) -> bytes:
        """See `Pack`."""
        return self.frame

    @property
    def frames(self) -> int:
        """See `Pack.frames`."""
        return 1

    def age(self, data: bytearray, at: int, now: float) -> None:
        """See `Pack.age`."""
        at += TIME_CONSUMED_AT
        data[at : at + 4] = self.time_consumed(now).to_bytes(4, "big")

    def begun(self, sent: int) -> tuple[int, int]:
        """See `Pack.begun`."""
        return (1, len(self.frame)) if sent else (0, 0)

    def by_dialog(self, frames: int) -> Iterable[tuple[ForwardingEntry, DialogPlacement | None, int]]:
        """See `Pack.by_dialog`."""
        return ((self.entry, self.placement, frames),)

    def helds(self) -> Iterable[Held]:
        """See `Pack.helds`."""
        return (self,)


class Lane:
    """The properties that the frames of one dialog, direction and kind in a batch share."""

    __slots__ = ("affinity_key", "copy_suffix", "entry", "placement")

    def __init__(self, entry: ForwardingEntry, copy_suffix: bytes, affinity_key: int | None) -> None:
        self.entry = entry
        self.copy_suffix = copy_suffix  # of their copy keys
        self.affinity_key = affinity_key  # None when a database here sent them
        self.placement: DialogPlacement | None = None  # as in `Held`, once the first of them waits


class Pack(NamedTuple):
    """Whole frames that came and wait together, one after the other in one piece of memory."""

    name: bytes  # by which its queue knows it
    data: bytes
    starts: list[int]  # of the frames in `data`; their `keys` and `lanes` in the same order
    keys: list[bytes]
    lanes: list[Lane]
    since: float  # this, `arrival` and `quota` of all of them, as in `Held`
    deadline: float  # not later than that of any of them
    latest: float  # monotonic seconds at which this instance drops them, whatever their lifetimes
    longest: int  # bytes of a frame, at most
    arrival: PassOrigin | None
    quota: PoolQuota | None

    @property
    def frames(self) -> int:
        """How many."""
        return len(self.keys)

    def age(self, data: bytearray, at: int, now: float) -> None:
        """Write the time they waited into their copies, which begin at `at`."""
        waited = _waited_ms(self.since, now)
        if not waited:
            return
        read, write = _MILLISECONDS.unpack_from, _MILLISECONDS.pack_into
        at += TIME_CONSUMED_AT
        for start in self.starts:
            write(data, at + start, min(TIME_MAX, read(data, at + start)[0] + waited))

    def begun(self, sent: int) -> tuple[int, int]:
        """How many frames have a byte among the first `sent` ones, and where the last of these frames ends."""
        frames = bisect_left(self.starts, sent)
        return frames, self._end(frames - 1) if frames else 0

    def without_first(self, frames: int) -> Pack:
        """Return the rest of the pack after the first `frames` frames have left."""
        at = self.starts[frames]
        starts = [start - at for start in self.starts[frames:]]
        return self._replace(data=self.data[at:], starts=starts, keys=self.keys[frames:], lanes=self.lanes[frames:])

    def by_dialog(self, frames: int) -> Iterable[tuple[ForwardingEntry, DialogPlacement | None, int]]:
        """How many of the first ones there are of each entry and placement."""
        return ((lane.entry, lane.placement, count) for lane, count in Counter(self.lanes[:frames]).items())

    def helds(self) -> Iterator[Held]:
        """Each frame by itself."""
        for index, (start, lane) in enumerate(zip(self.starts, self.lanes, strict=True)):
            frame = self.data[start : self._end(index)]
            yield hold(frame, self.since, lane.entry, self.arrival, lane.placement, self.quota, self.latest)

    def _end(self, index: int) -> int:
        return self.starts[index + 1] if index + 1 < len(self.starts) else len(self.data)


Piece: TypeAlias = Held | Pack


def hold(  # noqa: PLR0917 - as the fields of `Held`
    frame: Buffer,
    now: float,
    entry: ForwardingEntry,
    arrival: PassOrigin | None = None,
    placement: DialogPlacement | None = None,
    quota: PoolQuota | None = None,
    latest: float = math.inf,
) -> Held:
    """A copy of a frame that begins to wait now; it is dropped at `latest` unless its lifetime ends before."""
    time_to_live, time_consumed = TIMES.unpack_from(frame, TIME_TO_LIVE_AT)
    deadline = min(now + (time_to_live - time_consumed) / 1000, latest)
    return Held(bytes(frame), now, deadline, entry, arrival, placement, quota)


def affinity_key(route_key: bytes, conversation: bytes, *, is_from_target: bool) -> int:
    """Of one direction of a dialog: what decides its route. Python's hash is keyed; names come from peers."""
    return hash((route_key, conversation, is_from_target))


def affinity_key_of(frame: Buffer) -> int:
    """The `affinity_key` of a whole dialog frame."""
    return affinity_key(route_key_of(frame), conversation_of(frame), is_from_target=bool(frame[5] & FROM_TARGET))


def copy_key(frame: Buffer) -> bytes:
    """Equal for copies of one frame: conversation, sequence, fragment, kind, direction and both ends."""
    ends_end = HEADER_BYTES + sum(name_lengths(frame))
    return bytes(frame[CONVERSATION_AT:PLACE_END]) + copy_suffix(frame[4], frame[5], bytes(frame[ENDS_AT:ends_end]))


def copy_suffix(kind: int, flags: int, ends: bytes) -> bytes:
    """
    The end of a `copy_key`, shared by the frames of one kind, dialog and direction.

    A conversation id alone does not identify a dialog: a peer may use that of another's. Python's hash is keyed.
    """
    return bytes((kind, flags & FROM_TARGET)) + hash(ends).to_bytes(8, "big", signed=True)


def _waited_ms(since: float, now: float) -> int:
    return int((now - since) * 1000)
