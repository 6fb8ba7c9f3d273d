"""
What passed each instance by each route, window by window: how much, how long it stayed, what was dropped, what changed
its way.

Percentiles are exact and computed from the visits as they come: each task counts the values of its groups, and only
counts go through the shuffle. Drops by reason and failovers are few, so they are counted by themselves and added to the
visits as rows of their own; one aggregate makes a row of all three, without a join on columns that may be null.
"""

from __future__ import annotations

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column, DataFrame

from broker.flow import Outcome
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
        .unionByName(visits.transform(_drops, length), allowMissingColumns=True)
        .unionByName(visits.transform(_failovers, length), allowMissingColumns=True)
        .groupBy(*_GROUP)
        .agg(
            F.count("is_passed").alias("frames"),
            F.sum("bytes").alias("bytes"),
            F.count_if("is_dropped").alias("drops"),
            F.expr(_percentiles("residence_us")).alias("residence_us"),
            F.collect_list("drops_of_reason").alias("drops_of_reason"),
            F.coalesce(F.sum("failovers"), F.lit(0)).alias("failovers"),
        )
    )
    return counted.transform(_told, window_seconds)


def _group(length: int) -> tuple[Column, ...]:
    """The window in which a visit left, or entered when that is not known; null when neither is."""
    left_us = F.unix_micros(F.coalesce("left_at", "entered_at"))
    return (*(F.col(name) for name in _GROUP[:-1]), begin_us(left_us, length).alias("window"))


def _passed(visits: DataFrame, length: int) -> DataFrame:
    """One row per visit."""
    is_dropped = F.col("outcome") == Outcome.DROPPED.value
    return visits.where(is_hop() & _has_instant()).select(
        *_group(length),
        F.lit(col=True).alias("is_passed"),
        "bytes",
        residence_us().alias("residence_us"),
        is_dropped.alias("is_dropped"),
    )


def _drops(visits: DataFrame, length: int) -> DataFrame:
    """One row per group and reason."""
    reason = F.coalesce("reason", F.lit(_NO_REASON)).alias("reason")
    dropped = visits.where((F.col("outcome") == Outcome.DROPPED.value) & _has_instant())
    by_reason = dropped.select(*_group(length), reason).groupBy(*_GROUP, "reason").agg(F.count("*").alias("drops"))
    return by_reason.select(*_GROUP, F.struct("reason", "drops").alias("drops_of_reason"))


def _failovers(visits: DataFrame, length: int) -> DataFrame:
    """One row per group that has any."""
    moved = visits.where(_has_instant()).transform(failovers).select(*_group(length))
    return moved.groupBy(*_GROUP).agg(F.count("*").alias("failovers"))


def _has_instant() -> Column:
    return F.coalesce("left_at", "entered_at").isNotNull()


def _percentiles(name: str) -> str:
    ranks = ", ".join(f"{rank}D" for rank in _RANKS.values())
    return f"percentile_disc(array({ranks})) WITHIN GROUP (ORDER BY {name})"


def _told(counted: DataFrame, window_seconds: int) -> DataFrame:
    columns = {
        **{name: F.col(name) for name in ("instance", "route_table", "route", "frames", "bytes", "drops", "failovers")},
        "window_start": F.timestamp_micros("window"),
        "window_seconds": F.lit(window_seconds),
        **{name: F.get("residence_us", F.lit(place)) for place, name in enumerate(_RANKS)},
        "drops_by_reason": F.map_from_entries(F.sort_array("drops_of_reason")),
    }
    return counted.select(*(columns[field.name].cast(field.dataType).alias(field.name) for field in ROUTES))
