"""The report as a file, made from the results of the jobs: of a run, or of earlier runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from broker.config.units import counted
from broker.errors import PipelineError
from broker.files import write_file
from broker.pipeline import inventory
from broker.pipeline import jobs as entry
from broker.pipeline.report.digest import InputFacts
from broker.pipeline.report.page import page
from broker.pipeline.report.tables import NEEDED, gather
from broker.pipeline.results import REPORT, RESULTS

FILE = "report.html"


def run(request: entry.RunRequest, progress: entry.Report) -> dict[str, Any]:
    """
    Run all jobs, and write `report.html` to `request.out`; without journals, of the results that are there.

    Returns:
        Like `broker.pipeline.jobs.run`, and `report`, its path; without journals no `files`.

    Raises:
        As `broker.pipeline.jobs.run`.
    """
    if not request.flows:
        check(request.out)  # before Spark is started
    with entry.started(request) as spark:
        done = entry.run(replace(request, jobs=NEEDED), progress) if request.flows else {"jobs": {}}
        begun = time.monotonic()
        target = render(spark, request.out, done.get("files"))
        progress(f"report: {target}, {time.monotonic() - begun:.1f} s")
    return done | {"report": str(target)}


def load(spark: SparkSession, out: Path, name: str) -> DataFrame:
    """Read a result that is there, with the schema of its name."""
    schema = RESULTS[name]
    reader = spark.read.schema(schema).option("__globPaths__", "false").option("recursiveFileLookup", "true")
    return reader.parquet(str(out / name)).select(*schema.names)


def check(out: Path) -> None:
    """
    Check that the results for the report are there.

    Raises:
        PipelineError: one is not.
    """
    for name in NEEDED:
        if not any((out / name).glob("*.parquet")):
            raise PipelineError(f"{out} has no result of {name}", f"run `broker pipeline {name}` with --out {out}")


def render(spark: SparkSession, out: Path, files: Mapping[str, Any] | None = None) -> Path:
    """
    Write the report of the results below a directory, and return its path.

    Args:
        spark: The session that reads the results.
        out: The directory of the results.
        files: As from `Inventory.summary`; None for those in the record of the first result.

    Raises:
        PipelineError: a result is not there.
        OSError: the report cannot be written.
    """
    check(out)
    results = {name: load(spark, out, name) for name in NEEDED}
    first = facts(out / NEEDED[0], files)
    known = replace(first, troubles=(*differences(out, NEEDED), *first.troubles))
    write_file(out / FILE, page(gather(results, known)).encode())
    return out / FILE


def differences(out: Path, names: Sequence[str]) -> list[str]:
    """
    Return a sentence for each result that is not of the same history as the first.

    Raises:
        PipelineError: a result has no record of its run.
    """
    of = {name: _history(out / name) for name in names}
    first = names[0]
    return [
        f"{name} and {first} are not of the same history: {name} was made of {of[name]}, {first} of {of[first]};"
        " run the jobs again, together"
        for name in names[1:]
        if of[name] != of[first]
    ]


def facts(directory: Path, files: Mapping[str, Any] | None = None) -> InputFacts:
    """
    Return the facts of a result; `files` as for `render`.

    Raises:
        PipelineError: the result has no record of its run.
    """
    with _run_of(directory) as run_record:
        summary = files or run_record["files"]
        return InputFacts(
            flows=", ".join(run_record["flows"]),
            files=summary["read"],
            records=summary["rows"],
            instances=summary["instances"],
            samples=tuple(sorted({one for found in summary["samples"].values() for one in found})),
            troubles=tuple(inventory.sentences(summary)[1:]),
            version=version("service-broker"),
            period=_period(run_record),
            holes=summary.get("holes", {}),
        )


@contextmanager
def _run_of(directory: Path) -> Iterator[dict[str, Any]]:
    """Read the record of the run that made a result; errors in the block name the file."""
    try:
        yield json.loads((directory / REPORT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipelineError(f"{directory} has no {REPORT}", "run the jobs again") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PipelineError(f"{directory / REPORT} cannot be read: {error!r}", "run the jobs again") from error


def _period(run_record: Mapping[str, Any]) -> str:
    """The part of the history that was asked for, in words; empty for all of it."""
    return " ".join(f"{word} {when}" for word in ("from", "to") if (when := run_record.get(word)))


def _history(directory: Path) -> str:
    """Describe the history of a result; equal words mean equal histories."""
    with _run_of(directory) as run_record:
        files = run_record["files"]
        read = f"{counted(files['read'], 'file')} with {counted(files['rows'], 'visit')}"
        what = f"{read}, {counted(files['bytes'], 'byte')}"
        return f"{what} of {', '.join(run_record['flows'])} {_period(run_record)}".rstrip()
