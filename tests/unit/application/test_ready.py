"""Which messages are next, how SQLite finds them, and how groups that a reader has are passed over."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import pytest

from broker.client import queue as module
from broker.client.queue import QueueSelection, Scope, first_group, next_messages, queue_of
from broker.store.sqlite.queues import ReaderSlot

Shop = Any  # its class is in conftest.py, which nothing imports

QUEUE = 1


def bodies(db: sqlite3.Connection, scope: Scope | None = None, limit: int = 100) -> list[bytes]:
    """The bodies of the next messages of OrdersQueue."""
    choice = QueueSelection(QUEUE, scope or Scope(), time.time())
    return [row[0] for row in next_messages(db, choice, "m.message_body", limit)]


def plans(db: sqlite3.Connection, call: Any) -> list[str]:
    """How SQLite goes about the statements of a call that look for messages."""
    statements: list[str] = []
    db.set_trace_callback(statements.append)
    call()
    db.set_trace_callback(None)
    wanted = [statement for statement in statements if "broker_message" in statement]
    assert wanted
    return [row[3] for statement in wanted for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]


def test_next_of_a_queue_are_read_off_its_index(shop: Shop) -> None:
    """So the cost of a look does not depend on how many messages wait."""
    db = shop.connect()

    plan = plans(db, lambda: bodies(db))

    assert [
        "SEARCH m USING INDEX broker_message_queue (queue_id=? AND status=?)",
        "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
    ] == plan


@pytest.mark.parametrize("scope", [Scope(group=b"g" * 16), Scope(handle=b"h" * 16)])
def test_next_of_a_conversation_are_read_off_its_index(shop: Shop, scope: Scope) -> None:
    """What is sorted is at most as many messages as are asked for, of each conversation."""
    db = shop.connect()

    plan = plans(db, lambda: bodies(db, scope))

    assert "SEARCH n USING INDEX broker_message_endpoint (endpoint_id=? AND status=?)" in plan
    assert "SEARCH m USING INTEGER PRIMARY KEY (rowid=?)" in plan
    assert not [step for step in plan if step.startswith("SCAN")]
    assert 1 == plan.count("USE TEMP B-TREE FOR ORDER BY")


def test_next_of_the_free_groups_are_read_off_indexes(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    shop.arrive(dialog, b"taken")
    lock(shop, dialog, retry_time=time.time() + 60)

    plan = plans(db, lambda: bodies(db))

    assert "SEARCH n USING INDEX broker_message_endpoint (endpoint_id=? AND status=?)" in plan
    assert "SEARCH broker_message USING COVERING INDEX broker_message_endpoint (endpoint_id>?)" in plan
    scanned = {
        "SCAN m",
        "SCAN e",
        "SCAN json_each VIRTUAL TABLE INDEX 1:",
        "SCAN broker_group_lock",
        "SCAN CONSTANT ROW",
    }
    assert {step for step in plan if step.startswith("SCAN")} <= scanned


def lock(shop: Shop, dialog: Any, *, reader: int | None = None, retry_time: float | None = None) -> None:
    """The group of a dialog is a reader's, or rests."""
    shop.connect(isolation_level=None).execute(
        "INSERT INTO broker_group_lock VALUES (?, ?, 0, ?)", (dialog.conversation_group_id.bytes, reader, retry_time)
    )


def test_groups_of_living_readers_and_resting_groups_are_passed_over(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialogs = [shop.begin(db) for _ in range(5)]
    for number, dialog in enumerate(dialogs):
        shop.arrive(dialog, b"%d" % number)
    slot = ReaderSlot(str(shop.path))
    try:
        lock(shop, dialogs[0], reader=slot.number)
        lock(shop, dialogs[1], reader=slot.number + 1)
        lock(shop, dialogs[2], retry_time=time.time() + 60)
        lock(shop, dialogs[3], retry_time=time.time() - 60)

        seen = bodies(db)
        group = first_group(db, QueueSelection(QUEUE, Scope(), time.time()))
        asked = [bodies(db, Scope(group=dialog.conversation_group_id.bytes)) for dialog in dialogs]
        by_handle = [bodies(db, Scope(handle=dialog.conversation_handle.bytes)) for dialog in dialogs]
    finally:
        slot.close()

    assert [b"1", b"3", b"4"] == seen
    assert dialogs[1].conversation_group_id.bytes == group
    assert [[], [b"1"], [b"2"], [b"3"], [b"4"]] == asked == by_handle
    assert [b"0"] == bodies(db, Scope(group=dialogs[0].conversation_group_id.bytes))
    assert [b"0", b"1", b"3", b"4"] == bodies(db)


def test_free_group_behind_a_long_head_of_locked_ones_is_found(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD", 3)
    db = shop.connect(isolation_level=None)
    long, low, high = shop.begin(db), shop.begin(db), shop.begin(db)
    shop.arrive(long, *[b"long"] * 10)
    shop.arrive(low, b"low", b"low again")
    shop.arrive(high, b"high")
    db.execute("UPDATE broker_message SET priority = 1 WHERE endpoint_id = ?", (low.endpoint_id,))
    db.execute("UPDATE broker_message SET priority = 4 WHERE endpoint_id = ?", (high.endpoint_id,))
    lock(shop, long, retry_time=time.time() + 60)

    seen = [bodies(db, limit=2)]
    db.execute("DELETE FROM broker_message WHERE endpoint_id = ?", (high.endpoint_id,))
    seen += [bodies(db, limit=2), bodies(db, limit=1)]
    lock(shop, low, retry_time=time.time() + 60)
    seen.append(bodies(db))

    assert [[b"high"], [b"low", b"low again"], [b"low"], []] == seen
    assert first_group(db, QueueSelection(QUEUE, Scope(), time.time())) is None


def test_one_look_tells_what_most_receives_have_to_know(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    empty = queue_of(db, "OrdersQueue")
    dialog = shop.begin(db)
    shop.arrive(dialog, b"one")
    db.execute("INSERT INTO broker_group_lock VALUES (?, 1, 0, NULL)", (dialog.conversation_group_id.bytes,))

    assert [(QUEUE, 1, 0, 0), (QUEUE, 1, 1, 1), None] == [empty, queue_of(db, "OrdersQueue"), queue_of(db, "no queue")]
    db.execute("UPDATE broker_message SET status = 4")
    assert (QUEUE, 1, 1, 0) == queue_of(db, "OrdersQueue")


def test_the_look_at_a_queue_costs_the_same_however_much_waits(shop: Shop) -> None:
    db = shop.connect()

    plan = plans(db, lambda: queue_of(db, "OrdersQueue"))

    assert "SEARCH m USING COVERING INDEX broker_message_queue (queue_id=? AND status=?)" in plan
