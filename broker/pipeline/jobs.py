"""
Runs of the pipeline: which jobs there are, which period they answer for, and one run from files to results.

A job is a function from visits to the frame of its result. `Options` has the options of all jobs; each uses its own.

A period is cut after the visits were read: paths that cross its bounds need an hour on both sides. Then the bounds are
applied to the rows of a result, or to a dialog by the first message of its initiator, sequence number 0. A dialog whose
first message is not in the files is taken for an older one and left out.

Only `run` and `explain` read and write. One Spark session serves all jobs of a run. Paths are those of a file system
that every machine of the cluster sees under the same names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from broker.errors import NoJournalError, PipelineError
from broker.journal.schema import FileState
from broker.pipeline import inventory, session
from broker.pipeline import results as result
from broker.pipeline.capacity import capacity
from broker.pipeline.dialogs import dialogs
from broker.pipeline.paths import paths
from broker.pipeline.reconcile import reconcile
from broker.pipeline.routes import routes


@dataclass(frozen=True, slots=True)
class Options:
    """
    The options of the jobs. None is the default of the job; for `window_seconds`, the history decides.

    `sampled` has the instances that recorded only a share of their dialogs, as the files say.
    """

    grace_seconds: int | None = None
    window_seconds: int | None = None
    pool_bytes: int | None = None
    sampled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Job:
    """
    One job.

    A period applies to rows of the result by their column `time`, or to dialogs by the first message of the initiator
    if that is empty. `options` are those that the transform takes, by name.
    """

    transform: Callable[..., DataFrame]
    time: str = ""
    options: tuple[str, ...] = ()

    def run(self, visits: DataFrame, end: datetime | None, options: Options) -> DataFrame:
        """Return the result; `end` is the end of the history, None for the newest instant of the visits."""
        given = {**asdict(options), "until": end}
        return self.transform(visits, **{name: given[name] for name in self.options if given[name] is not None})


JOBS = {
    "paths": Job(paths, "started_at", ("grace_seconds", "until")),
    "dialogs": Job(dialogs),
    "routes": Job(routes, "window_start", ("window_seconds",)),
    "capacity": Job(capacity, "window_start", ("window_seconds", "pool_bytes", "sampled")),
    "reconcile": Job(reconcile, options=("grace_seconds", "until")),
}
"""The jobs by name, in the order in which they run. The report is made of their results."""


# --- periods ---

MARGIN = timedelta(hours=1)
FILE_AGE_MAX = timedelta(days=1)  # the largest value of journal.file_age
EPOCH = datetime.fromtimestamp(0, UTC)
_HOUR = re.compile(r"/date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/")


@dataclass(frozen=True, slots=True)
class PeriodBounds:
    """Two UTC instants, None for no bound: from `first` up to and without `end`."""

    first: datetime | None = None
    end: datetime | None = None

    @property
    def is_open(self) -> bool:
        """True if there are no bounds."""
        return self.first is None and self.end is None

    def around(self, margin: timedelta = timedelta()) -> tuple[float, float]:
        """Return the bounds with a margin on both sides, microseconds since 1970; infinity for no bound."""
        first = -inf if self.first is None else micros(self.first - margin)
        return first, inf if self.end is None else micros(self.end + margin)

    def hold(self, when: str) -> Column:
        """Return whether an instant is in the period; null if it is not known."""
        first, end = self.around()
        return (F.unix_micros(when) >= first) & (F.unix_micros(when) < end)

    def may_have(self, path: Path) -> bool:
        """
        Return whether a file may have visits of the period or its margin, by the hour in its path, if it has one.

        The hour is that in which the file was begun. A file may grow for a day, and a frame may be held for as long
        before its visit is written.
        """
        found = _HOUR.search(str(path))
        if found is None or self.is_open:
            return True
        first, end = self.around(2 * MARGIN + FILE_AGE_MAX)
        begun = datetime.strptime(f"{found[1]} {found[2]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
        return first <= micros(begun) < end

    def has(self, state: FileState) -> bool:
        """Return whether a file may have visits of the period or its margin, by its footer."""
        if state.first_us is None or state.last_us is None:
            return True
        first, end = self.around(MARGIN)
        return first <= state.last_us and state.first_us < end


def micros(instant: datetime) -> int:
    """Return microseconds since 1970."""
    return (instant - EPOCH) // timedelta(microseconds=1)


def visits_of(visits: DataFrame, job: Job, bounds: PeriodBounds) -> DataFrame:
    """Return the visits that a job needs for a period."""
    if bounds.is_open:
        return visits
    around = visits
    if bounds.first is not None:
        around = around.where(F.coalesce("left_at", "entered_at", F.lit(EPOCH)) >= F.lit(bounds.first - MARGIN))
    if bounds.end is not None:
        around = around.where(F.col("entered_at") < F.lit(bounds.end + MARGIN))
    if job.time:
        return around
    opening = (F.col("kind") == "message") & ~F.col("from_target") & (F.col("sequence_number") == 0)
    began = around.where(opening).groupBy("conversation_id").agg(F.min("entered_at").alias("first"))
    mine = began.where(bounds.hold("first"))
    return around.join(mine, on="conversation_id", how="left_semi").select(*visits.columns)


# --- runs ---

FILES_MAX = 3  # files in a sentence
WINDOWS, WINDOWS_MAX = (1, 2, 5, 10, 30, 60, 300), 90  # seconds; how many are drawn well
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The arguments of a run: `jobs` are names of JOBS, `flows` directories of journals; results go below `out`."""

    jobs: tuple[str, ...]
    flows: tuple[Path, ...]
    out: Path
    options: Options = field(default_factory=Options)
    session: session.SessionOptions = field(default_factory=session.SessionOptions)
    bounds: PeriodBounds = field(default_factory=PeriodBounds)


