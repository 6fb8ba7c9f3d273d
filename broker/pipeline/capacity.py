"""
How much each gateway held at once, window by window, and how large its pool should be.

An exact sweep over enter and leave, in two levels. Each window is swept by itself, beginning from nothing. The amount
that the windows before it left over is a sum over few rows, one per window. It moves all levels of the window by the
same amount: its peak, and its percentiles. So windows are swept side by side. A frame that waits for days costs
no more than one that waits for a moment. No sort is larger than one window of one instance, which Spark can spill.

At one instant, frames that leave count before frames that enter. A frame that left in the instant in which it arrived
was never held: it finds the others, and adds nothing.
"""

from __future__ import annotations

from collections.abc import Collection

import pyspark.sql.functions as F  # noqa: N812 - the conventional name
from pyspark.sql import Column, DataFrame, Window

from broker.errors import PipelineError
from broker.flow import VisitOutcome
from broker.forwarding.pool import HELD_OVERHEAD
from broker.pipeline.results import CAPACITY, as_result
from broker.pipeline.visits import WINDOW_SECONDS, begin_us, length_us

# A fourth more than what was needed: the pool pauses those who feed it while there is still room for what they may
# bring at once (`is_tight` in `broker.forwarding.pool`), so one of just the peak would have paused them.
MARGIN = 1.25
ROUNDING = 1 << 20  # the smallest pool there is, and a figure that people read
_AT_ENTRY = "percentile_disc(0.99) WITHIN GROUP (ORDER BY CASE WHEN is_entry THEN {} END)"


def capacity(
    visits: DataFrame,
    *,
    window_seconds: int = WINDOW_SECONDS,
    pool_bytes: int | None = None,
    sampled: Collection[str] = (),
) -> DataFrame:
    """
    One row per instance and window in which something passed or was held.

    Args:
        visits: One row per visit, as in VISIT; all that cover a window of which the result is wanted.
        window_seconds: Length of the windows, which are counted from the epoch.
        pool_bytes: The size of the pool (`message_forward_size`); None: the headroom is not computed.
        sampled: Instances that followed only some of their dialogs. How much all of their dialogs held is not known, so
            nothing is recommended to these, and there is no headroom.

    Returns:
        Rows as in CAPACITY.

    Raises:
        PipelineError: the length of the windows is less than a second, or the size of the pool less than a byte.
    """
    if pool_bytes is not None and pool_bytes < 1:
        raise PipelineError(f"a pool of {pool_bytes} bytes", "give the size of the pool in bytes, 1 or more")
    length = length_us(window_seconds)
    return (
        visits.transform(_steps, length)
        .transform(_swept)
        .transform(_carried_over)
        .transform(_without_gaps, length)
        .transform(_told, window_seconds, pool_bytes, sorted(sampled))
    )


def _steps(visits: DataFrame, length: int) -> DataFrame:
    """
    Return one row per enter and leave.

    The columns are `window`, in which it counts; `at_us`; `frames`, which is 1, -1, or 0 for one that was not held;
    `bytes`, likewise; and `is_entry`. A frame that leaves as a window begins is not in it.
    """
    came, went = F.col("came_us"), F.col("went_us")
    is_held = went > came
    size = F.coalesce(F.col("bytes"), F.lit(0)).cast("long")
    enter = F.struct(
        begin_us(came, length).alias("window"),
        came.alias("at_us"),
        F.when(is_held, F.lit(1)).otherwise(F.lit(0)).alias("frames"),
        F.when(is_held, size).otherwise(F.lit(0).cast("long")).alias("bytes"),
        F.lit(col=True).alias("is_entry"),
    )
    leave = F.struct(
        begin_us(went - 1, length).alias("window"),
        went.alias("at_us"),
        F.lit(-1).alias("frames"),
        (-size).alias("bytes"),
        F.lit(col=False).alias("is_entry"),
    )
    has_instant = F.col("entered_at").isNotNull() | F.col("left_at").isNotNull()
    passes_pool = F.col("outcome").isin(VisitOutcome.FORWARDED.value, VisitOutcome.DROPPED.value)
    passed = visits.where(passes_pool & has_instant).select(
        "instance",
        F.unix_micros(F.coalesce("entered_at", "left_at")).alias("came_us"),
        F.unix_micros("left_at").alias("went_us"),
        "bytes",
    )
    steps = F.when(is_held, F.array(enter, leave)).otherwise(F.array(enter))
    return passed.select("instance", F.inline(steps))


