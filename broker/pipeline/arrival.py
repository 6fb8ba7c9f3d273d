"""
Incremental runs: some jobs over what arrived since the run before, or again and again until they are stopped.

Each job has its own query, state and checkpoint, so that one may be added later, or lag behind the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from broker.errors import PipelineError
from broker.pipeline import inventory, result
from broker.pipeline.entry import STATE, Request, Tell, check_apart, check_local, started
from broker.pipeline.incremental import Arriving, Incremental, Step, start
from broker.pipeline.jobs import JOBS
from broker.pipeline.progress import Progress

DELAY = timedelta(hours=1)
POLL_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    How files arrive.

    Shape: `delay` behind the newest instant seen, after which nothing more is expected; `every` seconds to look again,
    None to take what is there and end; `is_last` to settle all in the end, after which nothing can follow.
    """

    delay: timedelta = DELAY
    every: float | None = None
    is_last: bool = False


def run_incremental(request: Request, arrival: Arrival, tell: Tell = lambda _: None) -> dict[str, Any]:
    """
    Run some jobs over what arrived since the run before.

    Args:
        request: What; without bounds.
        arrival: How files arrive.
        tell: Who hears of each step, in lines.

    Returns:
        What there is to tell, as JSON values: by job, rows of this run, and the totals of all runs.

    Raises:
        NoJournalError: a directory is not there.
        PipelineError: a job failed, the runs before had other options or have finished, or a result is in the way.
        PipelineUnavailableError: Spark does not start.
        OSError: a result cannot be written.
    """
    check_local(request)
    check_apart(request)
    told = _Told(request, tell)
    with ExitStack() as stack:
        options = _options(request, arrival)
        stack.enter_context(result.held(request.out, (), is_shared=True))
        held = {name: stack.enter_context(Progress(request.out / STATE / name).held(options)) for name in request.jobs}
        for name, progress in held.items():
            _check(request, name, progress)
        spark = stack.enter_context(started(request))
        running = {
            name: Incremental(
                spark, Arriving(JOBS[name], request.options, request.out, arrival.delay, told.step), progress
            )
            for name, progress in held.items()
        }
        _take(request, arrival, spark, running, held)
        if arrival.is_last:
            for one in running.values():
                one.finish()
        return told.summary(held)


class _Told:
    """What a run tells. Changed by the threads of the queries, each its own job."""

    def __init__(self, request: Request, tell: Tell) -> None:
        self._request = request
        self._tell = tell
        self._rows: dict[str, dict[str, int]] = {name: dict.fromkeys(JOBS[name].results, 0) for name in request.jobs}

    def step(self, step: Step) -> None:
        """A step counts."""
        for name, count in step.rows.items():
            self._rows[step.job][name] += count
        first, *trouble = inventory.told(step.files)
        self._tell(
            f"{step.job} step {step.state.step}: {first}; {step.rows[step.job]:,} rows, "
            f"{step.state.carried_rows:,} visits carried along"
        )
        late = [
            f"{name}: {count:,} visits came later than --delay, left out" for name, count in sorted(step.late.items())
        ]
        for line in (*trouble, *late):
            self._tell(f"  {line}")
        report = {
            "job": step.job,
            "flows": [str(one) for one in self._request.flows],
            "options": step.state.options,
            "totals": step.state.totals,
            "shed": step.state.shed,
            "samples": step.state.samples,
            "left_out": step.state.left_out,
            "last": step.files,
        }
        for name in step.rows:
            result.write_json(self._request.out / name / result.REPORT, report)

    def summary(self, held: Mapping[str, Progress]) -> dict[str, Any]:
        """As JSON values."""
        return {
            "jobs": {
                name: {
                    "rows": self._rows[name],
                    "steps": progress.state.step,
                    "carried_visits": progress.state.carried_rows,
                    "totals": dict(progress.state.totals),
                    "shed_records": dict(progress.state.shed),
                    "newest": progress.state.newest and progress.state.newest.isoformat(),
                    "settled_before": progress.state.emitted_before and progress.state.emitted_before.isoformat(),
                    "is_finished": progress.state.is_finished,
                }
                for name, progress in held.items()
            }
        }


def _take(
    request: Request,
    arrival: Arrival,
    spark: SparkSession,
    running: Mapping[str, Incremental],
    held: Mapping[str, Progress],
) -> None:
    """What is there now, one job after the other; or all jobs at once, until they are stopped."""
    every = None if arrival.every is None else f"{max(1, int(arrival.every * 1000))} milliseconds"
    queries: list[tuple[Incremental, StreamingQuery]] = []
    try:
        for name, one in running.items():
            one.look_again()
            queries.append((one, start(one, spark, request.flows, held[name].checkpoint, every=every)))
            if every is None:
                _wait(queries[-1:])
        _wait(queries)
    finally:
        for _, query in queries:
            query.stop()


def _wait(queries: Sequence[tuple[Incremental, StreamingQuery]]) -> None:
    """
    Until they end: in short turns, in which a signal is heard.

    Raises:
        PySparkException: one failed; what a step of it raised is raised as it was.
    """
    while True:
        for one, query in queries:
            try:
                query.awaitTermination(POLL_SECONDS)
            except StreamingQueryException:
                if one.failure is not None:
                    raise one.failure from None
                raise
        if not any(query.isActive for _, query in queries):
            return


def _options(request: Request, arrival: Arrival) -> dict[str, Any]:
    """What all runs must have in common."""
    flows = [str(one.resolve()) for one in request.flows]
    return {"flows": flows, "delay_seconds": arrival.delay.total_seconds(), **request.options.told()}


def _check(request: Request, name: str, progress: Progress) -> None:
    if progress.state.is_finished:
        raise PipelineError(f"the runs of {name} into {request.out} have finished", "give another --out")
    for one in JOBS[name].results:
        if not progress.state.step and any((request.out / one).glob("*.parquet")):
            raise PipelineError(f"{request.out / one} holds a result of all files", "give another --out, or remove it")
    inventory.check(request.flows)
