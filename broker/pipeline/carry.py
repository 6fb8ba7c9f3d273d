"""
What of a history is settled, and what is carried along until it is.

Journals arrive file by file. The incremental form of a job gives its transform only *units* that nothing will be added
to any more, and carries the visits of the others along to the next run. What a unit is depends on the job: a
transmission, a direction of a dialog, a window. All forms here are told the same:

- `settled_before`, the *watermark*: the newest instant that was seen, less a delay for files that come late and clocks
  that differ. None: all is settled (the last run).
- `emitted_before`, the watermark of the run before: what ended before it was given to the transform already, so a
  visit that comes now and is older is *late*. None: the first run.

The end of a visit is when it left; in foreign data, when it entered.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from broker.pipeline.visit_order import LEAVING


@dataclass(frozen=True, slots=True)
class Split:
    """
    A history, split.

    Shape: the frames have the schema VISIT: `settled` for the transform, `carried` for the next run, `late` left out.
    `windows` of the result that this run writes, from and before, None where there is no bound: those before were
    written, those behind will be.
    """

    settled: DataFrame
    carried: DataFrame
    late: DataFrame
    windows: tuple[datetime | None, datetime | None] = (None, None)

    def of_this_run(self, result: DataFrame) -> DataFrame:
        """The rows of a result that this run writes."""
        first, behind = self.windows
        if first is not None:
            result = result.where(F.col("window_start") >= F.lit(first))
        if behind is not None:
            result = result.where(F.col("window_start") < F.lit(behind))
        return result


class Carry(Protocol):
    """How the history of a job is split."""

    def split(
        self, new: DataFrame, carried: DataFrame, *, emitted_before: datetime | None, settled_before: datetime | None
    ) -> Split:
        """Split the visits that are new and those that were carried."""
        ...


def ended_at() -> Column:
    """When a visit ended, as far as known."""
    return F.coalesce("left_at", "entered_at", F.lit(datetime.fromtimestamp(0, UTC)))


@dataclass(frozen=True, slots=True)
class ByUnit:
    """
    Units are the visits with equal `keys`; one is settled when its newest visit ended before the watermark.

    A long one would be carried for ever, so with `max_open` one whose oldest visit is older than that by the watermark
    is settled in part: what lies before the first value of `order` of which something is newer than the watermark. The
    rest makes another row of the result later.
    """

    keys: tuple[str, ...]
    order: str | None = None
    max_open: timedelta | None = None

    def split(
        self, new: DataFrame, carried: DataFrame, *, emitted_before: datetime | None, settled_before: datetime | None
    ) -> Split:
        """See Carry."""
        late = new.limit(0)
        if emitted_before is not None:
            late, new = self._without_late(new, carried, emitted_before)
        history = new.unionByName(carried)
        if settled_before is None:
            return Split(history, history.limit(0), late)
        marked = self._marked(history, settled_before)
        settled = marked.where(~F.col("_open")).select(*history.columns)
        return Split(settled, marked.where("_open").select(*history.columns), late)

    def _without_late(
        self, new: DataFrame, carried: DataFrame, emitted_before: datetime
    ) -> tuple[DataFrame, DataFrame]:
        """What is late, and the rest: an old visit of a unit that still goes on is in time."""
        keys = list(self.keys)
        old, recent = (
            new.where(one) for one in (ended_at() < F.lit(emitted_before), ended_at() >= F.lit(emitted_before))
        )
        going_on = carried.unionByName(recent)
        if self.order is None:
            units = going_on.select(*keys).distinct().withColumn("_found", F.lit(True))
            is_late = F.col("_found").isNull()
        else:  # what lies before may have been settled in part
            units = going_on.groupBy(*keys).agg(F.min(self.order).alias("_found"))
            is_late = F.col("_found").isNull() | (F.col(self.order) < F.col("_found"))
        judged = old.join(units, on=keys, how="left").withColumn("_late", is_late)
        late, in_time = (judged.where(one).select(*new.columns) for one in (F.col("_late"), ~F.col("_late")))
        return late, recent.unionByName(in_time)

    def _marked(self, history: DataFrame, settled_before: datetime) -> DataFrame:
        """The history with `_open`: whether a visit is to be carried."""
        keys = list(self.keys)
        recent = history.where(ended_at() >= F.lit(settled_before))
        if self.order is None or self.max_open is None:
            units = recent.select(*keys).distinct().withColumn("_found", F.lit(True))
            is_open = F.col("_found").isNotNull()
        else:
            firsts = recent.groupBy(*keys).agg(F.min(self.order).alias("_from"))
            oldest = F.min("entered_at").alias("_since")
            since = history.join(firsts, on=keys, how="left_semi").groupBy(*keys).agg(oldest)
            units = firsts.join(since, on=keys, how="inner")
            is_long = F.col("_since") < F.lit(settled_before - self.max_open)
            is_before = F.col(self.order) < F.col("_from")
            is_open = F.col("_from").isNotNull() & ~(is_long & is_before)
        return history.join(units, on=keys, how="left").withColumn("_open", is_open)


@dataclass(frozen=True, slots=True)
class ByWindow:
    """
    Units are windows of `seconds`, from the epoch on; one is settled when it ended before the watermark.

    With `covers` a visit counts to every window between its beginning and its end, else to that of its end alone.
    Where a visit is compared with the one before it that left with equal `streams`, the newest of each stream is
    carried along, for so long as `memory`.
    """

    seconds: int
    covers: bool = False
    streams: tuple[str, ...] = ()
    memory: timedelta = timedelta(days=1)

    def split(
        self, new: DataFrame, carried: DataFrame, *, emitted_before: datetime | None, settled_before: datetime | None
    ) -> Split:
        """See Carry."""
        late, first = new.limit(0), None
        if emitted_before is not None:
            first = self.floor(emitted_before)
            late, new = new.where(ended_at() < F.lit(first)), new.where(ended_at() >= F.lit(first))
        history = new.unionByName(carried)
        if settled_before is None:
            return Split(history, history.limit(0), late, (first, None))
        boundary = self.floor(settled_before)
        begins = F.col("entered_at") if self.covers else ended_at()
        settled, rest = history.where(begins < F.lit(boundary)), history.where(ended_at() >= F.lit(boundary))
        if self.streams:
            rest = rest.unionByName(self._newest_before(history, boundary))
        return Split(settled, rest, late, (first, boundary))

    def _newest_before(self, history: DataFrame, boundary: datetime) -> DataFrame:
        """Of each stream the visit that left last in a window that is settled."""
        is_before = (ended_at() < F.lit(boundary)) & (ended_at() >= F.lit(boundary - self.memory))
        place = F.struct(ended_at(), "sequence_number", "fragment_number", "message_id")
        newest = F.max_by(F.struct(*history.columns), place).alias("visit")
        left = history.where(is_before & F.col("outcome").isin(*LEAVING))
        return left.groupBy(*self.streams).agg(newest).select("visit.*")

    def floor(self, instant: datetime) -> datetime:
        """The beginning of the window that an instant is in."""
        return datetime.fromtimestamp(instant.timestamp() // self.seconds * self.seconds, UTC)
