"""
A part of a history: what happened from one instant until before another.

Whoever cuts the visits at an instant tears paths apart that cross it. So visits are read an hour further on both sides,
and the bounds are asked of what has a time of its own: the rows of a result, or a dialog by its first visit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from broker.pipeline.carry import ended_at
from broker.pipeline.jobs import Job, Period, Results

MARGIN = timedelta(hours=1)
_HOUR = re.compile(r"/date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/")


@dataclass(frozen=True, slots=True)
class Bounds:
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

    def wider(self) -> Bounds:
        """With the margin on both sides."""
        return Bounds(self.first and self.first - MARGIN, self.behind and self.behind + MARGIN)

    def may_have(self, path: Path) -> bool:
        """Whether a file may have visits of this time or of the margin: by its hour, when its path tells one."""
        found = _HOUR.search(str(path))
        if found is None or self.is_open:
            return True
        begun = datetime.strptime(f"{found[1]} {found[2]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
        wide = self.wider().wider()
        return (wide.first is None or begun >= wide.first) and (wide.behind is None or begun < wide.behind)


def visits_of(visits: DataFrame, job: Job, bounds: Bounds) -> DataFrame:
    """The visits that a job needs for a period."""
    if bounds.is_open:
        return visits
    if job.period is Period.VISIT:
        return visits.where(bounds.hold(F.col("entered_at")))
    wide = bounds.wider()
    around = visits
    if wide.first is not None:
        around = around.where(ended_at() >= F.lit(wide.first))
    if wide.behind is not None:
        around = around.where(F.col("entered_at") < F.lit(wide.behind))
    if job.period is Period.RESULT:
        return around
    keys = ["conversation_id", "from_target"]
    began = around.where(F.col("kind") == "message").groupBy(*keys).agg(F.min("entered_at").alias("first"))
    return around.join(began.where(bounds.hold(F.col("first"))), on=keys, how="left_semi").select(*visits.columns)


def results_of(results: Results, job: Job, bounds: Bounds) -> Results:
    """The rows of the results that belong to a period."""
    if bounds.is_open or job.period is not Period.RESULT:
        return results
    return {name: frame.where(bounds.hold(F.col(job.time))) for name, frame in results.items()}


def files_of(paths: Iterable[Path], bounds: Bounds) -> list[Path]:
    """The files that may have visits of a period, or of the hour around it."""
    return [path for path in paths if bounds.may_have(path)]
