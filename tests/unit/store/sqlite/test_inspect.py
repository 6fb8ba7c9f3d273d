"""What is in a database: the sums of its ledger, its census, what waits to be sent and in queues."""

import sqlite3
from dataclasses import replace
from typing import Any

import pytest

from broker.store.sqlite import inspect as module
from broker.store.sqlite.inspect import (
    LOOKED_AT,
    OTHER_TABLES,
    QUEUES_MAX,
    Backlog,
    Census,
    Group,
    LedgerBalance,
    QueueDepth,
    QueueStock,
    WaitReason,
    backlog_of,
    fullest_queues,
    oldest_ready_s,
    queue_count,
    read_balance,
    reasons_of,
    sides_by_service,
    take_census,
)
from broker.store.sqlite.metadata import queues
from tests.support.shop import Shop


def read(shop: Shop) -> LedgerBalance:
    return read_balance(shop.connect())


def sent(shop: Shop, *bodies: str) -> int:
    """A dialog that has sent these; its endpoint_id."""
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
        for body in bodies:
            dialog.send(body)
    return dialog.endpoint_id


def test_what_the_far_side_has_is_acknowledged(shop: Shop, db: sqlite3.Connection) -> None:
    assert (Backlog(), [], []) == (backlog_of(db, NOW), reasons_of(db, NOW), sides_by_service(db))
    endpoint = sent(shop, "one", "two", "three")
    sent(shop, "four")
    db.execute("UPDATE broker_conversation SET acknowledged_sequence = 1 WHERE endpoint_id = ?", (endpoint,))
    db.execute("DELETE FROM broker_transmission WHERE endpoint_id = ? AND message_sequence_number = 0", (endpoint,))

    assert LedgerBalance(4, 1, 3, {}) == read(shop)
    db.execute("DELETE FROM broker_transmission WHERE message_sequence_number = 1")
    balance = replace(read(shop), failed={"b": 2, "a": 1})
    assert (1, -2) == (read(shop).unaccounted, balance.unaccounted)
    assert [
        ("sent", None, 4),
        ("acknowledged", None, 1),
        ("held", None, 2),
        ("failed", "a", 1),
        ("failed", "b", 2),
        ("unaccounted", None, -2),
    ] == list(balance.entries())


NOW = 10_000_000.0


def taken(shop: Shop) -> Census:
    return take_census(shop.connect(), NOW)


def dialog(shop: Shop, *, age: float, state: str = "CO", sends: int = 0, unread: int = 0) -> None:
    db = shop.connect()
    with db:
        one = shop.begin(db)
        for _ in range(sends):
            one.send("x")
    for column, value in (("create_date", NOW - age), ("state", state), ("lifetime", NOW + 60)):
        shop.change(one, column, value)
    shop.arrive(one, *[b"y"] * unread)


def test_conversations_are_counted_by_service_state_and_age(shop: Shop) -> None:
    for age in (0, 3599, 3600, 86_399, 86_400, 7 * 86_400):
        dialog(shop, age=age)
    dialog(shop, age=0, state="DI", unread=2)
    dialog(shop, age=0, state="DO", sends=1)

    assert [
        Group("Orders", "CO", "under an hour", 2, 0, 0, NOW + 60),
        Group("Orders", "CO", "under a day", 2, 0, 0, NOW + 60),
        Group("Orders", "CO", "under a week", 1, 0, 0, NOW + 60),
        Group("Orders", "CO", "a week and more", 1, 0, 0, NOW + 60),
        Group("Orders", "DI", "under an hour", 1, 1, 0, NOW + 60),
        Group("Orders", "DO", "under an hour", 1, 0, 1, NOW + 60),
    ] == taken(shop).groups


def test_tombstones_failures_and_what_waits(shop: Shop, db: sqlite3.Connection) -> None:
    dialog(shop, age=0, sends=2)
    db.executemany(
        "INSERT INTO broker_tombstone VALUES (?, 1, 0, 0, 0, ?, NULL, NULL, NULL, NULL)",
        [(b"a" * 16, NOW - 1), (b"b" * 16, NOW + 1)],
    )
    db.executemany("INSERT INTO broker_failure VALUES (?, 0, 5, 0, 0, ?, 'e', 't')", [(1, NOW), (2, None), (3, None)])

    told = taken(shop)

    assert (2, 1) == (told.tombstones, told.tombstones_due)
    assert (1, 2) == (told.quarantined_dialogs, told.failing_dialogs)
    assert 2 == told.sending
    assert told.sending_since is not None


