"""
Rows of the journal, made from the records of the ring.

The decoder copies the fields of frame headers. This module adds the rest: the route and the outcome, the peer of an
arrival, and when a frame was put in the transmission queue. Words are numbered for each table separately, so a peer
that invents names fills no memory for long, and all rows of a table share their dictionaries.

From the ending of a visit to its outcome:

- no forwarding entry: reported by a database here. Acknowledged if there is no disposition; otherwise delivered,
  duplicate or dropped.
- an entry to a next hop, and the frame is from here: sent, or resent if the database marked it.
- an entry into a database here, and the frame is from another instance: no row; the database reports it later.
- an entry to a next hop, and the frame is from another instance: forwarded.
- anything else: dropped, with the disposition as the reason.

A database here routes by its own table, frames that arrive by that of msdb (R1.1).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

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


class RingBatch(NamedTuple):
    """
    Records taken out of the ring, and what the loop knew at that moment. Immutable: the writer thread reads it.

    `offset` is the difference of UTC and the monotonic clock in seconds, one for the whole batch, so that durations are
    those of the monotonic clock; `shed` counts records that found the ring full, since the start; `principals` are
    those of mirrored pairs.
    """

    taken: RingContents
    offset: float
    shed: int = 0
    principals: Principals = NOBODY


INCOMING_TABLE = "msdb"  # its routes decide for frames that arrive (R1.1)

_OUTCOMES = tuple(VisitOutcome)
_NUMBER = {outcome: number for number, outcome in enumerate(_OUTCOMES)}
_VERDICTS = {
    None: VisitOutcome.ACKNOWLEDGED,
    Disposition.DELIVERED: VisitOutcome.DELIVERED,
    Disposition.DUPLICATE: VisitOutcome.DUPLICATE,
}
_FIXED = {"outcome": tuple(map(str, _OUTCOMES)), "kind": KINDS}
_GROWING = ("reason", "route", "route_table", "adjacent_in", "adjacent_out")


class RowBuffer:
    """Rows that are not in a file yet, `count` of them. For one thread."""

    def __init__(self, instance: str, decoder: ColumnDecoder) -> None:
        self.count = 0
        self._instance = instance
        self._decoder = decoder
        self._parts: list[Columns] = []
        self._words: dict[str, dict[str, int]] = {}  # of each column, numbered in the order of their first use
        self._legend = Legend()
        self._known: dict[int, Ending] = {}  # endings that are in the legend
        self._principals = NOBODY
        self.drop()

    def add(self, batch: RingBatch) -> int:
        """
        Add the rows of a batch, and return their number. Cost: below a microsecond each when compiled.

        Raises:
            ValueError: the bytes are not records of a ring; nothing was added.
        """
        taken = batch.taken
        records, numbers = self._decoder.scan(taken.data)
        if batch.principals is not self._principals:
            self._known.clear()  # the address of a mirrored pair has changed
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
        """Return all rows as a table, and forget them."""
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
        self.drop()
        return pa.Table.from_batches(batches, JOURNAL)

    def drop(self) -> None:
        """Forget all rows."""
        self.count = 0
        self._parts = []
        self._words = {name: {} for name in _GROWING}
        self._known = {}
        self._decoder.forget()

    def _learn(self, ways: Mapping[int, Ending], numbers: list[int]) -> None:
        """Put the endings with these numbers into the legend; a number may have another ending than before."""
        endings = self._legend.endings
        if numbers:
            missing = (numbers[-1] + 1) * ENDING_WIDTH - len(endings)
            endings.extend([NOTHING] * missing)
        for number in numbers:
            ending = ways[number]
            if self._known.get(number) is not ending:
                endings[number * ENDING_WIDTH : (number + 1) * ENDING_WIDTH] = self._row_of(*ending)
                self._known[number] = ending

    def _row_of(self, way: ForwardingEntry | None, disposition: Disposition | None) -> array[int]:
        """Return the row of the legend for an ending."""
        here, elsewhere = outcomes(way, disposition)
        reason = disposition if here is VisitOutcome.DROPPED else None
        words, route = self._words, "" if way is None else way.route
        return array(
            "i",
            (
                _NUMBER[here],
                NOTHING if elsewhere is None else _NUMBER[elsewhere],
                _number(words["reason"], "" if reason is None else reason.value),
                NOTHING if reason is None else reason.number or NOTHING,
                _number(words["route"], route),
                _number(words["route_table"], INCOMING_TABLE if route else ""),
                _number(words["adjacent_out"], "" if way is None else self._address(way.sink)),
            ),
        )

    def _address(self, sink: Sink) -> str:
        """Return the address of the next hop; of a mirrored pair its principal, or both while none is known."""
        if not isinstance(sink, Outbox):
            return ""
        address = sink.address
        return str(self._principals.get(address, address) if isinstance(address, MirroredPair) else address)

    def _arrive(self, arrivals: list[PassOrigin], offset: float) -> dict[bytes, Queued]:
        """Put arrivals into the legend; return the queueing data of their frames by message id."""
        legend, adjacent_in, tables = self._legend, self._words["adjacent_in"], self._words["route_table"]
        legend.offset = offset
        legend.entered = array("q", [microseconds(arrival.entered + offset) for arrival in arrivals])
        legend.adjacent_in = array(
            "i", [_number(adjacent_in, "" if one.is_from_here else one.adjacent_in) for one in arrivals]
        )
        legend.flags = array("b", [IS_FROM_HERE * one.is_from_here + HAS_QUEUED * bool(one.queued) for one in arrivals])
        legend.table = array("i", [_number(tables, one.adjacent_in if one.is_from_here else "") for one in arrivals])
        queued: dict[bytes, Queued] = {}
        for arrival in arrivals:
            if arrival.queued:
                queued.update(arrival.queued)
        return queued


def _number(words: dict[str, int], word: str) -> int:
    """Return the number of a word; NOTHING for the empty one."""
    return words.setdefault(word, len(words)) if word else NOTHING


def count_records(batch: RingBatch) -> int:
    """Count the records of a batch that were not withdrawn; a malformed rest counts as one."""
    data, at, count = batch.taken.data, 0, 0
    while at < len(data):
        size, number, _, _ = HEAD.unpack_from(data, at) if len(data) - at >= HEAD_BYTES else (0, 0, 0, 0.0)
        if not HEAD_BYTES < size <= len(data) - at:
            return count + 1
        count += number != TAKEN_BACK
        at += size
    return count


def outcomes(way: ForwardingEntry | None, disposition: Disposition | None) -> tuple[VisitOutcome, VisitOutcome | None]:
    """Return the outcomes of a frame from here and of one from another instance; None if another record has it."""
    if way is None:
        verdict = _VERDICTS.get(disposition, VisitOutcome.DROPPED)
        return verdict, verdict
    if disposition is Disposition.FORWARDED:
        return VisitOutcome.SENT, VisitOutcome.FORWARDED
    if disposition is Disposition.DELIVERED:
        return VisitOutcome.SENT, None
    return VisitOutcome.DROPPED, VisitOutcome.DROPPED


def _date_back(columns: Columns, queued: Mapping[bytes, Queued]) -> None:
    """Set the instant of entry of frames that were queued here, and mark those that were sent before as resent."""
    entered = memoryview(columns.values["entered_at"]).cast("q")
    left = memoryview(columns.values["left_at"]).cast("q")
    outcome = memoryview(columns.values["outcome"]).cast("i")
    ids = columns.values["message_id"]
    for row in columns.queued:
        found = queued.get(bytes(ids[16 * row : 16 * (row + 1)]))
        if found is None:
            continue
        entered[row] = min(microseconds(found.enqueued_at), left[row])
        if found.is_resend and outcome[row] == _NUMBER[VisitOutcome.SENT]:
            outcome[row] = _NUMBER[VisitOutcome.RESENT]


def _strings(words: Iterable[str]) -> pa.Array:
    """Return an array of strings; `pa.array` would import pandas for a Python list, for half a second."""
    spelt = [word.encode("utf-8", "replace") for word in words]
    offsets = array("i", [0, *accumulate(map(len, spelt))])
    return pa.Array.from_buffers(
        pa.string(), len(spelt), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(spelt))]
    )


def _batch(columns: Columns, dictionaries: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return the columns as a record batch over the same memory."""
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
