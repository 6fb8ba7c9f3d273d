"""
The records of a ring as columns of plain memory, the form in which engines for data take them.

The fields of a frame's header are copied; the numbers in a record are looked up in small tables that the caller makes
of the ring's own (`Legend`). Words are indexes of lists of words. Neither this nor its compiled twin
(`compiled_columns.pyx`; tests/property/test_decoders.py holds them equal) knows what reads the columns.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from broker.forwarding.held_frames import name_lengths
from broker.forwarding.ring import HEAD, HEAD_BYTES, TAKEN_BACK, Records
from broker.protocol.layout import FIRST_DIALOG_KIND, GUID_BYTES, HEADER, HEADER_BYTES, NO_GUID, Flag

ENDING_WIDTH = 7  # numbers in a row of `Legend.endings`
NOTHING = -1  # a word that is missing; an outcome that gives no row
NUMBER_MAX = 2**26  # of an ending: numbers are given one by one and used again, so there are never so many
IS_FROM_HERE, HAS_QUEUED = 1, 2  # in `Legend.flags`
KINDS = ("message", "ack", "fault", "other")  # the words of `kind`, by number

_FROM_TARGET = int(Flag.FROM_TARGET)
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_SHORTEST = HEAD_BYTES + HEADER_BYTES
_LONG = ("entered_at", "left_at", "sequence_number", "time_to_live_ms", "time_consumed_ms")
_SHORT = ("outcome", "kind", "fragment_number", "hop_count", "hop_limit", "bytes", "to_service", "from_service")
_SHORT_MAYBE = ("reason", "code", "route", "route_table", "adjacent_in", "adjacent_out")
_GUID = ("message_id", "conversation_id")
_GUID_MAYBE = ("to_broker_instance", "from_broker_instance")
_BIT = "from_target"
_ORDER = (*_LONG, *_SHORT, *_SHORT_MAYBE, *_GUID, *_GUID_MAYBE, _BIT)  # of the values in a row of `PlainDecoder`
_BYTES = {  # of a value
    **dict.fromkeys(_LONG, 8),
    **dict.fromkeys((*_SHORT, *_SHORT_MAYBE), 4),
    **dict.fromkeys((*_GUID, *_GUID_MAYBE), GUID_BYTES),
}


class Columns(NamedTuple):
    """
    Rows, column by column, in the machine's byte order.

    Instants are int64 microseconds since 1970, words int32, flags one bit each, the lowest first.
    """

    rows: int
    values: dict[str, bytearray]  # by name
    valid: dict[str, bytearray]  # bits, of the columns that may be null
    queued: list[int]  # rows of frames that waited in a queue here, ascending


@dataclass(slots=True)
class Legend:
    """
    The meaning of the numbers in records.

    Attributes:
        endings: int32, for each number of an ending: outcome of frames from here, outcome of others, reason, code,
            route, route_table (of frames not from here), adjacent_out; `NOTHING` where there is none.
        entered: int64 microseconds since 1970, for each arrival; likewise `adjacent_in`, `flags`, and `table`, the
            route_table of frames from here.
        offset: Seconds from monotonic to UTC.
    """

    endings: array[int] = field(default_factory=lambda: array("i"))
    entered: array[int] = field(default_factory=lambda: array("q"))
    adjacent_in: array[int] = field(default_factory=lambda: array("i"))
    flags: array[int] = field(default_factory=lambda: array("b"))
    table: array[int] = field(default_factory=lambda: array("i"))
    offset: float = 0.0


class ColumnDecoder(Protocol):
    """Makes columns of records."""

    name: ClassVar[str]

    @property
    def names(self) -> list[bytes]:
        """Names of services as on the wire, by the numbers in the columns since the last `forget`."""

    def forget(self) -> None:
        """Number names from 0 again."""

    def scan(self, data: Records) -> tuple[int, list[int]]:
        """
        How many records count, and the numbers of the endings in them, ascending.

        Raises:
            ValueError: the data is not records.
        """

    def fill(self, data: Records, records: int, legend: Legend) -> Columns:
        """
        The rows of so many records, in their order.

        Raises:
            ValueError: the data is not records, or more of them, or the legend does not cover them.
        """


class PlainDecoder:
    """The decoder in plain Python; some 5 microseconds a record."""

    name: ClassVar[str] = "python"

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    @property
    def names(self) -> list[bytes]:
        """See `ColumnDecoder`."""
        return list(self._numbers)

    def forget(self) -> None:
        """See `ColumnDecoder`."""
        self._numbers = {}

    def scan(self, data: Records) -> tuple[int, list[int]]:
        """See `ColumnDecoder`."""
        data = bytes(data)
        numbers = [number for _, number, _, _ in _records(data) if number != TAKEN_BACK]
        if numbers and max(numbers) > NUMBER_MAX:
            raise ValueError(f"a way has the number {max(numbers)}")
        return len(numbers), sorted(set(numbers))

    def fill(self, data: Records, records: int, legend: Legend) -> Columns:
        """See `ColumnDecoder`."""
        data, rows = bytes(data), list[tuple[Any, ...]]()
        queued: list[int] = []
        came = min(map(len, (legend.entered, legend.adjacent_in, legend.flags, legend.table)))
        for at, number, arrival, left in _records(data):
            if number == TAKEN_BACK:
                continue
            is_known = (number + 1) * ENDING_WIDTH <= len(legend.endings) and arrival < came
            if not is_known or len(rows) == records:
                raise ValueError(f"no record at byte {at} of {len(data)}")
            row = self._row(data, at + HEAD_BYTES, number, arrival, legend, left)
            if row is not None:
                if legend.flags[arrival] & HAS_QUEUED:
                    queued.append(len(rows))
                rows.append(row)
        return _columns(rows, queued)

    def _row(  # noqa: PLR0917 - all different, and passed in this order only here
        self, data: bytes, at: int, number: int, arrival: int, legend: Legend, left: float
    ) -> tuple[Any, ...] | None:
        """The values of the record with this header, as in `_ORDER`; None when it gives no row."""
        is_here = bool(legend.flags[arrival] & IS_FROM_HERE)
        ending = legend.endings[number * ENDING_WIDTH : (number + 1) * ENDING_WIDTH]
        here, elsewhere, reason, code, route, route_table, adjacent_out = ending
        outcome = here if is_here else elsewhere
        if outcome == NOTHING:
            return None
        if is_here:
            route_table = NOTHING if route == NOTHING else legend.table[arrival]
        length, kind, flags, hop_count, hop_limit, time_to_live, time_consumed, *ids = HEADER.unpack_from(data, at)
        message_id, conversation_id, sequence, fragment, _, _, _, from_length, _, from_instance, to_instance, _ = ids
        from_at = at + HEADER_BYTES + ids[-1]
        return (
            *(legend.entered[arrival], microseconds(left + legend.offset), min(sequence, _INT64_MAX)),
            *(time_to_live, time_consumed),
            *(outcome, min(kind - FIRST_DIALOG_KIND, len(KINDS) - 1), min(fragment, _INT32_MAX), hop_count, hop_limit),
            min(length, _INT32_MAX),
            self._number_of(data[at + HEADER_BYTES : from_at]),
            self._number_of(data[from_at : from_at + from_length]),
            *(reason, code, route, route_table, legend.adjacent_in[arrival], adjacent_out),
            *(message_id, conversation_id, to_instance, from_instance),
            bool(flags & _FROM_TARGET),
        )

    def _number_of(self, name: bytes) -> int:
        return self._numbers.setdefault(name, len(self._numbers))


def microseconds(seconds: float) -> int:
    """The same instant in whole microseconds."""
    return math.floor(seconds * 1e6 + 0.5)


def room_for(rows: int) -> tuple[dict[str, bytearray], dict[str, bytearray]]:
    """Zeroed memory for so many rows: `Columns.values` and `Columns.valid`."""
    bits = (rows + 7) // 8
    values = {name: bytearray(width * rows) for name, width in _BYTES.items()} | {_BIT: bytearray(bits)}
    return values, {name: bytearray(bits) for name in (*_SHORT_MAYBE, *_GUID_MAYBE)}


def trim(values: dict[str, bytearray], valid: dict[str, bytearray], rows: int) -> None:
    """Cut memory that was made for more rows."""
    for name, width in _BYTES.items():
        del values[name][width * rows :]
    for bits in (values[_BIT], *valid.values()):
        del bits[(rows + 7) // 8 :]


def _records(data: bytes) -> Iterator[tuple[int, int, int, float]]:
    """Position, number, arrival and time of leaving of each record; ValueError where there is none."""
    at, end = 0, len(data)
    while at < end:
        size, number, arrival, left = HEAD.unpack_from(data, at) if end - at >= _SHORTEST else (0, 0, 0, 0.0)
        if not 0 < size <= end - at or size != _SHORTEST + sum(name_lengths(data, at + HEAD_BYTES)):
            raise ValueError(f"no record at byte {at} of {end}")
        yield at, number, arrival, left
        at += size


def _columns(rows: list[tuple[Any, ...]], queued: list[int]) -> Columns:
    """The rows, column by column."""
    columns = dict(zip(_ORDER, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(_ORDER, ())
    values = {name: bytearray(array("q", columns[name]).tobytes()) for name in _LONG}
    values |= {name: bytearray(array("i", columns[name]).tobytes()) for name in _SHORT}
    values |= {name: bytearray(array("i", [max(0, one) for one in columns[name]]).tobytes()) for name in _SHORT_MAYBE}
    values |= {name: bytearray().join(columns[name]) for name in (*_GUID, *_GUID_MAYBE)}
    values[_BIT] = _bits(list(columns[_BIT]))
    valid = {name: _bits([one >= 0 for one in columns[name]]) for name in _SHORT_MAYBE}
    valid |= {name: _bits([one != NO_GUID for one in columns[name]]) for name in _GUID_MAYBE}
    return Columns(len(rows), values, valid, queued)


def _bits(flags: list[bool]) -> bytearray:
    """One bit each, the lowest first."""
    packed = bytearray((len(flags) + 7) // 8)
    for number, is_set in enumerate(flags):
        packed[number >> 3] |= is_set << (number & 7)
    return packed
