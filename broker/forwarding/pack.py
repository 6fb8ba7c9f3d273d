"""
Frames that came together and wait together, as one piece of memory.

What a read brings for one next hop mostly waits and leaves as a whole. So it is kept as it came, and of each frame only
what has to be known at once: where it begins, its `copy_key`, and its dialog. What is told of a frame by itself, its
deadline among it, is worked out from its bytes when somebody asks (`helds`). A pack is never changed; of one that has
left in part there is another one of what stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple, TypeAlias

from broker.forwarding.held import TIME_MAX, Held, hold, waited_ms
from broker.forwarding.places import DialogPlacement
from broker.forwarding.pool import Payer
from broker.forwarding.way import ForwardingEntry, PassOrigin
from broker.protocol.layout import TIME_CONSUMED_AT

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
