"""Claims of conversation groups: whose turn it is, who may not have it, and what a dead reader leaves."""

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client import claims as claim_module
from broker.client import queue as module
from broker.client.claims import Claim, ClaimLostError, RetryRule, claim_group, finish_claim, record_crashes
from broker.client.dialog import Dialog
from broker.client.queue import WHOLE_QUEUE, QueueState, Scope, first_group, next_messages, queue_of
from broker.store.sqlite.quarantine import failures
from broker.store.sqlite.reader_slots import ReaderSlot
from broker.store.sqlite.schema import SCHEMA_VERSION
from tests.support.shop import Shop

NOW = 1_000_000.0


@pytest.fixture
def slot(shop: Shop) -> Iterator[int]:
    """A slot that lives."""
    held = ReaderSlot(str(shop.path))
    yield held.number
    held.close()


def arrived(shop: Shop, db: sqlite3.Connection, *bodies: bytes) -> Dialog:
    dialog = shop.begin(db)
    shop.arrive(dialog, *bodies)
    return dialog


def take(db: sqlite3.Connection, slot: int, *, top: int = 100, now: float = NOW) -> Claim | None:
    return claim_group(db, "OrdersQueue", slot=slot, top=top, now=now)


def test_groups_are_claimed_in_the_order_of_their_messages_and_only_once(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    """The highest priority first; and none of a queue that is off or gone."""
    first, second, third = (arrived(shop, db, *bodies) for bodies in ([b"1", b"2"], [b"3"], [b"4"]))
    db.execute("UPDATE broker_message SET priority = 9 WHERE message_body = x'34'")
    db.execute("UPDATE broker_queue SET is_receive_enabled = 0")
    assert take(db, slot) is None
    assert claim_group(db, "Nope", slot=slot, top=1, now=NOW) is None
    db.execute("UPDATE broker_queue SET is_receive_enabled = 1")

    claims = [take(db, slot) for _ in range(4)]

    groups = [dialog.conversation_group_id.bytes for dialog in (third, first, second)]
    assert groups == [one.lock.conversation_group_id for one in claims if one is not None]
    assert [(4,), (1, 2), (3,)] == [one.queuing_orders for one in claims if one is not None]
    assert claims[3] is None
    assert 4 == db.execute("SELECT count(*) FROM broker_message WHERE status = 1").fetchone()[0]
    assert [] == record_crashes(db, own=None, rules={}, now=NOW)
    assert 3 == db.execute("SELECT count(*) FROM broker_group_lock").fetchone()[0]


def test_a_batch_holds_no_more_than_top_and_than_its_bytes(
    shop: Shop, db: sqlite3.Connection, slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived(shop, db, b"x" * 60, b"x" * 60, b"x" * 60)
    arrived(shop, db, b"1", b"2", b"3")
    arrived(shop, db, b"x" * 1000, b"2")
    monkeypatch.setattr(claim_module, "BATCH_MAX_BYTES", 130)

    sizes = [len(one.queuing_orders) for one in (take(db, slot), take(db, slot, top=2), take(db, slot)) if one]

    assert [2, 2, 1] == sizes


def test_the_lock_of_a_reader_that_died_is_not_taken_over_before_its_death_is_counted(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    arrived(shop, db, b"1")
    take(db, slot + 1)

    assert take(db, slot) is None
    ((_, verdict),) = record_crashes(db, own=slot, rules={}, now=NOW)
    assert take(db, slot) is None
    assert take(db, slot, now=NOW + verdict.rest_s) is not None


def test_a_claim_whose_message_somebody_else_removed_is_not_settled(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    arrived(shop, db, b"1", b"2")
    claim = take(db, slot)
    assert claim is not None
    shop.connect(isolation_level=None).execute("DELETE FROM broker_message WHERE message_body = x'32'")
    db.execute("BEGIN IMMEDIATE")

    with pytest.raises(ClaimLostError, match="nothing of the work was committed"):
        finish_claim(db, claim, [1])
    db.execute("ROLLBACK")

    assert 1 == db.execute("SELECT count(*) FROM broker_message").fetchone()[0]


def test_a_claim_whose_dialog_the_reader_itself_ended_is_settled(shop: Shop, db: sqlite3.Connection, slot: int) -> None:
    dialog = arrived(shop, db, b"1", b"2")
    claim = take(db, slot)
    assert claim is not None
    db.execute("BEGIN IMMEDIATE")
    dialog.end(cleanup=True)

    finish_claim(db, claim, [1])
    db.execute("COMMIT")

    for table in ("message", "conversation", "group_lock"):
        assert 0 == db.execute(f"SELECT count(*) FROM broker_{table}").fetchone()[0]


@pytest.mark.promise("An application dies")
def test_the_death_of_a_reader_is_a_failure_of_the_message_it_had(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    arrived(shop, db, b"1", b"2")
    take(db, slot + 1)
    (queue_id,) = db.execute("SELECT queue_id FROM broker_queue WHERE name = 'OrdersQueue'").fetchone()

    crashes = record_crashes(db, own=slot, rules={queue_id: RetryRule(attempts=2, rest_first=0)}, now=NOW)
    take(db, slot + 1)
    more = record_crashes(db, own=slot, rules={queue_id: RetryRule(attempts=2, rest_first=0)}, now=NOW)

    (failure,) = failures(db)
    assert [(1, 0, 1, False)] == [
        (what.endpoint_id, what.message_sequence_number, verdict.failures, verdict.is_quarantined)
        for what, verdict in crashes
    ]
    assert [True] == [verdict.is_quarantined for _, verdict in more]
    assert "the process of its reader died" in failure.error


def test_a_message_that_came_after_the_claim_is_not_blamed(shop: Shop, db: sqlite3.Connection, slot: int) -> None:
    arrived(shop, db, b"1")
    take(db, slot + 1)
    db.execute("UPDATE broker_message SET message_enqueue_time = ?", (NOW + 1,))

    crashes = record_crashes(db, own=slot, rules={}, now=NOW + 2)

    assert [] == crashes
    assert [] == db.execute("SELECT * FROM broker_group_lock").fetchall()


QUEUE = QueueState(1, 1, 1, 1, SCHEMA_VERSION, None)


def bodies(db: sqlite3.Connection, scope: Scope | None = None, limit: int = 100) -> list[bytes]:
    """The bodies of the next messages of OrdersQueue."""
    rows = next_messages(db, QUEUE, scope or WHOLE_QUEUE, "m.message_body", limit, now=time.time())
    return [row[0] for row in rows]


def plans(db: sqlite3.Connection, call: Any) -> list[str]:
    """How SQLite goes about the statements of a call that look for messages."""
    statements: list[str] = []
    db.set_trace_callback(statements.append)
    call()
    db.set_trace_callback(None)
    wanted = [statement for statement in statements if "broker_message" in statement]
    assert wanted
    return [row[3] for statement in wanted for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]


OF_QUEUE = "SEARCH m USING INDEX broker_message_queue (queue_id=? AND status=?)"
OF_ENDPOINT = "SEARCH n USING INDEX broker_message_endpoint (endpoint_id=? AND status=?)"
ALL_ENDPOINTS = "SEARCH broker_message USING COVERING INDEX broker_message_endpoint (endpoint_id>?)"
SCANNED = {"SCAN m", "SCAN e", "SCAN json_each VIRTUAL TABLE INDEX 1:", "SCAN broker_group_lock", "SCAN CONSTANT ROW"}


@pytest.mark.parametrize(
    ("scope", "is_locked", "expected", "scanned"),
    [
        (Scope(), False, {OF_QUEUE, "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)"}, set()),
        (Scope(), True, {OF_ENDPOINT, ALL_ENDPOINTS}, SCANNED),
        (Scope(group=b"g" * 16), False, {OF_ENDPOINT, "SEARCH m USING INTEGER PRIMARY KEY (rowid=?)"}, set()),
        (Scope(handle=b"h" * 16), False, {OF_ENDPOINT, "SEARCH m USING INTEGER PRIMARY KEY (rowid=?)"}, set()),
        (
            None,
            False,
            {OF_QUEUE.replace("USING", "USING COVERING")},
            {"SCAN broker_group_lock", "SCAN broker_database"},
        ),
    ],
    ids=["queue", "free groups", "group", "conversation", "what most receives have to know"],
)
def test_next_messages_are_read_off_indexes(
    shop: Shop, scope: Scope | None, *, is_locked: bool, expected: set[str], scanned: set[str]
) -> None:
    """So the cost does not depend on how many messages wait; what is sorted is at most as many as are asked for."""
    db = shop.connect(isolation_level=None)
    dialog = arrived(shop, db, b"taken")
    if is_locked:
        lock(shop, dialog, retry_time=time.time() + 60)

    plan = plans(db, lambda: queue_of(db, "OrdersQueue", WHOLE_QUEUE) if scope is None else bodies(db, scope))

    assert expected <= set(plan)
    assert {step for step in plan if step.startswith("SCAN")} <= scanned
    assert plan.count("USE TEMP B-TREE FOR ORDER BY") == (scope not in {Scope(), None}) or is_locked


def lock(shop: Shop, dialog: Any, *, reader: int | None = None, retry_time: float | None = None) -> None:
    """The group of a dialog is a reader's, or rests."""
    shop.connect(isolation_level=None).execute(
        "INSERT INTO broker_group_lock VALUES (?, ?, 0, ?)", (dialog.conversation_group_id.bytes, reader, retry_time)
    )


def test_groups_of_living_readers_and_resting_groups_are_passed_over(shop: Shop, db: sqlite3.Connection) -> None:
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
        group = first_group(db, QUEUE, time.time())
        asked = [bodies(db, Scope(group=dialog.conversation_group_id.bytes)) for dialog in dialogs]
        by_handle = [bodies(db, Scope(handle=dialog.conversation_handle.bytes)) for dialog in dialogs]
    finally:
        slot.close()

    assert [b"1", b"3", b"4"] == seen
    assert dialogs[1].conversation_group_id.bytes == group
    assert [[], [b"1"], [b"2"], [b"3"], [b"4"]] == asked == by_handle
    assert [b"0"] == bodies(db, Scope(group=dialogs[0].conversation_group_id.bytes))
    assert [b"0", b"1", b"3", b"4"] == bodies(db)


@pytest.mark.promise("The database file grows")
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
    assert first_group(db, QUEUE, time.time()) is None
