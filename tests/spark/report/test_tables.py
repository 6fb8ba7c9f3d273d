"""The ledger's total, what does not add up, who talks most."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.pipeline.report.digest import BUCKETS_MAX, LISTED_MAX, Extent, LedgerTotal, Loss, Series, Spread, Timeline
from broker.pipeline.report.tables import (
    TALKERS_MAX,
    balance,
    course,
    holds,
    imbalances,
    journeys,
    links,
    loops,
    losses,
    over_time,
    plain,
    spread,
    stations,
    talkers,
    timeline,
    uses,
    utc,
    ways,
)
from tests.spark.resulting import START, result, small

COUNTS = dict.fromkeys(LedgerTotal.__dataclass_fields__, 0)


def test_the_balance_is_the_total(spark: SparkSession) -> None:
    found = balance(small(spark)["reconcile"])

    assert found == LedgerTotal(sent=4, delivered=3, missing=1, transmissions=5, dropped=2, lost=1, adds_up=False)


def test_no_messages_have_no_balance(spark: SparkSession) -> None:
    assert balance(result(spark, "reconcile")) is None


def test_a_balance_that_cannot_be_told_stays_so(spark: SparkSession) -> None:
    found = balance(result(spark, "reconcile", {**COUNTS, "adds_up": None}))

    assert found is not None
    assert found.adds_up is None


def test_the_worst_imbalance_comes_first(spark: SparkSession) -> None:
    rows: list[dict[str, Any]] = [
        {**COUNTS, "conversation_id": 1, "from_target": False, "adds_up": True},
        {**COUNTS, "conversation_id": 2, "from_target": False, "adds_up": False, "missing": 1},
        {**COUNTS, "conversation_id": 3, "from_target": True, "adds_up": False, "doubled": 5},
        {**COUNTS, "conversation_id": 4, "from_target": False, "adds_up": None},
    ]

    found = imbalances(result(spark, "reconcile", *rows))

    assert ["3", "2"] == [one.conversation[-1] for one in found.rows]
    assert 2 == found.total


def test_problems_are_told_in_words(spark: SparkSession) -> None:
    [found] = imbalances(small(spark)["reconcile"]).rows

    assert ("missing: message 3, dropped last: no route",) == found.problems


def test_services_are_summed_and_conversations_are_few(spark: SparkSession) -> None:
    row = {"from_service": "a", "to_service": "b", "messages": 2, "resends": 0, "from_target": False}
    rows = [{**row, "conversation_id": number, "bytes": number} for number in range(1, 31)]

    services, single = talkers(result(spark, "dialogs", *rows))

    [pair] = services.rows
    assert (60, 465, 30) == (pair.messages, pair.bytes, pair.dialogs)
    assert TALKERS_MAX == len(single.rows)
    assert 30 == single.rows[0].bytes
    assert "00000000-0000-0000-0000-00000000001e" == single.rows[0].conversation


# --- test_paths ---
# Instances, links, losses, loops and journeys out of paths.


def test_links_join_neighbours_of_a_way(spark: SparkSession) -> None:
    found = small(spark)["paths"].transform(links).collect()

    assert {
        ("shop", "gate", 4, 400),
        ("gate", "bill", 1, 100),
        ("gate", "far", 1, 100),
        ("far", "gate", 1, 100),
    } == {tuple(row)[:4] for row in found}


def test_link_times_are_percentiles_of_what_is_known(spark: SparkSession) -> None:
    paths = result(
        spark,
        "paths",
        *({"path": ["a", "b"], "link_us": [one], "bytes": 1} for one in (10, 20, 30, None)),
    )

    [row] = paths.transform(links).collect()

    assert [20.0, 29.0, 29.8] == row["transit"]
    assert 4 == row["frames"]


def test_a_step_over_a_hop_of_which_no_journal_tells_is_no_link(spark: SparkSession) -> None:
    way = {"path": ["shop", "edge", "bill"], "link_us": [7, None], "bytes": 1}
    paths = result(spark, "paths", {**way, "missing_hops": 1}, {**way, "missing_hops": 0})

    found = {(row["from_instance"], row["to_instance"]): row["frames"] for row in paths.transform(links).collect()}

    assert {("shop", "edge"): 2, ("edge", "bill"): 1} == found


def test_an_instance_stands_where_it_is_on_its_ways(spark: SparkSession) -> None:
    """Both directions of a dialog tell the same: the way back is turned round."""
    there = {"path": ["shop", "gate", "bill"], "residence_us": [5, 7, 9], "from_target": False, "bytes": 10}
    back = {"path": ["bill", "gate", "shop"], "residence_us": [5, 7, 9], "from_target": True, "bytes": 10}

    found = {row["instance"]: row for row in result(spark, "paths", there, back).transform(stations).collect()}

    assert {"shop": 0.0, "gate": 0.5, "bill": 1.0} == {name: row["position"] for name, row in found.items()}
    assert {"shop": 2, "gate": 0, "bill": 2} == {name: row["ends"] for name, row in found.items()}
    assert [7.0, 7.0, 7.0] == found["gate"]["residence"]


def test_an_instance_is_told_what_it_dropped(spark: SparkSession) -> None:
    found = {row["instance"]: row["dropped"] for row in small(spark)["paths"].transform(stations).collect()}

    assert found["shop"] == 0
    assert found["gate"] == 2  # once for the frame that came there twice


def test_losses_are_by_the_link_on_which_they_happened(spark: SparkSession) -> None:
    assert [("gate", "tcp://bill:4022", 1, "bill")] == [
        tuple(row) for row in small(spark)["paths"].transform(losses).collect()
    ]


def test_an_address_is_that_of_the_instance_at_which_most_of_the_same_sender_arrived(spark: SparkSession) -> None:
    """One address may lead to different instances; where a sender lost all of it, the others tell."""
    lost = {"path": ["a"], "end": "lost", "end_instance": "a", "next_hops": ["x"], "lost_to": "x"}
    paths = result(
        spark,
        "paths",
        {"path": ["a", "b"], "next_hops": ["x", None], "link_us": [1], "bytes": 1},
        *[{"path": ["s", "c"], "next_hops": ["x", None], "link_us": [1], "bytes": 1}] * 2,
        lost,
        {**lost, "path": ["other"], "end_instance": "other"},
        {**lost, "lost_to": "y", "next_hops": ["y"]},
    )

    found = {(row.from_instance, row.next_hop): row.to_instance for row in paths.transform(losses).collect()}

    assert {("a", "x"): "b", ("other", "x"): "c", ("a", "y"): None} == found


def test_a_link_that_lost_everything_is_a_link(spark: SparkSession) -> None:
    """Nothing arrived on it; whose address it is, other links tell."""
    lost = {"path": ["a"], "end": "lost", "end_instance": "a", "next_hops": ["x"], "lost_to": "x", "bytes": 1}
    others = {"path": ["s", "c"], "next_hops": ["x", None], "link_us": [1], "bytes": 1}

    found = ways(result(spark, "paths", lost, lost, {**lost, "lost_to": "y"}, others))

    assert [("a", "c", 0, 2), ("s", "c", 1, 0)] == [
        (one.from_instance, one.to_instance, one.frames, one.lost) for one in found.links.rows
    ]
    assert (3, 1) == (found.extent.lost, found.extent.lost_nowhere)


def test_sums_are_of_all_rows_and_not_of_those_that_are_listed(spark: SparkSession) -> None:
    loop = {"path": ["s", "g", "h", "g"], "end": "dropped", "has_loop": True, "bytes": 1}
    rows = [
        {"path": [f"i{number}"], "end": "lost", "end_instance": f"i{number}", "lost_to": "x", "bytes": 1}
        for number in range(LISTED_MAX + 50)
    ]

    found = ways(result(spark, "paths", *rows, *({**loop, "reason": f"r{one}"} for one in range(LISTED_MAX + 50))))

    assert (LISTED_MAX + 50, LISTED_MAX + 50) == (found.extent.lost, found.extent.looped)
    assert all(one.lost for one in found.stations.rows if one.instance.startswith("i"))
    assert found.losses.total > len(found.losses.rows) == LISTED_MAX


def test_loops_are_by_way(spark: SparkSession) -> None:
    [row] = small(spark)["paths"].transform(loops).collect()

    assert (["shop", "gate", "far", "gate"], 1, "dropped", "hops exhausted") == tuple(row)[:4]


def test_loops_with_a_pause_between_them_are_two_incidents(spark: SparkSession) -> None:
    loop = {"path": ["s", "g", "h", "g"], "end": "dropped", "has_loop": True, "bytes": 1}
    times = [START + timedelta(minutes=minutes) for minutes in (0, 9, 18, 40)]

    rows = result(spark, "paths", *({**loop, "started_at": at, "ended_at": at} for at in times)).transform(loops)

    assert [(3, times[0], times[2]), (1, times[3], times[3])] == [
        (row.frames, utc(row.first_at), utc(row.last_at)) for row in rows.collect()
    ]


def test_journeys_are_of_delivered_messages_alone(spark: SparkSession) -> None:
    common = {"from_service": "a", "to_service": "b", "total_us": 5}
    paths = result(
        spark,
        "paths",
        {**common, "kind": "message", "end": "delivered"},
        {**common, "kind": "message", "end": "lost"},
        {**common, "kind": "ack", "end": "delivered"},
    )

    assert [("a", "b", 1, [5.0, 5.0, 5.0])] == [tuple(row) for row in paths.transform(journeys).collect()]


def test_ways_put_the_losses_to_their_links(spark: SparkSession) -> None:
    found = ways(small(spark)["paths"])

    [lossy] = [one for one in found.links.rows if one.lost]
    assert ("gate", "bill", 1, 1) == (lossy.from_instance, lossy.to_instance, lossy.frames, lossy.lost)
    assert (Loss("gate", "tcp://bill:4022", 1, 5, "bill"),) == found.losses.rows
    assert Extent(START, START + timedelta(minutes=30), 4, 0, 0, 0, lost=1, looped=1) == found.extent


def test_a_link_on_which_everything_was_lost_is_told(spark: SparkSession) -> None:
    paths = result(spark, "paths", {"path": ["a"], "end": "lost", "end_instance": "a", "lost_to": None, "bytes": 1})

    found = ways(paths)

    [lossy] = found.losses.rows
    assert Loss("a", "", 1, 1) == lossy
    assert () == found.links.rows


def test_what_was_dropped_before_it_left_has_no_link(spark: SparkSession) -> None:
    paths = result(spark, "paths", {"path": ["a"], "residence_us": [None], "bytes": 1}, {"path": [], "bytes": 1})

    found = ways(paths)

    assert [("a", Spread())] == [(one.instance, one.residence) for one in found.stations.rows]


# --- test_row ---
# Instants that Spark gave are right in every zone of the machine.


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kathmandu"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The machine stands somewhere else."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_instants_are_utc_wherever_the_machine_stands(spark: SparkSession, zone: str) -> None:
    [row] = small(spark)["paths"].select("started_at", "bytes").limit(1).collect()

    assert {"started_at": START, "bytes": 100} == plain(row)


def test_counts_over_time_stand_where_they_were_wherever_the_machine_stands(spark: SparkSession, zone: str) -> None:
    routes = small(spark)["routes"]
    axis = timeline(routes)

    assert axis is not None
    assert axis.first_at == START
    assert (1, 4) == course(routes, axis).traffic.points


def test_percentiles_of_nothing_are_unknown() -> None:
    assert [Spread(), Spread(), Spread(1, 2, 3)] == [spread(None), spread([None] * 3), spread([0.9, 2.2, 3.0])]


# --- test_time ---
# One axis of time for all that goes over time.


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
