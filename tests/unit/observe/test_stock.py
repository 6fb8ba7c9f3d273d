from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from broker.observe.database_stats import read_stock, read_stocks
from broker.store.sqlite.inspect import QUEUES_MAX


async def test_what_lies_in_a_queue_is_counted_and_its_age_told(start: Callable[..., Any]) -> None:
    instance = await start("one")
    path = instance.endpoints["one"].path
    now = time.time()
    with closing(sqlite3.connect(path)) as db, db:
        (queue,) = db.execute("SELECT queue_id FROM broker_queue WHERE name = 'Q'").fetchone()
        rows = [(queue, 1, 5, now - 30), (queue, 1, 10, now - 90), (queue, 4, 5, now - 500), (queue, 1, 5, now)]
        db.executemany(
            "INSERT INTO broker_message (queue_id, status, priority, message_enqueue_time, endpoint_id,"
            " message_sequence_number, message_type_name) VALUES (?, ?, ?, ?, 1, 0, 'x')",
            rows,
        )

    stock = read_stock(path)

    assert stock is not None
    first = stock.queues[0]
    assert ("Q", 3, 1, True) == (first.name, first.ready, first.quarantined, first.is_receive_enabled)
    assert 90 <= first.oldest_s < 150


async def test_what_waits_to_leave_is_told_with_its_reason(
    start: Callable[..., Any], send: Callable[..., bytes]
) -> None:
    instance = await start("one")
    path = instance.endpoints["one"].path
    handle = send(instance, "//nowhere", messages=3)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "UPDATE broker_conversation SET transmission_status = 'no way' WHERE conversation_handle = ?", (handle,)
        )

    stock = read_stock(path)

    assert stock is not None
    assert (3, 3) == (stock.backlog.messages, stock.ledger.held)
    [reason] = stock.reasons
    assert ("//nowhere", 3) == (reason.far_service, reason.messages)
    assert reason.oldest_s >= 0


async def test_of_many_queues_the_fullest_are_told(start: Callable[..., Any]) -> None:
    script = "".join(f"CREATE QUEUE Q{number};" for number in range(QUEUES_MAX + 10))
    instance = await start("one", script)

    stock = read_stock(instance.endpoints["one"].path)

    assert stock is not None
    assert (QUEUES_MAX, QUEUES_MAX + 11) == (len(stock.queues), stock.queue_count)


def test_a_file_that_cannot_be_read_has_no_stock(tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database" * 100)

    assert {"absent": None, "broken": None} == read_stocks({"absent": tmp_path / "absent.db", "broken": broken})
