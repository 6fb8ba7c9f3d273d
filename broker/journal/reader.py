"""
The functions of Arrow that journals are read with, asked for by name.

`pyarrow.compute` makes a function with a docstring and a signature of each of the three hundred there are, which takes
as long as reading a small journal. Methods of tables and arrays that need one of these import it too (`filter`, `take`,
`cast`, `sort_by`, `dictionary_encode`). Who reads journals asks here instead, where `pyarrow.compute` has it from. What
each does is on Arrow's page "Compute Functions", under its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow._compute import CastOptions, SetLookupOptions, call_function

from broker.journal.schema import JOURNAL, FileState, files, survey


def rows_where(table: pa.Table, chosen: Any) -> pa.Table:
    """The rows for which an array of booleans is true, in their order."""
    return call_function("filter", [table, chosen])


def rows_at(table: pa.Table, numbers: pa.Array) -> pa.Table:
    """The rows with these numbers, in the order of the numbers."""
    return call_function("take", [table, numbers])


def order_of(values: Any) -> pa.Array:
    """The numbers of the rows, the least value first; equal ones as they stand."""
    return call_function("sort_indices", [values])


def converted(values: Any, form: pa.DataType) -> Any:
    """
    The values as another type.

    Raises:
        pa.ArrowInvalid: a value that the type does not have.
    """
    return call_function("cast", [values], CastOptions.safe(form))


def table_as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the types of a schema that has its columns. Raises as `converted`."""
    columns = [converted(table.column(number), form) for number, form in enumerate(schema.types)]
    return pa.Table.from_arrays(columns, schema=schema)


def first_known(values: Any, others: Any) -> Any:
    """Each value, or what stands in the same row of the others where there is none."""
    return call_function("coalesce", [values, others])


def are_equal(values: Any, one: pa.Scalar) -> Any:
    """In which rows the value is this one."""
    return call_function("equal", [values, one])


def are_among(values: Any, wanted: pa.Array) -> Any:
    """In which rows the value is one of these."""
    return call_function("is_in", [values], SetLookupOptions(wanted))


def are_from(values: Any, least: pa.Scalar) -> Any:
    """In which rows the value is this one or greater."""
    return call_function("greater_equal", [values, least])


# --- reading ---
# The rows of one file of a journal, piece by piece, and when they were.
#
# A file has groups of rows, in the order in which they were written. Their bounds stand in the footer, so that who
# looks
# for some instant need not read the others. What fails while a file is read raises what `UNREADABLE` lists: its
# footer
# may be whole and its rows not.


UNREADABLE = (pa.ArrowException, OSError, ValueError)
PIECE_ROWS = 65_536  # in memory at once, some 10 MB of all columns
ALWAYS = 2**63 - 1  # an instant behind all others