def run(request: RunRequest, report: Report) -> dict[str, Any]:
    """
    Run jobs over journals.

    Args:
        request: The jobs, the journals, the options.
        report: Called with a line of progress.

    Returns:
        JSON values: `jobs` with rows, seconds and path of each result, and `files` as in `Inventory.summary`.

    Raises:
        NoJournalError: there is nothing to read.
        PipelineError: a job failed, or another file has the name of a result.
        PipelineUnavailableError: Spark does not start.
        OSError: a result cannot be written.
    """
    request, found, horizon = _found(request)
    done: dict[str, Any] = {}
    with result.held(request.out, request.jobs), started(request) as spark:
        visits = inventory.read(spark, (state.path for state in found.readable))
        for name in request.jobs:
            begun = time.monotonic()
            rows = _run_job(request, name, visits, found, horizon)
            seconds = time.monotonic() - begun
            done[name] = {"rows": rows, "seconds": round(seconds, 1), "out": str(request.out / name)}
            report(f"{name}: {rows:,} rows, {seconds:.1f} s")
    return {"jobs": done, "files": found.summary()}


def explain(request: RunRequest) -> None:
    """
    Print the plans of Spark for the jobs, without running them.

    Raises:
        As `run`.
    """
    request, found, horizon = _found(request)
    with started(request) as spark:
        visits = inventory.read(spark, (state.path for state in found.readable))
        for name in request.jobs:
            result_of_job(request, JOBS[name], visits, horizon).explain("formatted")


def result_of_job(request: RunRequest, job: Job, visits: DataFrame, end: datetime | None) -> DataFrame:
    """Return the result of a job for the period; `end` as in `Job.run`."""
    bounds = request.bounds
    result = job.run(visits_of(visits, job, bounds), end, request.options)
    return result.where(bounds.hold(job.time)) if job.time and not bounds.is_open else result


