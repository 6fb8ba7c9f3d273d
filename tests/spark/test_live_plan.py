"""`broker routes plan --flows` on a real daemon: its routes, a history, and the same answers as `broker explain`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from broker.admin.message import PlaceTold
from broker.admin.planned_place import read_place
from broker.demo.topology import Daemon, Topology
from broker.journal.schema import JOURNAL, file_metadata
from broker.pipeline.plan.key import Origin
from broker.pipeline.plan.ruling import Judge, Key
from broker.pipeline.plan.site import Change
from tests.spark.visiting import guid, table
from tests.support.command import run

FIRST, SECOND = UUID(int=21), UUID(int=22)
ROUTES = f"""
CREATE ROUTE Picked1 WITH SERVICE_NAME = 'Picked', BROKER_INSTANCE = '{FIRST}', ADDRESS = 'tcp://127.0.0.1:1';
CREATE ROUTE Picked2 WITH SERVICE_NAME = 'Picked', BROKER_INSTANCE = '{SECOND}', ADDRESS = 'tcp://127.0.0.1:2';
CREATE ROUTE Paths1 WITH SERVICE_NAME = 'Paths', ADDRESS = 'tcp://127.0.0.1:1';
CREATE ROUTE Paths2 WITH SERVICE_NAME = 'Paths', ADDRESS = 'tcp://127.0.0.1:2';
"""
SCRIPT = "ALTER ROUTE Picked1 WITH ADDRESS = 'tcp://127.0.0.1:3'; DROP ROUTE Paths1;"
SERVICES = ("Picked", "Paths", "Here", "Unknown")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """An instance with a database and a service, and routes in both tables."""
    with Topology(tmp_path) as net:
        one = net.add("one", forwarding=True, databases=["orders"])
        net.script("one", "msdb", ROUTES)
        net.script("one", "orders", ROUTES + "CREATE QUEUE Q; CREATE SERVICE [Here] ON QUEUE Q;")
        net.start()
        yield one


def write_journal(directory: Path, rows: list[dict[str, Any]], name: str = "one") -> Path:
    metadata = file_metadata(file=f"{name:0>32}".encode().hex()[:32], instance=name, sample=1.0, shed=0)
    directory.mkdir(parents=True, exist_ok=True)
    told = table(*rows).cast(JOURNAL).replace_schema_metadata(metadata)
    pq.write_table(told, directory / f"{name}-1-x.parquet", compression="zstd")
    return directory


def explained(daemon: Daemon, key: Key, conversation: int) -> tuple[Any, ...]:
    request = {
        "to": key.to_service,
        "conversation": str(UUID(int=conversation)),
        "database": "msdb" if key.database is None else "orders",
        "from_target": key.from_target,
        "broker_instance": None if key.to_broker_instance is None else str(UUID(bytes=key.to_broker_instance)),
    }
    told = daemon.admin.request("POST", "/v1/explain", request)["explanation"]
    hop = told["next_hop"] if told["database"] is None else told["database"] if told["is_service_there"] else None
    return told["outcome"], told["route"], hop


def test_every_key_gets_the_answer_of_the_daemon_before_the_script_and_after_it(daemon: Daemon) -> None:
    """What the plan told of the instance beforehand is what `broker explain` tells once the script was carried out."""
    answer = daemon.admin.request("POST", "/v1/plan", {"script": SCRIPT, "database": "msdb", "places": True})
    places = [msgspec.convert(answer[when], PlaceTold) for when in ("before", "after")]
    before, after = (read_place(place, now=datetime.now(UTC)) for place in places)
    judge = Judge(Change({"one": before.site}, {"one": after.site}, before.names))
    [orders] = before.names
    keys = [
        Key("one", int(Origin.HERE if database else Origin.ARRIVED), database, None, service, named, is_from_target)
        for service in SERVICES
        for named in (None, FIRST.bytes, orders)
        for is_from_target in (False, True)
        for database in (None, orders)
    ]

    for when in ("before", "after"):
        if when == "after":
            daemon.admin.sql(SCRIPT, "msdb")
        for key in keys:
            for conversation in (1, 2):
                way = getattr(judge.rule(key, guid(conversation) or b""), when)
                assert explained(daemon, key, conversation) == (way.outcome, way.route, way.next_hop), (when, key)


def test_the_history_is_told_beside_the_conversations_under_way(
    spark: SparkSession, daemon: Daemon, tmp_path: Path
) -> None:
    del spark  # the command takes the session that is there
    arrived = {"instance": "one", "adjacent_in": "x"}
    rows = [arrived | {"to_service": "Picked", "conversation_id": n, "message_id": n} for n in range(20)]
    rows += [arrived | {"to_service": "Paths", "conversation_id": n, "message_id": 100 + n} for n in range(3)]
    flows = write_journal(tmp_path / "journal", rows)
    write_journal(flows, [{"instance": "two", "adjacent_in": "x"}], "two")
    command = ["routes", "plan", "-", "-d", "msdb", "--socket", daemon.directory / "admin.sock", "--flows", flows]

    result = run(*command, "-o", "json", stdin=SCRIPT)
    shown = run(*command, stdin=SCRIPT)
    harmless = run(*command, stdin="CREATE ROUTE Unknown WITH SERVICE_NAME = 'New', ADDRESS = 'tcp://new'")

    assert (6, 6, 0) == (result.exit_code, shown.exit_code, harmless.exit_code), result.output
    told = json.loads(result.stdout)
    assert 0 == told["harmed"], "there are no conversations under way"
    history = told["history"]
    fates = Counter({fate: counts["conversations"] for fate, counts in history["fates"].items()})
    assert (20, 3) == (
        fates["moves"] + fates["keeps its target"],
        fates["keeps its target, over other paths"],
    )
    assert 0 < fates["moves"] == history["harmed"]["conversations"] < 20
    assert "would have been harmed" in shown.stdout.splitlines()[-1]
    assert any("Unknown" in line for line in harmless.stdout.splitlines() if "nothing in it would use" in line)
    assert "no harm: no conversation" in harmless.stdout
