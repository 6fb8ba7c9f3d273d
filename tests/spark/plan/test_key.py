"""The questions that a history holds: what was routed, from where, how often; and what it shows of the instances."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertSchemaEqual

from broker.pipeline.plan.key import KEY, KEYED, Origin, clues, route_keys
from tests.spark.visiting import guid, visits

SENT = {"outcome": "sent", "from_broker_instance": 7, "instance": "s"}


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def test_visits_are_grouped_and_counted_by_key_and_conversation(spark: SparkSession) -> None:
    history = visits(
        spark,
        {"adjacent_in": "x", "bytes": 100},
        {"adjacent_in": "y", "bytes": 50, "kind": "ack", "message_id": 2},
        {"adjacent_in": "x", "conversation_id": 2},
        {"adjacent_in": "x", "from_target": True},
        {"adjacent_in": "x", "to_broker_instance": 9},
        {"adjacent_in": "x", "to_service": "Other"},
        {"adjacent_in": "x", "instance": "b"},
    )

    keyed = route_keys(history)

    assertSchemaEqual(keyed.schema, KEYED)
    found = {tuple(row[name] for name in (*KEY, "conversation_id")): row for row in rows(keyed)}
    assert 6 == len(found)
    one = found["a", Origin.ARRIVED, None, None, "Target", None, False, guid(1)]
    assert (2, 150) == (one["frames"], one["bytes"])


@pytest.mark.parametrize(
    ("visit", "origin", "database"),
    [
        (SENT, Origin.HERE, 7),
        (SENT | {"outcome": "resent"}, Origin.HERE, 7),
        (SENT | {"from_broker_instance": None}, Origin.UNKNOWN, None),
        ({"adjacent_in": "x", "from_broker_instance": 7}, Origin.ARRIVED, None),
        ({"outcome": "delivered", "from_broker_instance": 7}, Origin.MAYBE_TOLD, 7),
        ({"outcome": "dropped", "reason": "out of sequence", "from_broker_instance": 7}, Origin.MAYBE_TOLD, 7),
        ({"outcome": "dropped", "reason": "pool limit exceeded", "from_broker_instance": 7}, Origin.MAYBE_HERE, 7),
        ({"outcome": "delivered", "from_broker_instance": 7, "adjacent_in": "x"}, Origin.ARRIVED, None),
        ({"outcome": "delivered", "from_broker_instance": 7, "hop_count": 1}, Origin.ARRIVED, None),
        ({"outcome": "delivered"}, Origin.ARRIVED, None),
        ({"to_service": None}, Origin.UNKNOWN, None),
        ({"conversation_id": None}, Origin.UNKNOWN, None),
        ({"from_target": None}, Origin.UNKNOWN, None),
        ({"outcome": None}, Origin.UNKNOWN, None),
    ],
)
def test_where_a_frame_came_from(
    spark: SparkSession, visit: dict[str, Any], origin: Origin, database: int | None
) -> None:
    [row] = rows(route_keys(visits(spark, visit)))

    assert (origin, guid(database)) == (row["origin"], row["database"])
    assert (row["from_service"] is None) == (origin is not Origin.HERE)


def test_what_was_never_routed_is_left_out(spark: SparkSession) -> None:
    never = [
        {"outcome": "dropped", "reason": reason} for reason in ("malformed", "hops exhausted", "lifetime exceeded")
    ]

    assert [] == rows(route_keys(visits(spark, {"outcome": "acknowledged"}, *never)))


def test_clues_tell_who_lives_where_and_who_forwards(spark: SparkSession) -> None:
    history = visits(
        spark,
        SENT,
        SENT | {"conversation_id": 2},
        {"instance": "g", "adjacent_in": "s"},
        {"instance": "h", "adjacent_in": "s", "outcome": "dropped", "reason": "forwarding disabled"},
        {"instance": "t", "adjacent_in": "g", "outcome": "delivered"},
        {"instance": "t", "adjacent_in": "g", "outcome": "duplicate", "to_broker_instance": 9},
    )

    found = rows(clues(route_keys(history)))

    assert {
        ("s", guid(7), "Initiator", 0, 0),
        ("g", None, None, 1, 0),
        ("h", None, None, 0, 1),
        ("t", None, "Target", 0, 0),
        ("t", guid(9), "Target", 0, 0),
    } == {tuple(row.values()) for row in found}
