"""
The jobs by name, and what computes them.

A job is a function from visits to the frame of its result. `Options` are those of all jobs; each takes its own. Nothing
here reads or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import Enum, auto
from typing import Any

from pyspark.sql import DataFrame

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
"""By name, in the order in which they run. The report is made of their results (`broker.pipeline.entry`)."""