@contextmanager
def started(request: RunRequest) -> Iterator[SparkSession]:
    """
    Run with a Spark session, an active one if there is one. Errors of Spark become sentences.

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
    """Return an error of Spark as ours; it names a file that cannot be read."""
    text = str(error)
    file = re.search(r"(?:reading|read) (?:Parquet )?file:? (file:/+[^\n]*?\.parquet)", text)
    if file is not None:
        path = "/" + unquote(file[1]).removeprefix("file:").lstrip("/")
        hint = "its footer is good and its rows are damaged: copy it again or remove it, and run again"
        return PipelineError(f"{path} cannot be read", hint)
    message = re.search(r"^: (.+)$", text, re.MULTILINE) if isinstance(error, Py4JError) else None
    first = message[1] if message else (text.strip().splitlines() or [type(error).__name__])[0]
    return PipelineError(f"Spark gave up: {first}", "its log is above")


def check_paths(request: RunRequest, *, is_writing: bool) -> None:
    """
    Refuse paths that are URLs, and results among the journals, where the next run would read them as journals.

    Raises:
        PipelineError: a path is one of these.
    """
    for path in (*request.flows, request.out):
        if ":/" in str(path):
            hint = "mount it: footers are read and results renamed through the file system"
            url = re.sub(r"^([^/]*):/(?!/)", r"\1://", str(path))  # Path drops a slash
            raise PipelineError(f"{url} is not on a file system", hint)
    for flows in request.flows if is_writing else ():
        if request.out.resolve().is_relative_to(flows.resolve()):
            problem = f"results in {request.out} would lie among the journals in {flows}"
            raise PipelineError(problem, "give an --out outside of it")


def _found(request: RunRequest) -> tuple[RunRequest, inventory.Inventory, datetime | None]:
    """Return the request with what the files say, the files, and until when they are complete, if known."""
    bounds = request.bounds
    found = inventory.take(filter(bounds.may_have, inventory.find(request.flows)))
    horizon_us = found.horizon_us()
    found.states = [state for state in found.states if bounds.has(state)]
    if not found.readable:
        where = ", ".join(map(str, request.flows))
        none = "no file *.parquet below it" + ("" if bounds.is_open else " that has visits of that time")
        none += "; an instance completes one after journal.file_age, and when it stops"
        raise NoJournalError(where, "; ".join(_unread(found)) if found.states else none)
    sampled = frozenset(name for name, shares in found.samples.items() if min(shares) < 1)
    first, end = bounds.around()
    known = (at for state in found.readable for at in (state.first_us, state.last_us) if at is not None)
    instants = [min(max(at, first), end) for at in known] or [0]
    window = request.options.window_seconds or fitting_window((max(instants) - min(instants)) / 1e6)
    until_us = None if horizon_us is None else min(horizon_us, bounds.around(MARGIN)[1])
    return (
        replace(request, options=replace(request.options, sampled=sampled, window_seconds=window)),
        found,
        None if until_us is None else EPOCH + timedelta(microseconds=until_us),
    )


def fitting_window(seconds: float) -> int:
    """The shortest of WINDOWS with which a history of this length has at most WINDOWS_MAX windows, or the longest."""
    return next((window for window in WINDOWS if seconds <= window * WINDOWS_MAX), WINDOWS[-1])


def _unread(found: inventory.Inventory) -> list[str]:
    """Return why no file can be read: counts, and the first few by name."""
    summary = found.summary()
    named = summary["left_out"][:FILES_MAX]
    _, *counts = inventory.sentences(summary | {"left_out": []})
    named_files = [f"{one['file']}: {one['why']}: {one['problem']}" for one in named]
    others = len(found.states) - len(named)
    return [
        f"of {len(found.states)} files none can be read",
        *counts,
        *named_files,
        *([f"and {others:,} other{'s' * (others > 1)}"] if others else []),
    ]


def _run_job(
    request: RunRequest, name: str, visits: DataFrame, found: inventory.Inventory, horizon: datetime | None
) -> int:
    """Run a job, and return the number of rows written."""

    def report() -> dict[str, Any]:
        instants = {"from": request.bounds.first, "to": request.bounds.end, "horizon": horizon}
        return {
            "job": name,
            "flows": [str(one) for one in request.flows],
            **{word: at and at.isoformat() for word, at in instants.items()},
            "options": {word: value for word, value in asdict(request.options).items() if word != "sampled"},
            "files": found.summary(),
        }

    return result.write(result_of_job(request, JOBS[name], visits, horizon), request.out / name, report)
