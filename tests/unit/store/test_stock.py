"""What lies in a database is counted, and the first of it has an age."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from broker.store.sqlite.inspect import (
    LOOKED_AT,
    QUEUES_MAX,
    Backlog,
    QueueStock,
    WaitReason,
    backlog_of,
    fullest_queues,
    oldest_ready_s,
    queue_count,
    reasons_of,
    sides_by_service,
    unacknowledged_messages,
    unended_dialogs,
)
from broker.store.sqlite.metadata import queues
from tests.support.shop import Shop

NOW = 86_500.5  # 100 s after messages that the shop says have arrived


@pytest.fixture
def db(shop: Shop) -> sqlite3.Connection:
    return shop.connect(isolation_level=None)


def send(shop: Shop, db: sqlite3.Connection, *, enqueue_time: float, why: str | None = None, messages: int = 1) -> Any:
    dialog = shop.begin(db)
    for _ in range(messages):
        dialog.send(b"x")
    shop.change(dialog, "transmission_status", why)
    db.execute(
        "UPDATE broker_transmission SET enqueue_time = ? WHERE endpoint_id = ?", (enqueue_time, dialog.endpoint_id)
    )
    return dialog


def test_an_empty_database_has_no_stock(db: sqlite3.Connection) -> None:
    assert (Backlog(), [], []) == (backlog_of(db, NOW), reasons_of(db, NOW), sides_by_service(db))
    assert (0, 0) == (unacknowledged_messages(db), unended_dialogs(db))


@pytest.mark.parametrize(("now", "oldest_s"), [(110.0, 10.0), (90.0, 0.0)])
def test_the_backlog_is_as_old_as_its_first_message_and_a_clock_set_back_makes_it_young(
    shop: Shop, db: sqlite3.Connection, now: float, oldest_s: float
) -> None:
    send(shop, db, enqueue_time=100.0, messages=2)
    send(shop, db, enqueue_time=105.0)

    assert Backlog(3, oldest_s) == backlog_of(db, now)
    assert 3 == unacknowledged_messages(db)


def test_reasons_are_those_of_the_oldest_messages_the_most_frequent_first(shop: Shop, db: sqlite3.Connection) -> None:
    send(shop, db, enqueue_time=100.0)
    send(shop, db, enqueue_time=90.0, why="no way", messages=2)

    assert [WaitReason("//far/Billing", "no way", 2, 20.0), WaitReason("//far/Billing", "", 1, 10.0)] == reasons_of(
        db, 110.0
    )


def test_only_so_many_messages_are_looked_at_for_reasons(shop: Shop, db: sqlite3.Connection) -> None:
    with db:
        send(shop, db, enqueue_time=100.0, messages=LOOKED_AT)
    send(shop, db, enqueue_time=90.0, why="behind")

    assert [WaitReason("//far/Billing", "", LOOKED_AT, 10.0)] == reasons_of(db, 110.0)


def test_queues_are_told_the_fullest_first_with_what_is_ready_and_what_is_in_quarantine(
    shop: Shop, db: sqlite3.Connection
) -> None:
    dialog = shop.begin(db)
    shop.arrive(dialog, b"a", b"b", queue="BillingQueue")
    db.execute("UPDATE broker_message SET status = 4 WHERE message_sequence_number = 0")
    db.execute("UPDATE broker_queue SET is_receive_enabled = 0 WHERE name = 'BillingQueue'")

    assert [
        QueueStock("BillingQueue", 1, 1, 100.0, is_receive_enabled=False),
        QueueStock("OrdersQueue", 0, 0, 0.0, is_receive_enabled=True),
    ] == fullest_queues(db, NOW)


def test_of_many_queues_all_are_counted_and_the_fullest_told(db: sqlite3.Connection) -> None:
    names = [(f"Q{number}",) for number in range(QUEUES_MAX)]
    db.executemany("INSERT INTO broker_queue (name, is_receive_enabled) VALUES (?, 1)", names)

    assert (QUEUES_MAX + 2, QUEUES_MAX) == (queue_count(db), len(fullest_queues(db, NOW)))


@pytest.mark.parametrize("priority", [1, 5, 10, 12])
def test_the_oldest_message_is_found_whatever_its_priority(shop: Shop, db: sqlite3.Connection, priority: int) -> None:
    number = queues(db)["OrdersQueue"].queue_id
    shop.arrive(shop.begin(db), b"old", b"young")
    db.execute(
        "UPDATE broker_message SET message_enqueue_time = 86400.5 - 60, priority = ? WHERE queuing_order = 1",
        (priority,),
    )

    assert 160.0 == oldest_ready_s(db, number, NOW)
    assert 0.0 == oldest_ready_s(db, queues(db)["BillingQueue"].queue_id, NOW)


def test_sides_are_counted_by_service_and_state_since_the_first_of_them(shop: Shop, db: sqlite3.Connection) -> None:
    for state, created in [("CO", 20.0), ("CO", 10.0), ("CD", 30.0)]:
        dialog = shop.begin(db)
        shop.change(dialog, "state", state)
        shop.change(dialog, "create_date", created)

    assert {("Orders", "CO", 2, 10.0), ("Orders", "CD", 1, 30.0)} == set(sides_by_service(db))
    assert 2 == unended_dialogs(db)
