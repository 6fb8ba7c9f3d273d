"""What passed by each route, rule by rule, and against an oracle in plain Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, timedelta
from math import ceil
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.pipeline.routes import failovers, routes
from tests.spark.visiting import START, visits

# --- frames that left by another way than the one before ---


def way(hop: str | None, **more: Any) -> dict[str, Any]:
    """A frame that left for a next hop."""
    return {"adjacent_out": hop, **more}


def numbered(rows: Sequence[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    """A row leaves a millisecond after its number."""
    return [
        {"entered_at": 1000 * number, "sequence_number": number, "message_id": number + 1, "route": "r", **more, **row}
        for number, row in enumerate(rows)
    ]


# Frames of a dialog, and the sequence numbers of those that moved.
FAILOVERS: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "there and back are two": ([way("x"), way("x"), way("y"), way("y"), way("x")], [2, 4]),
    "another route, another table and no next hop": (
        [way("x"), way("x", route="s"), way("x", route="s", route_table="t"), way(None)],
        [1, 2, 3],
    ),
    "frames that did not leave, or the other way, do not count": (
        [
            *(way("x"), way(None, outcome="delivered", route=None), way(None, outcome="dropped")),
            *(way("z", from_target=True), way("x")),
        ],
        [],
    ),
    "frames of one instant are in order of their sequence": (
        [way(hop, sequence_number=one, entered_at=0) for one, hop in ((3, "y"), (0, "x"), (2, "y"), (1, "x"))],
        [2],
    ),
    "an unknown dialog has no frame before it": (
        [way(hop, **{name: None}) for name in ("instance", "conversation_id", "from_target") for hop in ("x", "y")],
        [],
    ),
}


@pytest.fixture(scope="module")
def moved(spark: SparkSession) -> dict[str, list[int]]:
    """By case, which is the service of its dialog."""
    found: dict[str, list[int]] = {name: [] for name in FAILOVERS}
    rows = [
        {"conversation_id": number, "to_service": name, **row}
        for number, (name, (frames, _)) in enumerate(FAILOVERS.items(), 1)
        for row in numbered(frames)
    ]
    for row in failovers(visits(spark, *rows)).collect():
        found[row.to_service].append(row.sequence_number)
    return found


@pytest.mark.parametrize("name", FAILOVERS)
def test_each_rule_of_failovers(moved: dict[str, list[int]], name: str) -> None:
    assert FAILOVERS[name][1] == sorted(moved[name])


SECOND = 1_000_000
Row = dict[str, Any]
Key = tuple[str, str | None, str | None, int]


def by_key(result: DataFrame) -> dict[Key, Row]:
    """Rows by instance, route table, route and the second of the window; without those and its length."""
    found = {}
    for row in result.collect():
        told = row.asDict()
        second = (told.pop("window_start").astimezone(UTC) - START) // timedelta(seconds=1)
        assert told.pop("window_seconds") == 1
        found[told.pop("instance"), told.pop("route_table"), told.pop("route"), second] = told
    return found


def asked(spark: SparkSession, *rows: Row) -> dict[Key, Row]:
    """In windows of a second."""
    return by_key(routes(visits(spark, *rows), window_seconds=1))


def test_visit_belongs_to_the_window_in_which_it_left(spark: SparkSession) -> None:
    """In which it came when nobody knows; then its residence is unknown."""
    rows = ({"entered_at": 0, "left_at": SECOND}, {"entered_at": 2 * SECOND, "left_at": None})

    found = asked(spark, *rows)

    assert {key[3]: row["residence_p50_us"] for key, row in found.items()} == {1: SECOND, 2: None}


def test_drops_by_reason(spark: SparkSession) -> None:
    """Without a route they are of no route; a reason that is not told is called unknown."""
    reasons = ("no route", "expired here", "no route", None)

    found = asked(spark, {}, *({"outcome": "dropped", "reason": reason} for reason in reasons))

    row = found["a", None, None, 0]
    assert (row["frames"], row["drops"]) == (5, 4)
    assert row["drops_by_reason"] == {"no route": 2, "expired here": 1, "unknown": 1}


def test_against_an_oracle(spark: SparkSession) -> None:
    """Random visits, most of them by one route in one dialog."""
    random_ = random.Random(5)
    rows = [_random_visit(random_, number) for number in range(800)]

    assert asked(spark, *rows) == _expected(rows)


def _random_visit(random_: random.Random, number: int) -> Row:
    outcome = random_.choices(("forwarded", "sent", "dropped", "delivered"), (80, 8, 6, 6))[0]
    is_hot = random_.random() < 0.6
    entered = number * 5000
    row: Row = {
        "outcome": outcome,
        "instance": "hot" if is_hot else random_.choice("bc"),
        "conversation_id": 1 if is_hot else random_.randrange(2, 9),
        "sequence_number": number,
        "entered_at": entered,
        "left_at": entered + random_.randrange(4000),
        "bytes": random_.randrange(1, 900),
    }
    if outcome == "dropped":
        return {**row, "reason": random_.choice(("no route", "pool limit exceeded"))}
    if outcome == "delivered":
        return row
    hop = random_.choices(("x", "y"), (95, 5))[0]
    return {**row, "route_table": "t", "route": "r" if is_hot else random_.choice("rs"), "adjacent_out": hop}


def _expected(rows: list[Row]) -> dict[Key, Row]:
    groups: dict[Key, list[Row]] = {}
    moves: Counter[Key] = Counter()
    last: dict[tuple[str, int], tuple[str, str]] = {}
    for row in sorted(rows, key=lambda row: int(row["left_at"])):
        key = (row["instance"], row.get("route_table"), row.get("route"), row["left_at"] // SECOND)
        groups.setdefault(key, []).append(row)
        if "route" in row:
            stream, way = (row["instance"], row["conversation_id"]), (row["route"], row["adjacent_out"])
            moves[key] += last.get(stream, way) != way
            last[stream] = way
    return {key: _row(group, moves[key]) for key, group in groups.items()}


def _row(group: list[Row], moves: int) -> Row:
    stays = sorted(row["left_at"] - row["entered_at"] for row in group)
    ranks = {"p50": (1, 2), "p95": (95, 100), "p99": (99, 100), "p999": (999, 1000)}
    reasons = Counter(row["reason"] for row in group if row["outcome"] == "dropped")
    return {
        "frames": len(group),
        "bytes": sum(row["bytes"] for row in group),
        **{f"residence_{name}_us": stays[ceil(len(stays) * up / down) - 1] for name, (up, down) in ranks.items()},
        "drops": reasons.total(),
        "drops_by_reason": dict(reasons),
        "failovers": moves,
    }


def test_frames_bytes_and_residence(spark: SparkSession) -> None:
    """Every visit counts but the note of an acknowledgement."""
    outcomes = ("sent", "resent", "forwarded", "delivered", "duplicate", "acknowledged")
    rows = [
        {"outcome": outcome, "entered_at": 0, "left_at": 10 * place, "route": "r", "route_table": "t"}
        for place, outcome in enumerate(outcomes, start=1)
    ]

    assert asked(spark, *rows) == {
        ("a", "t", "r", 0): {
            "frames": 5,
            "bytes": 500,
            "residence_p50_us": 30,
            "residence_p95_us": 50,
            "residence_p99_us": 50,
            "residence_p999_us": 50,
            "drops": 0,
            "drops_by_reason": {},
            "failovers": 0,
        }
    }
