"""Results that were written, read back for the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from broker.errors import PipelineError
from broker.pipeline import inventory
from broker.pipeline.report import file as report_file
from broker.pipeline.report.digest import InputFacts
from broker.pipeline.report.page import NEEDED, report
from broker.pipeline.result import REPORT
from broker.pipeline.schema import RESULTS


def load(spark: SparkSession, out: Path, name: str) -> DataFrame:
    """
    A result, with the schema of its name.

    Raises:
        PipelineError: it is not there.
    """
    _check(out, name)
    schema = RESULTS[name]
    reader = spark.read.schema(schema).option("__globPaths__", "false").option("recursiveFileLookup", "true")
    return reader.parquet(str(out / name)).select(*schema.names)


def check(out: Path) -> None:
    """
    Look whether the results that the report is made of are there, before Spark is started for them.

    Raises:
        PipelineError: one is not.
    """
    for name in NEEDED:
        _check(out, name)


def _check(out: Path, name: str) -> None:
    if not any((out / name).glob("*.parquet")):
        raise PipelineError(f"{out} has no result of {name}", f"run `broker pipeline {name}` with --out {out}")


def render(spark: SparkSession, out: Path) -> Path:
    """
    Write the report of the results below a directory, and say where.

    Raises:
        PipelineError: a result that it is made of is not there.
        OSError: it cannot be written.
    """
    results = {name: load(spark, out, name) for name in NEEDED}
    first = facts(out / NEEDED[0])
    known = replace(first, troubles=(*differences(out, NEEDED), *first.troubles))
    report_file.write(out / report_file.FILE, report(results, known))
    return out / report_file.FILE


def differences(out: Path, names: Sequence[str]) -> list[str]:
    """
    Which results are not of the same history as the first, in sentences.

    Raises:
        PipelineError: nothing tells it of one.
    """
    of = {name: _history(out / name) for name in names}
    first = names[0]
    return [
        f"{name} and {first} are not of the same history: {name} was made of {of[name]}, {first} of {of[first]};"
        " run the jobs again, together"
        for name in names[1:]
        if of[name] != of[first]
    ]


def facts(directory: Path) -> InputFacts:
    """
    What was read to make a result.

    Raises:
        PipelineError: nothing tells it.
    """
    with _told(directory) as told:
        files = told["files"]
        troubles = inventory.told(files)[1:]
        return InputFacts.of(
            files, flows=", ".join(told["flows"]), troubles=troubles, version=version("broker"), period=_period(told)
        )


@contextmanager
def _told(directory: Path) -> Iterator[dict[str, Any]]:
    """What the run that made a result has to tell; where the block does not find that, the file is named."""
    try:
        yield json.loads((directory / REPORT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipelineError(f"{directory} has no {REPORT}", "run the jobs again") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PipelineError(f"{directory / REPORT} cannot be read: {error!r}", "run the jobs again") from error


def _period(told: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: told.get(name) for name in ("from", "to")}


def _history(directory: Path) -> str:
    """The words for what a result was made of; the same words mean the same history."""
    with _told(directory) as told:
        files = told["files"]
        period = "".join(f" {word} {when}" for word, when in _period(told).items() if when)
        what = f"{files['read']:,} files with {files['rows']:,} visits, {files['bytes']:,} bytes"
        return f"{what} of {', '.join(told['flows'])}{period}"
