"""
The files of a synthetic history: as a journal writes them, some of them late, and those that a reader has to refuse.

A file holds what left one instance in one stretch. Bad files are added to a history and take nothing from it, so the
truth stays what it was: a copy of a file, the first half of one, a Parquet file of somebody else. Files of an older and
of a newer journal are good ones, written in another way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from broker.flow import JOURNAL_SCHEMA
from broker.journal.schema import SCHEMA_KEY, file_metadata
from tests.support.histories.rows import START_US
from tests.support.histories.world import SECOND, Longs, World

ROWS_WITHOUT = "adjacent_in"  # the column that an older journal did not have
NEW_COLUMN = "colour"  # the column that a newer journal has
LATE_BY = 3  # stretches
LATE_ROWS = 0.2  # of a file that some rows miss


@dataclass(slots=True)
class Files:
    """
    Writes the files of a history.

    Shape: `written` files so far, with their rows; `bad` what is wrong with a file, by its path in the directory.
    """

    directory: Path
    world: World
    sample: float
    rng: np.random.Generator
    late_share: float = 0.0
    written: dict[str, int] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    _held_back: list[tuple[int, int, pa.Table]] = field(default_factory=list)
    _stretch: int = 0

    def write(self, rows: pa.Table, node: Longs, left: Longs, begin: int) -> None:
        """The rows that left in the stretch from `begin` on, a file for each instance. Shape: `node`, `left` by row."""
        order = np.lexsort((left, node))
        rows = rows.take(pa.array(order))
        ends = np.searchsorted(node[order], np.arange(len(self.world.names) + 1))
        for instance in range(len(self.world.names)):
            part = rows.slice(ends[instance], ends[instance + 1] - ends[instance])
            if part.num_rows:
                self._write_or_hold_back(part, instance, begin)
        due = [one for one in self._held_back if one[0] <= self._stretch]
        self._held_back = [one for one in self._held_back if one[0] > self._stretch]
        self._write_late(due, begin)
        self._stretch += 1

    def close(self, end: int) -> None:
        """Write what was held back."""
        self._write_late(self._held_back, end - SECOND)
        self._held_back = []

    def spoil(self) -> None:
        """Add the bad files, and write two good ones in another way."""
        good = sorted(self.written)
        if len(good) < 5:
            return
        chosen = [good[int(number)] for number in self.rng.choice(len(good), 5, replace=False)]
        copied, cut, foreign, older, newer = (self.directory / name for name in chosen)
        self._add(copied, "copy", copied.read_bytes())
        content = cut.read_bytes()
        self._add(cut, "truncated", content[: len(content) // 2])
        target = self._beside(foreign)
        pq.write_table(pa.table({"city": ["Bern", "Basel"], "people": [134_000, 174_000]}), target)
        self.bad[str(target.relative_to(self.directory))] = "foreign"
        table = pq.read_table(older, partitioning=None)
        pq.write_table(table.drop_columns([ROWS_WITHOUT]), older, compression="zstd")
        self.bad[chosen[3]] = "older"
        table = pq.read_table(newer, partitioning=None)
        metadata = {**table.schema.metadata, SCHEMA_KEY: str(JOURNAL_SCHEMA + 1).encode()}
        table = table.append_column(NEW_COLUMN, pa.array(["green"] * table.num_rows))
        pq.write_table(table.replace_schema_metadata(metadata), newer, compression="zstd")
        self.bad[chosen[4]] = "newer"

    def _write_or_hold_back(self, rows: pa.Table, instance: int, begin: int) -> None:
        if self.rng.random() < self.late_share and rows.num_rows > 1:
            is_late = self.rng.random(rows.num_rows) < LATE_ROWS
            self._held_back.append((self._stretch + LATE_BY, instance, rows.filter(pa.array(is_late))))
            rows = rows.filter(pa.array(~is_late))
        if rows.num_rows:
            self._write_file(rows, instance, begin)

    def _write_late(self, held_back: list[tuple[int, int, pa.Table]], begin: int) -> None:
        for _, instance, rows in held_back:
            if rows.num_rows:
                self._write_file(rows, instance, begin)

    def _write_file(self, rows: pa.Table, instance: int, begin: int) -> None:
        name = self.world.names[instance]
        opened = START_US + begin + int(self.world.clock_us[instance])
        path = self.directory / _hour(opened) / f"{name}-{len(self.written):06d}-{self._hexadecimal(4)}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = file_metadata(file=self._hexadecimal(16), instance=name, sample=self.sample, shed=0)
        pq.write_table(rows.replace_schema_metadata(metadata), path, compression="zstd", compression_level=1)
        self.written[str(path.relative_to(self.directory))] = rows.num_rows

    def _add(self, beside: Path, why: str, content: bytes) -> None:
        target = self._beside(beside)
        target.write_bytes(content)
        self.bad[str(target.relative_to(self.directory))] = why

    def _beside(self, path: Path) -> Path:
        return path.with_name(f"{path.stem.rpartition('-')[0]}-{self._hexadecimal(4)}.parquet")

    def _hexadecimal(self, count: int) -> str:
        return self.rng.bytes(count).hex()


def _hour(at: int) -> str:
    moment = datetime.fromtimestamp(at // 1_000_000, tz=UTC)
    return f"date={moment:%Y-%m-%d}/hour={moment:%H}"
