"""
The rows of one file of a journal, piece by piece, and when they were.

A file has groups of rows, in the order in which they were written. Their bounds stand in the footer, so that who looks
for some instant need not read the others. What fails while a file is read raises what `UNREADABLE` lists: its footer
may be whole and its rows not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from broker.journal.kernel import converted, first_known
from broker.journal.schema import JOURNAL

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