def test_bytes_are_counted_by_table_and_add_up_to_the_file(shop: Shop) -> None:
    dialog(shop, age=0, sends=50)

    told = taken(shop)

    sizes = {table.table: table for table in told.tables}
    assert not told.is_estimated
    assert 50 == sizes["broker_transmission"].rows
    assert (None, True) == (sizes[OTHER_TABLES].rows, sizes[OTHER_TABLES].size_bytes > 0)
    assert told.file_bytes - told.free_bytes - 4096 <= sum(table.size_bytes for table in told.tables) <= told.file_bytes


def test_a_large_file_is_estimated_from_samples(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTED_MAX_BYTES", 1)
    db = shop.connect()
    with db:
        one = shop.begin(db)
        for _ in range(1000):
            one.send(b"z" * 1000)

    told = taken(shop)

    [transmission] = [table for table in told.tables if table.table == "broker_transmission"]
    assert told.is_estimated
    assert 1000 == transmission.rows
    assert 1_000_000 < transmission.size_bytes < 1_100_000
    assert told.tables[-1].size_bytes < told.file_bytes


NOW_of_stock = 86_500.5  # 100 s after messages that the shop says have arrived


@pytest.fixture
def db(shop: Shop) -> sqlite3.Connection:
    return shop.connect(isolation_level=None)


def send(shop: Shop, db: sqlite3.Connection, *, enqueue_time: float, why: str | None = None, messages: int = 1) -> Any:
    dialog = shop.begin(db)
    dialog.send_many([b"x"] * messages)
    shop.change(dialog, "transmission_status", why)
    db.execute(
        "UPDATE broker_transmission SET enqueue_time = ? WHERE endpoint_id = ?", (enqueue_time, dialog.endpoint_id)
    )
    return dialog


@pytest.mark.parametrize(("now", "oldest_s"), [(110.0, 10.0), (90.0, 0.0)])
def test_the_backlog_is_as_old_as_its_first_message_and_a_clock_set_back_makes_it_young(
    shop: Shop, db: sqlite3.Connection, now: float, oldest_s: float
) -> None:
    send(shop, db, enqueue_time=100.0, messages=2)
    send(shop, db, enqueue_time=105.0)

    assert Backlog(3, oldest_s) == backlog_of(db, now)


def test_reasons_are_those_of_the_oldest_messages_the_most_frequent_first(shop: Shop, db: sqlite3.Connection) -> None:
    send(shop, db, enqueue_time=100.0)
    send(shop, db, enqueue_time=90.0, why="no way", messages=2)
    with db:
        send(shop, db, enqueue_time=100.0, messages=LOOKED_AT)

    reasons = [WaitReason("//far/Billing", "", LOOKED_AT - 2, 10.0), WaitReason("//far/Billing", "no way", 2, 20.0)]
    assert reasons == reasons_of(db, 110.0)


def test_queues_are_told_the_fullest_first_with_what_is_ready_and_what_is_in_quarantine(
    shop: Shop, db: sqlite3.Connection
) -> None:
    shop.arrive(shop.begin(db), b"a", b"b", queue="BillingQueue")
    db.execute("UPDATE broker_message SET status = 4 WHERE message_sequence_number = 0")
    db.execute("UPDATE broker_queue SET is_receive_enabled = 0 WHERE name = 'BillingQueue'")

    assert [
        QueueStock("BillingQueue", 1, 1, 100.0, is_receive_enabled=False),
        QueueStock("OrdersQueue", 0, 0, 0.0, is_receive_enabled=True),
    ] == fullest_queues(db, NOW_of_stock)
    depths = [QueueDepth("BillingQueue", False, 1, 1, 86400.5), QueueDepth("OrdersQueue", True, 0, 0, None)]
    assert depths == taken(shop).queues
    names = [(f"Q{number}",) for number in range(QUEUES_MAX)]
    db.executemany("INSERT INTO broker_queue (name, is_receive_enabled) VALUES (?, 1)", names)
    assert (QUEUES_MAX + 2, QUEUES_MAX) == (queue_count(db), len(fullest_queues(db, NOW_of_stock)))


@pytest.mark.parametrize("priority", [1, 5, 10, 12])
def test_the_oldest_message_is_found_whatever_its_priority(shop: Shop, db: sqlite3.Connection, priority: int) -> None:
    number = queues(db)["OrdersQueue"].queue_id
    shop.arrive(shop.begin(db), b"old", b"young")
    db.execute(
        "UPDATE broker_message SET message_enqueue_time = 86400.5 - 60, priority = ? WHERE queuing_order = 1",
        (priority,),
    )

    assert 160.0 == oldest_ready_s(db, number, NOW_of_stock)
    assert 0.0 == oldest_ready_s(db, queues(db)["BillingQueue"].queue_id, NOW_of_stock)
