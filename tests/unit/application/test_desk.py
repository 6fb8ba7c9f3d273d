"""What the readers of one database share: their slot, the bell that wakes them, and what a predecessor left."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client.reader_pool import Reader, reader
from broker.client.reader_worker import ReaderConnection, ReaderDatabase
from broker.errors import StoreUnavailableError
from broker.store.sqlite.quarantine import Blame, failures, note_failure
from broker.store.sqlite.queues import live_slots, records
from tests.support.shop import Shop


@reader("OrdersQueue", retry_delay=0)
def handle(_db: Any, _messages: Any) -> None:
    raise AssertionError


@pytest.fixture
def desk(shop: Shop) -> Iterator[ReaderDatabase]:
    desk = ReaderDatabase("shop", shop.path, [handle])
    yield desk
    desk.close()


def arrived(shop: Shop, *bodies: bytes) -> bytes:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    shop.arrive(dialog, *bodies)
    return dialog.conversation_group_id.bytes


def claimed(desk: ReaderDatabase, one: Reader = handle) -> tuple[Any, float | None]:
    db = desk.connect(one)
    try:
        return desk.claim(db, one)
    finally:
        db.close_all()


def test_a_slot_lives_as_long_as_its_desk(shop: Shop) -> None:
    desk = ReaderDatabase("shop", shop.path, [handle])
    during = live_slots(str(shop.path), [desk.slot])
    number = desk.slot

    desk.close()

    assert ({number}, set()) == (during, live_slots(str(shop.path), [number]))


def test_a_commit_of_anybody_wakes_who_waits(shop: Shop, desk: ReaderDatabase) -> None:
    woken = threading.Event()

    def wait() -> None:
        desk.wait(desk.generation, None)
        woken.set()

    waiter = threading.Thread(target=wait)
    time.sleep(0.1)  # the first look at the file counts as news
    waiter.start()

    arrived(shop, b"one")

    assert woken.wait(30)
    waiter.join()


def test_who_waits_is_woken_at_an_instant_and_at_the_end(desk: ReaderDatabase) -> None:
    time.sleep(0.1)
    before = time.time()
    desk.wait(desk.generation, before + 0.05)
    after = time.time()
    desk.stop()
    desk.wait(desk.generation, None)

    assert before + 0.05 <= after + 0.001


def test_nothing_to_do_locks_nothing(shop: Shop, desk: ReaderDatabase) -> None:
    other = shop.connect(isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    assert (None, None) == claimed(desk)


def test_what_a_predecessor_in_the_slot_left_counts_as_a_crash_and_is_free(shop: Shop) -> None:
    group = arrived(shop, b"one")
    db = shop.connect(isolation_level=None)
    db.execute("INSERT INTO broker_group_lock VALUES (?, 0, ?, NULL)", (group, time.time()))
    desk = ReaderDatabase("shop", shop.path, [handle])

    claim, _ = claimed(desk)
    number = desk.slot
    desk.close()

    (failure,) = failures(db)
    assert 0 == number
    assert claim is not None
    assert group == claim.conversation_group_id
    assert 1 == failure.failures


def test_a_group_that_fails_while_a_claim_waits_for_the_write_lock_is_not_claimed(
    shop: Shop, desk: ReaderDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived(shop, b"one")
    other = shop.connect(isolation_level=None)
    begin = ReaderConnection.begin

    def begin_later(db: ReaderConnection) -> None:
        note_failure(other, Blame(1, 0, "E"), now=time.time())
        begin(db)

    monkeypatch.setattr(ReaderConnection, "begin", begin_later)

    claim, look_at = claimed(desk)

    assert claim is None
    assert [look_at] == shop.look("SELECT retry_time FROM broker_group_lock")


def test_a_reader_tells_of_itself_for_the_views(shop: Shop, desk: ReaderDatabase) -> None:
    before = time.time()
    desk.waits("OrdersQueue", 3)
    claimed(desk)

    deadline = time.monotonic() + 30
    while not [one for one in records(str(shop.path)) if one.last_empty_time and one.tasks_waiting == 3]:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    (told,) = records(str(shop.path))
    assert "OrdersQueue" == told.queue_name
    assert told.last_empty_time is not None
    assert before <= told.last_empty_time


def test_a_file_that_cannot_be_written_is_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("broker.client.reader_worker.open_connection", refuse)

    with pytest.raises(StoreUnavailableError, match="unable to open"):
        ReaderDatabase("shop", shop.path, [handle])

    assert set() == live_slots(str(shop.path), [0])
