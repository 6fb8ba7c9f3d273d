"""
Frames that have to wait are put into their queue: what came together, together.

One look at each frame: is a copy of it here, is there room, whose is it. What a dialog's frames share is looked up once
for a batch (`Lane`). A stretch of frames that all find a place becomes one `Pack`, or is held frame by frame where they
are few; the pool is charged for each of them. What finds no place is refused, one by one. Loop-only; called by the
outbox whose queue it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct

from broker.flow import Disposition
from broker.forwarding.held import copy_ending
from broker.forwarding.held_queue import HeldQueue
from broker.forwarding.hop import HopTimes
from broker.forwarding.pack import Lane, Pack, Piece
from broker.forwarding.places import DialogAffinity, key_of
from broker.forwarding.pool import HELD_OVERHEAD, Payer, Share
from broker.forwarding.ring import Ring
from broker.forwarding.way import Buffer, ForwardingEntry, FrameOrigin, PassOrigin, Sink, WayOf, frame_bounds
from broker.protocol.layout import ENDS_AT, GUID_BYTES, HEADER_BYTES, ROUTE_KEY_AT, Flag

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
        for lane, count in Counter(stretch.lanes).items():
            lane.way.frames -= count
            if lane.place_key is not None:
                lane.place = self._places.enter(lane.place_key, self._sink, count)
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
