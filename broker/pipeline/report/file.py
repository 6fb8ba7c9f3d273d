"""The report as a file: the jobs that it needs run once, in one session, and the page is made of what they wrote."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from broker.pipeline import entry
from broker.pipeline.inventory import told
from broker.pipeline.report.digest import InputFacts
from broker.pipeline.report.page import NEEDED, report
from broker.pipeline.schema import RESULTS

FILE = "report.html"


def run(request: entry.RunRequest, tell: entry.Tell = lambda _: None) -> dict[str, Any]:
    """
    Run the jobs of the report, those asked for besides, and write `report.html` to `request.out`.

    Returns:
        As `broker.pipeline.entry.run`, and `report`, where it is.

    Raises:
        As `broker.pipeline.entry.run`.
    """
    jobs = tuple(dict.fromkeys((*NEEDED, *request.jobs)))
    with entry.started(request) as spark:
        done = entry.run(replace(request, jobs=jobs), tell)
        begun = time.monotonic()
        target = request.out / FILE
        flows = ", ".join(map(str, request.flows))
        facts = InputFacts.of(
            done["files"],
            flows=flows,
            troubles=told(done["files"])[1:],
            version=version("broker"),
            period=request.bounds.told(),
        )
        write(target, report(written(spark, request.out, jobs), facts))
        tell(f"report: {target}, {time.monotonic() - begun:.1f} s")
    return done | {"report": str(target)}


def written(spark: SparkSession, out: Path, jobs: tuple[str, ...]) -> dict[str, DataFrame]:
    """The results below a directory, by job, with the columns of their schemas."""
    return {job: spark.read.schema(RESULTS[job]).parquet(str(out / job)) for job in jobs if job in RESULTS}


def write(target: Path, html: str) -> None:
    """Write a file that appears whole, in place of an earlier one."""
    descriptor, made = tempfile.mkstemp(dir=target.parent, prefix=".report-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(html)
    Path(made).chmod(0o644)
    Path(made).rename(target)
