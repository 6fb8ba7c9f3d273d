"""
Small tables out of `routes` and `capacity`: what goes over time, on one axis for all of it.

The axis has at most `BUCKETS_MAX` buckets of whole windows, so a history of months is as small as one of an hour. Of
percentiles of windows no percentile of the whole time can be made: a route tells those of its typical window, the
median weighted by frames, and the worst.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column, DataFrame

from broker.pipeline.report.digest import BUCKETS_MAX, LISTED_MAX, Hold, Listing, RouteUse, Series, Timeline
from broker.pipeline.report.row import plain, spread, utc

SERIES_MAX = 24  # lines that are drawn of one kind
_RANKS = ("residence_p50_us", "residence_p95_us", "residence_p99_us")


class Course(NamedTuple):
    """What `routes` gives to the report."""

    traffic: Series
    drops: tuple[Series, ...]
    failovers: tuple[Series, ...]
    routes: Listing[RouteUse]


def timeline(*results: DataFrame) -> Timeline | None:
    """The axis that all windows of some results fit on; None when they have none."""
    found = []
    for result in results:
        [row] = result.agg(
            F.min("window_start").alias("first"),
            F.max(F.unix_timestamp("window_start") + F.col("window_seconds")).alias("end"),
            F.unix_timestamp(F.min("window_start")).alias("begin"),
            F.max("window_seconds").alias("window"),
        ).collect()
        if row["first"] is not None:
            found.append(row)
    if not found:
        return None
    first = min(found, key=lambda row: row["begin"])
    seconds = max(row["end"] for row in found) - first["begin"]
    window = max(row["window"] for row in found)
    step = window * max(1, -(-seconds // (window * BUCKETS_MAX)))
    return Timeline(utc(first["first"]), step, -(-seconds // step))


def course(routes: DataFrame, axis: Timeline | None) -> Course:
    """Gather what `routes` tells; `axis` as `timeline` found it."""
    if axis is None:
        return Course(Series("frames", ()), (), (), Listing())
    drops = routes.select("window_start", F.explode("drops_by_reason").alias("label", "value"))
    moves = routes.select("window_start", F.col("instance").alias("label"), F.col("failovers").alias("value"))
    traffic = routes.select("window_start", F.lit("frames").alias("label"), F.col("frames").alias("value"))
    rows = routes.transform(uses).limit(LISTED_MAX + 1).collect()
    return Course(
        traffic=next(iter(_series(traffic, axis)), Series("frames", (0,) * axis.buckets)),
        drops=_series(drops, axis),
        failovers=_series(moves, axis),
        routes=Listing(tuple(_use(row) for row in rows[:LISTED_MAX]), len(rows)),
    )


def uses(routes: DataFrame) -> DataFrame:
    """One row per instance, table and route: sums over all windows, the typical window and the worst one."""
    typical = [F.percentile(rank, 0.5, F.col("weight")).alias(rank) for rank in _RANKS]
    return (
        routes.withColumn("weight", F.greatest("frames", F.lit(0)))
        .groupBy("instance", "route_table", "route")
        .agg(
            *(F.sum(one).alias(one) for one in ("frames", "bytes", "drops", "failovers")),
            *typical,
            F.max("residence_p99_us").alias("worst_p99"),
            F.max_by("window_start", "residence_p99_us").alias("worst_at"),
        )
        .orderBy(F.desc("frames"), "instance", "route_table", "route")
        .select(
            *("instance", "route_table", "route", "frames", "bytes", "drops", "failovers"),
            F.array(*_RANKS).alias("typical"),
            *("worst_p99", "worst_at"),
        )
    )


def holds(capacity: DataFrame, axis: Timeline | None) -> Listing[Hold]:
    """What instances held, those with the greatest peaks first; a line for `SERIES_MAX` of them."""
    if axis is None:
        return Listing()
    rows = capacity.transform(peaks).limit(LISTED_MAX + 1).collect()
    drawn = [row["instance"] for row in rows[:SERIES_MAX]]
    lines: dict[str, list[int | None]] = {instance: [None] * axis.buckets for instance in drawn}
    for row in (
        capacity.where(F.col("instance").isin(drawn))
        .groupBy("instance", _bucket(axis).alias("bucket"))
        .agg(F.max("peak_bytes").alias("peak"))
        .collect()
    ):
        lines[row["instance"]][row["bucket"]] = row["peak"]
    found = (Hold(**plain(row), peaks=tuple(lines.get(row["instance"], ()))) for row in rows[:LISTED_MAX])
    return Listing(tuple(found), len(rows))


def peaks(capacity: DataFrame) -> DataFrame:
    """One row per instance: the greatest of all its windows."""
    return (
        capacity.groupBy("instance")
        .agg(
            F.max("peak_bytes").alias("peak_bytes"),
            F.max("peak_frames").alias("peak_frames"),
            F.max("p99_bytes").alias("p99_bytes"),
            F.max_by("window_start", "peak_bytes").alias("peak_at"),
            F.max("recommended_bytes").alias("recommended_bytes"),
            F.min("headroom").alias("headroom"),
        )
        .orderBy(F.desc("peak_bytes"), "instance")
        .select(
            *("instance", "peak_bytes", "peak_frames", "p99_bytes"),
            *("peak_at", "recommended_bytes", "headroom"),
        )
    )


def over_time(counts: DataFrame, axis: Timeline) -> DataFrame:
    """One row per label and bucket that has any; `counts` has `window_start`, `label`, `value`."""
    return (
        counts.where(F.col("value") > 0)
        .groupBy("label", _bucket(axis).alias("bucket"))
        .agg(F.sum("value").alias("value"))
        .orderBy("label", "bucket")
        .select("label", "bucket", "value")
    )


def _series(counts: DataFrame, axis: Timeline) -> tuple[Series, ...]:
    """The labels with most, the most first; bounded, because labels are reasons and instances."""
    most = counts.groupBy("label").agg(F.sum("value").alias("value")).where(F.col("value") > 0)
    labels = [row["label"] for row in most.orderBy(F.desc("value"), "label").limit(SERIES_MAX).collect()]
    lines = {label: [0] * axis.buckets for label in labels}
    if labels:
        for row in counts.where(F.col("label").isin(labels)).transform(over_time, axis).collect():
            lines[row["label"]][row["bucket"]] = row["value"]
    return tuple(Series(label, tuple(points)) for label, points in lines.items())


def _bucket(axis: Timeline) -> Column:
    since = F.unix_timestamp("window_start") - F.lit(round(axis.first_at.timestamp()))
    return F.floor(since / axis.step_seconds).cast("int")


def _use(row: Any) -> RouteUse:
    return RouteUse(**plain(row) | {"typical": spread(row["typical"])})
