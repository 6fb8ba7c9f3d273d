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

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {name: value for name, value in asdict(self).items() if name != "sampled"}

    @property
    def window(self) -> int:
        """The length of the windows in seconds, once the files are known."""
        assert self.window_seconds is not None, "the files are not known yet"
        return self.window_seconds

    def grace(self) -> dict[str, int]:
        """Return the keyword argument of a transform."""
        return {} if self.grace_seconds is None else {"grace_seconds": self.grace_seconds}


@dataclass(frozen=True, slots=True)
class Job:
    """
    One job; its result has the same name.

    `run` gets the visits and the end of the history, None for their newest instant. A period applies to rows of the
    result by their column `time`, or to dialogs by the first message of the initiator if that is empty.
    """

    name: str
    run: Callable[[DataFrame, datetime | None, Options], DataFrame]
    time: str = ""


def _capacity(visits: DataFrame, _: datetime | None, options: Options) -> DataFrame:
    return capacity(visits, window_seconds=options.window, pool_bytes=options.pool_bytes, sampled=options.sampled)


JOBS = {
    one.name: one
    for one in (
        Job("paths", lambda visits, end, options: paths(visits, until=end, **options.grace()), "started_at"),
        Job("dialogs", lambda visits, _end, _options: dialogs(visits)),
        Job("routes", lambda visits, _, options: routes(visits, window_seconds=options.window), "window_start"),
        Job("capacity", _capacity, "window_start"),
        Job("reconcile", lambda visits, end, options: reconcile(visits, until=end, **options.grace())),
    )
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

    def hold(self, when: Column) -> Column:
        """Return whether an instant is in the period; an unknown one is if there are no bounds."""
        holds = F.lit(True)
        if self.first is not None:
            holds &= when >= F.lit(self.first)
        if self.end is not None:
            holds &= when < F.lit(self.end)
        return F.coalesce(holds, F.lit(False))

    @property
    def is_open(self) -> bool:
        """True if there are no bounds."""
        return self.first is None and self.end is None

    def to_json(self) -> dict[str, str | None]:
        """Return JSON values."""
        pairs = {"from": self.first, "to": self.end}
        return {name: None if one is None else one.isoformat() for name, one in pairs.items()}

    def wider(self, margin: timedelta = MARGIN) -> PeriodBounds:
        """Return the period with a margin on both sides; without a bound where that is outside of the calendar."""
        return PeriodBounds(_moved(self.first, -margin), _moved(self.end, margin))

    def may_have(self, path: Path) -> bool:
        """
        Return whether a file may have visits of the period or its margin, by the hour in its path, if it has one.

        The hour is that in which the file was begun. A file may grow for a day, and a frame may be held for as long
        before its visit is written.
        """
        found = _HOUR.search(str(path))
        if found is None or self.is_open:
            return True
        begun = datetime.strptime(f"{found[1]} {found[2]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
        wide = self.wider().wider(MARGIN + FILE_AGE_MAX)
        return (wide.first is None or begun >= wide.first) and (wide.end is None or begun < wide.end)

    def has(self, state: FileState) -> bool:
        """Return whether a file may have visits of the period or its margin, by its footer."""
        if self.is_open or state.first_us is None or state.last_us is None:
            return True
        wide = self.wider()
        is_before = wide.first is not None and state.last_us < micros(wide.first)
        is_after = wide.end is not None and state.first_us >= micros(wide.end)
        return not is_before and not is_after


def micros(instant: datetime) -> int:
    """Return microseconds since 1970."""
    return (instant - EPOCH) // timedelta(microseconds=1)


def _moved(instant: datetime | None, by: timedelta) -> datetime | None:
    try:
        return instant and instant + by
    except OverflowError:
        return None


def visits_of(visits: DataFrame, job: Job, bounds: PeriodBounds) -> DataFrame:
    """Return the visits that a job needs for a period."""
    if bounds.is_open:
        return visits
    wide = bounds.wider()
    around = visits
    if wide.first is not None:
        ended_at = F.coalesce("left_at", "entered_at", F.lit(EPOCH))
        around = around.where(ended_at >= F.lit(wide.first))
    if wide.end is not None:
        around = around.where(F.col("entered_at") < F.lit(wide.end))
    if job.time:
        return around
    opening = (F.col("kind") == "message") & ~F.col("from_target") & (F.col("sequence_number") == 0)
    began = around.where(opening).groupBy("conversation_id").agg(F.min("entered_at").alias("first"))
    mine = began.where(bounds.hold(F.col("first")))
    return around.join(mine, on="conversation_id", how="left_semi").select(*visits.columns)


def result_of(result: DataFrame, job: Job, bounds: PeriodBounds) -> DataFrame:
    """Return the rows of a result that are in a period."""
    if bounds.is_open or not job.time:
        return result
    return result.where(bounds.hold(F.col(job.time)))


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


def run(request: RunRequest, report: Report = lambda _: None) -> dict[str, Any]:
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
            rows = _run_job(request, JOBS[name], visits, found, horizon)
            seconds = time.monotonic() - begun
            done[name] = {"rows": rows, "seconds": round(seconds, 1), "out": str(request.out / name)}
            report(f"{name}: {rows:,} rows, {seconds:.1f} s")
    found.update()
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


def result_of_job(request: RunRequest, job: Job, visits: DataFrame, end: datetime | None = None) -> DataFrame:
    """Return the result of a job for the period; `end` as in `Job.run`."""
    return result_of(job.run(visits_of(visits, job, request.bounds), end, request.options), job, request.bounds)


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
    found = inventory.take(request.flows, only=request.bounds.may_have)
    horizon_us = found.horizon_us()
    horizon = None if horizon_us is None else EPOCH + timedelta(microseconds=horizon_us)
    found.states = [state for state in found.states if request.bounds.has(state)]
    if not found.readable:
        where = ", ".join(map(str, request.flows))
        none = "no file *.parquet below it" + ("" if request.bounds.is_open else " that has visits of that time")
        none += "; an instance completes one after journal.file_age, and when it stops"
        raise NoJournalError(where, "; ".join(_unread(found)) if found.states else none)
    end = request.bounds.wider().end
    sampled = frozenset(name for name, shares in found.samples.items() if min(shares) < 1)
    instants = [at for state in found.readable for at in (state.first_us, state.last_us) if at is not None]
    for limit, nearer in ((request.bounds.first, max), (request.bounds.end, min)):
        instants = instants if limit is None else [nearer(at, micros(limit)) for at in instants]
    window = request.options.window_seconds or fitting_window((max(instants) - min(instants)) / 1e6 if instants else 0)
    return (
        replace(request, options=replace(request.options, sampled=sampled, window_seconds=window)),
        found,
        horizon if horizon is None or end is None else min(horizon, end),
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
    request: RunRequest, job: Job, visits: DataFrame, found: inventory.Inventory, horizon: datetime | None
) -> int:
    """Run a job, and return the number of rows written."""

    def report() -> dict[str, Any]:
        found.update()
        return {
            "job": job.name,
            "flows": [str(one) for one in request.flows],
            **request.bounds.to_json(),
            "horizon": None if horizon is None else horizon.isoformat(),
            "options": request.options.to_json(),
            "files": found.summary(),
        }

    return result.write(result_of_job(request, job, visits, horizon), request.out / job.name, report)
