"""What passed by each route, against an oracle in plain Python."""

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, timedelta
from math import ceil
from typing import Any

from pyspark.sql import SparkSession

from broker.pipeline.routes import failovers, routes
from tests.spark.visiting import START, visits

# --- frames that left by another way than the one before ---


def way(hop: str | None, **more: Any) -> dict[str, Any]:
    """A frame that left for a next hop."""
    return {"adjacent_out": hop, **more}


def numbered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row leaves a millisecond after its number."""
    return [
        {"entered_at": 1000 * number, "sequence_number": number, "message_id": number + 1, "route": "r", **row}
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


def test_each_rule_of_failovers(spark: SparkSession) -> None:
    """A case is the service of its dialog."""
    rows = [
        {"conversation_id": number, "to_service": name, **row}
        for number, (name, (frames, _)) in enumerate(FAILOVERS.items(), 1)
        for row in numbered(frames)
    ]

    found: dict[str, list[int]] = {name: [] for name in FAILOVERS}
    for row in failovers(visits(spark, *rows)).orderBy("sequence_number").collect():
        found[row.to_service].append(row.sequence_number)

    assert {name: moved for name, (_, moved) in FAILOVERS.items()} == found


SECOND = 1_000_000
Row = dict[str, Any]
Key = tuple[str, str | None, str | None, int]


def asked(spark: SparkSession, *rows: Row) -> dict[Key, Row]:
    """By instance, route table, route and the second of the window; without those and its length."""
    found = {}
    for row in routes(visits(spark, *rows), window_seconds=1).collect():
        told = row.asDict()
        second = (told.pop("window_start").astimezone(UTC) - START) // timedelta(seconds=1)
        assert told.pop("window_seconds") == 1
        found[told.pop("instance"), told.pop("route_table"), told.pop("route"), second] = told
    return found


def test_against_an_oracle(spark: SparkSession) -> None:
    """Random visits of every kind, most of them by one route in one dialog."""
    random_ = random.Random(5)
    rows = [_random_visit(random_, number) for number in range(800)]

    assert asked(spark, *rows) == _expected(rows)


def _random_visit(random_: random.Random, number: int) -> Row:
    others = ("resent", "dropped", "delivered", "duplicate", "acknowledged", "new")
    outcome = random_.choices(("forwarded", "sent", *others), (80, 8, *[4] * len(others)))[0]
    is_hot = random_.random() < 0.6
    entered = number * 5000
    row: Row = {
        "outcome": outcome,
        "instance": "hot" if is_hot else random_.choice("bc"),
        "conversation_id": 1 if is_hot else random_.randrange(2, 9),
        "sequence_number": number,
        "entered_at": entered,
        "left_at": random_.choices((entered + random_.randrange(4000), None, entered - 5), (20, 1, 1))[0],
        "bytes": random_.randrange(1, 900),
    }
    if outcome == "dropped":
        return {**row, "reason": random_.choice(("no route", "pool limit exceeded", None))}
    if outcome not in {"forwarded", "sent", "resent"}:
        return row
    hop = random_.choices(("x", "y"), (95, 5))[0]
    return {**row, "route_table": "t", "route": "r" if is_hot else random_.choice("rs"), "adjacent_out": hop}


def _expected(rows: list[Row]) -> dict[Key, Row]:
    groups: dict[Key, list[Row]] = {}
    moves: Counter[Key] = Counter()
    last: dict[tuple[str, int], tuple[str, str]] = {}
    for row in sorted(rows, key=_at):
        if row["outcome"] == "acknowledged":  # the note of the sender, and no visit of the frame
            continue
        key = (row["instance"], row.get("route_table"), row.get("route"), _at(row) // SECOND)
        groups.setdefault(key, []).append(row)
        if "route" in row:
            stream, way = (row["instance"], row["conversation_id"]), (row["route"], row["adjacent_out"])
            moves[key] += last.get(stream, way) != way
            last[stream] = way
    return {key: _row(group, moves[key]) for key, group in groups.items()}


def _at(row: Row) -> int:
    """When it left, or came where nobody knows."""
    return int(row["entered_at"] if row["left_at"] is None else row["left_at"])


def _row(group: list[Row], moves: int) -> Row:
    known = [row["left_at"] - row["entered_at"] for row in group if row["left_at"] is not None]
    stays = sorted(one for one in known if one >= 0)  # unless the clock was set back
    ranks = {"p50": (1, 2), "p95": (95, 100), "p99": (99, 100), "p999": (999, 1000)}
    reasons = Counter(row["reason"] or "unknown" for row in group if row["outcome"] == "dropped")
    return {
        "frames": len(group),
        "bytes": sum(row["bytes"] for row in group),
        **{
            f"residence_{name}_us": stays[ceil(len(stays) * up / down) - 1] if stays else None
            for name, (up, down) in ranks.items()
        },
        "drops": reasons.total(),
        "drops_by_reason": dict(reasons),
        "failovers": moves,
    }
