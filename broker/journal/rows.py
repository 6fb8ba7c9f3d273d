"""
From the ring's records to rows of the journal.

The decoder copies what headers say. Here is what the rest means: what a way and its ending are called, from where an
arrival came, when a frame was put in the queue, and which word has which number. Words are numbered anew for each table
that is given out, so a peer that invents names fills no memory for long, and all of a table share their dictionaries.

Rules, from ending to outcome:

- no way: a database here tells. No disposition means acknowledged; else delivered, duplicate, or dropped.
- a way on, of a frame from here: sent, or resent when a database says so.
- a way into a database here, of a frame from elsewhere: no row; the database tells later.
- a way on, of a frame from elsewhere: forwarded.
- anything else: dropped, the disposition says why.

What a database here sends takes a route of its own table (R1.1), what comes in one of msdb's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple, Protocol

import pyarrow as pa

from broker.flow import COLUMNS, Disposition, Form, VisitOutcome
from broker.forwarding.columns import (
    ENDING_WIDTH,
    HAS_QUEUED,
    IS_FROM_HERE,
    KINDS,
    NOTHING,
    ColumnDecoder,
    Columns,
    Legend,
    microseconds,
)
from broker.forwarding.entry import ForwardingEntry, PassOrigin, Queued, Sink
from broker.forwarding.outbox import Outbox
from broker.forwarding.ring import HEAD, HEAD_BYTES, TAKEN_BACK, Ending, RingContents
from broker.journal.schema import JOURNAL
from broker.routing.decide import NOBODY, Principals
from broker.routing.route import MirroredPair

# --- batch ---
# One hand-over: what the loop took out of the ring, and what it knew at that moment.
#
# Made on the loop, read by the thread that writes; nobody changes it.


class RingBatch(NamedTuple):
    """
    Shape: `offset` seconds from monotonic to UTC, one for the whole batch, so that durations stay those of the
    monotonic clock; `shed` records that had found no room in the ring, since the start; `principals` of mirrored pairs.
    """

    taken: RingContents
    offset: float
    shed: int = 0
    principals: Principals = NOBODY


class Follower(Protocol):
    """Who makes something else of batches than rows; the journal waits for nobody's collector."""

    def add(self, batch: RingBatch) -> None:
        """In the thread of the writer, behind the rows of the batch; keeps nothing of its memory, and must not fail."""

    def status(self) -> Mapping[str, int]:
        """On the loop: what there is to tell, by the names of NOBODY_FOLLOWS."""

    def close(self, seconds: float) -> None:
        """In any thread, behind the last batch: be done within this time."""


NOBODY_FOLLOWS: Mapping[str, int] = {"spans": 0, "spans_pending": 0, "spans_dropped": 0}


INCOMING_TABLE = "msdb"  # its routes decide what comes in (R1.1)

_OUTCOMES = tuple(VisitOutcome)
_NUMBER = {outcome: number for number, outcome in enumerate(_OUTCOMES)}
_VERDICTS = {
    None: VisitOutcome.ACKNOWLEDGED,
    Disposition.DELIVERED: VisitOutcome.DELIVERED,
    Disposition.DUPLICATE: VisitOutcome.DUPLICATE,
}
_FIXED = {"outcome": tuple(map(str, _OUTCOMES)), "kind": KINDS}
_GROWING = ("reason", "route", "route_table", "adjacent_in", "adjacent_out")


