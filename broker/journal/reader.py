"""
Reading a journal: one file piece by piece, the newest visits, and new files as they appear.

A file has groups of rows in the order in which they were written; the footer has the bounds of their instants. A file,
or one of its groups, is skipped when nothing in it can be newer than what was found already. A file is changed for the
last time after its last visit; clocks that differ by less than `CLOCKS_APART` do no harm.

The Arrow functions are called by name (`call_function`), because `pyarrow.compute` builds a documented wrapper for each
of three hundred functions, which takes as long as reading a small journal; so do the methods of tables and arrays that
use it (`filter`, `take`, `cast`, `sort_by`, `dictionary_encode`).

Source: Arrow, "Compute Functions".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow._compute import CastOptions, SetLookupOptions, call_function

from broker.journal.schema import JOURNAL, FileState, files, instants, survey


def rows_where(table: pa.Table, chosen: Any) -> pa.Table:
    """Return the rows for which an array of booleans is true, in order."""
    return call_function("filter", [table, chosen])


def converted(values: Any, form: pa.DataType) -> Any:
    """
    Cast values to another type.

    Raises:
        pa.ArrowInvalid: a value is out of the range of the type.
    """
    return call_function("cast", [values], CastOptions.safe(form))


def table_as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a table to a schema with the same columns. Raises like `converted`."""
    columns = [converted(table.column(number), form) for number, form in enumerate(schema.types)]
    return pa.Table.from_arrays(columns, schema=schema)


def are_among(values: Any, wanted: pa.Array) -> Any:
    """Return, for each row, whether the value is one of these."""
    return call_function("is_in", [values], SetLookupOptions(wanted))


# --- one file ---

UNREADABLE = (pa.ArrowException, OSError, ValueError)  # raised by reading: the footer may be whole and the rows not
PIECE_ROWS = 65_536  # in memory at once, about 10 MB of all columns
ALWAYS = 2**63 - 1  # an instant after all others


def bounds(file: pq.ParquetFile, group: int) -> tuple[int, int] | None:
    """Return the first and the last instant in a group, microseconds since 1970; None if the footer has none."""
    known = instants(file.metadata.row_group(group))
    return (known["entered_at"][0], max(last for _, last in known.values())) if len(known) == 2 else None


def pieces(file: pq.ParquetFile, group: int, columns: Iterable[str] = JOURNAL.names) -> Iterator[pa.Table]:
    """
    Yield the rows of a group, `PIECE_ROWS` at a time; a column that the file does not have is null.

    Raises:
        UNREADABLE: the rows are damaged; opening the file raises these as well.
    """
    known = [name for name in columns if name in file.schema_arrow.names]
    for batch in file.iter_batches(PIECE_ROWS, row_groups=[group], columns=known):
        yield pa.Table.from_arrays(
            [
                batch.column(name) if name in known else pa.nulls(batch.num_rows, JOURNAL.field(name).type)
                for name in columns
            ],
            names=list(columns),
        )


def ended(table: pa.Table) -> pa.ChunkedArray:
    """Return when each visit ended, or began if it has not ended: microseconds since 1970."""
    return converted(call_function("coalesce", [table["left_at"], table["entered_at"]]), pa.int64())


# --- the newest visits ---

CLOCKS_APART = 3600 * 1_000_000  # microseconds between the clocks of an instance and of the disk's machine
# pyarrow imports pandas, if that is installed, to convert an instant with a zone or a Python number: a third of a
# second. So zones are added afterwards, and limits are taken from columns.
_INSTANTS = tuple(one.name for one in JOURNAL if pa.types.is_timestamp(one.type))


def _plain(form: pa.DataType) -> pa.DataType:
    """Return a type of `JOURNAL` without zone and without dictionary, which differs from piece to piece."""
    if pa.types.is_dictionary(form):
        return pa.string()
    return pa.timestamp("us") if pa.types.is_timestamp(form) else form


