"""A history and scripts in, results out: for every key the same as `broker explain` tells of the configurations."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.pipeline.plan.answer import answer
from broker.pipeline.plan.key import clues, route_keys
from broker.pipeline.plan.plan import decided
from broker.pipeline.plan.question import read_question
from broker.pipeline.plan.site import change_of, gather
from tests.spark.visiting import guid, visits
from tests.support.command import run

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ORDERS, FIRST, SECOND = (UUID(bytes=guid(number) or b"") for number in (7, 21, 22))
OWN = "CREATE QUEUE Q; CREATE SERVICE [Initiator] ON QUEUE Q;"
BEFORE = f"""
CREATE ROUTE Picked1 WITH SERVICE_NAME = 'Picked', BROKER_INSTANCE = '{FIRST}', ADDRESS = 'tcp://one';
CREATE ROUTE Picked2 WITH SERVICE_NAME = 'Picked', BROKER_INSTANCE = '{SECOND}', ADDRESS = 'tcp://two', WEIGHT = 2;
CREATE ROUTE Paths1 WITH SERVICE_NAME = 'Paths', ADDRESS = 'tcp://one';
CREATE ROUTE Paths2 WITH SERVICE_NAME = 'Paths', ADDRESS = 'tcp://two';
CREATE ROUTE Wire WITH ADDRESS = 'TRANSPORT';
"""
AFTER = """
ALTER ROUTE Picked1 WITH ADDRESS = 'tcp://three';
DROP ROUTE Paths2;
CREATE ROUTE Target WITH SERVICE_NAME = 'Target', ADDRESS = 'tcp://one';
"""
SERVICES = ("Picked", "Paths", "Target", "Initiator", "tcp://wire/Service")
COMBINATIONS = list(product(SERVICES, (None, 21), (False, True), (1, 2, 3)))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts, and the configurations that consist of them."""
    directory = tmp_path_factory.mktemp("plan")
    for name, more in {"before": "", "after": AFTER}.items():
        script = directory / f"{name}.sql"
        script.write_text(BEFORE + more + f"USE orders; {OWN}" + BEFORE + more, encoding="utf-8")
        (directory / name).mkdir()
        (directory / f"{name}.toml").write_text(
            f"""
            [instance]
            name = "a"
            state_dir = "{directory / name}"
            [endpoint]
            listen = []
            message_forwarding = true
            [routes]
            files = ["{script}"]
            [databases.orders]
            path = "{directory / name / "orders.db"}"
            broker_instance = "{ORDERS}"
            """,
            encoding="utf-8",
        )
    return directory


@pytest.fixture(scope="module")
def history(spark: SparkSession) -> DataFrame:
    """Every combination of what a decision depends on."""
    rows: list[dict[str, Any]] = []
    for service, named, from_target, conversation in COMBINATIONS:
        place = {"to_service": service, "to_broker_instance": named, "from_target": from_target}
        place |= {"conversation_id": conversation, "message_id": len(rows)}
        rows.append(place | {"adjacent_in": "x"})
        rows.append(place | {"outcome": "sent", "from_broker_instance": 7})
    return visits(spark, *rows).persist()


def explained(config: Path, service: str, named: int | None, conversation: int, *flags: str) -> tuple[Any, ...]:
    """What `broker explain --offline` tells of a key: outcome, route, next hop or database with the service."""
    asked = ["--to", service, "--conversation", UUID(bytes=guid(conversation) or b""), *flags]
    asked += [] if named is None else ["--broker-instance", UUID(bytes=guid(named) or b"")]
    told = json.loads(run("explain", "--offline", "-c", config, "-o", "json", *asked).stdout)["explanation"]
    hop = told["next_hop"] if told["database"] is None else told["database"] if told["is_service_there"] else None
    return told["outcome"], told["route"], hop


def test_every_key_gets_the_answer_of_explain(history: DataFrame, directory: Path) -> None:
    """Both ways of every key and conversation, counted: those of `explain -c` and those of the plan."""
    question = read_question(
        before=directory / "before.sql", after=directory / "after.sql", instance="a", now=datetime.now(UTC)
    )
    keyed = route_keys(history)
    shown = gather(clues(keyed).collect())
    change = change_of(question.before, question.after, shown, now=question.now, addresses={}, given={})

    found = Counter[Any]()
    for row in decided(keyed, change).collect():
        place = row["to_service"], row["to_broker_instance"], row["from_target"], row["database"]
        ways = ((row[f"outcome_{when}"], row[f"route_{when}"], row[f"hop_{when}"]) for when in ("before", "after"))
        found[*place, *ways] += row["conversations"]

    expected = Counter[Any]()
    for service, named, is_from_target, conversation in COMBINATIONS:
        for database, flag in ((None, ["--incoming"]), (ORDERS.bytes, ["-d", "orders"])):
            flags = [*flag, *(["--from-target"] if is_from_target else [])]
            ways = (
                explained(directory / f"{when}.toml", service, named, conversation, *flags)
                for when in ("before", "after")
            )
            expected[service, guid(named), is_from_target, database, *ways] += 1
    assert expected == found


def test_results_are_told_of_a_network_whose_addresses_the_history_shows(spark: SparkSession, tmp_path: Path) -> None:
    route = "CREATE ROUTE r WITH SERVICE_NAME = 'Target', ADDRESS = 'tcp://{}';"
    for name, text in {
        "was/a.sql": route.format("b"),
        "was/b.sql": route.format("t"),
        "will/b.sql": route.format("a"),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    one = {"instance": "a", "adjacent_in": "s", "adjacent_out": "tcp://b:4022"}
    two = {"instance": "b", "adjacent_in": "a", "adjacent_out": "tcp://t:4022", "hop_count": 1}
    sent = {"instance": "s", "outcome": "sent", "from_broker_instance": 7, "adjacent_out": "tcp://a:4022"}

    found = answer(
        visits(spark, sent, one, two), read_question(before=tmp_path / "was", after=tmp_path / "will", now=NOW)
    )

    assert {"plan", "plan_load", "plan_routes", "plan_fates"} == set(found.frames())
    [row] = found.plan.collect()
    assert ("b", "moves", True, ["tcp://a:4022"]) == (row.instance, row.fate, row.is_loop, row.next_after)
    loads = {(row.instance, row.next_hop): row.next_instance for row in found.plan_load.collect()}
    assert {("a", "tcp://b:4022"): "b", ("b", "tcp://t:4022"): None, ("b", "tcp://a:4022"): "a"} == loads
    assert {("s", None, 1), ("a", "keeps its target", 1), ("b", "moves", 1)} == {
        (row.instance, row.fate, row.frames) for row in found.plan_fates.collect()
    }