class Words:
    """Words of one column by number, in the order in which they were met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        """The number of a word; of the empty one, that there is none."""
        return self._numbers.setdefault(word, len(self._numbers)) if word else NOTHING

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)


class RowBuffer:
    """
    Rows that are not in a file yet. For one thread.

    Shape: `count` of them.
    """

    def __init__(self, instance: str, decoder: ColumnDecoder) -> None:
        self.count = 0
        self._instance = instance
        self._decoder = decoder
        self._parts: list[Columns] = []
        self._words: dict[str, Words] = {}
        self._legend = Legend()
        self._known: dict[int, Ending] = {}  # what the legend tells of
        self._principals = NOBODY
        self._begin()

    def add(self, batch: RingBatch) -> int:
        """
        The rows of a batch, behind those that are here; how many. Cost: below a microsecond each when compiled.

        Raises:
            ValueError: these are no records of a ring; nothing was added.
        """
        taken = batch.taken
        records, numbers = self._decoder.scan(taken.data)
        if batch.principals is not self._principals:
            self._known.clear()  # where a mirrored pair leads is another address now
            self._principals = batch.principals
        self._learn(taken.endings, numbers)
        queued = self._arrive(taken.arrivals, batch.offset)
        columns = self._decoder.fill(taken.data, records, self._legend)
        if columns.queued:
            _date_back(columns, queued)
        if columns.rows:
            self._parts.append(columns)
            self.count += columns.rows
        return columns.rows

    def take(self) -> pa.Table:
        """All rows as a table; afterwards there are none."""
        names = [name.decode("utf-8", "replace") for name in self._decoder.names]
        words: dict[str, Iterable[str]] = {
            **_FIXED,
            **self._words,
            "instance": (self._instance,),
            "to_service": names,
            "from_service": names,
        }
        dictionaries = {one.name: _strings(words[one.name]) for one in COLUMNS if one.form is Form.WORD}
        batches = [_batch(part, dictionaries) for part in self._parts]
        self._begin()
        return pa.Table.from_batches(batches, JOURNAL)

    def drop(self) -> int:
        """Forget all rows; how many there were."""
        count = self.count
        self._begin()
        return count

    # --- the inside, in calling order ---

    def _begin(self) -> None:
        self.count = 0
        self._parts = []
        self._words = {name: Words() for name in _GROWING}
        self._known = {}
        self._decoder.forget()

    def _learn(self, ways: Mapping[int, Ending], numbers: list[int]) -> None:
        """See that the legend tells of these numbers; one may stand for another ending than it did."""
        endings = self._legend.endings
        if numbers:
            missing = (numbers[-1] + 1) * ENDING_WIDTH - len(endings)
            endings.extend([NOTHING] * missing)
        for number in numbers:
            ending = ways[number]
            if self._known.get(number) is not ending:
                endings[number * ENDING_WIDTH : (number + 1) * ENDING_WIDTH] = self._told(*ending)
                self._known[number] = ending

    def _told(self, way: ForwardingEntry | None, disposition: Disposition | None) -> array[int]:
        """What the legend says of an ending."""
        here, elsewhere = _outcomes(has_way=way is not None, disposition=disposition)
        reason = disposition if here is VisitOutcome.DROPPED else None
        words, route = self._words, "" if way is None else way.route
        return array(
            "i",
            (
                _NUMBER[here],
                NOTHING if elsewhere is None else _NUMBER[elsewhere],
                words["reason"].number("" if reason is None else reason.value),
                NOTHING if reason is None else reason.number or NOTHING,
                words["route"].number(route),
                words["route_table"].number(INCOMING_TABLE if route else ""),
                words["adjacent_out"].number("" if way is None else self._address(way.sink)),
            ),
        )

    def _address(self, sink: Sink) -> str:
        """Of the next hop; of a mirrored pair that of its principal, both while none is known."""
        if not isinstance(sink, Outbox):
            return ""
        address = sink.address
        return str(self._principals.get(address, address) if isinstance(address, MirroredPair) else address)

    def _arrive(self, arrivals: list[PassOrigin], offset: float) -> dict[bytes, Queued]:
        """See that the legend tells of these arrivals; what their frames have waited for in a queue, by message id."""
        legend, adjacent_in, tables = self._legend, self._words["adjacent_in"], self._words["route_table"]
        legend.offset = offset
        legend.entered = array("q", [microseconds(arrival.entered + offset) for arrival in arrivals])
        legend.adjacent_in = array(
            "i", [NOTHING if one.is_from_here else adjacent_in.number(one.adjacent_in) for one in arrivals]
        )
        legend.flags = array("b", [_flags(arrival) for arrival in arrivals])
        legend.table = array("i", [tables.number(one.adjacent_in) if one.is_from_here else NOTHING for one in arrivals])
        queued: dict[bytes, Queued] = {}
        for arrival in arrivals:
            if arrival.queued:
                queued.update(arrival.queued)
        return queued


def count_records(batch: RingBatch) -> int:
    """How many records a batch has that count; of what is no record, one for all the rest of it."""
    data, at, count = batch.taken.data, 0, 0
    while at < len(data):
        size, number, _, _ = HEAD.unpack_from(data, at) if len(data) - at >= HEAD_BYTES else (0, 0, 0, 0.0)
        if not HEAD_BYTES < size <= len(data) - at:
            return count + 1
        count += number != TAKEN_BACK
        at += size
    return count


def _flags(arrival: PassOrigin) -> int:
    return (IS_FROM_HERE if arrival.is_from_here else 0) | (HAS_QUEUED if arrival.queued else 0)


def _outcomes(*, has_way: bool, disposition: Disposition | None) -> tuple[VisitOutcome, VisitOutcome | None]:
    """What became of a frame from here, and of one from elsewhere; None when another record tells it."""
    if not has_way:
        verdict = _VERDICTS.get(disposition, VisitOutcome.DROPPED)
        return verdict, verdict
    if disposition is Disposition.FORWARDED:
        return VisitOutcome.SENT, VisitOutcome.FORWARDED
    if disposition is Disposition.DELIVERED:
        return VisitOutcome.SENT, None
    return VisitOutcome.DROPPED, VisitOutcome.DROPPED


def _date_back(columns: Columns, queued: Mapping[bytes, Queued]) -> None:
    """Frames that waited in a queue here entered when they were put there; those sent before are resent."""
    entered = memoryview(columns.values["entered_at"]).cast("q")
    left = memoryview(columns.values["left_at"]).cast("q")
    outcome = memoryview(columns.values["outcome"]).cast("i")
    ids = columns.values["message_id"]
    for row in columns.queued:
        told = queued.get(bytes(ids[16 * row : 16 * (row + 1)]))
        if told is None:
            continue
        entered[row] = min(microseconds(told.enqueued_at), left[row])
        if told.is_resend and outcome[row] == _NUMBER[VisitOutcome.SENT]:
            outcome[row] = _NUMBER[VisitOutcome.RESENT]


def _strings(words: Iterable[str]) -> pa.Array:
    """The same as `pa.array`, which for a list of Python loads pandas where that is installed: for half a second."""
    spelt = [word.encode("utf-8", "replace") for word in words]
    offsets = array("i", [0, *accumulate(map(len, spelt))])
    return pa.Array.from_buffers(
        pa.string(), len(spelt), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(spelt))]
    )


def _batch(columns: Columns, dictionaries: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """The same memory as Arrow takes it; nothing is copied."""
    arrays = []
    for one in COLUMNS:
        values = columns.values[one.name] if one.name != "instance" else bytes(4 * columns.rows)
        bits = columns.valid.get(one.name)
        buffers = [None if bits is None else pa.py_buffer(bits), pa.py_buffer(values)]
        if one.form is Form.WORD:
            numbers = pa.Array.from_buffers(pa.int32(), columns.rows, buffers)
            arrays.append(pa.DictionaryArray.from_arrays(numbers, dictionaries[one.name]))
        else:
            arrays.append(pa.Array.from_buffers(JOURNAL.field(one.name).type, columns.rows, buffers))
    return pa.RecordBatch.from_arrays(arrays, schema=JOURNAL)
