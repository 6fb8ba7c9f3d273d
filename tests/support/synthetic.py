"""Synthetic histories for tests: small, with all that goes wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.histories import history as synthetic
from tests.support.histories.world import Scenario

REFUSED = ("copy", "truncated", "foreign")  # bad files that have nothing to say, or nothing new


@dataclass(frozen=True)
class History:
    """Shape: `directory` of the journal; `told` what `truth.json` holds."""

    directory: Path
    told: dict[str, Any]

    @property
    def files(self) -> list[Path]:
        """Those that a reader has to read, each once."""
        refused = {self.directory / name for name, why in self.told["bad_files"].items() if why in REFUSED}
        return sorted(set(self.directory.glob("date=*/hour=*/*.parquet")) - refused)

    def rows(self, name: str, *key: str) -> list[dict[str, Any]]:
        """The rows of a table of the truth, in the order of the key."""
        return in_order(self.truth(name).to_pylist(), key)

    def truth(self, name: str) -> pa.Table:
        """One of the tables of the truth."""
        path = self.directory / synthetic.TRUTH / name
        table = pq.read_table(path if path.is_dir() else path.with_suffix(".parquet"))
        return pa.Table.from_arrays([_plain(column) for column in table.columns], names=table.column_names)


def in_order(rows: list[dict[str, Any]], key: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows in the order of a key, which may be null."""
    return sorted(rows, key=lambda row: tuple(str(row[name]) for name in key))


def history(directory: Path, **asked: Any) -> History:
    """A history of a few hundred messages in an hour, unless something else is asked for."""
    scenario = Scenario(**({"messages": 600, "instances": 10, "seed": 5, "hours": 1.0} | asked))
    synthetic.generate(directory, scenario)
    told = json.loads((directory / synthetic.TRUTH / "truth.json").read_text(encoding="utf-8"))
    return History(directory, told)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Words instead of numbers of a dictionary."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if pa.types.is_list(column.type) and pa.types.is_dictionary(column.type.value_type):
        return column.cast(pa.list_(column.type.value_type.value_type))
    return column
