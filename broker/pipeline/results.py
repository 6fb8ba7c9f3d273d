"""
The inputs and the results of the jobs, column by column.

`VISIT` is the journal as Spark reads it. The columns of the results, with what a row of each is, are in `results.toml`.

A transform whose answer depends on how far the history goes (`paths` and `reconcile`: lost, or under way?) takes it as
`until: datetime | None = None`, keyword-only; None is the newest instant of the visits given.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tomllib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow.parquet as pq
import pyspark.sql.functions as F  # noqa: N812 - the conventional name
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T  # noqa: N812 - the conventional name

from broker.errors import PipelineError
from broker.files import write_file
from broker.flow import COLUMNS, Form

_TYPES: dict[Form, T.DataType] = {
    Form.INSTANT: T.TimestampType(),
    Form.WORD: T.StringType(),
    Form.GUID: T.BinaryType(),
    Form.FLAG: T.BooleanType(),
    Form.INT32: T.IntegerType(),
    Form.INT64: T.LongType(),
}

VISIT = T.StructType([T.StructField(one.name, _TYPES[one.form], nullable=True) for one in COLUMNS])
"""One row per visit of a dialog frame to an instance: the journal. Null everywhere: other versions are read as well."""


PROBLEM = T.StructType(
    [
        T.StructField("sequence_number", T.LongType()),
        T.StructField("fragment_number", T.IntegerType()),
        T.StructField("problem", T.StringType()),  # missing, doubled, invented
        T.StructField("reason", T.StringType()),  # of a missing one: why it was dropped last; null when it was not
    ]
)
_FORMS = (
    *(T.BinaryType(), T.StringType(), T.BooleanType(), T.IntegerType(), T.LongType(), T.DoubleType()),
    *(T.TimestampType(), T.ArrayType(T.StringType()), T.ArrayType(T.LongType()), T.ArrayType(PROBLEM)),
    T.MapType(T.StringType(), T.LongType()),
)
_BY_NAME = {form.simpleString(): form for form in _FORMS}
_COLUMNS = tomllib.loads(Path(__file__).with_name("results.toml").read_text(encoding="utf-8"))

RESULTS = {
    name: T.StructType([T.StructField(column, _BY_NAME[form]) for column, (form, _) in columns.items()])
    for name, columns in _COLUMNS.items()
}
"""The schema of each result, by job."""
MEANINGS = {name: {column: meaning for column, (_, meaning) in columns.items()} for name, columns in _COLUMNS.items()}
"""The meaning of each column of each result, in words: by result, then by column."""
PATHS, DIALOGS, ROUTES, CAPACITY, RECONCILE = RESULTS.values()


def as_result(rows: DataFrame, schema: T.StructType, columns: Mapping[str, Column] = MappingProxyType({})) -> DataFrame:
    """Return rows with the columns of a schema; those in `columns` are computed, the others are there."""
    return rows.select(*(columns.get(one.name, F.col(one.name)).cast(one.dataType).alias(one.name) for one in schema))


# --- result ---
# Writing results so that a reader sees a whole one or none.
#
# A result is a directory of Parquet files. It is written next to its place, under a name that readers pass over, and
# renamed; the result that was there before stays until then. The report of a run is in `_report.json` inside.
#
# Two processes that wrote into one directory would take each other's work for the remains of killed runs: `held` lets
# one in.


REPORT = "_report.json"  # Spark reads no file that begins with an underscore
UNFINISHED = ".unfinished-"
REPLACED = ".replaced-"
LOCK = ".lock"
UNIQUE = ("message_id", "started_at", "ended_at")
"""Columns whose values hardly ever come twice, so that a dictionary is made of them for nothing."""


@contextmanager
def held(out: Path, names: Iterable[str]) -> Iterator[None]:
    """
    A directory of results for this process alone; results that a killed run had half replaced are back in their place.

    Args:
        out: The directory.
        names: Of results that are written.

    Raises:
        PipelineError: another process has it.
        OSError: it cannot be written to.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(
                f"another process writes results to {out}", "wait for it, or give another --out"
            ) from None
        for name in names:
            _recover(out / name)
        yield


def write(result: DataFrame, target: Path, report: Callable[[], Mapping[str, Any]]) -> int:
    """
    Write a result, in place of an earlier one, and return how many rows it has.

    Args:
        result: The result to write.
        target: Its place.
        report: Returns the report of the run; called once the rows are written.

    Raises:
        OSError: the place cannot be written to.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # A separate name: the Java of a run that was killed may write a moment longer.
    made = target.with_name(f"{UNFINISHED}{target.name}-{uuid.uuid4().hex[:8]}")
    plain = {f"parquet.enable.dictionary#{name}": "false" for name in UNIQUE}
    result.write.options(**plain).parquet(str(made))
    write_file(made / REPORT, json.dumps(report(), indent=1, default=str).encode())
    _publish(made, target)
    return rows(target)


def _publish(made: Path, target: Path) -> None:
    """Rename a result to its place, and remove what runs that were killed have left of it."""
    _recover(target)
    old = target.with_name(f"{REPLACED}{target.name}")
    if target.exists():
        target.rename(old)
    made.rename(target)
    for left in (old, *target.parent.glob(f"{UNFINISHED}{target.name}-*")):
        shutil.rmtree(left, ignore_errors=True)


def _recover(target: Path) -> None:
    """Put back what a run had moved away that was killed before its own result was in place."""
    old = target.with_name(f"{REPLACED}{target.name}")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(target)


def rows(directory: Path) -> int:
    """How many rows the Parquet files of a result have, by their footers."""
    return sum(int(pq.read_metadata(path).num_rows) for path in directory.glob("*.parquet"))
