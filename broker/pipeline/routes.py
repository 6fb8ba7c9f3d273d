"""
Traffic of each instance by route, window by window: how much, how long it stayed, what was dropped, what changed its
route.

One scan counts what passed, by group and reason of a drop, and lists how long it stayed: numbers of eight bytes, which
are sorted once, when all of a group are together, so percentiles are exact. Spark's own percentile keeps a map of the
values instead. Failovers are few, so they are counted by themselves and added as separate rows; one aggregate makes a
row of all, without a join on columns that may be null.
"""

from __future__ import annotations

from functools import reduce

import pyspark.sql.functions as F  # noqa: N812 - the conventional name
from pyspark.sql import Column, DataFrame, Window

from broker.flow import VisitOutcome
from broker.pipeline.results import ROUTES, as_result
from broker.pipeline.visits import LEAVING, WINDOW_SECONDS, begin_us, is_hop, length_us, residence_us

# --- failover ---
# Frames that left an instance by another way than the frame before them of the same dialog and direction.
#
# To see that takes the frames in order, which is dear; but a dialog whose frames all left by one way has no such
# frame, and nearly all do. So the first scan only asks which dialogs have more than one way, which needs no order. The
# second puts the frames of those in order: their numbers, hashes of 64 bits, are sent to every task, so no join brings
# all frames together only to leave out nearly all of them.


_STREAM = ("instance", "conversation_id", "from_target")


def failovers(visits: DataFrame) -> DataFrame:
    """
    Return the visits with which a frame left by another way (route table, route, next hop) than the one before it.

    The visits may have any columns, among them those of a visit that are used here. The result has the same columns and
    some of the rows. Of frames that left in one instant, that of the lesser sequence and fragment number was before;
    the first one known had none.
    """
    is_known = reduce(Column.__and__, (F.col(name).isNotNull() for name in _STREAM))
    leaving = visits.where(F.col("outcome").isin(*LEAVING) & is_known)
    place = ("sequence_number", "fragment_number", "message_id")
    in_order = Window.partitionBy(*_STREAM).orderBy(F.coalesce("left_at", "entered_at"), *place)
    streams = leaving.select("*", way().alias("way"), F.xxhash64(*_STREAM).alias("stream"))
    ways = streams.groupBy("stream").agg(F.min("way").alias("least"), F.max("way").alias("most"))
    return (
        streams.join(F.broadcast(ways.where("least <> most")), on="stream", how="left_semi")
        .select("*", F.lag("way").over(in_order).alias("way_before"))
        .where("way <> way_before")
        .select(*visits.columns)
    )


def way() -> Column:
    """
    Long that is equal for equal ways: 64 bits of a hash, for numbers are what an aggregate keeps without a sort.

    Null counts as a name of no letters, which nothing has; without that the hash would pass it over.
    """
    return F.xxhash64(*(F.coalesce(name, F.lit("")) for name in ("route_table", "route", "adjacent_out")))


_RANKS = {"residence_p50_us": 0.5, "residence_p95_us": 0.95, "residence_p99_us": 0.99, "residence_p999_us": 0.999}
_GROUP = ("instance", "route_table", "route", "window")
_NO_REASON = "unknown"  # of a drop in foreign data without a reason: the key of a map is never null


def routes(visits: DataFrame, *, window_seconds: int = WINDOW_SECONDS) -> DataFrame:
    """
    Return one row per instance, route and window, as in ROUTES.

    Args:
        visits: One row per visit, as in VISIT. A failover is found only if the frame before it is included as well.
        window_seconds: Length of the windows, which are counted from the epoch.

    Raises:
        PipelineError: the length of the windows is less than a second.
    """
    length = length_us(window_seconds)
    counted = (
        visits.transform(_passed, length)
        .unionByName(visits.transform(_failovers, length), allowMissingColumns=True)
        .groupBy(*_GROUP)
        .agg(
            F.sum("frames").alias("frames"),
            F.sum("bytes").alias("bytes"),
            F.coalesce(F.sum(F.when(_is_drop(), F.col("frames"))), F.lit(0)).alias("drops"),
            F.sort_array(F.flatten(F.collect_list("residences_us"))).alias("residences_us"),
            F.collect_list(F.when(_is_drop(), F.struct("reason", "frames"))).alias("drops_of_reason"),
            F.coalesce(F.sum("failovers"), F.lit(0)).alias("failovers"),
        )
    )
    return counted.transform(_told, window_seconds)


def _group(length: int) -> tuple[Column, ...]:
    """The window in which a visit left, or entered when that is not known; null when neither is."""
    left_us = F.unix_micros(F.coalesce("left_at", "entered_at"))
    return (*(F.col(name) for name in _GROUP[:-1]), begin_us(left_us, length).alias("window"))


def _passed(visits: DataFrame, length: int) -> DataFrame:
    """One row per group and reason, which is null for what was not dropped; `residences_us` of its visits."""
    is_dropped = F.col("outcome") == VisitOutcome.DROPPED.value
    reason = F.when(is_dropped, F.coalesce("reason", F.lit(_NO_REASON))).alias("reason")
    passed = visits.where(is_hop() & _has_instant()).select(
        *_group(length), reason, "bytes", residence_us().alias("residence_us")
    )
    return passed.groupBy(*_GROUP, "reason").agg(
        F.count("*").alias("frames"),
        F.sum("bytes").alias("bytes"),
        F.collect_list("residence_us").alias("residences_us"),
    )


def _failovers(visits: DataFrame, length: int) -> DataFrame:
    """One row per group that has any."""
    moved = visits.where(_has_instant()).transform(failovers).select(*_group(length))
    return moved.groupBy(*_GROUP).agg(F.count("*").alias("failovers"))


def _has_instant() -> Column:
    return F.coalesce("left_at", "entered_at").isNotNull()


def _is_drop() -> Column:
    return F.col("reason").isNotNull()


def _ranked(rank: float) -> Column:
    """The value of rank ceil(rank * n) of those in order; null when there is none."""
    place = F.ceil(F.size("residences_us") * F.lit(rank)) - 1
    return F.get("residences_us", place.cast("int"))


def _told(counted: DataFrame, window_seconds: int) -> DataFrame:
    columns = {
        "window_start": F.timestamp_micros("window"),
        "window_seconds": F.lit(window_seconds),
        **{name: _ranked(rank) for name, rank in _RANKS.items()},
        "drops_by_reason": F.map_from_entries(F.sort_array("drops_of_reason")),
    }
    return as_result(counted, ROUTES, columns)
