"""
What passed each instance by each route, window by window: how much, how long it stayed, what was dropped, what changed
its way.

One scan counts what passed, by group and reason of a drop, and lists how long it stayed: numbers of eight bytes, which
are sorted once, when all of a group are together, so percentiles are exact. Spark's own percentile keeps a map of the
values instead. Failovers are few, so they are counted by themselves and added as rows of their own; one aggregate makes
a row of all, without a join on columns that may be null.
"""

from __future__ import annotations

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column, DataFrame

from broker.flow import VisitOutcome
from broker.pipeline.failover import failovers
from broker.pipeline.schema import ROUTES
from broker.pipeline.visit_order import is_hop, residence_us
from broker.pipeline.window import WINDOW_SECONDS, begin_us, length_us

_RANKS = {"residence_p50_us": 0.5, "residence_p95_us": 0.95, "residence_p99_us": 0.99, "residence_p999_us": 0.999}
_GROUP = ("instance", "route_table", "route", "window")
_NO_REASON = "unknown"  # of a drop in foreign data that does not tell why: the key of a map is never null


def routes(visits: DataFrame, *, window_seconds: int = WINDOW_SECONDS) -> DataFrame:
    """
    One row per instance, route and window.

    Args:
        visits: One row per visit. A failover shows only to those who see the frame before it as well.
        window_seconds: Length of the windows, which are counted from the epoch.

    Shape: VISIT to ROUTES.

    Raises:
        PipelineError: The length of the windows is none.
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
        **{name: F.col(name) for name in ("instance", "route_table", "route", "frames", "bytes", "drops", "failovers")},
        "window_start": F.timestamp_micros("window"),
        "window_seconds": F.lit(window_seconds),
        **{name: _ranked(rank) for name, rank in _RANKS.items()},
        "drops_by_reason": F.map_from_entries(F.sort_array("drops_of_reason")),
    }
    return counted.select(*(columns[field.name].cast(field.dataType).alias(field.name) for field in ROUTES))
