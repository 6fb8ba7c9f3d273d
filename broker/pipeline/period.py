"""
A part of a history: what happened from one instant until before another.

Whoever cuts the visits at an instant tears paths apart that cross it. So visits are read an hour further on both sides,
and the bounds are asked of what has a time of its own: the rows of a result, or a dialog by the first message of its
initiator, which has the sequence number 0. Of a dialog whose first message is not in sight nobody can know when it
began; it is taken for an older one and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from broker.journal.survey import FileState
from broker.pipeline.jobs import Job, Period

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
