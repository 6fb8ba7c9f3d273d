"""One axis of time for all that goes over time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from broker.pipeline.report.digest import BUCKETS_MAX, Series, Spread, Timeline
from broker.pipeline.report.tables import course, holds, over_time, timeline, uses
from tests.spark.resulting import START, result, small


def route(minutes: int, **columns: Any) -> dict[str, Any]:
    row = {"instance": "g", "route": "r", "window_start": START + timedelta(minutes=minutes), "window_seconds": 300}
    counts = {"frames": 1, "bytes": 1, "drops": 0, "failovers": 0, "drops_by_reason": {}}
    return {**row, **counts, **columns}


def test_the_axis_holds_all_windows_of_all_results(spark: SparkSession) -> None:
    routes = result(spark, "routes", route(10))
    capacity = result(spark, "capacity", {"window_start": START, "window_seconds": 300})

    axis = timeline(routes, capacity)

    assert axis is not None
    assert (START, 300, 3) == (axis.first_at, axis.step_seconds, axis.buckets)


def test_a_long_history_has_no_more_buckets(spark: SparkSession) -> None:
    axis = timeline(result(spark, "routes", route(0), route(60 * 24 * 90)))

    assert axis is not None
    assert axis.buckets <= BUCKETS_MAX
    assert axis.step_seconds % 300 == 0


def test_no_windows_have_no_axis(spark: SparkSession) -> None:
    assert timeline(result(spark, "routes")) is None
    assert () == course(result(spark, "routes"), None).drops
    assert () == holds(result(spark, "capacity"), None).rows


def test_counts_are_put_where_their_window_begins(spark: SparkSession) -> None:
    rows = [
        route(0, frames=2),
        route(5, frames=3, drops_by_reason={"no route": 2}),
        route(5, frames=4, drops_by_reason={"no route": 1, "shut down": 9}, failovers=5),
    ]
    routes = result(spark, "routes", *rows)

    found = course(routes, timeline(routes))

    assert Series("frames", (2, 7)) == found.traffic
    assert (Series("shut down", (0, 9)), Series("no route", (0, 3))) == found.drops
    assert (Series("g", (0, 5)),) == found.failovers


def test_what_never_happened_has_no_line(spark: SparkSession) -> None:
    routes = result(spark, "routes", route(0, drops_by_reason={"no route": 0}))

    found = course(routes, timeline(routes))

    assert ((), ()) == (found.drops, found.failovers)


def test_over_time_sums_what_has_one_label(spark: SparkSession) -> None:
    counts = spark.createDataFrame(
        [(START, "a", 1), (START, "a", 2)], "window_start timestamp, label string, value long"
    )

    assert [("a", 0, 3)] == [tuple(row) for row in over_time(counts, Timeline(START, 300, 1)).collect()]


def test_a_route_tells_its_typical_window_and_its_worst(spark: SparkSession) -> None:
    ranks = ("residence_p50_us", "residence_p95_us", "residence_p99_us")
    rows = [
        route(5 * place, frames=frames, **dict.fromkeys(ranks, time))
        for place, (frames, time) in enumerate([(90, 10), (5, 900), (5, 1_000)])
    ]

    [row] = result(spark, "routes", *rows).transform(uses).collect()

    assert [10.0, 10.0, 10.0] == row["typical"]
    assert 1_000 == row["worst_p99"]
    assert 100 == row["frames"]


def test_a_route_whose_times_nobody_knows_has_none(spark: SparkSession) -> None:
    routes = result(spark, "routes", route(0))

    [use] = course(routes, timeline(routes)).routes.rows

    assert Spread() == use.typical
    assert use.worst_p99 is None


def test_holds_are_the_greatest_of_their_windows(spark: SparkSession) -> None:
    results = small(spark)

    [hold] = holds(results["capacity"], timeline(results["routes"], results["capacity"])).rows

    assert ("gate", (200, 201), 201, 1 << 20) == (hold.instance, hold.peaks, hold.peak_bytes, hold.recommended_bytes)
    assert 0.4 == hold.headroom


def test_a_window_in_which_nothing_was_held_is_unknown(spark: SparkSession) -> None:
    rows = [
        {"instance": "g", "window_start": START + timedelta(minutes=5 * place), "window_seconds": 300, "peak_bytes": 7}
        for place in (0, 2)
    ]
    capacity = result(spark, "capacity", *rows)

    [hold] = holds(capacity, timeline(capacity)).rows

    assert (7, None, 7) == hold.peaks
