"""The results of `plan`: ways that change, what goes where, which routes are used, and how everything fares."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertSchemaEqual

from broker.pipeline.plan.batch import DECIDED
from broker.pipeline.plan.key import route_keys
from broker.pipeline.plan.plan import changes, decided, fates, load, plan, route_use
from broker.pipeline.plan.script import Scripted, play_script
from broker.pipeline.plan.site import Change, change_of
from broker.pipeline.schema import PLAN, PLAN_FATES, PLAN_LOAD, PLAN_ROUTES
from broker.routing.address import NetworkAddress
from tests.spark.visiting import guid, visits

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ROUTE = "CREATE ROUTE [{}] WITH SERVICE_NAME = '{}', ADDRESS = 'tcp://{}';"
BEFORE = ROUTE.format("x", "X", "one") + ROUTE.format("y", "Y", "two") + ROUTE.format("idle", "Z", "two")
AFTER = ROUTE.format("x", "X", "two") + ROUTE.format("y", "Y", "two") + ROUTE.format("also", "Y", "three")
AT_A = {"adjacent_in": "s"}


def scripted(text: str) -> Scripted:
    return play_script(Scripted(), text + "DROP ROUTE AutoCreatedLocal", source="x.sql", now=NOW)


@pytest.fixture(scope="module")
def change() -> Change:
    """Of instance a, whose traffic to X moves and whose traffic to Y gets a second address."""
    return change_of(
        {"a": scripted(BEFORE)},
        {"a": scripted(AFTER)},
        {},
        now=NOW,
        addresses={NetworkAddress("two"): "gw-2", NetworkAddress("a"): "a"},
        given={},
    )


@pytest.fixture(scope="module")
def history(spark: SparkSession) -> DataFrame:
    """Three frames of two conversations to X, four of four to Y; one that cannot be told of, and one elsewhere."""
    to_x = [AT_A | {"to_service": "X", "conversation_id": n % 2, "message_id": n} for n in range(3)]
    to_y = [AT_A | {"to_service": "Y", "conversation_id": n, "message_id": n} for n in range(4)]
    return visits(spark, *to_x, *to_y, AT_A | {"to_service": None}, AT_A | {"instance": "b"}).persist()


@pytest.fixture(scope="module")
def told(history: DataFrame, change: Change) -> DataFrame:
    return decided(route_keys(history), change).persist()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def test_every_class_and_every_conversation_with_a_say_is_one_row(told: DataFrame) -> None:
    assert DECIDED.names == told.columns
    assert 1 + 4 + 1 + 1 == told.count()


def test_ways_that_change_are_told_by_class_and_by_conversation(history: DataFrame, change: Change) -> None:
    found = plan(history, before=change.before, after=change.after, names=change.names)

    assertSchemaEqual(found.schema, PLAN)
    by_service: dict[str, list[dict[str, Any]]] = {}
    for row in rows(found):
        by_service.setdefault(row["to_service"], []).append(row)
    assert [
        {
            "instance": "a",
            "database": None,
            "to_service": "X",
            "to_broker_instance": None,
            "from_target": False,
            "conversation_id": None,
            "conversations": 2,
            "frames": 3,
            "bytes": 300,
            "fate": "moves",
            "is_harm": True,
            "outcome_before": "forwarded",
            "route_before": "x",
            "next_before": ["tcp://one:4022"],
            "outcome_after": "forwarded",
            "route_after": "x",
            "next_after": ["tcp://two:4022"],
            "is_loop": False,
        }
    ] == by_service.pop("X")
    assert {guid(n) for n in range(4)} == {row["conversation_id"] for row in by_service["Y"]}
    assert {("keeps its target, over other paths", False, 1)} == {
        (row["fate"], row["is_harm"], row["frames"]) for row in by_service.pop("Y")
    }
    assert {} == by_service


def test_what_goes_to_each_next_hop_before_and_after(told: DataFrame, change: Change) -> None:
    found = load(told, change.addresses)

    assertSchemaEqual(found.schema, PLAN_LOAD)
    loads = {row["next_hop"]: row for row in rows(found)}
    to_three = loads["tcp://three:4022"]["frames_after"]
    assert {"tcp://one:4022": (3, 0), "tcp://two:4022": (4, 7 - to_three), "tcp://three:4022": (0, to_three)} == {
        name: (row["frames_before"], row["frames_after"]) for name, row in loads.items()
    }
    assert 0 < to_three < 4
    assert [(name, row["frames_before"] * 100) for name, row in loads.items()] == [
        (name, row["bytes_before"]) for name, row in loads.items()
    ]
    assert (None, "gw-2") == tuple(loads[f"tcp://{name}:4022"]["next_instance"] for name in ("one", "two"))


def test_what_goes_nowhere_has_no_next_hop(spark: SparkSession, change: Change) -> None:
    history = visits(spark, AT_A | {"to_service": "Unknown"})

    [row] = rows(load(decided(route_keys(history), change), {}))

    assert (None, False, 1, 1) == (row["next_hop"], row["is_here"], row["frames_before"], row["frames_after"])


def test_routes_that_nothing_uses_are_found_on_both_sides(told: DataFrame, change: Change) -> None:
    found = route_use(told, change)

    assertSchemaEqual(found.schema, PLAN_ROUTES)
    use = {row["route"]: tuple(row.values())[3:] for row in rows(found)}
    taken = use["also"][3]
    assert {
        "x": (True, True, 3, 3, 0, 0),
        "y": (True, True, 4, 4 - taken, 0, taken),
        "also": (False, True, 0, taken, 0, 4 - taken),
        "idle": (True, False, 0, 0, 0, 0),
    } == use


def test_everything_is_counted_whatever_becomes_of_it(told: DataFrame) -> None:
    found = fates(told)

    assertSchemaEqual(found.schema, PLAN_FATES)
    assert {
        ("a", "moves", None): (2, 3),
        ("a", "keeps its target, over other paths", None): (4, 4),
        ("a", None, "columns are missing"): (1, 1),
        ("b", None, "no routes of the instance are known"): (1, 1),
    } == {
        (row["instance"], row["fate"], row["unplanned"]): (row["conversations"], row["frames"]) for row in rows(found)
    }


def test_nothing_changes_when_nothing_is_changed(history: DataFrame, change: Change) -> None:
    assert [] == rows(plan(history, before=change.before, after=change.before))


def test_no_history_is_no_result(spark: SparkSession, change: Change) -> None:
    told = decided(route_keys(visits(spark, AT_A).limit(0)), change)

    assert [] == rows(changes(told))
    assert {(0, 0, 0, 0)} == {tuple(row.values())[5:] for row in rows(route_use(told, change))}
