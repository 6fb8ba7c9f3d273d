"""Instances, links, losses, loops and journeys out of paths."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import SparkSession

from broker.pipeline.report.digest import LISTED_MAX, Extent, Loss, Spread
from broker.pipeline.report.tables import journeys, links, loops, losses, stations, utc, ways
from tests.spark.resulting import START, result, small


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
