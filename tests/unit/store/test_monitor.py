"""What watches a queue: whether somebody reads, and whether somebody should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.sqlite.queues import Monitor, MonitorState, QueueRecord, ReaderSlot, queue_monitors
from tests.support.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


def orders(shop: Shop) -> Monitor:
    (monitor,) = [one for one in queue_monitors(shop.path) if one.queue_name == "OrdersQueue"]
    return monitor


def test_every_queue_has_a_row(shop: Shop) -> None:
    assert ["OrdersQueue", "BillingQueue"] == [one.queue_name for one in queue_monitors(shop.path)]


def test_a_queue_that_nobody_reads_is_inactive_until_messages_wait(shop: Shop) -> None:
    idle = orders(shop)
    db = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(db), b"one")
    notified = orders(shop)
    db.execute("UPDATE broker_message SET status = 4")

    assert (MonitorState.INACTIVE, None, None, 0, 0) == (
        idle.state,
        idle.last_empty_rowset_time,
        idle.last_activated_time,
        idle.tasks_waiting,
        idle.readers,
    )
    assert (MonitorState.NOTIFIED, MonitorState.INACTIVE) == (notified.state, orders(shop).state)


def test_readers_of_all_processes_are_added_up_while_they_live(shop: Shop) -> None:
    slots = [ReaderSlot(str(shop.path)) for _ in range(2)]
    slots[0].record([QueueRecord("OrdersQueue", 2, 10.0, 50.0)])
    slots[1].record([QueueRecord("OrdersQueue", 1, 20.0, None), QueueRecord("BillingQueue", 7, 30.0, None)])

    both = orders(shop)
    for slot in slots:
        slot.close()

    assert (MonitorState.RECEIVES_OCCURRING, 50.0, 20.0, 3, 2) == (
        both.state,
        both.last_empty_rowset_time,
        both.last_activated_time,
        both.tasks_waiting,
        both.readers,
    )
    assert MonitorState.INACTIVE is orders(shop).state
