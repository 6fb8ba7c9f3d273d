"""
The jobs by name, and what computes them.

A job is a function from visits to the frame of its result. `Options` are those of all jobs; each takes its own. Nothing
here reads or writes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

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
    What can be asked of the jobs.

    Shape: None where the job's own default holds; `sampled` the instances that have followed only some of their
    dialogs, as the files say.
    """

    grace_seconds: int | None = None
    window_seconds: int = 300
    pool_bytes: int | None = None
    sampled: frozenset[str] = frozenset()

    def told(self) -> dict[str, Any]:
        """As JSON values."""
        plain = asdict(self)
        del plain["sampled"]
        return plain

    def of_samples(self, samples: Mapping[str, Collection[float]]) -> Options:
        """The same for files whose instances have followed these shares of their dialogs."""
        return replace(self, sampled=frozenset(name for name, shares in samples.items() if min(shares) < 1))

    def grace(self) -> dict[str, int]:
        """The keyword for a transform."""
        return {} if self.grace_seconds is None else {"grace_seconds": self.grace_seconds}


class Period(Enum):
    """To what the bounds of a period apply."""

    RESULT = auto()  # rows of the result, by a column of theirs
    DIALOG = auto()  # dialogs, by the first message of the initiator


@dataclass(frozen=True, slots=True)
class Job:
    """
    One job, whose result has its name.

    Shape: `run` gets visits and the end of the history, None for the newest instant in them; `time` the column of the
    result that Period.RESULT asks for.
    """

    name: str
    run: Callable[[DataFrame, datetime | None, Options], DataFrame]
    period: Period
    time: str = ""


def _paths(visits: DataFrame, end: datetime | None, options: Options) -> DataFrame:
    return paths(visits, until=end, **options.grace())


def _dialogs(visits: DataFrame, _end: datetime | None, _options: Options) -> DataFrame:
    return dialogs(visits)


def _routes(visits: DataFrame, _end: datetime | None, options: Options) -> DataFrame:
    return routes(visits, window_seconds=options.window_seconds)


def _capacity(visits: DataFrame, _end: datetime | None, options: Options) -> DataFrame:
    return capacity(
        visits, window_seconds=options.window_seconds, pool_bytes=options.pool_bytes, sampled=options.sampled
    )


def _reconcile(visits: DataFrame, end: datetime | None, options: Options) -> DataFrame:
    return reconcile(visits, until=end, **options.grace())


JOBS = {
    one.name: one
    for one in (
        Job("paths", _paths, Period.RESULT, "started_at"),
        Job("dialogs", _dialogs, Period.DIALOG),
        Job("routes", _routes, Period.RESULT, "window_start"),
        Job("capacity", _capacity, Period.RESULT, "window_start"),
        Job("reconcile", _reconcile, Period.DIALOG),
    )
}
"""By name, in the order in which they run. The report is made of their results (`broker.pipeline.jobs`)."""


# --- period ---
# A part of a history: what happened from one instant until before another.
#
# Whoever cuts the visits at an instant tears paths apart that cross it. So visits are read an hour further on both
# sides,
# and the bounds are asked of what has a time of its own: the rows of a result, or a dialog by the first message of
# its
# initiator, which has the sequence number 0. Of a dialog whose first message is not in sight nobody can know when it
# began; it is taken for an older one and left out.


MARGIN = timedelta(hours=1)
FILE_AGE_MAX = timedelta(days=1)  # of a file that is written, the most that can be set
EPOCH = datetime.fromtimestamp(0, UTC)
_HOUR = re.compile(r"/date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/")


@dataclass(frozen=True, slots=True)
class PeriodBounds:
    """Shape: UTC instants, None where there is no bound; `first` belongs to it, `behind` does not."""

    first: datetime | None = None
    behind: datetime | None = None

    def hold(self, when: Column) -> Column:
        """Whether an instant lies between them; one that is not known does when there are none."""
        holds = F.lit(True)
        if self.first is not None:
            holds &= when >= F.lit(self.first)
        if self.behind is not None:
            holds &= when < F.lit(self.behind)
        return F.coalesce(holds, F.lit(False))

    @property
    def is_open(self) -> bool:
        """Whether there are none."""
        return self.first is None and self.behind is None

    def told(self) -> dict[str, str | None]:
        """As JSON values."""
        pairs = {"from": self.first, "to": self.behind}
        return {name: None if one is None else one.isoformat() for name, one in pairs.items()}

    def wider(self, margin: timedelta = MARGIN) -> PeriodBounds:
        """With the margin on both sides; where that lies outside the calendar, without a bound."""
        return PeriodBounds(_moved(self.first, -margin), _moved(self.behind, margin))

    def may_have(self, path: Path) -> bool:
        """
        Whether a file may have visits of this time or of the margin, by its path, when that tells an hour.

        The hour is that in which the file was begun. It may have grown for a day, and a frame may have been kept as
        long before it left and its visit was written.
        """
        found = _HOUR.search(str(path))
        if found is None or self.is_open:
            return True
        begun = datetime.strptime(f"{found[1]} {found[2]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
        wide = self.wider().wider(MARGIN + FILE_AGE_MAX)
        return (wide.first is None or begun >= wide.first) and (wide.behind is None or begun < wide.behind)

    def has(self, state: FileState) -> bool:
        """Whether a file may have visits of this time or of the margin, by what its footer tells."""
        if self.is_open or state.first_us is None or state.last_us is None:
            return True
        wide = self.wider()
        is_before = wide.first is not None and state.last_us < micros(wide.first)
        is_behind = wide.behind is not None and state.first_us >= micros(wide.behind)
        return not is_before and not is_behind


def micros(instant: datetime) -> int:
    """Microseconds since 1970."""
    return (instant - EPOCH) // timedelta(microseconds=1)


def _moved(instant: datetime | None, by: timedelta) -> datetime | None:
    try:
        return instant and instant + by
    except OverflowError:
        return None


def visits_of(visits: DataFrame, job: Job, bounds: PeriodBounds) -> DataFrame:
    """The visits that a job needs for a period."""
    if bounds.is_open:
        return visits
    wide = bounds.wider()
    around = visits
    if wide.first is not None:
        ended_at = F.coalesce("left_at", "entered_at", F.lit(EPOCH))
        around = around.where(ended_at >= F.lit(wide.first))
    if wide.behind is not None:
        around = around.where(F.col("entered_at") < F.lit(wide.behind))
    if job.period is Period.RESULT:
        return around
    opening = (F.col("kind") == "message") & ~F.col("from_target") & (F.col("sequence_number") == 0)
    began = around.where(opening).groupBy("conversation_id").agg(F.min("entered_at").alias("first"))
    mine = began.where(bounds.hold(F.col("first")))
    return around.join(mine, on="conversation_id", how="left_semi").select(*visits.columns)


def result_of(result: DataFrame, job: Job, bounds: PeriodBounds) -> DataFrame:
    """The rows of a result that belong to a period."""
    if bounds.is_open or job.period is not Period.RESULT:
        return result
    return result.where(bounds.hold(F.col(job.time)))


def files_of(paths: Iterable[Path], bounds: PeriodBounds) -> list[Path]:
    """The files that may have visits of a period, or of the hour around it, as far as their paths tell."""
    return [path for path in paths if bounds.may_have(path)]


# --- entry ---
# Runs of the pipeline: files in, results out, and everything told that a figure cannot tell.
#
# Here is the only place that reads and writes; transforms, schemas and what a job is are elsewhere. One session
# serves
# all jobs of a run. Paths are those of a file system that every machine of the cluster sees under the same names.


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
