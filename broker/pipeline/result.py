"""
Writing results so that a reader sees a whole one or none.

A result is a directory of Parquet files. It is written beside its place, under a name that readers pass over, and
renamed; what was there before stays until then. What a run has to tell about it lies in `_report.json` inside.

Two processes that wrote into one directory would take each other's work for what killed runs left: `held` lets one in.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from broker.errors import PipelineError

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
    Write a result, in place of an earlier one, and say how many rows it has.

    Args:
        result: What is written.
        target: Its place.
        report: What there is to tell, asked once the rows are written.

    Raises:
        OSError: the place cannot be written to.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: the Java of a run that was killed may write a moment longer.
    made = target.with_name(f"{UNFINISHED}{target.name}-{uuid.uuid4().hex[:8]}")
    plain = {f"parquet.enable.dictionary#{name}": "false" for name in UNIQUE}
    result.write.options(**plain).parquet(str(made))
    write_json(made / REPORT, report())
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


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file that appears whole, and is on the disk before its name is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=".json-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump(value, out, indent=1, default=str)
        out.flush()
        os.fsync(out.fileno())
    Path(made).chmod(0o644)
    Path(made).rename(path)
