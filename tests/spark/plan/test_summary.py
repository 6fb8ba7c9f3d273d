"""What people are told of a plan: numbers by fate, changes that are alike together, what gets more and what nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from broker.pipeline.plan import summary as plan_summary
from broker.pipeline.plan.answer import Answer, answer_of_keys
from broker.pipeline.plan.key import route_keys
from broker.pipeline.plan.script import Scripted, play_script
from broker.pipeline.plan.site import Change, Shown, change_of
from broker.pipeline.plan.summary import summarize
from tests.spark.visiting import guid, visits

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ORDERS = guid(7) or b""
ROUTE = "CREATE ROUTE [{}] WITH SERVICE_NAME = '{}', ADDRESS = 'tcp://{}';"
BEFORE = f"USE orders; {ROUTE.format('x', 'X', 'one')} {ROUTE.format('y', 'Y', 'one')} {ROUTE.format('z', 'Z', 'one')}"
AFTER = f"USE orders; {ROUTE.format('x', 'X', 'two')} {ROUTE.format('y', 'Y', 'one')} {ROUTE.format('y2', 'Y', 'two')}"


@pytest.fixture(scope="module")
def change() -> Change:
    was, will = (play_script(Scripted(), text, source="x.sql", now=NOW) for text in (BEFORE, AFTER))
    shown = {"a": Shown({ORDERS: {"Initiator"}})}
    return change_of({"a": was}, {"a": will}, shown, now=NOW, addresses={}, given={})


@pytest.fixture(scope="module")
def found(spark: SparkSession, change: Change) -> Answer:
    sent = {"outcome": "sent", "from_broker_instance": 7}
    history = [sent | {"to_service": "X", "conversation_id": n % 2, "message_id": n} for n in range(3)]
    history += [sent | {"to_service": "Y", "conversation_id": n, "message_id": n} for n in range(20)]
    return answer_of_keys(route_keys(visits(spark, *history, sent | {"to_service": None})), change)


def test_everything_is_told_in_values_of_json(found: Answer, change: Change) -> None:
    told = summarize(found, change.names)

    assert json.loads(json.dumps(told)) == told
    other_paths = {"conversations": 20, "frames": 20}
    assert {"moves": {"conversations": 2, "frames": 3}, "keeps its target, over other paths": other_paths} == (
        told["fates"]
    )
    assert {"columns are missing": {"conversations": 1, "frames": 1}} == told["unplanned"]
    assert {"conversations": 2, "frames": 3} == told["harmed"]
    assert {"conversations": 0, "frames": 0} == told["loops"]


def test_changes_that_are_alike_come_together_harm_first(found: Answer, change: Change) -> None:
    first, *rest = summarize(found, change.names)["changes"]

    assert ("orders", "X", "moves", 2, 3) == tuple(
        first[name] for name in ("database", "to_service", "fate", "conversations", "frames")
    )
    assert {("Y", "y"), ("Y", "y2")} == {(one["to_service"], one["route_after"]) for one in rest}
    assert 20 == sum(one["conversations"] for one in rest)


def test_load_that_changes_and_routes_that_nothing_uses_are_listed(found: Answer, change: Change) -> None:
    told = summarize(found, change.names)

    assert ["tcp://one:4022", "tcp://two:4022"] == [one["next_hop"] for one in told["load"]]
    assert {("msdb", "AutoCreatedLocal"), ("orders", "AutoCreatedLocal")} == {
        (one["route_table"], one["route"]) for one in told["unused"]
    }


def test_long_lists_are_cut_and_the_rest_counted(
    found: Answer, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_summary, "ROWS_MAX", 1)

    told = summarize(found, change.names)

    assert (1, 2, 1, 1) == (len(told["changes"]), told["more_changes"], len(told["unused"]), told["more_unused"])
