"""
Runs of the pipeline: files in, results out, and everything told that a figure cannot tell.

Here is the only place that reads and writes; transforms, schemas and what a job is are elsewhere. One session serves
all jobs of a run. Paths are those of a file system that every machine of the cluster sees under the same names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from broker.errors import NoJournalError, PipelineError
from broker.pipeline import inventory, result, session
from broker.pipeline.jobs import JOBS, Job, Options
from broker.pipeline.period import EPOCH, PeriodBounds, files_of, result_of, visits_of

FILES_MAX = 3  # files in a sentence
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """
    What is asked for.

    Shape: `jobs` names of JOBS; `flows` directories of journals; results go below `out`.
    """

    jobs: tuple[str, ...]
    flows: tuple[Path, ...]
    out: Path
    options: Options = field(default_factory=Options)
    session: session.SessionOptions = field(default_factory=session.SessionOptions)
    bounds: PeriodBounds = field(default_factory=PeriodBounds)


def run(request: RunRequest, tell: Tell = lambda _: None) -> dict[str, Any]:
    """
    Run some jobs over all that is there.

    Args:
        request: What.
        tell: Who hears how far it is, in lines.

    Returns:
        What there is to tell, as JSON values: `jobs` with rows, seconds and place of each result, `files` as
        `Inventory.summary` has it.

    Raises:
        NoJournalError: there is nothing to read.
        PipelineError: a job failed, or a result is in the way.
        PipelineUnavailableError: Spark does not start.
        OSError: a result cannot be written.
    """
    check_local(request)
    check_apart(request)
    found, horizon = _found(request)
    request = replace(request, options=request.options.of_samples(found.samples))
    done: dict[str, Any] = {}
    with result.held(request.out, request.jobs), started(request) as spark:
        visits = inventory.read(spark, (state.path for state in found.readable))
        for name in request.jobs:
            begun = time.monotonic()
            rows = _run_job(request, JOBS[name], visits, found, horizon)
            seconds = time.monotonic() - begun
            done[name] = {"rows": rows, "seconds": round(seconds, 1), "out": str(request.out / name)}
            tell(f"{name}: {rows:,} rows, {seconds:.1f} s")
    found.look_again()
    return {"jobs": done, "files": found.summary()}


def explain(request: RunRequest) -> None:
    """
    Print how Spark would compute the jobs, without running them.

    Raises:
        As `run`.
    """
    check_local(request)
    found, horizon = _found(request)
    request = replace(request, options=request.options.of_samples(found.samples))
    with started(request) as spark:
        visits = inventory.read(spark, (state.path for state in found.readable))
        for name in request.jobs:
            result_of_job(request, JOBS[name], visits, horizon).explain("formatted")


def result_of_job(request: RunRequest, job: Job, visits: DataFrame, end: datetime | None = None) -> DataFrame:
    """What a job makes of visits, within the period. Shape: `end` as of `Job.run`."""
    return result_of(job.run(visits_of(visits, job, request.bounds), end, request.options), job, request.bounds)


@contextmanager
def started(request: RunRequest) -> Iterator[SparkSession]:
    """
    With a session; one that was there before stays. What Spark raises is told in a sentence.

    Raises:
        PipelineError, PipelineUnavailableError.
    """
    before = SparkSession.getActiveSession()
    spark = before or session.start(request.session)
    try:
        yield spark
    except (PySparkException, Py4JError) as error:
        raise _sentence(error) from error
    finally:
        if before is None:
            spark.stop()


def _sentence(error: Exception) -> PipelineError:
    """What Spark raised; a file that it could not read is named."""
    text = str(error)
    file = re.search(r"(?:reading|read) (?:Parquet )?file:? (file:/+[^\n]*?\.parquet)", text)
    if file is not None:
        path = "/" + unquote(file[1]).removeprefix("file:").lstrip("/")
        hint = "it is broken behind a good footer: copy it again or take it away, and run again"
        return PipelineError(f"{path} cannot be read", hint)
    said = re.search(r"^: (.+)$", text, re.MULTILINE) if isinstance(error, Py4JError) else None
    first = said[1] if said else (text.strip().splitlines() or [type(error).__name__])[0]
    return PipelineError(f"Spark gave up: {first}", "see above for what it said")


def check_local(request: RunRequest) -> None:
    """
    Refuse what is on no file system.

    Raises:
        PipelineError: a path is a URL.
    """
    for path in (*request.flows, request.out):
        if ":/" in str(path):
            hint = "mount it: footers are read and results renamed through the file system"
            url = re.sub(r"^([^/]*):/(?!/)", r"\1://", str(path))  # of which Path leaves out a slash
            raise PipelineError(f"{url} is not on a file system", hint)


def check_apart(request: RunRequest) -> None:
    """
    Refuse results among the journals, where the next run would take them for some.

    Raises:
        PipelineError: they would be.
    """
    for flows in request.flows:
        if request.out.resolve().is_relative_to(flows.resolve()):
            problem = f"results in {request.out} would lie among the journals in {flows}"
            raise PipelineError(problem, "give an --out outside of it")


def _found(request: RunRequest) -> tuple[inventory.Inventory, datetime | None]:
    """The files, and the instant up to which they tell everything, if they tell it."""
    found = inventory.take(request.flows, only=lambda paths: files_of(paths, request.bounds))
    horizon_us = found.horizon_us()
    horizon = None if horizon_us is None else EPOCH + timedelta(microseconds=horizon_us)
    found.states = [state for state in found.states if request.bounds.has(state)]
    if not found.readable:
        where = ", ".join(map(str, request.flows))
        none = "no file *.parquet below it" + ("" if request.bounds.is_open else " that has visits of that time")
        raise NoJournalError(where, "; ".join(_unread(found)) if found.states else none)
    behind = request.bounds.wider().behind
    return found, horizon if horizon is None or behind is None else min(horizon, behind)


def _unread(found: inventory.Inventory) -> list[str]:
    """Why none of some files is read: counts, and the first few by name."""
    summary = found.summary()
    named = summary["left_out"][:FILES_MAX]
    _, *counts = inventory.told(summary | {"left_out": []})
    told = [f"{one['file']}: {one['why']}: {one['problem']}" for one in named]
    others = len(found.states) - len(named)
    return [
        f"of {len(found.states)} files none can be read",
        *counts,
        *told,
        *([f"and {others:,} other{'s' * (others > 1)}"] if others else []),
    ]


def _run_job(
    request: RunRequest, job: Job, visits: DataFrame, found: inventory.Inventory, horizon: datetime | None
) -> int:
    """How many rows were written."""

    def report() -> dict[str, Any]:
        found.look_again()
        return {
            "job": job.name,
            "flows": [str(one) for one in request.flows],
            **request.bounds.told(),
            "horizon": None if horizon is None else horizon.isoformat(),
            "options": request.options.told(),
            "files": found.summary(),
        }

    return result.write(result_of_job(request, job, visits, horizon), request.out / job.name, report)
