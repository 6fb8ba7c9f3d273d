"""
Runs of the pipeline: files in, results out, and everything told that a figure cannot tell.

Here is the only place that reads and writes; transforms, schemas and what a job is are elsewhere. One session serves
all jobs of a run. Paths are those of a file system that every machine of the cluster sees under the same names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from broker.errors import NoJournalError, PipelineError
from broker.pipeline import inventory, result, session
from broker.pipeline.jobs import JOBS, Job, Options, Results
from broker.pipeline.period import Bounds, files_of, results_of, visits_of

STATE = "_state"
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """
    What is asked for.

    Shape: `jobs` names of JOBS; `flows` directories of journals; results go below `out`.
    """

    jobs: tuple[str, ...]
    flows: tuple[Path, ...]
    out: Path
    options: Options = field(default_factory=Options)
    session: session.SessionOptions = field(default_factory=session.SessionOptions)
    bounds: Bounds = field(default_factory=Bounds)


def run(request: Request, tell: Tell = lambda _: None) -> dict[str, Any]:
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
    for job in request.jobs:
        check_not_incremental(request.out, job)
    found = _found(request)
    done: dict[str, Any] = {}
    with started(request) as spark:
        visits = inventory.read(spark, (state.path for state in found.readable))
        for name in request.jobs:
            begun = time.monotonic()
            rows = _run_job(request, JOBS[name], visits, found)
            seconds = time.monotonic() - begun
            done |= {
                one: {"rows": count, "seconds": round(seconds, 1), "out": str(request.out / one)}
                for one, count in rows.items()
            }
            tell(f"{name}: {rows[name]:,} rows, {seconds:.1f} s")
    found.look_again()
    return {"jobs": done, "files": found.summary()}


def explain(request: Request) -> None:
    """
    Print how Spark would compute the jobs, without running them.

    Raises:
        As `run`.
    """
    check_local(request)
    found = _found(request)
    with started(request) as spark:
        visits = inventory.read(spark, (state.path for state in found.readable))
        for name in request.jobs:
            for frame in results(request, JOBS[name], visits).values():
                frame.explain("formatted")


def results(request: Request, job: Job, visits: DataFrame) -> Results:
    """What a job makes of visits, within the period."""
    told = job.run(visits_of(visits, job, request.bounds), None, request.options)
    return results_of(told, job, request.bounds)


@contextmanager
def started(request: Request) -> Iterator[SparkSession]:
    """
    With a session; one that was there before stays. What Spark raises is told in a sentence.

    Raises:
        PipelineError, PipelineUnavailableError.
    """
    before = SparkSession.getActiveSession()
    spark = before or session.start(request.session)
    try:
        yield spark
    except PySparkException as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PipelineError(f"Spark gave up: {first}", "see above for what it said") from error
    finally:
        if before is None:
            spark.stop()


def check_local(request: Request) -> None:
    """
    Refuse what is on no file system.

    Raises:
        PipelineError: a path is a URL.
    """
    for path in (*request.flows, request.out):
        if ":/" in str(path):
            hint = "mount it: footers are read and results renamed through the file system"
            raise PipelineError(f"{path} is not on a file system", hint)


def check_not_incremental(out: Path, job: str) -> None:
    """
    Refuse to write over what incremental runs wrote: they count on it.

    Raises:
        PipelineError: they did.
    """
    if (out / STATE / job).exists():
        hint = f"give another --out, or remove {out / STATE / job} and {out / job}"
        raise PipelineError(f"{out / job} is of incremental runs", hint)


def _found(request: Request) -> inventory.Inventory:
    found = inventory.take(request.flows, only=lambda paths: files_of(paths, request.bounds))
    if not found.readable:
        where = ", ".join(map(str, request.flows))
        problem = f"of {len(found.states)} files none can be read" if found.states else "no file *.parquet below it"
        raise NoJournalError(where, "; ".join([problem, *inventory.told(found.summary())[1:]]))
    return found


def _run_job(request: Request, job: Job, visits: DataFrame, found: inventory.Inventory) -> Mapping[str, int]:
    """Rows of each result written."""
    flows = [str(one) for one in request.flows]
    report = {"job": job.name, "flows": flows, "options": request.options.told(), "files": found.summary()}
    return {
        name: result.write(frame, request.out / name, report)
        for name, frame in results(request, job, visits).items()
    }  # fmt: skip