_PLAIN = pa.schema([(one.name, _plain(one.type)) for one in JOURNAL])


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of visits: `conversation` and `message` of 16 bytes, None for any; `outcomes`, empty for any."""

    conversation: bytes | None = None
    outcomes: frozenset[str] = frozenset()
    message: bytes | None = None

    def of(self, table: pa.Table) -> pa.Table:
        """Return the rows that pass the filter."""
        for column, wanted in (("conversation_id", self.conversation), ("message_id", self.message)):
            if wanted is not None:
                table = rows_where(table, are_among(table[column], pa.array([wanted], pa.binary(16))))
        if self.outcomes:
            words = converted(table["outcome"], pa.string())
            table = rows_where(table, are_among(words, pa.array(sorted(self.outcomes), pa.string())))
        return table


@dataclass(slots=True)
class Newest:
    """The visits found, in the order in which they ended; the files that could not be read; how many could."""

    visits: list[dict[str, Any]] = field(default_factory=list)
    unread: list[FileState] = field(default_factory=list)
    read: int = 0


def newest(directory: Path, wanted: Wanted, count: int) -> Newest:
    """
    Find the visits of a journal that ended last.

    Args:
        directory: The directory of the journal.
        wanted: The filter.
        count: The number of visits to find at most.

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
            with pq.ParquetFile(state.path) as file:
                for group in reversed(range(file.num_row_groups)):
                    known = bounds(file, group)
                    if known is None or known[1] > last.floor:
                        ends = _Last(count, last.least)
                        for piece in pieces(file, group):
                            ends.append(wanted.of(piece))
                        last.prepend(ends)
            found.read += 1
        except UNREADABLE as error:
            found.unread.append(state.failed(error))
    found.visits = last.rows()
    return found


class NewFiles:
    """
    Visits in files that appeared or changed since the last call of `poll`; a file may be copied there slowly.

    `unread` has the files that the last call could not read.
    """

    def __init__(self, directory: Path) -> None:
        self.unread: list[FileState] = []
        self._directory = directory
        self._known = dict(_changed(directory))
        self._ids: set[str] = set()

    def poll(self, wanted: Wanted) -> Iterator[dict[str, Any]]:
        """Yield the visits of new and changed files, file by file in the order of their rows."""
        self.unread = []
        before, self._known = self._known, dict(_changed(self._directory))
        new = [path for path, changed in self._known.items() if before.get(path) != changed]
        for state in survey(new):
            if not state.is_readable:
                self.unread.append(state)
            elif state.file not in self._ids:
                self._ids.add(state.file)
                try:
                    with pq.ParquetFile(state.path) as file:
                        for group in range(file.num_row_groups):
                            for piece in pieces(file, group):
                                yield from _visits(table_as(wanted.of(piece), _PLAIN))
                except UNREADABLE as error:
                    self.unread.append(state.failed(error))


class _Last:
    """
    The rows that ended last, in that order; those of one instant in the order in which they were written.

    `least` is the instant before which no row is kept, microseconds since 1970, or None.
    """

    def __init__(self, count: int, least: pa.Scalar | None = None) -> None:
        self.least = least
        self._count = count
        self._rows = pa.Table.from_arrays([pa.nulls(0, form) for form in _PLAIN.types], schema=_PLAIN)

    @property
    def floor(self) -> int:
        """`least` as a number; before all others if it is None."""
        return -ALWAYS if self.least is None else int(self.least.as_py())

    def append(self, table: pa.Table) -> None:
        """Add rows that were written after the present ones."""
        if self.least is not None:
            table = rows_where(table, call_function("greater_equal", [ended(table), self.least]))
        self._keep(self._rows, table_as(table, _PLAIN))

    def prepend(self, other: _Last) -> None:
        """Add rows that were written before the present ones, or in another file."""
        self._keep(other._rows, self._rows)

    def _keep(self, first: pa.Table, second: pa.Table) -> None:
        table = pa.concat_tables([first, second])
        instants = ended(table)
        order = call_function("sort_indices", [instants])[-self._count :]  # ascending and stable
        self._rows = call_function("take", [table, order])
        if len(order) == self._count:
            self.least = instants[order[0].as_py()]

    def rows(self) -> list[dict[str, Any]]:
        return list(_visits(self._rows))


def _visits(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table with the columns of `_PLAIN`, instants in UTC."""
    for visit in table.to_pylist():
        instants = ((name, visit[name]) for name in _INSTANTS)
        yield visit | {name: instant and instant.replace(tzinfo=UTC) for name, instant in instants}


def _changed(directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield every file and its time of change, microseconds since 1970."""
    for path in files(directory):
        try:
            yield path, path.stat().st_mtime_ns // 1000
        except FileNotFoundError:
            continue
