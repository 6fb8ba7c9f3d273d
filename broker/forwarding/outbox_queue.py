"""
The queue of one outbox: frames in the order of leaving, each copy once, the earliest deadline at hand.

A frame that came alone is one entry of the queue. Frames that came together are one entry too (`Pack`), which is split
when one of them has to leave by itself: its lifetime ends, it is rerouted, or it is too large for the link. Deadlines
are one heap that is swept now and then, not a timer each; a frame that leaves stays in the heap until its time, or
until such leftovers are a third of it.

`Packer` puts frames into the queue. It visits each frame once: is a copy of it here, is there room, which dialog is it.
The properties that a dialog's frames share are looked up once for a batch (`Lane`). Consecutive frames that are all
accepted become one `Pack`, or single `Held` where they are few; the pool is charged for each of them. `UnvisitedFrames`
walks a queue that is being rerouted. Loop-only; used by the outbox whose queue it is.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from struct import Struct
from typing import TypeAlias

from broker.flow import Disposition
from broker.forwarding.entry import Buffer, EntryOf, ForwardingEntry, FrameOrigin, PassOrigin, Sink, frame_bounds
from broker.forwarding.held_frames import (
    FROM_TARGET,
    DialogAffinity,
    Held,
    Lane,
    Pack,
    Piece,
    affinity_key,
    copy_key,
    copy_suffix,
)
from broker.forwarding.latency import HopTimes
from broker.forwarding.pool import HELD_OVERHEAD, PoolQuota, Share
from broker.forwarding.ring import Ring
from broker.protocol.layout import ENDS_AT, GUID_BYTES, HEADER_BYTES, ROUTE_KEY_AT

PACK_BYTES = 64 * 1024  # of a pack, and one frame more: what is copied when a link accepts a part of it
PACK_FRAMES = 8  # of a pack at least: below, what it needs besides the frames is more than theirs (`HELD_OVERHEAD`)
NAME_BYTES = 8  # of a pack; no `copy_key` has this length

# length, kind, flags, hop_count, time_to_live, time_consumed, conversation to fragment, lengths of both names
_HEAD = Struct(">IBBBxII16x28s16xH34xH").unpack_from

SplitPack: TypeAlias = dict[bytes, Held]
"""What is left of a pack that was split, by copy key."""

Refuse = Callable[[Buffer, ForwardingEntry, Disposition, float, FrameOrigin], None]
"""Drop a frame of the batch."""

LaneKey = tuple[bytes, bytes, int, int, bool]
"""Both ends, conversation, kind, whether from the target, whether from here."""


class HeldQueue:
    """Held frames in the order of arrival, by `copy_key`; `len` is the number of frames."""

    __slots__ = ("_deadlines", "_entries", "_length", "_numbers", "_packed")

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, Held | Pack | SplitPack] = OrderedDict()  # by copy key, or name of the pack
        self._packed: dict[bytes, bytes] = {}  # the names of packs, by copy key
        self._deadlines: list[tuple[float, bytes]] = []  # of frames by copy key, of packs by name
        self._length = 0
        self._numbers = count()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Held]:
        for piece in self.pieces():
            yield from piece.helds()

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries or key in self._packed

    def new_name(self) -> bytes:
        """A name for another pack."""
        return next(self._numbers).to_bytes(NAME_BYTES, "big")

    def add(self, piece: Piece) -> None:
        """Append one frame or several; no copy of any may be here. Cost: O(log n), and 0.1 us a frame."""
        if isinstance(piece, Held):
            name = copy_key(piece.frame)
        else:
            name = piece.name
            self._packed.update(dict.fromkeys(piece.keys, name))
        self._entries[name] = piece
        self._length += piece.frames
        heapq.heappush(self._deadlines, (piece.deadline, name))

    def pieces(self) -> Iterator[Piece]:
        """Yield everything in order, as it is held; the queue must not change during the iteration."""
        for entry in self._entries.values():
            if isinstance(entry, dict):
                yield from entry.values()
            else:
                yield entry

    def leaving(self, now: float, max_frame: int) -> Iterator[Piece]:
        """The same, but a pack with a frame that is late, or larger than `max_frame`, is split."""
        for name, entry in self._entries.items():
            if isinstance(entry, Pack) and (entry.deadline <= now or entry.longest > max_frame):
                entry = self._split(name)  # noqa: PLW2901 - the same frames
            if isinstance(entry, dict):
                yield from entry.values()
            else:
                yield entry

    def names(self) -> Iterator[tuple[Held | bytes, int]]:
        """Everything in order: single frames, names of packs, and how many frames that is."""
        for name, entry in self._entries.items():
            if isinstance(entry, Held):
                yield entry, 1
            else:
                yield name, len(entry) if isinstance(entry, dict) else entry.frames

    def split(self, name: bytes) -> SplitPack:
        """What is left of a pack, split now if it was not; not to be changed."""
        entry = self._entries.get(name)
        if isinstance(entry, Pack):
            entry = self._split(name)
        return entry if isinstance(entry, dict) else {}

    def remove(self, held: Held) -> None:
        """Remove a frame, wherever it is. Cost: O(1), leftovers among the deadlines included."""
        self._remove(copy_key(held.frame))
        self._forget_deadlines()

    def remove_first(self, piece: Piece, frames: int) -> None:
        """Remove so many frames of a piece, from its front. Cost: as `remove`, 0.1 us a frame of a pack."""
        if isinstance(piece, Held):
            self.remove(piece)
            return
        for key in piece.keys[:frames]:
            del self._packed[key]
        if frames < piece.frames:
            self._entries[piece.name] = piece.without_first(frames)
        else:
            del self._entries[piece.name]
        self._length -= frames
        self._forget_deadlines()

    def has(self, held: Held) -> bool:
        """True if this object, of the single frames, is still here, and not a later copy."""
        return self._single(copy_key(held.frame)) is held

    def replace(self, held: Held, other: Held) -> None:
        """Replace a single frame by another `Held` of the same frame."""
        key = copy_key(held.frame)
        if key in self._packed:
            self.split(self._packed[key])[key] = other
        else:
            self._entries[key] = other

    def pop_due(self, now: float, most: int) -> tuple[list[Held], int]:
        """
        Remove what has reached its deadline, the earliest first, at most so many.

        Returns:
            These, and how many frames were visited for it: packs are split as long as that is below `most`.

        Cost: O(log n) for each that is visited.
        """
        due: list[Held] = []
        visited = 0
        while visited < most and self._deadlines and self._deadlines[0][0] <= now:
            deadline, name = heapq.heappop(self._deadlines)
            if isinstance(self._entries.get(name), Pack):
                visited += len(self._split(name))
                continue
            held = self._single(name)
            if held is not None and held.deadline == deadline:  # else it has left, and this may be a later copy
                self._remove(name)
                due.append(held)
                visited += 1
        return due, visited

    def _single(self, key: bytes) -> Held | None:
        """The frame with this copy key, unless it is in a pack."""
        entry = self._entries.get(self._packed.get(key, key))
        if isinstance(entry, dict):
            return entry.get(key)
        return entry if isinstance(entry, Held) else None

    def _split(self, name: bytes) -> SplitPack:
        """Hold each frame of a pack by itself. Cost: some 2 us a frame."""
        pack = self._entries[name]
        assert isinstance(pack, Pack)
        helds = self._entries[name] = dict(zip(pack.keys, pack.helds(), strict=True))
        for key, held in helds.items():
            heapq.heappush(self._deadlines, (held.deadline, key))
        return helds

    def _remove(self, key: bytes) -> None:
        name = self._packed.pop(key, None)
        self._length -= 1
        if name is None:
            del self._entries[key]
            return
        rest = self.split(name)
        del rest[key]
        if not rest:
            del self._entries[name]
        elif not len(rest) & len(rest) - 1:  # half of what there was: a copy needs no more memory than what is left
            self._entries[name] = dict(rest)

    def _forget_deadlines(self) -> None:
        """Remove leftovers, if there are many."""
        if 2 * len(self._deadlines) <= 3 * self._length:
            return
        self._deadlines = []
        for name, entry in self._entries.items():
            singles = entry if isinstance(entry, dict) else {name: entry}
            self._deadlines += [(one.deadline, key) for key, one in singles.items()]
        heapq.heapify(self._deadlines)


@dataclass(slots=True)
class _Batch:
    """The state of reading one batch: its origin, its data, and how far it was read."""

    now: float
    origin: FrameOrigin
    entry_of: EntryOf
    is_retry: bool  # what is held already is not a copy
    quota: PoolQuota | None  # that it is charged to, where the peer has a limit
    lanes: dict[LaneKey, Lane] = field(default_factory=dict)
    data: bytes = b""  # the run being read
    start: int = 0  # of what is not read yet


class Packer:
    """Puts frames that have to wait into the queue of one outbox."""

    __slots__ = ("_affinity", "_hop", "_outbox", "_queue", "_refuse", "_ring", "_share")

    def __init__(
        self,
        outbox: Sink,
        queue: HeldQueue,
        share: Share,
        *,
        affinity: DialogAffinity,
        hop: HopTimes,
        ring: Ring | None,
        refuse: Refuse,
    ) -> None:
        self._outbox = outbox
        self._queue = queue
        self._share = share
        self._affinity = affinity
        self._hop = hop  # frames that wait are counted there when they leave
        self._ring = ring
        self._refuse = refuse

    def hold(
        self, runs: Iterable[Buffer], now: float, origin: FrameOrigin, entry_of: EntryOf, *, is_retry: bool = False
    ) -> Iterator[Piece]:
        """
        Let the whole frames in these runs wait, or refuse them; lazily, as the caller iterates.

        With a ring, all frames of one run have one arrival. Cost: 1.5 us a frame, 4 us more for each dialog.

        Args:
            runs: Whole frames, in order; they are copied.
            now: Monotonic seconds.
            origin: Where they came from.
            entry_of: The entry that each of them took.
            is_retry: The first attempt failed midway: what is held already is not a copy.

        Yields:
            What was added to the queue.
        """
        batch = _Batch(now, origin, entry_of, is_retry, self._share.pool.quotas.get(origin))
        for run in runs:
            batch.data, batch.start = bytes(run), 0
            while batch.start < len(batch.data):
                pack = self._next_pack(batch)
                if pack is not None:
                    for piece in (pack,) if pack.frames >= PACK_FRAMES else pack.helds():
                        self._queue.add(piece)
                        yield piece

    def _next_pack(self, batch: _Batch) -> Pack | None:
        """As many of the next frames as are accepted, which wait from now on; those before them are refused."""
        data, start, lanes, queue = batch.data, batch.start, batch.lanes, self._queue
        starts, lengths, lives = list[int](), list[int](), list[int]()
        keys: dict[bytes, None] = {}
        accepted: list[Lane] = []
        free = self._share.free_bytes(batch.quota)
        at, end = start, min(len(data), start + PACK_BYTES)
        while at < end:
            length, kind, flags, hop_count, time_to_live, time_consumed, position, from_bytes, to_bytes = _HEAD(
                data, at
            )
            ends = data[at + ENDS_AT : at + HEADER_BYTES + to_bytes + from_bytes]
            lane_key = ends, position[:GUID_BYTES], kind, flags & FROM_TARGET, hop_count == 0
            lane = lanes.get(lane_key)
            if lane is None:
                route_key = data[at + ROUTE_KEY_AT : at + HEADER_BYTES + to_bytes]
                lane = lanes[lane_key] = _new_lane(lane_key, route_key, batch.entry_of(data[at : at + length]))
            key = position + lane.copy_suffix
            cost = length + HELD_OVERHEAD
            if cost > free or key in keys or key in queue:
                if keys:
                    break
                self._turn_down(data[at : at + length], lane.entry, batch, is_copy=key in queue)
                start = at = at + length
                continue
            starts.append(at - start)
            keys[key] = None
            accepted.append(lane)
            free -= cost
            lives.append(time_to_live - time_consumed)
            lengths.append(length)
            at += length
        batch.start = at
        if not keys:
            return None
        held, latest = data[start:at], batch.now + self._share.pool.hold_seconds
        return Pack(
            name=queue.new_name(),
            data=held,
            starts=starts,
            keys=list(keys),
            lanes=accepted,
            since=batch.now,
            deadline=min(batch.now + min(lives) / 1000, latest),
            latest=latest,
            longest=max(lengths),
            arrival=self._accept(held, accepted, batch),
            quota=batch.quota,
        )

    def _accept(self, data: bytes, lanes: list[Lane], batch: _Batch) -> PassOrigin | None:
        """Charge frames that wait from now on, and withdraw their records; returns when and from where they came."""
        self._share.fed_by(batch.origin, batch.now)
        is_admitted = self._share.admit(len(data), batch.quota, frames=len(lanes))
        assert is_admitted  # there was room for each
        self._hop.pending -= len(lanes)
        for lane, frames in Counter(lanes).items():
            lane.entry.frames -= frames
            if lane.affinity_key is not None:
                lane.placement = self._affinity.enter(lane.affinity_key, self._outbox, frames)
        arrival: PassOrigin | None = None
        if self._ring is not None:
            for start, stop in frame_bounds(data):
                arrival = self._ring.take_back(data[start:stop])
        return arrival

    def _turn_down(self, frame: bytes, entry: ForwardingEntry, batch: _Batch, *, is_copy: bool) -> None:
        """Refuse a frame that is a copy, or for which there is no room."""
        if not is_copy:
            self._share.fed_by(batch.origin, batch.now)
            is_admitted = self._share.admit(len(frame), batch.quota)
            assert not is_admitted  # it is counted under the bound that had no room
            self._refuse(frame, entry, Disposition.POOL_LIMIT, batch.now, batch.origin)
        elif not batch.is_retry:
            self._refuse(frame, entry, Disposition.ALREADY_HELD, batch.now, batch.origin)


def _new_lane(key: LaneKey, route_key: bytes, entry: ForwardingEntry) -> Lane:
    ends, conversation, kind, from_target, is_from_here = key
    affinity = None if is_from_here else affinity_key(route_key, conversation, is_from_target=bool(from_target))
    return Lane(entry, copy_suffix(kind, from_target, ends), affinity)


class UnvisitedFrames:
    """
    The frames of a queue that a reroute has not visited yet, in order; frames added to the queue are added here.

    `len` is the number of frames; one that has left the queue counts until the reroute reaches it.
    """

    def __init__(self, queue: HeldQueue) -> None:
        self._queue = queue
        self._length = len(queue)
        self._front: deque[Held] = deque()  # of the pack that is being visited
        self._rest = deque(queue.names())

    def __len__(self) -> int:
        return self._length

    def add(self, piece: Piece) -> None:
        """A piece was appended to the queue."""
        self._rest.append((piece if isinstance(piece, Held) else piece.name, piece.frames))
        self._length += piece.frames

    def first(self) -> Held | None:
        """The next one, which may have left the queue; None at the end."""
        while not self._front and self._rest:
            entry, frames = self._rest.popleft()
            self._front.extend([entry] if isinstance(entry, Held) else self._queue.split(entry).values())
            self._length -= frames - len(self._front)
        return self._front[0] if self._front else None

    def pop(self) -> None:
        """The first one was visited."""
        self._front.popleft()
        self._length -= 1
