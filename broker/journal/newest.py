"""
The newest visits of a journal, and those that come.

Only as many rows are kept as are asked for. Files are looked at from the one that was changed last; a file, and each of
its groups, is left unread when nothing in it can be newer than what is there already. A file is changed for the last
time behind its last visit; clocks that are told apart by less than CLOCKS_APART do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.journal.kernel import are_among, are_equal, are_from, converted, order_of, rows_at, rows_where, table_as
from broker.journal.reading import ALWAYS, UNREADABLE, FileReader, ended
from broker.journal.schema import JOURNAL
from broker.journal.survey import FileState, files, survey

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
