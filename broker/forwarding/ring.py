"""
The ring: a record of each visit of the frames that are followed, written by the pass and read by the journal.

Recorded are all frames of sampled dialogs (`Sample`), every frame with the TRACE flag, and every frame that the pass
drops. Nothing here waits, grows or fails; a record for which there is no room is shed and counted.

A record is written when a frame takes its entry, and says that it left at once. If the frame has to wait, or is dropped
after all, the record is withdrawn in the same pass; another is written when the visit ends. So each record is a whole
visit, and no reader has to join two. The kernels write in the walk, before they add a hop; the outboxes withdraw
records and write facts that are known later. One pass ends before the next begins.

    size u32 | number u32 | arrival u32 | left f64 | header, 114 bytes | to_service | from_service

in the machine's byte order without padding up to the header, which is as it arrived, but for `time_consumed`, which is
as it left. `size` is that of the record; `number` (of an `Ending`) and `arrival` are keys of the tables in
`RingContents`; `left` is monotonic seconds. A record that was withdrawn has the number `TAKEN_BACK`.

A database here reports on its frames later (`report`): its verdict on a frame that arrived, and that a frame which it
sent is acknowledged. The pass's own record of a frame that it delivered says only that it was delivered.

The loop writes and takes. Contents that were taken belong to the caller, in whatever thread: of their tables, the ring
may add to `endings`, and changes nothing in either.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import NamedTuple, TypeAlias

from broker.flow import Disposition
from broker.forwarding.entry import NOT_QUEUED, Buffer, ForwardingEntry, FrameOrigin, PassOrigin, QueuedById
from broker.forwarding.held_frames import Held, copy_key, name_lengths
from broker.protocol.layout import CONVERSATION_AT, GUID_BYTES, HEADER_BYTES, HOP_COUNT_AT, TIME_CONSUMED_AT, Flag

HEAD = Struct("=IIId")  # size, number, arrival, left
HEAD_BYTES = HEAD.size
NUMBER_AT = 4  # in a record
TAKEN_BACK = 2**32 - 1  # the number of a record that does not count
ALWAYS = 2**31  # added to the number of an entry whose frames are all recorded, whatever the dialog

_TRACE = int(Flag.TRACE)  # as a plain number: `&` with an enum costs a microsecond
# Of entries that do not lead to a drop: with a principal unknown, frames wait.
_GOES_ON = (Disposition.FORWARDED, Disposition.DELIVERED, Disposition.PRINCIPAL_UNKNOWN)

# A report of a database on a frame that is not followed is not recorded if it is one of these.
_ENDS_WELL = (None, Disposition.DELIVERED, Disposition.DUPLICATE)

Ending = tuple[ForwardingEntry | None, Disposition | None]
"""
The entry that a frame took, and what became of it: the entry's disposition, unless it was dropped later.