def _swept(steps: DataFrame) -> DataFrame:
    """
    Return one row per instance and window, swept from nothing.

    The columns have prefixes: `net_` for the amount left over, `peak_` for the most, below 0 when it only became less,
    and `p99_` for the level that entries found. Each is of `frames`, of `bytes`, and of `charge`, which is the amount
    that the pool charges for them.
    """
    order = Window.partitionBy("window", "instance").orderBy("at_us", "frames", "bytes")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    running = steps.select(
        *("instance", "window", "is_entry"),
        F.col("frames").alias("more_frames"),
        F.col("bytes").alias("more_bytes"),
        F.sum("frames").over(so_far).alias("frames"),
        F.sum("bytes").over(so_far).alias("bytes"),
    )
    return running.groupBy("window", "instance").agg(
        F.sum("more_frames").alias("net_frames"),
        F.sum("more_bytes").alias("net_bytes"),
        F.max("frames").alias("peak_frames"),
        F.max("bytes").alias("peak_bytes"),
        F.max(F.col("bytes") + HELD_OVERHEAD * F.col("frames")).alias("peak_charge"),
        *(F.expr(_AT_ENTRY.format(name)).cast("long").alias(f"p99_{name}") for name in ("frames", "bytes")),
    )


def _carried_over(swept: DataFrame) -> DataFrame:
    """All levels moved by what earlier windows left over (`before_`); with `next_window` in which anything happened."""
    in_order = Window.partitionBy("instance").orderBy("window")
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)

    def left_over(name: str) -> Column:
        return F.coalesce(F.sum(f"net_{name}").over(earlier), F.lit(0)).alias(f"before_{name}")

    levels = swept.select("*", left_over("frames"), left_over("bytes"), F.lead("window").over(in_order).alias("next"))
    return levels.select(
        *("instance", "window", "next", "p99_frames", "p99_bytes", "before_frames", "before_bytes"),
        *("peak_frames", "peak_bytes", "peak_charge"),
        (F.col("before_frames") + F.col("net_frames")).alias("after_frames"),
        (F.col("before_bytes") + F.col("net_bytes")).alias("after_bytes"),
    )


def _without_gaps(levels: DataFrame, length: int) -> DataFrame:
    """With the windows in between in which nothing entered or left while frames were held."""
    is_held_on = (F.col("after_frames") > 0) & F.col("next").isNotNull()
    until = F.when(is_held_on, F.col("next") - length).otherwise(F.col("window"))
    windows = F.sequence("window", until, F.lit(length))
    rows = levels.select("*", F.posexplode(windows).alias("place", "begins"))
    is_own = F.col("place") == 0

    def peak(name: str) -> Column:
        before, after = _levels(name)
        own = F.greatest(F.lit(0), F.col(f"peak_{name}")) + before
        return F.when(is_own, own).otherwise(after).alias(f"peak_{name}")

    def found(name: str) -> Column:
        return F.when(is_own, F.col(f"p99_{name}") + _levels(name)[0]).alias(f"p99_{name}")

    peaks = (peak("frames"), peak("bytes"), peak("charge"))
    return rows.select("instance", "begins", *peaks, found("frames"), found("bytes"))


def _levels(name: str) -> tuple[Column, Column]:
    """Return the amounts held as a window began, and as it ended."""
    if name != "charge":
        return F.col(f"before_{name}"), F.col(f"after_{name}")
    before, after = (F.col(f"{when}_bytes") + HELD_OVERHEAD * F.col(f"{when}_frames") for when in ("before", "after"))
    return before, after


def _told(peaks: DataFrame, window_seconds: int, pool_bytes: int | None, sampled: list[str]) -> DataFrame:
    is_whole = ~F.col("instance").isin(sampled)
    wanted = F.ceil(F.col("peak_charge") * MARGIN / ROUNDING) * ROUNDING
    left = F.lit(None) if pool_bytes is None else 1 - F.col("peak_charge") / pool_bytes
    columns = {
        "window_start": F.timestamp_micros("begins"),
        "window_seconds": F.lit(window_seconds),
        "recommended_bytes": F.when(is_whole, F.greatest(F.lit(ROUNDING), wanted)),
        "headroom": F.when(is_whole, F.greatest(left.cast("double"), F.when(left.isNotNull(), F.lit(0.0)))),
    }
    return as_result(peaks, CAPACITY, columns)
