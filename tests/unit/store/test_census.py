"""The census: every side in one group, queues, tombstones, quarantine, and where the bytes are."""

from __future__ import annotations

import pytest

from broker.store.sqlite import inspect as module
from broker.store.sqlite.inspect import OTHER_TABLES, Census, Group, QueueDepth, take_census
from tests.support.shop import Shop

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


def test_queues_tell_what_is_ready_since_when_and_what_is_in_quarantine(shop: Shop) -> None:
    dialog(shop, age=0, unread=3)
    shop.connect(isolation_level=None).execute("UPDATE broker_message SET status = 4 WHERE queuing_order = 1")
    shop.connect(isolation_level=None).execute(
        "UPDATE broker_queue SET is_receive_enabled = 0 WHERE name = 'BillingQueue'"
    )

    assert [QueueDepth("BillingQueue", False, 0, 0, None), QueueDepth("OrdersQueue", True, 2, 1, 86400.5)] == (
        taken(shop).queues
    )


def test_tombstones_failures_and_what_waits(shop: Shop) -> None:
    dialog(shop, age=0, sends=2)
    db = shop.connect(isolation_level=None)
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


def test_a_census_changes_nothing_and_ends_its_transaction(shop: Shop) -> None:
    db = shop.connect()

    take_census(db, NOW)

    assert not db.in_transaction