Without an entry it is what a database here reports, and without a disposition that the frame is acknowledged.
"""

SAMPLE_BITS = 53  # as many as a double has, so that the limit is exact
KNOWN_MAX = 16_384  # conversations whose verdict is remembered, 2 MB: a mix costs a microsecond in Python

EVERY_DIALOG = 2**SAMPLE_BITS  # the limit of a sample of 1.0

_ALL_OR_NONE = (0, EVERY_DIALOG)
_WORD = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class Sample:
    """
    Which dialogs are sampled: a hash of the conversation id against a fraction, the same on every instance.

    The rule is part of the format of flow records, so that all instances keep or skip the same dialogs and paths stay
    whole. Let `a` and `b` be the first and the last eight bytes of the conversation id as big-endian integers, and

        fin(z):  z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
        mix is fin(fin(a + 0x9E3779B97F4A7C15) ^ b)

    all modulo 2^64. A dialog is sampled when the upper 53 bits of `mix`, as a fraction of 2^53, are less than the
    sample. So an instance that samples less keeps a part of what others keep. Ids need not be random; `mix` is not
    secret, and an application that makes ids can choose whether a dialog is sampled.

    Source: fin is the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", 2014, with the constants of Stafford's variant 13).
    """

    __slots__ = ("_known", "limit")

    def __init__(self, fraction: float) -> None:
        self.limit = math.ceil(math.ldexp(fraction, SAMPLE_BITS))  # the upper 53 bits of `mix` are less than this
        self._known: dict[bytes, bool] = {}

    def __contains__(self, conversation_id: bytes) -> bool:
        """Whether this dialog is sampled."""
        if self.limit in _ALL_OR_NONE:
            return self.limit > 0
        is_in = self._known.get(conversation_id)
        if is_in is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            is_in = self._known[conversation_id] = mix(conversation_id) >> (64 - SAMPLE_BITS) < self.limit
        return is_in


Records: TypeAlias = bytes | memoryview


class RingContents(NamedTuple):
    """The former contents of the ring."""

    data: Records  # packed
    endings: Mapping[int, Ending]  # by the number in a record
    arrivals: list[PassOrigin]


class Ring:
    """
    Bounded memory for records. Loop-only.

    Besides the buffer there are at most one `PassOrigin` for each record and one number for each `Ending`.
    """

    def __init__(
        self, capacity: int, *, sample: float, adjacent_of: Callable[[FrameOrigin], str] = lambda _: ""
    ) -> None:
        self.buffer = bytearray(capacity)
        self.used = 0  # bytes
        self.shed = 0  # records since the start that found no room
        self.now = 0.0  # monotonic seconds at which the pass under way began
        self._came: tuple[FrameOrigin | None, bool, QueuedById] = (None, True, NOT_QUEUED)
        self._arrival: PassOrigin | None = None  # of the pass under way, once it was needed
        self._adjacent_of = adjacent_of  # the name of a peer or a database; called once a pass that is recorded
        self._sample = Sample(sample)
        self._arrivals: list[PassOrigin] = []
        self._endings: dict[int, Ending] = {}
        self._numbers: defaultdict[ForwardingEntry | None, dict[Disposition | None, int]] = defaultdict(dict)
        self._next_number = 0
        self._freed: list[int] = []  # numbers that may be used again
        self._retired: list[int] = []  # numbers that only records in the ring still use
        self._span = (0, 0)  # where the records of this pass are that may be withdrawn
        self._index: dict[bytes, list[int]] | None = None  # of these, by header and names; made when needed
        self._moving: dict[bytes, PassOrigin] = {}

    def resample(self, fraction: float) -> None:
        """Follow this fraction of all dialogs from now on; kernels have to be made again, they copy it."""
        self._sample = Sample(fraction)

    @property
    def limit(self) -> int:
        """The number that the upper 53 bits of `mix` have to be less than."""
        return self._sample.limit

    def follows(self, conversation: bytes) -> bool:
        """Whether all frames of a dialog are recorded."""
        return conversation in self._sample

    # --- one pass ---

    def begin(
        self, now: float, origin: FrameOrigin | None, *, is_from_here: bool, queued: QueuedById = NOT_QUEUED
    ) -> None:
        """Begin a pass; its frames all take an entry before a record is withdrawn. No `origin`: they have waited."""
        self.now = now
        self._came = origin, is_from_here, queued
        self._arrival = None
        self._open()

    @property
    def arrival(self) -> PassOrigin:
        """When and from where the frames of this pass came; made when needed, as most passes record nothing."""
        if self._arrival is None:
            origin, is_from_here, queued = self._came
            adjacent_in = "" if origin is None else self._adjacent_of(origin)
            self._arrival = PassOrigin(self.now, adjacent_in, is_from_here, queued)  # keywords would cost twice as much
        return self._arrival

    def enter(
        self, slab: Buffer, pos: int, entry: ForwardingEntry, hop_count: int, arrival: PassOrigin | None = None
    ) -> None:
        """The frame at `pos`, which arrived with this hop count, takes its entry now."""
        if self._is_followed(slab, pos) or entry.disposition not in _GOES_ON:
            self._put(slab, pos, (entry, entry.disposition), arrival or self.arrival, self.now, hop_count)
            self._span = self._span[0], self.used

    def move(self, frame: Buffer, entry: ForwardingEntry, arrival: PassOrigin) -> None:
        """A frame that waited is rerouted."""
        self._moving[copy_key(frame)] = arrival
        self.enter(frame, 0, entry, frame[HOP_COUNT_AT] - arrival.hops, arrival)

    def take_back(self, frame: Buffer) -> PassOrigin:
        """A frame of this pass does not leave at once for its next hop; when and from where it came."""
        arrival = self.arrival_of(frame)
        if self._is_followed(frame, 0):
            if self._index is None:
                self._index = self._index_span()
            head = bytearray(head_of(frame))
            head[HOP_COUNT_AT] -= arrival.hops
            positions = self._index.get(bytes(head))
            if positions:
                at = positions.pop() + NUMBER_AT
                self.buffer[at : at + 4] = TAKEN_BACK.to_bytes(4, "big")
            else:
                self.shed -= 1  # its visit has not ended, so its record is not lost yet
        return arrival

    def arrival_of(self, frame: Buffer) -> PassOrigin:
        """When and from where a frame of this pass came, which may have been rerouted."""
        return self._moving.get(copy_key(frame), self.arrival) if self._moving else self.arrival

    def leave(self, held: Held, now: float) -> None:
        """A frame that waited has left."""
        if self._is_followed(held.frame, 0):
            self._put_held(held, held.entry.disposition, now)

    def lose(self, held: Held, disposition: Disposition, now: float) -> None:
        """A frame that waited is dropped."""
        self._put_held(held, disposition, now)

    def refuse(
        self, frame: Buffer, entry: ForwardingEntry, disposition: Disposition, arrival: PassOrigin, now: float
    ) -> None:
        """Record that a frame whose record was withdrawn is dropped at once."""
        self._put(frame, 0, (entry, disposition), arrival, now, frame[HOP_COUNT_AT] - arrival.hops)

    # --- databases of this instance ---

    def report(self, frame: Buffer, disposition: Disposition | None, arrival: PassOrigin, left: float) -> None:
        """
        Record the report of a database here on a frame.

        Args:
            frame: As the pass delivered or got it; it may end after its names.
            disposition: The verdict on the frame; None when the far side has acknowledged it.
            arrival: When and from where it came; for an acknowledged frame, when it was queued.
            left: Monotonic seconds.
        """
        if disposition not in _ENDS_WELL or self._is_followed(frame, 0):
            self._put(frame, 0, (None, disposition), arrival, left, frame[HOP_COUNT_AT] - arrival.hops)

    # --- the compiled kernel ---

    def number_of_arrival(self) -> int:
        """The number that the arrival of this pass has, or gets with the next record."""
        is_recorded = self._arrival is not None and bool(self._arrivals) and self._arrivals[-1] is self._arrival
        return len(self._arrivals) - is_recorded

    def mark_of(self, entry: ForwardingEntry) -> int:
        """
        The number of an entry, with `ALWAYS` added if all its frames are recorded: it leads to a drop, or all dialogs
        are sampled. Then the kernel need not mix, so a record that is shed costs it next to nothing.
        """
        is_always = entry.disposition not in _GOES_ON or self.limit == EVERY_DIALOG
        return self._number_of((entry, entry.disposition)) + (ALWAYS if is_always else 0)

    def wrote(self, used: int, shed: int) -> None:
        """The kernel wrote up to `used`, of the arrival of this pass, and shed so many."""
        self.shed += shed
        if used > self.used:
            self._record_arrival(self.arrival)
            self.used = used
            self._span = self._span[0], used

    # --- the journal ---

    def retire(self, entries: Iterable[ForwardingEntry]) -> None:
        """These entries are retired: their numbers are free when what is in the ring was taken."""
        for entry in entries:
            self._retired += self._numbers.pop(entry, {}).values()

    def take(self) -> RingContents:
        """Take all records since the last time; never called in the middle of a pass. Cost: one copy of them."""
        return self._give(bytes(memoryview(self.buffer)[: self.used]))

    def swap(self, empty: bytearray) -> RingContents:
        """
        The same without the copy: the ring continues in `empty`, as large as its buffer, which is the caller's now.

        `data` of what was taken is a part of that buffer, so it is valid until the buffer is given to the ring again.
        """
        assert len(empty) == len(self.buffer)
        full, self.buffer = self.buffer, empty
        return self._give(memoryview(full)[: self.used])

    def _give(self, data: Records) -> RingContents:
        taken = RingContents(data, self._endings, self._arrivals)
        self.used = 0
        self._arrivals = []
        if self._retired:
            gone = set(self._retired)
            self._endings = {number: ending for number, ending in self._endings.items() if number not in gone}
            self._freed += self._retired
            self._retired = []
        self._open()
        return taken

    def _open(self) -> None:
        self._span = self.used, self.used
        self._index = None
        if self._moving:
            self._moving = {}

    def _is_followed(self, slab: Buffer, pos: int) -> bool:
        return (
            bool(slab[pos + 5] & _TRACE)
            or bytes(slab[pos + CONVERSATION_AT : pos + CONVERSATION_AT + GUID_BYTES]) in self._sample
        )

    def _put(self, slab: Buffer, pos: int, ending: Ending, arrival: PassOrigin, left: float, hop_count: int) -> bool:  # noqa: PLR0917
        """Write a record; False, and counted as shed, when there is no room."""
        length = HEADER_BYTES + sum(name_lengths(slab, pos))
        at, size = self.used, HEAD_BYTES + length
        if at + size > len(self.buffer):
            self.shed += 1
            return False
        HEAD.pack_into(self.buffer, at, size, self._number_of(ending), self._record_arrival(arrival), left)
        self.buffer[at + HEAD_BYTES : at + size] = slab[pos : pos + length]
        self.buffer[at + HEAD_BYTES + HOP_COUNT_AT] = hop_count
        self.used = at + size
        return True

    def _put_held(self, held: Held, disposition: Disposition, now: float) -> None:
        assert held.arrival is not None  # an instance with a ring has had it from the start
        at, hop_count = self.used, held.frame[HOP_COUNT_AT] - held.arrival.hops
        if self._put(held.frame, 0, (held.entry, disposition), held.arrival, now, hop_count):
            at += HEAD_BYTES + TIME_CONSUMED_AT
            self.buffer[at : at + 4] = held.time_consumed(now).to_bytes(4, "big")

    def _number_of(self, ending: Ending) -> int:
        entry, disposition = ending
        numbers = self._numbers[entry]
        number = numbers.get(disposition)
        if number is None:
            number = self._freed.pop() if self._freed else self._next_number
            self._next_number = max(self._next_number, number + 1)
            numbers[disposition] = number
            self._endings[number] = ending
        return number

    def _record_arrival(self, arrival: PassOrigin) -> int:
        if not self._arrivals or self._arrivals[-1] is not arrival:
            self._arrivals.append(arrival)
        return len(self._arrivals) - 1

    def _index_span(self) -> dict[bytes, list[int]]:
        """Return the records of this pass that may be withdrawn: by header and names, in the order of arrival."""
        index: dict[bytes, list[int]] = {}
        at, end = self._span
        while at < end:
            size = HEAD.unpack_from(self.buffer, at)[0]
            index.setdefault(bytes(self.buffer[at + HEAD_BYTES : at + size]), []).append(at)
            at += size
        return index


def head_of(frame: Buffer) -> bytes:
    """Return the part of a frame that a record keeps: all but its body."""
    return bytes(frame[: HEADER_BYTES + sum(name_lengths(frame))])


def mix(conversation_id: bytes) -> int:
    """64 bits that look random, of 16 bytes that need not."""
    first, last = int.from_bytes(conversation_id[:8], "big"), int.from_bytes(conversation_id[8:], "big")
    return _finish(_finish(first + _GAMMA & _WORD) ^ last)


def _finish(word: int) -> int:
    word = (word ^ word >> 30) * _FIRST & _WORD
    word = (word ^ word >> 27) * _SECOND & _WORD
    return word ^ word >> 31
