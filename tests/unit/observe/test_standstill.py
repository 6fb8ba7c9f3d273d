from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from broker.observe.database_stats import QUEUES_MAX, Standstill, StillQueue, add_standstills, read_standstill

MESSAGE = (
    "INSERT INTO broker_message (queue_id, status, priority, message_enqueue_time, endpoint_id,"
    " message_sequence_number, message_type_name) SELECT queue_id, ?, ?, ?, 1, 0, 'x' FROM broker_queue WHERE name = ?"
)


async def test_queues_that_are_off_come_first_and_then_the_one_that_waits_longest(start: Callable[..., Any]) -> None:
    """One in which nothing waits is left out, and what was received or is in quarantine does not wait."""
    instance = await start("one", "CREATE QUEUE Old; CREATE QUEUE [New]; CREATE QUEUE [Off] WITH STATUS = OFF;")
    path, now = instance.endpoints["one"].path, time.time()
    with closing(sqlite3.connect(path)) as db, db:
        rows = [(1, 5, now - 30, "New"), (1, 1, now - 400, "Old"), (1, 9, now - 9, "Old"), (4, 5, now - 999, "Q")]
        db.executemany(MESSAGE, rows)

    found = read_standstill(path)

    assert found is not None
    assert [("Off", False), ("Old", True), ("New", True)] == [
        (one.name, one.is_receive_enabled) for one in found.queues
    ]
    assert 400 <= found.queues[1].oldest_s < 500


def test_what_is_not_known_is_null_in_a_status() -> None:
    queue = StillQueue("Q", is_receive_enabled=False, oldest_s=1.2345)
    status: dict[str, Any] = {"databases": {"one": {}, "two": {}}}

    add_standstills(status, {"one": Standstill(2, (queue,)), "two": None})

    assert {"quarantined": None, "queues": None} == status["databases"]["two"]
    queues = [{"name": "Q", "is_receive_enabled": False, "oldest_s": 1.234}]
    assert {"quarantined": 2, "queues": queues} == status["databases"]["one"]


async def test_dialogs_in_quarantine_are_counted(start: Callable[..., Any], send: Callable[..., bytes]) -> None:
    instance = await start("one")
    path = instance.endpoints["one"].path
    send(instance, "//nowhere")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO broker_failure SELECT endpoint_id, 0, 5, 1.0, 2.0, 2.0, 'ValueError: x', ''"
            " FROM broker_conversation"
        )

    found = read_standstill(path)

    assert found is not None
    assert 1 == found.quarantined


async def test_of_many_queues_some_are_told(start: Callable[..., Any]) -> None:
    script = "".join(f"CREATE QUEUE Q{number} WITH STATUS = OFF;" for number in range(QUEUES_MAX + 10))
    instance = await start("one", script)

    found = read_standstill(instance.endpoints["one"].path)

    assert found is not None
    assert QUEUES_MAX == len(found.queues)


def test_file_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    assert read_standstill(tmp_path / "none.db") is None
