"""
A job over files that arrive: a Structured Streaming query that takes what is new, and no record twice.

Spark's file source finds new files and remembers in its checkpoint which of them make up a batch; of each it gives
only path and size, and the rest is as in the batch form: the files are judged, read, and given to the same transform.
What is not settled yet is carried along (`carry`), and a step counts when its state does (`progress`). A batch that
Spark repeats after a crash either counted already and is passed over, or is done again from the same state.

Spark names a file once. One that was broken off then, because somebody was copying it, or that could not be opened, is
judged again in every later step and at the beginning of a run, until it can be read or is gone.

Results lie in `<out>/<result>/batch=K`, one directory a step. Late visits are left out, counted and told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery

from broker.journal.survey import Fitness
from broker.pipeline import result
from broker.pipeline.carry import ended_at
from broker.pipeline.inventory import Inventory, judge_all, read
from broker.pipeline.jobs import Job, Options
from broker.pipeline.period import EPOCH
from broker.pipeline.progress import Progress, State
from broker.pipeline.schema import VISIT

UNREAD_MAX = 10_000  # broken files that are judged again
_MENDABLE = (Fitness.DAMAGED, Fitness.UNREADABLE)
EVER = "36500d"  # the age up to which Spark's source takes a file; a week if nobody says so
_LISTED = "path string, modificationTime timestamp, length long, content binary"


@dataclass(frozen=True, slots=True)
class Arriving:
    """
    What is done to the files that arrive.

    Shape: results go below `out`; nothing more is expected `delay` behind the newest instant seen; `tell` hears of each
    step, when it counts.
    """

    job: Job
    options: Options
    out: Path
    delay: timedelta
    tell: Callable[[Step], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Step:
    """One step that counts. Shape: `late` visits by instance; `rows` written, by result; `state` after it."""

    job: str
    files: Mapping[str, Any]
    late: Mapping[str, int]
    rows: Mapping[str, int]
    state: State


class Incremental:
    """One job between two steps; used by one thread at a time, within `Progress.held`."""

    def __init__(self, spark: SparkSession, arriving: Arriving, progress: Progress) -> None:
        self.failure: BaseException | None = None  # which Spark tells as words only
        self._spark = spark
        self._arriving = arriving
        self._progress = progress
        self._carry = arriving.job.carry(arriving.options)

    def take(self, listed: DataFrame, batch: int) -> None:
        """A batch of Spark's: rows with the path of a file."""
        if batch <= self._progress.state.spark_batch:
            return  # it counted, and the process ended before Spark knew
        try:
            paths = (_local(row.path) for row in listed.select("path").collect())
            self._advance(*self._judged(paths), batch, is_last=False)
        except BaseException as error:
            self.failure = error
            raise

    def look_again(self) -> None:
        """Take files that could not be read when Spark named them, and can be now."""
        found, unread = self._judged(())
        if found.readable:
            self._advance(found, unread, self._progress.state.spark_batch, is_last=False)

    def finish(self) -> None:
        """Settle all that is carried along; nothing can follow."""
        state = self._progress.state
        if not state.is_finished:
            self._advance(Inventory(), state.unread, state.spark_batch, is_last=True)

    def _judged(self, paths: Iterable[Path]) -> tuple[Inventory, dict[str, str]]:
        """New files and those that were broken: what there is to tell of them, and which are broken now, and how."""
        before = self._progress.state.unread
        found = judge_all(sorted({*paths, *map(Path, before)}), known=self._progress.known)
        broken = ((str(state.path), str(state.fitness)) for state in found.states if state.fitness in _MENDABLE)
        unread = dict(islice(broken, UNREAD_MAX))
        found.states = [state for state in found.states if str(state.path) not in before or state.is_readable]
        return found, unread

    def _advance(self, found: Inventory, unread: Mapping[str, str], batch: int, *, is_last: bool) -> None:
        arriving, progress, before = self._arriving, self._progress, self._progress.state
        number = before.step + 1
        new = read(self._spark, (state.path for state in found.readable))
        newest = _newest(new, before.newest)
        settled_before = None if is_last else _watermark(newest, arriving.delay, before.emitted_before)
        split = self._carry.split(
            new, self._carried(), emitted_before=before.emitted_before, settled_before=settled_before
        )
        late = _by_instance(split.late) if before.emitted_before is not None else {}
        samples = before.added({}, found.summary()).samples
        made = arriving.job.run(split.settled, newest, arriving.options.of_samples(samples))
        rows = {
            name: result.write(split.of_this_run(frame), arriving.out / name / f"batch={number}")
            for name, frame in made.items()
        }
        carried_rows = result.write(split.carried, progress.carried(number))
        self._spark.catalog.clearCache()  # what a job persisted for its results
        found.look_again()
        files = found.summary()
        counts = {name: count for name, count in files.items() if isinstance(count, int) and name != "instances"}
        mended = Counter(before.unread[path] for state in found.readable if (path := str(state.path)) in before.unread)
        counts |= {name: counts[name] - count for name, count in mended.items()}  # counted when they broke
        counts["found"] -= mended.total()
        after = replace(
            before.added(counts | {"late": sum(late.values())}, files, {str(state.path) for state in found.readable}),
            step=number,
            spark_batch=batch,
            newest=newest,
            emitted_before=settled_before or before.emitted_before,
            carried_rows=carried_rows,
            unread=unread,
            is_finished=is_last,
        )
        progress.commit(after, found.readable)
        arriving.tell(Step(arriving.job.name, files, late, rows, progress.state))

    def _carried(self) -> DataFrame:
        """The visits that the step before carried along."""
        directory = self._progress.carried(self._progress.state.step)
        if not directory.exists():
            return self._spark.createDataFrame([], VISIT)
        return self._spark.read.schema(VISIT).parquet(str(directory))


