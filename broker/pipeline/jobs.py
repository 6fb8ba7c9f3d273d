"""
The jobs by name: what computes them, what they write, and how they are carried through a history that arrives in parts.

A job is a function from visits to one frame for each of its results. `Options` are those of all jobs; each takes its
own. Nothing here reads or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from pyspark.sql import DataFrame

from broker.pipeline.capacity import capacity
from broker.pipeline.carry import ByUnit, ByWindow, Carry
from broker.pipeline.dialogs import dialogs
from broker.pipeline.paths import paths
from broker.pipeline.reconcile import reconcile
from broker.pipeline.routes import routes

STREAM = ("instance", "conversation_id", "from_target")  # in which a failover is looked for
Results = Mapping[str, DataFrame]
MAX_OPEN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Options:
    """
    What can be asked of the jobs.

    Shape: None where the job's own default holds; `max_open` how long a dialog may be open before the incremental form
    writes what is settled of it; `sampled` the instances that have followed only some of their dialogs, as the files
    say.
    """

    grace_seconds: int | None = None
    window_seconds: int = 300
    pool_bytes: int | None = None
    max_open: timedelta = MAX_OPEN
    sampled: frozenset[str] = frozenset()

    def told(self) -> dict[str, Any]:
        """As JSON values: runs with the same ones may follow each other."""
        plain = asdict(self) | {"max_open": self.max_open.total_seconds()}
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
    One job.

    Shape: `results` their names, each a directory; `run` gets visits and the end of the history, None for the newest
    instant in them; `time` the column of the result that Period.RESULT asks for.
    """

    name: str
    results: tuple[str, ...]
    run: Callable[[DataFrame, datetime | None, Options], Results]
    carry: Callable[[Options], Carry]
    period: Period
    time: str = ""


def _paths(visits: DataFrame, end: datetime | None, options: Options) -> Results:
    return {"paths": paths(visits, until=end, **options.grace())}


def _dialogs(visits: DataFrame, _end: datetime | None, _options: Options) -> Results:
    return {"dialogs": dialogs(visits)}


def _routes(visits: DataFrame, _end: datetime | None, options: Options) -> Results:
    return {"routes": routes(visits, window_seconds=options.window_seconds)}


def _capacity(visits: DataFrame, _end: datetime | None, options: Options) -> Results:
    found = capacity(
        visits, window_seconds=options.window_seconds, pool_bytes=options.pool_bytes, sampled=options.sampled
    )
    return {"capacity": found}


def _reconcile(visits: DataFrame, end: datetime | None, options: Options) -> Results:
    return {"reconcile": reconcile(visits, until=end, **options.grace())}


def _by_dialog(options: Options) -> Carry:
    return ByUnit(("conversation_id", "from_target"), order="sequence_number", max_open=options.max_open)


JOBS = {
    one.name: one
    for one in (
        Job("paths", ("paths",), _paths, lambda _: ByUnit(("message_id",)), Period.RESULT, "started_at"),
        Job("dialogs", ("dialogs",), _dialogs, _by_dialog, Period.DIALOG),
        Job(
            "routes",
            ("routes",),
            _routes,
            lambda options: ByWindow(options.window_seconds, streams=STREAM, memory=options.max_open),
            Period.RESULT,
            "window_start",
        ),
        Job(
            "capacity",
            ("capacity",),
            _capacity,
            lambda options: ByWindow(options.window_seconds, covers=True),
            Period.RESULT,
            "window_start",
        ),
        Job("reconcile", ("reconcile",), _reconcile, _by_dialog, Period.DIALOG),
    )
}
"""By name, in the order in which they run. The report is made of their results (`broker.pipeline.entry`)."""
