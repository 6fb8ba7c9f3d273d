"""
Where the frames of a dialog wait: all in one queue, whatever address the next one would go to.

When several addresses lead to a service, health decides which of them a dialog takes, and health changes while frames
wait. What comes later for a dialog that has frames waiting here has to go behind them, and a second copy of one of them
is told by the queue that has the first. So each direction of a dialog that has frames waiting has a place, shared by
them: the outbox that they wait in. While a queue moves to another outbox, in slices, a dialog has frames in both; then
the place is the outbox that they leave, until the last of them has left it.

Only frames from outside have places: what a database here has sent takes the ways of its own dialogs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple, TypeAlias

from broker.forwarding.entry import Buffer, ForwardingEntry, PassOrigin, Sink
from broker.forwarding.pool import Payer
from broker.protocol.layout import (
    CONVERSATION_AT,
    ENDS_AT,
    GUID_BYTES,
    HEADER_BYTES,
    MESSAGE_ID_AT,
    PLACE_END,
    ROUTE_KEY_AT,
    TIME_CONSUMED_AT,
    TIME_TO_LIVE_AT,
    TIMES,
    TO_SERVICE_AT,
    Flag,
)

_FROM_TARGET = int(Flag.FROM_TARGET)  # as a plain number: `&` with an enum costs a microsecond, for each held frame


class DialogPlacement:
    """Shape: `key` of the dialog's direction; `count` frames that wait in `outbox`; `later` where the next ones do."""

    __slots__ = ("count", "key", "later", "outbox")

    def __init__(self, key: int, outbox: Sink) -> None:
        self.key = key
        self.outbox = outbox
        self.count = 0
        self.later: DialogPlacement | None = None


class DialogAffinity:
    """All places, by key. Loop-only; changed by outboxes alone."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[int, DialogPlacement] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def where(self, key: int) -> Sink | None:
        """Behind whose frames the next one of this dialog has to wait; None when none waits."""
        place = self._by_key.get(key)
        return None if place is None else place.outbox

    def enter(self, key: int, outbox: Sink, frames: int = 1) -> DialogPlacement:
        """Frames of this dialog begin to wait in an outbox."""
        place = self._by_key.get(key)
        if place is None:
            place = self._by_key[key] = DialogPlacement(key, outbox)
        while place.outbox is not outbox:
            if place.later is None:
                place.later = DialogPlacement(key, outbox)
            place = place.later
        place.count += frames
        return place

    def leave(self, place: DialogPlacement, frames: int = 1) -> None:
        """Frames that waited there do so no more."""
        place.count -= frames
        if place.count:
            return
        before = self._by_key[place.key]
        if before is not place:
            while before.later is not place:
                assert before.later is not None  # it was entered
                before = before.later
            before.later = place.later
        elif place.later is None:
            del self._by_key[place.key]
        else:
            self._by_key[place.key] = place.later


def key_of(route_key: bytes, conversation: bytes, *, is_from_target: bool) -> int:
    """Of a direction of a dialog: what decides its way. Python's hash, which is keyed: names come from peers."""
    return hash((route_key, conversation, is_from_target))


def place_key(frame: Buffer) -> int:
    """The same of a whole dialog frame."""
    key_end = TO_SERVICE_AT + int.from_bytes(frame[TO_SERVICE_AT - 2 : TO_SERVICE_AT], "big")
    conversation = bytes(frame[CONVERSATION_AT : CONVERSATION_AT + GUID_BYTES])
    return hash((bytes(frame[ROUTE_KEY_AT:key_end]), conversation, bool(frame[5] & _FROM_TARGET)))


# --- held ---
# One waiting frame.
#
# A held frame is never changed: how long it has lived is worked out when it leaves, is looked at, or takes another
# way.


TIME_MAX = 2**32 - 1  # ms; what the field can say
_NAME_LENGTHS = Struct(">76xH34xH").unpack_from  # of from_service and to_service


class Held(NamedTuple):
    """
    One waiting frame.

    Shape: `frame` as it came, this hop spent; `since` monotonic seconds at which it came; `deadline` at which its
    lifetime ends, or this instance drops it; `way` it is counted under when it leaves; `arrival` of its visit, whatever
    ways it took, None without a ring; `place` it shares with the others of its dialog, None when a database here has
    sent it; `payer` whose part of the pool it takes, None where that has no limit.
    """

    frame: bytes
    since: float
    deadline: float
    way: ForwardingEntry
    arrival: PassOrigin | None = None
    place: DialogPlacement | None = None
    payer: Payer | None = None

    def waited_ms(self, now: float) -> int:
        """Whole milliseconds since it came."""
        return waited_ms(self.since, now)

    def time_consumed(self, now: float) -> int:
        """Milliseconds it has lived, the time it waited here included."""
        return min(
            TIME_MAX, int.from_bytes(self.frame[TIME_CONSUMED_AT : TIME_CONSUMED_AT + 4], "big") + self.waited_ms(now)
        )

    def aged(self, now: float) -> bytearray:
        """A copy of the frame with the time it waited written into it."""
        frame = bytearray(self.frame)
        self.age(frame, 0, now)
        return frame

    # --- as a piece of a queue, like a `Pack` ---

    @property
    def data(self) -> bytes:
        """What leaves."""
        return self.frame

    @property
    def frames(self) -> int:
        """How many."""
        return 1

    def age(self, data: bytearray, at: int, now: float) -> None:
        """Write the time it waited into its copy that stands there."""
        at += TIME_CONSUMED_AT
        data[at : at + 4] = self.time_consumed(now).to_bytes(4, "big")

    def begun(self, sent: int) -> tuple[int, int]:
        """See `Pack.begun`."""
        return (1, len(self.frame)) if sent else (0, 0)

    def by_dialog(self, frames: int) -> Iterable[tuple[ForwardingEntry, DialogPlacement | None, int]]:
        """See `Pack.by_dialog`."""
        return ((self.way, self.place, frames),)

    def helds(self) -> Iterable[Held]:
        """See `Pack.helds`."""
        return (self,)


