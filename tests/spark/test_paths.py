"""The way of each transmission, rule by rule, and against an oracle in plain Python."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.pipeline.paths import GRACE_SECONDS, paths
from broker.pipeline.visits import CLOCK_TOLERANCE_US
from tests.spark.visiting import START, guid, visits

LATER = START + timedelta(hours=1)
Row = dict[str, Any]


def visit(outcome: str, instance: str, hop: int, entered: int, left: int | None, **more: Any) -> Row:
    """One visit; instants in microseconds behind START."""
    told = {"outcome": outcome, "instance": instance, "hop_count": hop, "entered_at": entered, "left_at": left}
    return {**told, **more}


SENT = visit("sent", "a", 0, 0, 10)
FIRST = visit("forwarded", "b", 0, 30, 35, adjacent_out="tcp://c")
SECOND = visit("forwarded", "c", 1, 60, 61, adjacent_out="tcp://d")
DELIVERED = visit("delivered", "d", 2, 90, 99)
ACKNOWLEDGED = visit("acknowledged", "a", 0, 0, 500, bytes=7)


def one(spark: SparkSession, *rows: Row, until: datetime = LATER) -> Row:
    """The only row."""
    (row,) = told(paths(visits(spark, *rows), until=until))
    return row


def told(result: DataFrame) -> list[Row]:
    """Rows as dictionaries, instants in microseconds behind START, by message id."""
    rows = [row.asDict() for row in result.collect()]
    for row in rows:
        for name in ("started_at", "ended_at"):
            row[name] = row[name] and (row[name].astimezone(UTC) - START) // timedelta(microseconds=1)
        row["message_id"] = int.from_bytes(row["message_id"], "big")
    return sorted(rows, key=lambda row: row["message_id"])


def test_hops_in_order_with_their_times(spark: SparkSession) -> None:
    """Whatever the order of the rows, the sender is before the first gateway, which has the same hop count."""
    row = one(spark, DELIVERED, ACKNOWLEDGED, SECOND, FIRST, SENT)

    assert row == {
        "message_id": 1,
        "conversation_id": guid(1),
        "from_target": False,
        "kind": "message",
        "sequence_number": 0,
        "fragment_number": 0,
        "from_service": "Initiator",
        "to_service": "Target",
        "bytes": 100,
        "is_resend": False,
        "started_at": 10,
        "ended_at": 99,
        "path": ["a", "b", "c", "d"],
        "came_from": None,
        "next_hops": [None, "tcp://c", "tcp://d", None],
        "residence_us": [10, 5, 1, 9],
        "link_us": [20, 25, 29],
        "total_us": 89,
        "end": "delivered",
        "end_instance": "d",
        "lost_to": None,
        "reason": None,
        "code": None,
        "has_loop": False,
        "missing_hops": 0,
        "unknown_links": 0,
    }


DROPPED = {**FIRST, "outcome": "dropped", "reason": "no route", "code": 9798}
CHANGED = {**FIRST, "bytes": 104, "to_service": "Other", "route": "r"}
UNKNOWN_LEFT = [{**SENT, "left_at": None}, FIRST, SECOND, {**DELIVERED, "left_at": None}]
LONG = [visit("forwarded", f"g{hop % 150}", hop, 10 * hop + 20, 10 * hop + 21) for hop in range(200)]
ENDS = ("end", "end_instance", "lost_to", "reason", "code")
NOTHING = dict.fromkeys(("total_us", "is_resend"))
CASES: dict[str, tuple[list[Row], Row]] = {
    "dropped": ([SENT, DROPPED], dict(zip(ENDS, ("dropped", "b", None, "no route", 9798), strict=True))),
    "acknowledged": ([SENT, FIRST, ACKNOWLEDGED], {"end": "acknowledged", "end_instance": None}),
    "only acknowledged": (
        [ACKNOWLEDGED],
        {"end": "acknowledged", "path": [], "residence_us": [], "link_us": [], "started_at": 0, "ended_at": 500}
        | {"bytes": 7, "has_loop": False, "missing_hops": 0, "unknown_links": 0, **NOTHING},
    ),
    "its sender is not known": ([{**FIRST, "adjacent_in": "x"}, SECOND], {"came_from": "x", "path": ["b", "c"]}),
    "an outcome of a later version, and no hop count": (
        [SENT, {**FIRST, "outcome": "new", "hop_count": None}],
        {"path": ["a", "b"], "link_us": [20], "end": "lost", "missing_hops": 0},
    ),
    "a gateway twice": ([SENT, FIRST, SECOND, visit("dropped", "b", 2, 90, 91)], {"has_loop": True}),
    "home again": ([SENT, FIRST, visit("delivered", "a", 1, 90, 91)], {"has_loop": False}),
    "leaving is not known": (
        UNKNOWN_LEFT,
        {"residence_us": [None, 5, 1, None], "link_us": [None, 25, 29], "total_us": None}
        | {"started_at": 0, "ended_at": 90, "unknown_links": 0},
    ),
    "what the sender wrote counts": (
        [SENT, CHANGED, SECOND],
        {"bytes": 100, "to_service": "Target", "path": ["a", "b", "c"]},
    ),
    "two hundred hops": (
        [SENT, *LONG],
        {"path": ["a", *(f"g{hop % 150}" for hop in range(200))], "missing_hops": 0, "has_loop": True},
    ),
    "a doubled file": ([SENT, FIRST, DELIVERED] * 2, {"path": ["a", "b", "d"], "link_us": [20, None], "bytes": 100}),
    "duplicate": (
        [SENT, FIRST, SECOND, {**DELIVERED, "outcome": "duplicate"}],
        dict(zip(ENDS, ("duplicate", "d", None, None, None), strict=True)),
    ),
    "delivered, then a copy": (
        [SENT, FIRST, SECOND, DELIVERED, {**DELIVERED, "outcome": "duplicate", "entered_at": 95}],
        {"end": "delivered", "end_instance": "d"},
    ),
    "a missing hop": (
        [{**SENT, "outcome": "resent"}, FIRST, DELIVERED],
        {"link_us": [20, None], "missing_hops": 1, "unknown_links": 0, "total_us": 89, "is_resend": True},
    ),
}


@pytest.mark.promise("R7.2")
def test_each_rule(spark: SparkSession) -> None:
    """Each case is one transmission."""
    rows = [{**row, "message_id": number} for number, (way, _) in enumerate(CASES.values()) for row in way]

    found = dict(zip(CASES, told(paths(visits(spark, *rows), until=LATER)), strict=True))

    assert {name: expected for name, (_, expected) in CASES.items()} == {
        name: {column: found[name][column] for column in expected} for name, (_, expected) in CASES.items()
    }


@pytest.mark.parametrize(("behind", "end"), [(GRACE_SECONDS, "under way"), (GRACE_SECONDS + 1, "lost")])
def test_frame_that_left_just_now_is_under_way(spark: SparkSession, behind: int, end: str) -> None:
    """Up to the grace before the end of the history, which is the newest instant when nothing else is told."""
    at = behind * 1_000_000 + 35
    newest = visit("delivered", "z", 0, at, at, message_id=2)

    rows = told(paths(visits(spark, SENT, FIRST, newest)))

    assert rows[0]["end"] == end
    assert rows[0]["lost_to"] == ("tcp://c" if end == "lost" else None)


def test_clocks_that_contradict_each_other(spark: SparkSession) -> None:
    """The order stands by hops; a negative link is null and counted, and so is a negative total."""
    row = one(spark, SENT, FIRST, {**SECOND, "entered_at": -60_000_000, "left_at": -59_000_000})

    assert (row["path"], row["link_us"], row["unknown_links"]) == (["a", "b", "c"], [20, None], 1)
    assert (row["total_us"], row["residence_us"], row["ended_at"]) == (None, [10, 5, 1_000_000], 35)


def test_clocks_that_differ_little_hide_only_what_is_impossible(spark: SparkSession) -> None:
    """Ten milliseconds are what synchronized clocks may differ by."""
    early = visit("forwarded", "b", 0, 30 - CLOCK_TOLERANCE_US, 35, message_id=2)

    first, second = told(paths(visits(spark, SENT, FIRST, {**SENT, "message_id": 2}, early), until=LATER))

    assert ([20], [None]) == (first["link_us"], second["link_us"])


@pytest.mark.parametrize("replaces", ["true", "false"])
def test_against_an_oracle(spark: SparkSession, replaces: str) -> None:
    """Random ways with gaps, doubled rows, wrong clocks and half of all in one dialog; with and without the sort."""
    random_ = random.Random(7)
    ways = {number: _random_way(random_, number) for number in range(1, 301)}
    rows = [row for way in ways.values() for row in way]
    random_.shuffle(rows)
    setting = "spark.sql.execution.replaceHashWithSortAgg"
    before = spark.conf.get(setting)
    spark.conf.set(setting, replaces)

    found = told(paths(visits(spark, *rows), until=LATER))

    spark.conf.set(setting, str(before))
    assert [_expected(number, way) for number, way in ways.items()] == [
        {name: row[name] for name in _expected(1, ways[1])} for row in found
    ]


def _random_way(random_: random.Random, number: int) -> list[Row]:
    at, way = random_.randrange(10**6), []
    gateways = random_.randrange(6)
    common = {"message_id": number, "conversation_id": 1 if random_.random() < 0.5 else number}
    for place in range(gateways + 2):
        skew = random_.choice((0, 0, 0, -5000, 5000))
        left = at + random_.randrange(200)
        outcome = "sent" if place == 0 else "delivered" if place == gateways + 1 else "forwarded"
        if outcome == "forwarded" and random_.random() < 0.1:
            outcome = "dropped"
        instance = f"i{random_.randrange(8)}"
        way.append(visit(outcome, instance, max(0, place - 1), at + skew, left + skew, adjacent_out="x", **common))
        if outcome == "dropped":
            break
        at = left + random_.randrange(300)
    way = [row for row in way if random_.random() < 0.9] or way
    if random_.random() < 0.3:
        way.append(visit("acknowledged", "i0", 0, 0, 10**7, **common))
    return way + ([random_.choice(way)] if random_.random() < 0.2 else [])


def _expected(number: int, way: list[Row]) -> Row:
    hops: list[Row] = []
    for row in way:
        if row["outcome"] != "acknowledged" and row not in hops:
            hops.append(row)
    slots = {id(row): 0 if row["outcome"] == "sent" else row["hop_count"] + 1 for row in hops}
    hops.sort(key=lambda row: slots[id(row)])
    places = [slots[id(row)] for row in hops]
    gaps = [b["entered_at"] - a["left_at"] for a, b in pairwise(hops)]
    is_next = [b == a + 1 for a, b in pairwise(places)]
    passing = [row["instance"] for row in hops if row["outcome"] in {"forwarded", "dropped"}]
    total = hops[-1]["left_at"] - hops[0]["left_at"] if places[0] == 0 else -1
    end = hops[-1]["outcome"]
    if end not in {"delivered", "dropped"}:
        end = "acknowledged" if any(row["outcome"] == "acknowledged" for row in way) else "lost"
    return {
        "message_id": number,
        "conversation_id": guid(way[0]["conversation_id"]),
        "started_at": hops[0]["left_at"] if places[0] == 0 else min(row["entered_at"] for row in hops),
        "ended_at": max(row["left_at"] for row in hops),
        "path": [row["instance"] for row in hops],
        "residence_us": [row["left_at"] - row["entered_at"] for row in hops],
        "link_us": [gap if near and gap >= 0 else None for gap, near in zip(gaps, is_next, strict=True)],
        "total_us": total if total >= 0 else None,
        "end": end,
        "lost_to": "x" if end == "lost" else None,
        "has_loop": len(set(passing)) < len(passing),
        "missing_hops": places[-1] + 1 - len(places),
        "unknown_links": sum(near and gap < 0 for gap, near in zip(gaps, is_next, strict=True)),
    }


def test_clocks_that_are_wrong_are_wrong_the_other_way_as_well(spark: SparkSession) -> None:
    """The clock of `d` is five minutes ahead: to it seems slow, and from it impossible; both are unknown."""
    ahead = 300_000_000
    there = [SENT, FIRST, SECOND, {**DELIVERED, "entered_at": 90 + ahead, "left_at": 99 + ahead}]
    back = [
        visit("sent", "d", 0, 100 + ahead, 110 + ahead),
        visit("forwarded", "c", 0, 130, 135),
        visit("delivered", "a", 1, 160, 165),
    ]
    rows = [{**row, "message_id": number} for number, way in ((1, there), (2, back)) for row in way]

    one, other = told(paths(visits(spark, *rows), until=LATER + timedelta(hours=1)))

    assert ([20, 25, None], None, 1) == (one["link_us"], one["total_us"], one["unknown_links"])
    assert ([None, 25], None, 1) == (other["link_us"], other["total_us"], other["unknown_links"])


def test_whole_way_across_a_contradiction_is_unknown_even_where_its_ends_agree(spark: SparkSession) -> None:
    """The clock of `c` is five minutes ahead, which only `b` shows; a path without the two has its times."""
    ahead = 300_000_000
    back = [visit("sent", "c", 0, 100 + ahead, 110 + ahead), visit("delivered", "b", 0, 160, 165)]
    dropped = visit("dropped", "c", 1, 60 + ahead, 61 + ahead, reason="no route")
    ways = ([SENT, FIRST, dropped], back, [SENT, {**FIRST, "outcome": "dropped", "reason": "no route"}])
    rows = [{**row, "message_id": number} for number, way in enumerate(ways, 1) for row in way]

    found = told(paths(visits(spark, *rows), until=LATER + timedelta(hours=1)))

    assert [row["total_us"] for row in found] == [None, None, 25]
    assert [row["link_us"] for row in found] == [[20, None], [None], [20]]