class FileReader:
    """
    A file that is being read; to be closed.

    Raises:
        UNREADABLE: here, and by every method; FileNotFoundError among them when it has vanished.
    """

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)
        self._names = set(self._file.schema_arrow.names)
        self._index = {name: number for number, name in enumerate(self._file.schema_arrow.names)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def groups(self) -> range:
        """The numbers of its groups, in the order in which they were written."""
        return range(self._file.metadata.num_row_groups)

    def bounds(self, group: int) -> tuple[int, int] | None:
        """When its first visit began and its last one ended, microseconds since 1970; None where that is not told."""
        entered, left = self._told(group, "entered_at"), self._told(group, "left_at")
        if entered is None or left is None:
            return None
        return entered[0], max(entered[1], left[1])

    def pieces(self, group: int, columns: Iterable[str] = JOURNAL.names) -> Iterator[pa.Table]:
        """Its rows, so many at once; a column that an older version does not have is empty."""
        known = [name for name in columns if name in self._names]
        for batch in self._file.iter_batches(PIECE_ROWS, row_groups=[group], columns=known):
            yield pa.Table.from_arrays(
                [
                    batch.column(name) if name in known else pa.nulls(batch.num_rows, JOURNAL.field(name).type)
                    for name in columns
                ],
                names=list(columns),
            )

    def _told(self, group: int, name: str) -> tuple[int, int] | None:
        """The least and greatest instant of a column."""
        if name not in self._index:
            return None
        told = self._file.metadata.row_group(group).column(self._index[name]).statistics
        if told is None or not told.has_min_max:
            return None
        return told.min_raw, told.max_raw


def ended(table: pa.Table) -> pa.ChunkedArray:
    """When each visit ended, or where that is not told when it began: microseconds since 1970."""
    return converted(first_known(table["left_at"], table["entered_at"]), pa.int64())


# --- newest ---
# The newest visits of a journal, and those that come.
#
# Only as many rows are kept as are asked for. Files are looked at from the one that was changed last; a file, and
# each of
# its groups, is left unread when nothing in it can be newer than what is there already. A file is changed for the
# last
# time behind its last visit; clocks that are told apart by less than CLOCKS_APART do no harm.


CLOCKS_APART = 3600 * 1_000_000  # microseconds between the clocks of an instance and of the disk's machine
# Making an instant with a zone, or taking a number of Python, pyarrow imports pandas where that is
# installed: a third of a second. So zones are added to what was found, and limits are taken from columns.
_INSTANTS = tuple(one.name for one in JOURNAL if pa.types.is_timestamp(one.type))


def _plain(form: pa.DataType) -> pa.DataType:
    """As in `JOURNAL`, with instants without a zone, and words without a dictionary: each piece has another."""
    if pa.types.is_dictionary(form):
        return pa.string()
    return pa.timestamp("us") if pa.types.is_timestamp(form) else form


_PLAIN = pa.schema([(one.name, _plain(one.type)) for one in JOURNAL])


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which visits. Shape: `conversation` and `message` 16 bytes each, None for any; `outcomes` none for any."""

    conversation: bytes | None = None
    outcomes: frozenset[str] = frozenset()
    message: bytes | None = None

    def of(self, table: pa.Table) -> pa.Table:
        """Those rows."""
        for column, wanted in (("conversation_id", self.conversation), ("message_id", self.message)):
            if wanted is not None:
                table = rows_where(table, are_equal(table[column], pa.scalar(wanted, pa.binary(16))))
        if self.outcomes:
            words = converted(table["outcome"], pa.string())
            table = rows_where(table, are_among(words, pa.array(sorted(self.outcomes), pa.string())))
        return table


@dataclass(slots=True)
class Newest:
    """
    What was found.

    Shape: `visits` in the order in which they ended; `unread` files that could not be read; `read` how many could.
    """

    visits: list[dict[str, Any]] = field(default_factory=list)
    unread: list[FileState] = field(default_factory=list)
    read: int = 0


def newest(directory: Path, wanted: Wanted, count: int) -> Newest:
    """
    The last visits of a journal.

    Args:
        directory: Of the journal.
        wanted: Which visits.
        count: How many at most.

    Raises:
        OSError: there is no such directory, or it cannot be read.
    """
    found = Newest()
    last = _Last(count)
    changed = dict(sorted(_changed(directory), key=lambda one: (-one[1], one[0])))
    for state in survey(changed):
        if last.floor > changed[state.path] + CLOCKS_APART:
            break
        if not state.is_readable:
            found.unread.append(state)
            continue
        try:
            with FileReader(state.path) as reading:
                for group in reversed(reading.groups):
                    bounds = reading.bounds(group)
                    if bounds is None or bounds[1] > last.floor:
                        ends = _Last(count, last.least)
                        for piece in reading.pieces(group):
                            ends.put_behind(wanted.of(piece))
                        last.put_before(ends)
            found.read += 1
        except UNREADABLE as error:
            found.unread.append(state.spoilt(error))
    found.visits = last.rows()
    return found


class NewFiles:
    """
    The files of a journal that are new at each look, or were changed: somebody may have copied them there by and by.

    Shape: `unread` of the last look.
    """

    def __init__(self, directory: Path) -> None:
        self.unread: list[FileState] = []
        self._directory = directory
        self._known = dict(_changed(directory))
        self._ids: set[str] = set()

    def look(self, wanted: Wanted) -> Iterator[dict[str, Any]]:
        """The visits in files that were not there at the last look, file by file in the order of their rows."""
        self.unread = []
        before, self._known = self._known, dict(_changed(self._directory))
        new = [path for path, changed in self._known.items() if before.get(path) != changed]
        for state in survey(new):
            if not state.is_readable:
                self.unread.append(state)
            elif state.file not in self._ids:
                self._ids.add(state.file)
                try:
                    with FileReader(state.path) as reading:
                        for group in reading.groups:
                            for piece in reading.pieces(group):
                                yield from _visits(table_as(wanted.of(piece), _PLAIN))
                except UNREADABLE as error:
                    self.unread.append(state.spoilt(error))


class _Last:
    """
    The rows that ended last, in that order; those of one instant as they were written.

    Shape: `least` an instant before which none is taken, microseconds since 1970, None for none.
    """

    def __init__(self, count: int, least: pa.Scalar | None = None) -> None:
        self.least = least
        self._count = count
        self._rows = pa.Table.from_arrays([pa.nulls(0, form) for form in _PLAIN.types], schema=_PLAIN)

    @property
    def floor(self) -> int:
        """The same instant, one before all others for none."""
        return -ALWAYS if self.least is None else int(self.least.as_py())

    def put_behind(self, table: pa.Table) -> None:
        """Rows that were written after those that are here."""
        if self.least is not None:
            table = rows_where(table, are_from(ended(table), self.least))
        self._keep(self._rows, table_as(table, _PLAIN))

    def put_before(self, other: _Last) -> None:
        """Rows that were written before those that are here, or in another file."""
        self._keep(other._rows, self._rows)

    def _keep(self, first: pa.Table, second: pa.Table) -> None:
        table = pa.concat_tables([first, second])
        instants = ended(table)
        order = order_of(instants)[-self._count :]
        self._rows = rows_at(table, order)
        if len(order) == self._count:
            self.least = instants[order[0].as_py()]

    def rows(self) -> list[dict[str, Any]]:
        return list(_visits(self._rows))


def _visits(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows with their instants in UTC. Shape: columns as `_PLAIN`."""
    for visit in table.to_pylist():
        instants = ((name, visit[name]) for name in _INSTANTS)
        yield visit | {name: instant and instant.replace(tzinfo=UTC) for name, instant in instants}


def _changed(directory: Path) -> Iterator[tuple[Path, int]]:
    """Every file, and when it was last changed, in microseconds since 1970."""
    for path in files(directory):
        try:
            yield path, path.stat().st_mtime_ns // 1000
        except FileNotFoundError:
            continue