def hold(  # noqa: PLR0917 - as the fields of `Held`
    frame: Buffer,
    now: float,
    way: ForwardingEntry,
    arrival: PassOrigin | None = None,
    place: DialogPlacement | None = None,
    payer: Payer | None = None,
    latest: float = math.inf,
) -> Held:
    """A copy of a frame that begins to wait now; it is dropped at `latest`, if its lifetime does not end before."""
    time_to_live, time_consumed = TIMES.unpack_from(frame, TIME_TO_LIVE_AT)
    deadline = min(now + (time_to_live - time_consumed) / 1000, latest)
    return Held(bytes(frame), now, deadline, way, arrival, place, payer)


def waited_ms(since: float, now: float) -> int:
    """Whole milliseconds from then on."""
    return int((now - since) * 1000)


def copy_key(frame: Buffer) -> bytes:
    """What makes two frames copies of each other: both ends, conversation, sequence, fragment, kind and direction."""
    ends_end = HEADER_BYTES + sum(_NAME_LENGTHS(frame))
    return bytes(frame[CONVERSATION_AT:PLACE_END]) + copy_ending(frame[4], frame[5], bytes(frame[ENDS_AT:ends_end]))


def copy_ending(kind: int, flags: int, ends: bytes) -> bytes:
    """
    The end of a `copy_key`, which the frames of one kind, dialog and direction share.

    A conversation id alone does not tell dialogs apart: a peer may name that of another's. Python's hash is keyed.
    """
    return bytes((kind, flags & _FROM_TARGET)) + hash(ends).to_bytes(8, "big", signed=True)


def message_id(frame: Buffer) -> bytes:
    """What tells copies apart: each transmission has its own."""
    return bytes(frame[MESSAGE_ID_AT:CONVERSATION_AT])


# --- pack ---
# Frames that came together and wait together, as one piece of memory.
#
# What a read brings for one next hop mostly waits and leaves as a whole. So it is kept as it came, and of each frame
# only
# what has to be known at once: where it begins, its `copy_key`, and its dialog. What is told of a frame by itself,
# its
# deadline among it, is worked out from its bytes when somebody asks (`helds`). A pack is never changed; of one that
# has
# left in part there is another one of what stays.


_MILLISECONDS = Struct(">I")


class Lane:
    """
    What the frames of one dialog, direction and kind in a batch share.

    Shape: `ending` of their copy keys; `place_key` None when a database here has sent them; `way` and `place` as in
    `Held`, the latter from when the first of them waits.
    """

    __slots__ = ("ending", "place", "place_key", "way")

    def __init__(self, way: ForwardingEntry, ending: bytes, place_key: int | None) -> None:
        self.way = way
        self.ending = ending
        self.place_key = place_key
        self.place: DialogPlacement | None = None


class Pack(NamedTuple):
    """
    Whole frames, one behind the other.

    Shape: `name` by which a queue has it; `starts` of the frames in `data`, their copy `keys` and `lanes`, in the order
    of leaving; `deadline` no later than that of any of them; `latest` monotonic seconds at which this instance drops
    all of them, whatever their lifetimes; `longest` bytes of a frame, at most; `since`, `arrival` and `payer` of all of
    them, as in `Held`.
    """

    name: bytes
    data: bytes
    starts: list[int]
    keys: list[bytes]
    lanes: list[Lane]
    since: float
    deadline: float
    latest: float
    longest: int
    arrival: PassOrigin | None
    payer: Payer | None

    @property
    def frames(self) -> int:
        """How many."""
        return len(self.keys)

    def age(self, data: bytearray, at: int, now: float) -> None:
        """Write the time they waited into their copies that stand there."""
        waited = waited_ms(self.since, now)
        if not waited:
            return
        read, write = _MILLISECONDS.unpack_from, _MILLISECONDS.pack_into
        at += TIME_CONSUMED_AT
        for start in self.starts:
            write(data, at + start, min(TIME_MAX, read(data, at + start)[0] + waited))

    def begun(self, sent: int) -> tuple[int, int]:
        """Of how many frames something is among the first so many bytes, and where the last of these frames ends."""
        frames = bisect_left(self.starts, sent)
        return frames, self._end(frames - 1) if frames else 0

    def behind(self, frames: int) -> Pack:
        """What stays when the first ones have left."""
        at = self.starts[frames]
        starts = [start - at for start in self.starts[frames:]]
        return self._replace(data=self.data[at:], starts=starts, keys=self.keys[frames:], lanes=self.lanes[frames:])

    def by_dialog(self, frames: int) -> Iterable[tuple[ForwardingEntry, DialogPlacement | None, int]]:
        """Of the first ones, how many there are of which way and place."""
        return ((lane.way, lane.place, count) for lane, count in Counter(self.lanes[:frames]).items())

    def helds(self) -> Iterator[Held]:
        """Each frame by itself."""
        for index, (start, lane) in enumerate(zip(self.starts, self.lanes, strict=True)):
            frame = self.data[start : self._end(index)]
            yield hold(frame, self.since, lane.way, self.arrival, lane.place, self.payer, self.latest)

    def _end(self, index: int) -> int:
        return self.starts[index + 1] if index + 1 < len(self.starts) else len(self.data)


Piece: TypeAlias = Held | Pack
