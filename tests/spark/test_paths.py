"""The way of each transmission, rule by rule, and against an oracle in plain Python."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([SENT, {**FIRST, "outcome": "dropped", "reason": "no route", "code": 9798}], ("dropped", "b", None)),
        ([SENT, FIRST, SECOND, {**DELIVERED, "outcome": "duplicate"}], ("duplicate", "d", None)),
        ([SENT, FIRST, ACKNOWLEDGED], ("acknowledged", None, None)),
        ([SENT, FIRST], ("lost", "b", "tcp://c")),
        ([ACKNOWLEDGED], ("acknowledged", None, None)),
        (
            [SENT, FIRST, SECOND, DELIVERED, {**DELIVERED, "outcome": "duplicate", "entered_at": 95}],
            ("delivered", "d", None),
        ),
    ],
    ids=["dropped", "duplicate", "acknowledged", "lost", "only acknowledged", "delivered twice"],
)
def test_end(spark: SparkSession, rows: list[Row], expected: tuple[str | None, ...]) -> None:
    """A visit that ends the way decides; then an acknowledgement; else it is lost at the last that had it."""
    row = one(spark, *rows)

    assert (row["end"], row["end_instance"], row["lost_to"]) == expected
    assert (row["reason"], row["code"]) == (("no route", 9798) if expected[0] == "dropped" else (None, None))


def test_row_of_an_acknowledgement_alone(spark: SparkSession) -> None:
    """It has no path; what is known of it are the two instants and the frame."""
    row = one(spark, ACKNOWLEDGED)

    assert (row["path"], row["residence_us"], row["link_us"]) == ([], [], [])
    assert (row["started_at"], row["ended_at"], row["total_us"], row["is_resend"]) == (0, 500, None, None)
    assert (row["bytes"], row["has_loop"], row["missing_hops"], row["unknown_links"]) == (7, False, 0, 0)


@pytest.mark.parametrize(("behind", "end"), [(GRACE_SECONDS, "under way"), (GRACE_SECONDS + 1, "lost")])
def test_frame_that_left_just_now_is_under_way(spark: SparkSession, behind: int, end: str) -> None:
    """Up to the grace before the end of the history, which is the newest instant when nothing else is told."""
    at = behind * 1_000_000 + 35
    newest = visit("delivered", "z", 0, at, at, message_id=2)

    rows = told(paths(visits(spark, SENT, FIRST, newest)))

    assert rows[0]["end"] == end
    assert rows[0]["lost_to"] == ("tcp://c" if end == "lost" else None)


def test_drop_alone_is_a_row_with_missing_hops(spark: SparkSession) -> None:
    """Of a dialog that is not sampled: the sender and the gateways before it are missing."""
    row = one(spark, visit("dropped", "c", 2, 60, 61, reason="no route", code=9798))

    assert (row["path"], row["is_resend"], row["missing_hops"]) == (["c"], None, 3)
    assert (row["started_at"], row["ended_at"], row["total_us"], row["end"]) == (60, 61, None, "dropped")


def test_missing_hop_leaves_its_link_unknown(spark: SparkSession) -> None:
    """The link across is null, but no clocks contradict each other."""
    row = one(spark, {**SENT, "outcome": "resent"}, FIRST, DELIVERED)

    assert (row["link_us"], row["missing_hops"], row["unknown_links"]) == ([20, None], 1, 0)
    assert (row["total_us"], row["is_resend"]) == (89, True)


def test_clocks_that_contradict_each_other(spark: SparkSession) -> None:
    """The order stands by hops; a negative link is null and counted, and so is a negative total."""
    row = one(spark, SENT, FIRST, {**SECOND, "entered_at": -60_000_000, "left_at": -59_000_000})

    assert (row["path"], row["link_us"], row["unknown_links"]) == (["a", "b", "c"], [20, None], 1)
    assert (row["total_us"], row["residence_us"], row["ended_at"]) == (None, [10, 5, 1_000_000], 35)


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
    """
    The clock of `c` is five minutes ahead, and what it drops comes back to nobody: that it contradicts `b` says so.

    A way that does not meet the two is told.
    """
    ahead = 300_000_000
    back = [visit("sent", "c", 0, 100 + ahead, 110 + ahead), visit("delivered", "b", 0, 160, 165)]
    dropped = visit("dropped", "c", 1, 60 + ahead, 61 + ahead, reason="no route")
    ways = ([SENT, FIRST, dropped], back, [SENT, {**FIRST, "outcome": "dropped", "reason": "no route"}])
    rows = [{**row, "message_id": number} for number, way in enumerate(ways, 1) for row in way]

    found = told(paths(visits(spark, *rows), until=LATER + timedelta(hours=1)))

    assert [row["total_us"] for row in found] == [None, None, 25]
    assert [row["link_us"] for row in found] == [[20, None], [None], [20]]


def test_clocks_that_differ_little_hide_only_what_is_impossible(spark: SparkSession) -> None:
    """Ten milliseconds are what synchronized clocks may differ by."""
    early = visit("forwarded", "b", 0, 30 - CLOCK_TOLERANCE_US, 35, message_id=2)

    first, second = told(paths(visits(spark, SENT, FIRST, {**SENT, "message_id": 2}, early), until=LATER))

    assert ([20], [None]) == (first["link_us"], second["link_us"])


@pytest.mark.parametrize(
    ("rows", "has_loop"),
    [
        ([SENT, FIRST, SECOND, visit("dropped", "b", 2, 90, 91)], True),
        ([SENT, FIRST, visit("delivered", "a", 1, 90, 91)], False),
        ([SENT, visit("delivered", "a", 0, 20, 21)], False),
        ([SENT, FIRST, SECOND, DELIVERED], False),
    ],
    ids=["gateway twice", "home again", "within an instance", "plain"],
)
def test_loop(spark: SparkSession, rows: list[Row], has_loop: bool) -> None:  # noqa: FBT001 - a column of the table
    """A gateway twice; that sender and target are one instance is none."""
    assert one(spark, *rows)["has_loop"] is has_loop


def test_visits_of_a_doubled_file_count_once(spark: SparkSession) -> None:
    """Identical visits make the same row."""
    rows = (SENT, FIRST, SECOND, DELIVERED, ACKNOWLEDGED)

    assert one(spark, *rows, *rows) == one(spark, *rows)


def test_left_that_is_not_known(spark: SparkSession) -> None:
    """Foreign data: what cannot be computed is null, nothing else."""
    row = one(spark, {**SENT, "left_at": None}, FIRST, SECOND, {**DELIVERED, "left_at": None})

    assert (row["residence_us"], row["link_us"], row["total_us"]) == ([None, 5, 1, None], [None, 25, 29], None)
    assert (row["started_at"], row["ended_at"], row["unknown_links"]) == (0, 90, 0)


def test_change_on_the_way_does_not_tear_a_path(spark: SparkSession) -> None:
    """Whatever differs between visits, there is one row, with what the sender told."""
    row = one(spark, SENT, {**FIRST, "bytes": 104, "to_service": "Other", "route": "r"}, SECOND)

    assert (row["bytes"], row["to_service"], row["path"]) == (100, "Target", ["a", "b", "c"])


def test_way_of_two_hundred_hops(spark: SparkSession) -> None:
    """No length is too long, and none of the hops is missing."""
    hops = [visit("forwarded", f"g{hop % 150}", hop, 10 * hop + 20, 10 * hop + 21) for hop in range(200)]

    row = one(spark, SENT, *hops)

    assert (row["path"][1:], row["missing_hops"]) == ([f"g{hop % 150}" for hop in range(200)], 0)
    assert (row["has_loop"], len(row["link_us"])) == (True, 200)


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
