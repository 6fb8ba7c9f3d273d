"""The tables of the report: the ledger, talkers, instances, links, losses, loops, journeys, routes, capacity."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.pipeline.report.digest import (
    BUCKETS_MAX,
    LISTED_MAX,
    Digest,
    Extent,
    Gap,
    LedgerTotal,
    Loss,
    RouteUse,
    Series,
    Spread,
    Timeline,
)
from broker.pipeline.report.tables import (
    TALKERS_MAX,
    balance,
    course,
    holds,
    imbalances,
    plain,
    talkers,
    timeline,
    uses,
    ways,
)
from tests.spark.resulting import result, small
from tests.spark.visiting import START

COUNTS = dict.fromkeys(LedgerTotal.__dataclass_fields__, 0)
LOST = {"path": ["a"], "next_hops": ["x"], "end": "lost", "bytes": 1}
LOOP = {"path": ["s", "g", "h", "g"], "end": "dropped", "has_loop": True, "bytes": 1}


def tables(spark: SparkSession, *paths: dict[str, Any]) -> Digest:
    return ways(result(spark, "paths", *paths))


# --- the ledger and talkers ---


def test_the_balance_is_the_total_if_there_is_one(spark: SparkSession) -> None:
    unknown = balance(result(spark, "reconcile", {**COUNTS, "adds_up": None}))

    assert balance(small(spark)["reconcile"]) == LedgerTotal(
        sent=4, delivered=3, missing=1, transmissions=5, dropped=2, lost=1, adds_up=False
    )
    assert balance(result(spark, "reconcile")) is None
    assert unknown is not None
    assert unknown.adds_up is None


def test_the_worst_imbalance_comes_first_with_its_problems_in_words(spark: SparkSession) -> None:
    rows: list[dict[str, Any]] = [
        {**COUNTS, "conversation_id": 1, "from_target": False, "adds_up": True},
        {**COUNTS, "conversation_id": 2, "from_target": False, "adds_up": False, "missing": 1},
        {**COUNTS, "conversation_id": 3, "from_target": True, "adds_up": False, "doubled": 5},
        {**COUNTS, "conversation_id": 4, "from_target": False, "adds_up": None},
    ]

    found = imbalances(result(spark, "reconcile", *rows))
    [told] = imbalances(small(spark)["reconcile"]).rows

    assert ["3", "2"] == [one.conversation[-1] for one in found.rows]
    assert 2 == found.total
    assert ("missing: message 3, dropped last: no route",) == told.problems


def test_services_are_summed_and_conversations_are_few(spark: SparkSession) -> None:
    row = {"from_service": "a", "to_service": "b", "messages": 2, "resends": 0, "from_target": False}
    rows = [{**row, "conversation_id": number, "bytes": number} for number in range(1, 31)]

    services, single = talkers(result(spark, "dialogs", *rows))

    [pair] = services.rows
    assert (60, 465, 30) == (pair.messages, pair.bytes, pair.dialogs)
    assert TALKERS_MAX == len(single.rows)
    assert (30, "00000000-0000-0000-0000-00000000001E") == (single.rows[0].bytes, single.rows[0].conversation)


# --- paths ---


def test_small_results_have_their_instances_links_losses_and_loops(spark: SparkSession) -> None:
    found = ways(small(spark)["paths"])

    assert {("shop", "gate", 4, 400, 0), ("gate", "bill", 1, 100, 1), ("gate", "far", 1, 100, 0)} < {
        (one.from_instance, one.to_instance, one.frames, one.bytes, one.lost) for one in found.links.rows
    }
    dropped = {one.instance: one.dropped for one in found.stations.rows}
    assert (0, 2) == (dropped["shop"], dropped["gate"])  # once for the frame that came there twice
    assert (Loss("gate", "tcp://bill:4022", 1, "bill"),) == found.losses.rows
    assert ("gate", 5, 3) in {(one.instance, one.frames, one.residence.measured) for one in found.stations.rows}
    [loop] = found.loops.rows
    assert (("shop", "gate", "far", "gate"), 1, "dropped", "hops exhausted") == (
        *(loop.path, loop.frames, loop.end, loop.reason),
    )
    assert Extent(START, START + timedelta(minutes=30), 4, 0, 0, 0, lost=1, looped=1) == found.extent


def test_an_instance_without_records_is_on_the_map_by_its_address(spark: SparkSession) -> None:
    way = {"path": ["shop", "edge", "bill"], "link_us": [7, None], "residence_us": [1, 2, 3], "bytes": 1}
    hops = {"next_hops": ["tcp://edge:1", "tcp://gone:1", None]}

    found = tables(spark, {**way, **hops, "missing_hops": 1}, {**way, "next_hops": ["tcp://edge:1", "b", None]})

    gone = "no record: tcp://gone:1"
    assert {("shop", "edge"): 2, ("edge", gone): 1, (gone, "bill"): 1, ("edge", "bill"): 1} == {
        (one.from_instance, one.to_instance): one.frames for one in found.links.rows
    }
    assert {"shop": (2, False), "edge": (2, False), "bill": (2, False), gone: (1, True)} == {
        one.instance: (one.frames, one.is_unknown) for one in found.stations.rows
    }
    assert [Spread(3, 3, 3, 2)] == [one.residence for one in found.stations.rows if one.instance == "bill"]
    assert [gone] == [one.instance for one in found.gaps.rows]
    assert 1 == found.extent.unsent


def test_an_instance_that_was_killed_before_it_wrote_is_known_by_the_address_at_which_others_arrived(
    spark: SparkSession,
) -> None:
    arrived = {"path": ["shop", "gate"], "next_hops": ["tcp://gate:1", None], "link_us": [7], "bytes": 1}
    passed = {"path": ["shop", "bill"], "next_hops": ["tcp://gate:1", None], "link_us": [None], "bytes": 1}

    found = tables(spark, {**arrived, "missing_hops": 0}, *[{**passed, "missing_hops": 1}] * 2)

    assert {("shop", "gate"): 3, ("gate", "bill"): 2} == {
        (one.from_instance, one.to_instance): one.frames for one in found.links.rows
    }
    assert {"shop": 3, "gate": 3, "bill": 2} == {one.instance: one.frames for one in found.stations.rows}
    assert [("gate", 2)] == [(one.instance, one.frames) for one in found.gaps.rows]


def test_a_killed_instance_is_known_though_the_next_one_never_has_a_record(spark: SparkSession) -> None:
    """What is behind both is not drawn as a neighbour of either."""
    common = {"bytes": 1, "is_resend": False, "end": "delivered"}
    usual = {"path": ["shop", "gate", "bill"], "next_hops": ["g", "far", None], "link_us": [7, None], "missing_hops": 1}
    killed = {"path": ["shop", "bill"], "next_hops": ["g", None], "link_us": [None], "missing_hops": 2}

    found = tables(spark, *[{**usual, **common}] * 3, {**killed, **common})

    far = "no record: far"
    assert [(far, 3), ("gate", 1)] == [(one.instance, one.frames) for one in found.gaps.rows]
    assert {("shop", "gate"): 4, ("gate", far): 3, (far, "bill"): 3} == {
        (one.from_instance, one.to_instance): one.frames for one in found.links.rows
    }


def test_what_comes_from_a_killed_instance_has_passed_it(spark: SparkSession) -> None:
    """Its sender has no journal; a name that no journal has says nothing."""
    there = {"path": ["shop", "gate"], "next_hops": ["g", None], "link_us": [1], "missing_hops": 0, "bytes": 1}
    back = {"path": ["shop"], "next_hops": [None], "link_us": [], "missing_hops": 2, "bytes": 1, "end": "delivered"}
    unsent = {**back, "is_resend": None, "from_target": True}

    found = tables(
        spark,
        *[{**there, "is_resend": False, "end": "delivered"}] * 3,
        {**unsent, "came_from": "gate"},
        {**unsent, "came_from": "bill", "missing_hops": 1},
    )

    assert [("gate", 1)] == [(one.instance, one.frames) for one in found.gaps.rows]
    assert {("shop", "gate"): (3, 0), ("gate", "shop"): (1, 1)} == {
        (one.from_instance, one.to_instance): (one.frames, one.unrecorded) for one in found.links.rows
    }
    assert {"shop": 5, "gate": 4} == {one.instance: one.frames for one in found.stations.rows}


def test_a_target_without_a_journal_is_at_the_end_and_as_a_sender_at_no_place(spark: SparkSession) -> None:
    services = {"kind": "message", "bytes": 1, "from_service": "Shop", "to_service": "Bill"}
    there = {"path": ["shop", "gate"], "next_hops": ["g", "bill"], "link_us": [1], "missing_hops": 0, **services}
    back = {"path": ["gate", "shop"], "next_hops": ["s", None], "link_us": [1], "missing_hops": 1, **services}
    sent = {**there, "end": "acknowledged", "is_resend": False, "from_target": False, "total_us": 5}

    found = tables(spark, *[sent] * 3, {**back, "end": "delivered", "from_target": True, "from_service": "Bill"})

    bill = "no record: bill"
    assert [(bill, 3)] == [(one.instance, one.frames) for one in found.gaps.rows]
    assert {"shop": (4, 4), "gate": (4, 0), bill: (3, 3)} == {
        one.instance: (one.frames, one.ends) for one in found.stations.rows
    }
    assert {("shop", "gate"), ("gate", bill), ("gate", "shop")} == {
        (one.from_instance, one.to_instance) for one in found.links.rows
    }
    assert {("Shop", 3, None), ("Bill", 1, None)} == {
        (one.from_service, one.messages, one.total.p50) for one in found.journeys.rows
    }
    assert 1 == found.extent.unsent


def test_an_instance_has_its_average_position_in_both_directions(spark: SparkSession) -> None:
    there = {"path": ["shop", "gate", "bill"], "residence_us": [5, 7, 9], "from_target": False, "bytes": 10}
    back = {"path": ["bill", "gate", "shop"], "residence_us": [5, 7, 9], "from_target": True, "bytes": 10}

    found = tables(spark, there, back).stations.rows

    assert {"shop": (0.0, 2), "gate": (0.5, 0), "bill": (1.0, 2)} == {
        one.instance: (one.position, one.ends) for one in found
    }
    assert [Spread(7, 7, 7, 2)] == [one.residence for one in found if one.instance == "gate"]


def test_an_address_is_that_of_the_instance_at_which_most_of_the_same_sender_arrived(spark: SparkSession) -> None:
    """One address may lead to different instances; where a sender lost all of it, that of other senders counts."""
    found = tables(
        spark,
        {"path": ["a", "b"], "next_hops": ["x", None], "link_us": [1], "bytes": 1},
        *[{"path": ["s", "c"], "next_hops": ["x", None], "link_us": [1], "bytes": 1}] * 2,
        LOST,
        {**LOST, "path": ["other"]},
        {**LOST, "next_hops": ["y"]},
    )

    assert {("a", "x"): "b", ("other", "x"): "c"} == {
        (one.from_instance, one.next_hop): one.to_instance for one in found.losses.rows
    }
    assert ["no record: y"] == [one.instance for one in found.gaps.rows]


def test_what_an_instance_without_a_journal_got_is_not_lost_but_unknown(spark: SparkSession) -> None:
    """Some of it came to an instance beyond, the rest was seen nowhere; so was what another instance lost."""
    later, last = START + timedelta(hours=1), START + timedelta(hours=2)
    arrived = {"path": ["a", "b"], "next_hops": ["x", None], "link_us": [1], "bytes": 1}
    passed = {"path": ["a", "b"], "next_hops": ["y", None], "link_us": [None], "bytes": 1, "missing_hops": 1}
    handed = {**LOST, "next_hops": ["y"], "started_at": later, "ended_at": last}

    found = tables(spark, arrived, LOST, {**passed, "started_at": START, "ended_at": START}, handed, handed)

    assert (Loss("a", "x", 1, "b"),) == found.losses.rows
    assert (Gap("no record: y", 3, START, last),) == found.gaps.rows
    assert (1, {"a": 1, "b": 0, "no record: y": 0}) == (
        found.extent.lost,
        {one.instance: one.lost for one in found.stations.rows},
    )
    assert {("a", "b"): 1, ("a", "no record: y"): 0, ("no record: y", "b"): 0} == {
        (one.from_instance, one.to_instance): one.lost for one in found.links.rows
    }


def test_what_fell_into_a_hole_of_a_journal_is_not_lost_but_unknown(spark: SparkSession) -> None:
    arrived = {"path": ["a", "b"], "next_hops": ["x", None], "link_us": [1], "bytes": 1}
    hole = [round((START + timedelta(minutes=minute)).timestamp()) * 1_000_000 for minute in (1, 3)]
    left = [{**LOST, "started_at": at, "ended_at": at} for at in (START + timedelta(minutes=n) for n in (0, 2, 4))]

    told = {"kind": "message", "from_service": "Shop", "to_service": "Bill", "end": "acknowledged"}

    found = ways(result(spark, "paths", arrived, *left, *({**one, **told} for one in left[1:])), {"b": [hole]})

    assert (Loss("a", "x", 2, "b"),) == found.losses.rows
    assert (Gap("b", 2, START + timedelta(minutes=2), START + timedelta(minutes=2)),) == found.gaps.rows
    assert (2, 2) == (found.extent.lost, found.extent.unrecorded)
    [link], [journey] = found.links.rows, found.journeys.rows
    assert (3, 2, Spread(1, 1, 1, 1)) == (link.frames, link.unrecorded, link.transit)
    assert (1, Spread()) == (journey.messages, journey.total)


def test_what_left_late_for_a_journal_that_cannot_tell_is_as_unknown_as_what_left_before(spark: SparkSession) -> None:
    """No later run can tell; of what left as late for an instance that writes on, one can."""
    arrived = {"path": ["a", "b"], "next_hops": ["x", None], "link_us": [1], "bytes": 1}
    late = {**LOST, "end": "under way", "started_at": START, "ended_at": START}
    paths = result(spark, "paths", arrived, late, *[{**late, "next_hops": ["y"]}] * 2)
    left_us = round(START.timestamp()) * 1_000_000

    whole, holed = (ways(paths, holes) for holes in ({}, {"b": [(left_us - 1, left_us + 1)]}))

    assert (1, 0) == (whole.extent.under_way, holed.extent.under_way)
    assert [("no record: y", 2)] == [(one.instance, one.frames) for one in whole.gaps.rows]
    assert [("no record: y", 2), ("b", 1)] == [(one.instance, one.frames) for one in holed.gaps.rows]
    assert {("a", "b"): 2, ("a", "no record: y"): 2} == {
        (one.from_instance, one.to_instance): one.frames for one in holed.links.rows
    }


def test_percentiles_are_times_that_occurred(spark: SparkSession) -> None:
    times = [*range(26), 35_000_000]

    [link] = tables(
        spark, *({"path": ["a", "b"], "next_hops": ["x", None], "link_us": [took], "bytes": 1} for took in times)
    ).links.rows

    assert Spread(13, 25, 35_000_000, 27) == link.transit


def test_sums_are_of_all_rows_and_not_of_those_that_are_listed(spark: SparkSession) -> None:
    many = range(LISTED_MAX + 50)

    found = tables(
        spark,
        *({**LOST, "path": [f"i{one}"]} for one in many),
        *({**LOOP, "reason": f"r{one}"} for one in many),
        {"path": ["b", "a"], "next_hops": ["x", None], "link_us": [1], "bytes": 1},
    )

    assert (len(many), len(many)) == (found.extent.lost, found.extent.looped)
    assert all(one.lost for one in found.stations.rows if one.instance.startswith("i"))
    assert found.losses.total > len(found.losses.rows) == LISTED_MAX


def test_loops_with_a_pause_between_them_are_two_incidents(spark: SparkSession) -> None:
    times = [START + timedelta(minutes=minutes) for minutes in (0, 9, 18, 40)]

    found = tables(spark, *({**LOOP, "started_at": at, "ended_at": at} for at in times))

    assert [(3, times[0], times[2]), (1, times[3], times[3])] == [
        (one.frames, one.first_at, one.last_at) for one in found.loops.rows
    ]


# --- over time ---


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kathmandu"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of the machine."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_instants_are_utc_in_every_zone_of_the_machine(spark: SparkSession, zone: str) -> None:
    results = small(spark)
    [row] = results["paths"].select("started_at", "bytes").limit(1).collect()
    axis = timeline(results["routes"])

    assert {"started_at": START, "bytes": 100} == plain(row)
    assert axis is not None
    assert axis.first_at == START
    assert (1, 4) == course(Digest(), results["routes"], axis).traffic.points


def route(minutes: int, **columns: Any) -> dict[str, Any]:
    row = {"instance": "g", "route": "r", "window_start": START + timedelta(minutes=minutes), "window_seconds": 300}
    counts = {"frames": 1, "bytes": 1, "drops": 0, "failovers": 0, "drops_by_reason": {}}
    return {**row, **counts, **columns}


def test_the_axis_holds_all_windows_and_is_bounded(spark: SparkSession) -> None:
    capacity = result(spark, "capacity", {"window_start": START, "window_seconds": 300})

    axis = timeline(result(spark, "routes", route(10)), capacity)
    long = timeline(result(spark, "routes", route(0), route(60 * 24 * 90)))

    assert axis is not None
    assert (START, 300, 3) == (axis.first_at, axis.step_seconds, axis.buckets)
    assert long is not None
    assert (True, 0) == (long.buckets <= BUCKETS_MAX, long.step_seconds % 300)


def test_counts_are_where_their_window_begins_and_what_never_happened_has_no_line(spark: SparkSession) -> None:
    rows = [
        route(0, frames=2, drops_by_reason={"shed": 0}),
        route(5, frames=3, drops_by_reason={"no route": 2}),
        route(5, frames=4, drops_by_reason={"no route": 1, "shut down": 9}, failovers=5),
        route(5, instance="h", frames=0),
    ]
    routes = result(spark, "routes", *rows)

    found = course(Digest(), routes, timeline(routes))

    assert Series("frames", (2, 7)) == found.traffic
    assert (Series("shut down", (0, 9)), Series("no route", (0, 3))) == found.drops
    assert (Series("g", (0, 5)),) == found.failovers


def test_a_routes_times_are_those_of_its_middle_window_whole(spark: SparkSession) -> None:
    """As many frames in six fast windows as in a slow one: no window had what lies between the two."""
    names = [f"residence_{rank}_us" for rank in ("p50", "p95", "p99")]
    fast = [
        route(5 * place, frames=one, **dict.fromkeys(names, 100 + place)) for place, one in enumerate([34] * 5 + [30])
    ]
    slow = route(30, frames=200, **dict(zip(names, (10, 900, 1_000), strict=True)))
    unknown = route(35, frames=1_000)

    [use] = (RouteUse(**plain(row)) for row in result(spark, "routes", *fast, slow, unknown).transform(uses).collect())

    assert (1_400, Spread(105, 105, 105, 400)) == (use.frames, use.typical)
    assert (1_000, START + timedelta(minutes=30)) == (use.worst_p99, use.worst_at)


def test_holds_are_the_greatest_of_their_windows(spark: SparkSession) -> None:
    results = small(spark)
    rows = [
        {"instance": "g", "window_start": START + timedelta(minutes=5 * place), "window_seconds": 300, "peak_bytes": 7}
        for place in (0, 2)
    ]
    gaps = result(spark, "capacity", *rows)

    [hold] = holds(results["capacity"], timeline(results["routes"], results["capacity"])).rows
    [with_gap] = holds(gaps, timeline(gaps)).rows

    assert ("gate", (200, 201), 201, 1 << 20, 0.4) == (
        *(hold.instance, hold.peaks, hold.peak_bytes, hold.recommended_bytes, hold.headroom),
    )
    assert (7, None, 7) == with_gap.peaks
    assert (201,) == holds(results["capacity"], Timeline(START, 600, 1)).rows[0].peaks
