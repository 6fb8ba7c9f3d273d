"""
Results that were written, read back: those of one run over all files, and those of incremental runs, alike.

Incremental runs leave one directory a step, each with the total of its own rows; here they are one frame, with one
total.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from broker.errors import PipelineError
from broker.pipeline import inventory
from broker.pipeline.report import file as report_file
from broker.pipeline.report.digest import Facts
from broker.pipeline.report.page import NEEDED, report
from broker.pipeline.result import REPORT
from broker.pipeline.schema import RECONCILE, RESULTS

_SUMMED = [field.name for field in RECONCILE if field.dataType.typeName() == "long"]


def is_stored(out: Path, name: str) -> bool:
    """Whether there is a result of this name."""
    return any((out / name).glob("*.parquet")) or any((out / name).glob("batch=*"))


def load(spark: SparkSession, out: Path, name: str) -> DataFrame:
    """
    A result, with the schema of its name.

    Raises:
        PipelineError: it is not there.
    """
    if not is_stored(out, name):
        raise _missing(out, name)
    schema = RESULTS[name]
    steps = sorted(map(str, (out / name).glob("batch=*")))
    reader = spark.read.schema(schema).option("__globPaths__", "false").option("recursiveFileLookup", "true")
    found = reader.parquet(*(steps or [str(out / name)])).select(*schema.names)
    return found.transform(with_one_total) if name == "reconcile" and steps else found


def with_one_total(reconcile: DataFrame) -> DataFrame:
    """RECONCILE with several totals to RECONCILE with one, which adds up when none fails and one adds up."""
    is_total = F.col("conversation_id").isNull()
    sums = {name: F.sum(name) for name in _SUMMED} | {"adds_up": F.bool_and("adds_up")}
    total = reconcile.where(is_total).groupBy().agg(*(one.alias(name) for name, one in sums.items()))
    one = total.where(F.col(_SUMMED[0]).isNotNull()).select(
        *(
            (F.col(field.name) if field.name in sums else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in RECONCILE
        )
    )
    return reconcile.where(~is_total).unionByName(one)


def check(out: Path) -> None:
    """
    Look whether the results that the report is made of are there, before Spark is started for them.

    Raises:
        PipelineError: one is not.
    """
    for name in NEEDED:
        if not is_stored(out, name):
            raise _missing(out, name)


def _missing(out: Path, name: str) -> PipelineError:
    return PipelineError(f"{out} has no result of {name}", f"run `broker pipeline {name}` with --out {out}")


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


def facts(directory: Path) -> Facts:
    """
    What was read to make a result: by one run, or by all incremental ones.

    Raises:
        PipelineError: nothing tells it.
    """
    with _told(directory) as told:
        files = _files(told)
        troubles = inventory.told(files)[1:]
        late = told.get("totals", {}).get("late", 0)
        if late:
            troubles.append(f"{late:,} visits came too late for incremental runs, left out")
        return Facts.of(
            files, flows=", ".join(told["flows"]), troubles=troubles, version=version("broker"), period=_period(told)
        )


@contextmanager
def _told(directory: Path) -> Iterator[dict[str, Any]]:
    """What the runs that made a result have to tell; where the block does not find that, the file is named."""
    try:
        yield json.loads((directory / REPORT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipelineError(f"{directory} has no {REPORT}", "run the jobs again") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PipelineError(f"{directory / REPORT} cannot be read: {error!r}", "run the jobs again") from error


def _files(told: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of all files: of the one run, or of all steps."""
    if "files" in told:
        return dict(told["files"])
    kept = {name: told[name] for name in ("samples", "left_out") if name in told}
    return {**told["last"], **told["totals"], "shed_records": told["shed"], "instances": len(told["shed"])} | kept


def _period(told: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: told.get(name) for name in ("from", "to")}


def _history(directory: Path) -> str:
    """The words for what a result was made of; the same words mean the same history."""
    with _told(directory) as told:
        files = _files(told)
        period = "".join(f" {word} {when}" for word, when in _period(told).items() if when)
        what = f"{files['read']:,} files with {files['rows']:,} visits, {files['bytes']:,} bytes"
        return f"{what} of {', '.join(told['flows'])}{period}"
