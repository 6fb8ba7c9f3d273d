"""
The frames that wait in one outbox: in the order of leaving, each copy once, the earliest deadline at hand.

A frame that came alone is one entry, frames that came together are one entry too (`Pack`), which is taken apart when
one of them has to leave by itself: its lifetime ends, it takes another way, or it is too large for the link. Deadlines
are a heap that is swept now and then, not a timer each; a frame that leaves stays in the heap until its time or until
such leftovers are a third of it.
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
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin, PassOrigin, Sink, WayOf, frame_bounds
from broker.forwarding.held_frames import DialogAffinity, Held, Lane, Pack, Piece, copy_ending, copy_key, key_of
from broker.forwarding.latency import HopTimes
from broker.forwarding.pool import HELD_OVERHEAD, Payer, Share
from broker.forwarding.ring import Ring
from broker.protocol.layout import ENDS_AT, GUID_BYTES, HEADER_BYTES, ROUTE_KEY_AT, Flag

NAME_BYTES = 8  # of a pack; no `copy_key` has this length

Apart: TypeAlias = dict[bytes, Held]
"""What is left of a pack that was taken apart, by copy key."""


class HeldQueue:
    """Held frames in the order in which they came, by `copy_key`. Shape: `len` frames."""

    __slots__ = ("_deadlines", "_entries", "_length", "_numbers", "_packed")

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, Held | Pack | Apart] = OrderedDict()  # by copy key, or name of the pack
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
        """One for another pack."""
        return next(self._numbers).to_bytes(NAME_BYTES, "big")

    def add(self, piece: Piece) -> None:
        """Put a frame, or several, at the end; no copy of any may be here. Cost: O(log n), and 0.1 us a frame."""
        if isinstance(piece, Held):
            name = copy_key(piece.frame)
        else:
            name = piece.name
            self._packed.update(dict.fromkeys(piece.keys, name))
        self._entries[name] = piece
        self._length += piece.frames
        heapq.heappush(self._deadlines, (piece.deadline, name))

    def pieces(self) -> Iterator[Piece]:
        """Everything in order, as it is held; nothing may be added or taken out meanwhile."""
        for entry in self._entries.values():
            if isinstance(entry, dict):
                yield from entry.values()
            else:
                yield entry

    def leaving(self, now: float, max_frame: int) -> Iterator[Piece]:
        """The same, but that a pack of which a frame is late, or larger than this, is taken apart."""
        for name, entry in self._entries.items():
            if isinstance(entry, Pack) and (entry.deadline <= now or entry.longest > max_frame):
                entry = self._take_apart(name)  # noqa: PLW2901 - the same frames
            if isinstance(entry, dict):
                yield from entry.values()
            else:
                yield entry

    def names(self) -> Iterator[tuple[Held | bytes, int]]:
        """Everything in order: frames that are held alone, names of packs, and how many frames that is."""
        for name, entry in self._entries.items():
            if isinstance(entry, Held):
                yield entry, 1
            else:
                yield name, len(entry) if isinstance(entry, dict) else entry.frames

    def apart(self, name: bytes) -> Apart:
        """What is left of a pack, taken apart now; not to be changed."""
        entry = self._entries.get(name)
        if isinstance(entry, Pack):
            entry = self._take_apart(name)
        return entry if isinstance(entry, dict) else {}

    def remove(self, held: Held) -> None:
        """Take a frame out, wherever it stands. Cost: O(1), leftovers among the deadlines included."""
        key = copy_key(held.frame)
        if key in self._packed:
            self._remove_from(self._packed.pop(key), key)
        else:
            del self._entries[key]
        self._length -= 1
        self._forget_deadlines()

    def remove_first(self, piece: Piece, frames: int) -> None:
        """Take out so many frames of a piece, from its front. Cost: as `remove`, 0.1 us a frame of a pack."""
        if isinstance(piece, Held):
            self.remove(piece)
            return
        for key in piece.keys[:frames]:
            del self._packed[key]
        if frames < piece.frames:
            self._entries[piece.name] = piece.behind(frames)
        else:
            del self._entries[piece.name]
        self._length -= frames
        self._forget_deadlines()

    def has(self, held: Held) -> bool:
        """Whether this very one, of those held by themselves, is here still, and not a later copy."""
        return self._by_itself(copy_key(held.frame)) is held

    def replace(self, held: Held, other: Held) -> None:
        """Put another one of the same frame where this one stands, which is held by itself."""
        key = copy_key(held.frame)
        if key in self._packed:
            self.apart(self._packed[key])[key] = other
        else:
            self._entries[key] = other

    def take_due(self, now: float, most: int) -> tuple[list[Held], int]:
        """
        Take out what has reached its deadline, the earliest first, so many at most.

        Returns:
            These, and how many frames were looked at for it: packs are taken apart as long as that is below `most`.

        Cost: O(log n) for each that is looked at.
        """
        due: list[Held] = []
        looked = 0
        while looked < most and self._deadlines and self._deadlines[0][0] <= now:
            deadline, name = heapq.heappop(self._deadlines)
            if isinstance(self._entries.get(name), Pack):
                looked += len(self._take_apart(name))
                continue
            held = self._by_itself(name)
            if held is not None and held.deadline == deadline:  # else it has left, and this may be a later copy
                if name in self._packed:
                    self._remove_from(self._packed.pop(name), name)
                else:
                    del self._entries[name]
                self._length -= 1
                due.append(held)
                looked += 1
        return due, looked

    def _by_itself(self, key: bytes) -> Held | None:
        """The frame with this copy key, unless it is in a pack."""
        entry = self._entries.get(self._packed.get(key, key))
        if isinstance(entry, dict):
            return entry.get(key)
        return entry if isinstance(entry, Held) else None

    def _take_apart(self, name: bytes) -> Apart:
        """Hold each frame of a pack by itself. Cost: some 2 us a frame."""
        pack = self._entries[name]
        assert isinstance(pack, Pack)
        apart = self._entries[name] = dict(zip(pack.keys, pack.helds(), strict=True))
        for key, held in apart.items():
            heapq.heappush(self._deadlines, (held.deadline, key))
        return apart

    def _remove_from(self, name: bytes, key: bytes) -> None:
        """Of a pack, which is taken apart."""
        apart = self.apart(name)
        del apart[key]
        if not apart:
            del self._entries[name]
        elif not len(apart) & len(apart) - 1:  # half of what there was: it needs no more memory than what is left
            self._entries[name] = dict(apart)

    def _forget_deadlines(self) -> None:
        """Leftovers, if there are many."""
        if 2 * len(self._deadlines) <= 3 * self._length:
            return
        self._deadlines = [(held.deadline, key) for key, held in self._alone()]
        self._deadlines += [(pack.deadline, name) for name, pack in self._entries.items() if isinstance(pack, Pack)]
        heapq.heapify(self._deadlines)

    def _alone(self) -> Iterator[tuple[bytes, Held]]:
        for name, entry in self._entries.items():
            if isinstance(entry, dict):
                yield from entry.items()
            elif isinstance(entry, Held):
                yield name, entry


# --- packing ---
# Frames that have to wait are put into their queue: what came together, together.
#
# One look at each frame: is a copy of it here, is there room, whose is it. What a dialog's frames share is looked up
# once
# for a batch (`Lane`). A stretch of frames that all find a place becomes one `Pack`, or is held frame by frame where
# they
# are few; the pool is charged for each of them. What finds no place is refused, one by one. Loop-only; called by the
# outbox whose queue it is.


PACK_BYTES = 64 * 1024  # of a pack, and one frame more: what is copied when a link takes a part of it
PACK_FRAMES = 8  # of a pack at least: below, what it needs beside the frames is more than theirs (`HELD_OVERHEAD`)

# length, kind, flags, hop_count, time_to_live, time_consumed, conversation to fragment, lengths of both names
_HEAD = Struct(">IBBBxII16x28s16xH34xH").unpack_from
_FROM_TARGET = int(Flag.FROM_TARGET)  # as a plain number: `&` with an enum costs a microsecond, for each held frame

Refuse = Callable[[Buffer, ForwardingEntry, Disposition, float, FrameOrigin], None]
"""Drop a frame of the batch."""

LaneKey = tuple[bytes, bytes, int, int, bool]
"""Both ends, conversation, kind, whether from the target, whether from here."""


@dataclass(slots=True)
class _Coming:
    """
    What a batch brings.

    Shape: `is_again` when what is held already is no copy; `payer` whose part of the pool it takes, where that has a
    limit; `lanes` so far; `start` of what is yet to be looked at in `data`; `has_fed` when something was no copy.
    """

    now: float
    origin: FrameOrigin
    way_of: WayOf
    is_again: bool
    payer: Payer | None
    lanes: dict[LaneKey, Lane] = field(default_factory=dict)
    data: bytes = b""
    start: int = 0
    has_fed: bool = False


@dataclass(slots=True)
class _Stretch:
    """Frames that find a place. Shape: as in `Pack`; `lengths` bytes; `lives` ms that are left of each."""

    data: bytes
    starts: list[int]
    keys: dict[bytes, None]
    lanes: list[Lane]
    lengths: list[int]
    lives: list[int]


class Packing:
    """
    Puts frames into one queue.

    Args:
        sink: The outbox whose queue it is.
        hop: Times of frames; those that wait are counted when they leave.
    """

    __slots__ = ("_hop", "_places", "_queue", "_refuse", "_ring", "_share", "_sink")

    def __init__(
        self,
        sink: Sink,
        queue: HeldQueue,
        share: Share,
        *,
        places: DialogAffinity,
        hop: HopTimes,
        ring: Ring | None,
        refuse: Refuse,
    ) -> None:
        self._sink = sink
        self._queue = queue
        self._share = share
        self._places = places
        self._hop = hop
        self._ring = ring
        self._refuse = refuse

    def hold(
        self, runs: Iterable[Buffer], now: float, origin: FrameOrigin, way_of: WayOf, *, is_again: bool = False
    ) -> Iterator[Piece]:
        """
        The whole frames in these runs begin to wait, or are refused; nothing is done that is not asked for.

        With a ring, all frames of one run have one arrival. Cost: 1.5 us a frame, 4 us more for each dialog.

        Args:
            runs: Whole frames, in order; they are copied.
            now: Monotonic seconds.
            origin: Who brought them.
            way_of: The way that each of them took.
            is_again: This is the second attempt: what is held already is no copy.

        Yields:
            What was added to the queue.
        """
        coming = _Coming(now, origin, way_of, is_again, self._share.pool.payers.get(origin))
        for run in runs:
            coming.data, coming.start = bytes(run), 0
            while coming.start < len(coming.data):
                stretch = self._next_stretch(coming)
                if stretch.keys:
                    for piece in self._pieces(stretch, coming):
                        self._queue.add(piece)
                        yield piece

    def _next_stretch(self, coming: _Coming) -> _Stretch:
        """As many of the next frames as find a place, up to a pack; those before them that find none are refused."""
        data, start, lanes, queue = coming.data, coming.start, coming.lanes, self._queue
        starts, lengths, lives = list[int](), list[int](), list[int]()
        keys: dict[bytes, None] = {}
        taken: list[Lane] = []
        room = self._share.room(coming.payer)
        at, end = start, min(len(data), start + PACK_BYTES)
        while at < end:
            length, kind, flags, hop_count, time_to_live, time_consumed, place, from_bytes, to_bytes = _HEAD(data, at)
            ends = data[at + ENDS_AT : at + HEADER_BYTES + to_bytes + from_bytes]
            lane_key = ends, place[:GUID_BYTES], kind, flags & _FROM_TARGET, hop_count == 0
            lane = lanes.get(lane_key)
            if lane is None:
                route_key = data[at + ROUTE_KEY_AT : at + HEADER_BYTES + to_bytes]
                lane = lanes[lane_key] = _new_lane(lane_key, route_key, coming.way_of(data[at : at + length]))
            key = place + lane.ending
            cost = length + HELD_OVERHEAD
            if cost > room or key in keys or key in queue:
                if keys:
                    break
                self._turn_down(data[at : at + length], lane.way, coming, is_copy=key in queue)
                start = at = at + length
                continue
            starts.append(at - start)
            keys[key] = None
            taken.append(lane)
            room -= cost
            lives.append(time_to_live - time_consumed)
            lengths.append(length)
            at += length
        coming.start = at
        return _Stretch(data[start:at], starts, keys, taken, lengths, lives)

    def _pieces(self, stretch: _Stretch, coming: _Coming) -> Iterator[Piece]:
        """These frames wait from now on, and are charged."""
        data, now, payer = stretch.data, coming.now, coming.payer
        frames = len(stretch.starts)
        self._feed(coming)
        is_admitted = self._share.admit(len(data), payer, frames=frames)
        assert is_admitted  # there was room for each
        self._hop.pending -= frames
        for lane, frames_of in Counter(stretch.lanes).items():
            lane.way.frames -= frames_of
            if lane.place_key is not None:
                lane.place = self._places.enter(lane.place_key, self._sink, frames_of)
        arrival = self._take_back(data)
        latest = now + self._share.pool.hold_seconds
        pack = Pack(
            name=self._queue.new_name(),
            data=data,
            starts=stretch.starts,
            keys=list(stretch.keys),
            lanes=stretch.lanes,
            since=now,
            deadline=min(now + min(stretch.lives) / 1000, latest),
            latest=latest,
            longest=max(stretch.lengths),
            arrival=arrival,
            payer=payer,
        )
        return iter((pack,)) if frames >= PACK_FRAMES else pack.helds()

    def _take_back(self, data: bytes) -> PassOrigin | None:
        """These frames do not leave at once; when and from where they came."""
        arrival: PassOrigin | None = None
        if self._ring is not None:
            for start, stop in frame_bounds(data):
                arrival = self._ring.take_back(data[start:stop])
        return arrival

    def _turn_down(self, frame: bytes, way: ForwardingEntry, coming: _Coming, *, is_copy: bool) -> None:
        """This frame finds no place."""
        if not is_copy:
            self._feed(coming)
            is_admitted = self._share.admit(len(frame), coming.payer)
            assert not is_admitted  # it is counted under what had no room
            self._refuse(frame, way, Disposition.POOL_LIMIT, coming.now, coming.origin)
        elif not coming.is_again:
            self._refuse(frame, way, Disposition.ALREADY_HELD, coming.now, coming.origin)

    def _feed(self, coming: _Coming) -> None:
        """Who brought something that is no copy feeds the share."""
        if not coming.has_fed:
            self._share.fed_by(coming.origin, coming.now)
            coming.has_fed = True


def _new_lane(key: LaneKey, route_key: bytes, way: ForwardingEntry) -> Lane:
    ends, conversation, kind, from_target, is_from_here = key
    place_key = None if is_from_here else key_of(route_key, conversation, is_from_target=bool(from_target))
    return Lane(way, copy_ending(kind, from_target, ends), place_key)


# --- pending ---
# What of a queue that moves has yet to be looked at, from its front.


class Pending:
    """
    The frames of a queue in their order, each once; what is added to the queue meanwhile is added here.

    Shape: `len` frames; those that have left unlooked at count until it is their turn.
    """

    def __init__(self, queue: HeldQueue) -> None:
        self._queue = queue
        self._length = len(queue)
        self._front: deque[Held] = deque()  # of the pack whose turn it is
        self._rest = deque(queue.names())

    def __len__(self) -> int:
        return self._length

    def add(self, piece: Piece) -> None:
        """This was put at the end of the queue."""
        self._rest.append((piece if isinstance(piece, Held) else piece.name, piece.frames))
        self._length += piece.frames

    def first(self) -> Held | None:
        """The one whose turn it is, which may have left the queue; None when there is no more."""
        while not self._front and self._rest:
            entry, frames = self._rest.popleft()
            self._front.extend([entry] if isinstance(entry, Held) else self._queue.apart(entry).values())
            self._length -= frames - len(self._front)
        return self._front[0] if self._front else None

    def pop(self) -> None:
        """It was looked at."""
        self._front.popleft()
        self._length -= 1