def start(
    incremental: Incremental, spark: SparkSession, directories: Sequence[Path], checkpoint: Path, *, every: str | None
) -> StreamingQuery:
    """A query over the files below some directories: what is there now, or `every` so often until it is stopped."""
    listed = reduce(DataFrame.unionAll, [_source(spark, directory) for directory in directories])
    writer = listed.writeStream.foreachBatch(incremental.take).option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    return writer.start()


def _source(spark: SparkSession, directory: Path) -> DataFrame:
    reader = spark.readStream.format("binaryFile").schema(_LISTED).option("pathGlobFilter", "*.parquet")
    reader = reader.option("recursiveFileLookup", "true").option("maxFileAge", EVER)
    return reader.load(_literal(directory)).select("path")


def _literal(directory: Path) -> str:
    """A name as Spark's source of streams takes it, which looks for patterns in it and cannot be told not to."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", str(directory))


def _local(uri: str) -> Path:
    """The path of a file as Spark writes it: `file:/a` or `file:///a`, nothing else encoded."""
    return Path("/" + uri.removeprefix("file:").lstrip("/"))


def _newest(new: DataFrame, before: datetime | None) -> datetime | None:
    row = new.agg(F.max(F.unix_micros(ended_at())).alias("newest_us")).first()
    if row is None or row.newest_us is None:
        return before
    newest = EPOCH + timedelta(microseconds=row.newest_us)
    return newest if before is None else max(newest, before)


def _watermark(newest: datetime | None, delay: timedelta, before: datetime | None) -> datetime | None:
    """Never later than now: a clock that is ahead for years would make everything else late. It does not go back."""
    if newest is None:
        return EPOCH
    mark = min(newest, datetime.now(UTC)) - delay
    return mark if before is None else max(mark, before)


def _by_instance(late: DataFrame) -> dict[str, int]:
    return {str(row.instance): int(row["count"]) for row in late.groupBy("instance").count().collect()}
