"""One worker, step by step: what is committed, and what is told of that which is not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import structlog

from broker.client.dialog import Dialog
from broker.client.reader_pool import reader
from broker.client.reader_worker import ReaderDatabase, ReaderWorker, Work, is_store_trouble
from broker.errors import ConversationError, StoreUnavailableError
from broker.protocol.frame import Envelope, encode_envelope
from broker.store.sqlite.quarantine import failures
from broker.store.sqlite.schema import LARGE_BYTES
from tests.support.reading import Told, count
from tests.support.shop import Shop


@reader("OrdersQueue", retry_delay=0, attempts=2)
def handle(_db: Any, _messages: Any) -> None:
    raise AssertionError


@pytest.fixture
def worker(shop: Shop) -> Iterator[ReaderWorker]:
    desk = ReaderDatabase("shop", shop.path, [handle])
    worker = ReaderWorker(desk, handle)
    yield worker
    desk.stop()
    worker.close()
    desk.close()


def arrived(shop: Shop, *bodies: bytes) -> Dialog:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    dialog.send(b"hello")
    shop.arrive(dialog, *bodies)
    return dialog


def next_work(worker: ReaderWorker) -> Work:
    work = worker.next()
    assert work is not None
    return work


def test_a_work_is_finished_with_its_writes_and_its_messages(shop: Shop, worker: ReaderWorker) -> None:
    arrived(shop, b"one", b"two")
    work = next_work(worker)
    messages = work.argument()

    work.db.execute("INSERT INTO orders (state) VALUES ('done')")
    before = count(shop, "broker_message"), count(shop, "broker_group_lock")
    work.finish()

    assert [b"one", b"two"] == [message.body for message in messages]
    assert (2, 1) == before
    assert (0, 0, 1) == (count(shop, "broker_message"), count(shop, "broker_group_lock"), count(shop, "orders"))


def test_a_work_that_failed_leaves_the_messages_and_a_failure(shop: Shop, worker: ReaderWorker) -> None:
    arrived(shop, b"one")
    work = next_work(worker)
    work.argument()
    work.db.execute("INSERT INTO orders (state) VALUES ('done')")

    work.fail(RuntimeError("no such order"))

    (failure,) = failures(shop.connect())
    assert (1, 0) == (count(shop, "broker_message"), count(shop, "orders"))
    assert ("RuntimeError: no such order", 1) == (failure.error, failure.failures)


def test_a_work_that_is_given_back_blames_nobody(shop: Shop, worker: ReaderWorker) -> None:
    arrived(shop, b"one")
    work = next_work(worker)
    work.argument()
    work.db.execute("INSERT INTO orders (state) VALUES ('done')")

    work.release()

    assert (1, 0, 0) == (count(shop, "broker_message"), count(shop, "broker_group_lock"), count(shop, "broker_failure"))
    assert 0 == count(shop, "orders")


def test_a_work_whose_claim_was_lost_changes_nothing(shop: Shop, worker: ReaderWorker) -> None:
    arrived(shop, b"one")
    work = next_work(worker)
    work.argument()
    shop.connect(isolation_level=None).execute("DELETE FROM broker_group_lock")
    work.db.execute("INSERT INTO orders (state) VALUES ('done')")

    work.finish()

    assert (1, 0, 0) == (count(shop, "broker_message"), count(shop, "orders"), count(shop, "broker_failure"))


def test_a_work_that_fails_after_its_lock_was_lost_leaves_the_lock_of_another_reader(
    shop: Shop, worker: ReaderWorker
) -> None:
    arrived(shop, b"one")
    work = next_work(worker)
    work.argument()
    shop.connect(isolation_level=None).execute("UPDATE broker_group_lock SET reader = 7")

    with structlog.testing.capture_logs() as logs:
        work.fail(RuntimeError("a secret"))

    assert [(7, None)] == shop.look("SELECT reader, retry_time FROM broker_group_lock")
    assert 0 == count(shop, "broker_failure")
    assert [("claim lost", False)] == [(line["event"], "secret" in line["reason"]) for line in logs]


def test_a_failure_is_logged_with_the_time_of_the_next_try(shop: Shop) -> None:
    arrived(shop, b"one")
    slow = reader("OrdersQueue", attempts=2)(handle.function)
    desk = ReaderDatabase("shop", shop.path, [slow])
    worker = ReaderWorker(desk, slow)
    work = next_work(worker)
    work.argument()

    with structlog.testing.capture_logs() as logs:
        work.fail(RuntimeError("no such order"))
    worker.close()
    desk.close()

    ((lock_time, retry_time),) = shop.look("SELECT lock_time, retry_time FROM broker_group_lock")
    assert 0 <= retry_time - datetime.fromisoformat(logs[0]["retry_at"]).timestamp() < 0.001
    assert logs[0]["retry_s"] == pytest.approx(retry_time - lock_time, abs=0.001)


@pytest.mark.parametrize("error", [None, LookupError("no such dialog")])
def test_a_work_whose_dialog_somebody_removed_meanwhile_is_no_failure(
    shop: Shop, worker: ReaderWorker, error: Exception | None
) -> None:
    dialog = arrived(shop, b"one")
    shop.arrive(shop.begin(shop.connect(isolation_level=None), related_conversation=dialog), b"of the same group")
    work = next_work(worker)
    work.argument()
    dialog.end(cleanup=True)
    work.db.execute("INSERT INTO orders (state) VALUES ('done')")

    if error is None:
        work.finish()
    else:
        work.fail(error)
    again = next_work(worker)

    assert [b"of the same group"] == [message.body for message in again.messages]
    assert (0, 0) == (count(shop, "orders"), count(shop, "broker_failure"))


def test_a_dialog_ended_by_somebody_else_is_passed_over(shop: Shop, worker: ReaderWorker) -> None:
    dialog = arrived(shop, b"one")
    claim, _ = worker.desk.claim(worker._db, handle)
    assert claim is not None
    dialog.end()

    is_loaded = Work(worker, worker._db, claim).load()

    assert not is_loaded
    assert 0 == count(shop, "broker_group_lock")


def test_a_large_message_is_read_as_a_file_and_left_to_the_daemon(shop: Shop, worker: ReaderWorker) -> None:
    arrived(shop, b"")
    db = shop.connect(isolation_level=None)
    db.execute("UPDATE broker_message SET message_body = NULL, body_fragments = 2")
    pieces = [encode_envelope(Envelope(type="T")) + b"a" * LARGE_BYTES, b"end"]
    for number, piece in enumerate(pieces):
        db.execute("INSERT INTO broker_fragment VALUES (1, 0, ?, 0, ?)", (number, piece))
    work = next_work(worker)
    (message,) = work.argument()

    with message.open() as body:
        length = len(body.read())
    work.finish()

    assert LARGE_BYTES + 3 == length
    assert (0, 1) == (count(shop, "broker_message"), count(shop, "broker_received"))


def test_a_failure_that_cannot_be_noted_is_noted_later(
    shop: Shop, worker: ReaderWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived(shop, b"one")
    work = next_work(worker)
    work.argument()
    monkeypatch.setattr("broker.client.reader_worker.PAUSE_SECONDS", (0.01, 0.01))
    calls = []
    note = work._note

    def fail_once(error: BaseException) -> None:
        calls.append(error)
        if len(calls) == 1:
            raise sqlite3.OperationalError("disk I/O error")
        note(error)

    monkeypatch.setattr(work, "_note", fail_once)

    work.fail(RuntimeError("no such order"))

    assert 2 == len(calls)
    assert 1 == count(shop, "broker_failure")


def test_a_store_that_fails_is_asked_again(shop: Shop, worker: ReaderWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived(shop, b"one")
    monkeypatch.setattr("broker.client.reader_worker.PAUSE_SECONDS", (0.01, 0.01))
    claim, left = worker.desk.claim, [2]
    told = Told()
    monkeypatch.setattr("broker.client.reader_worker.log", told)

    def fail_twice(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise sqlite3.OperationalError("disk I/O error")
        return claim(*arguments)

    monkeypatch.setattr(worker.desk, "claim", fail_twice)

    next_work(worker).finish()

    assert 0 == count(shop, "broker_message")
    assert ["claim failed", "claim failed"] == told.events


def test_file_that_stays_locked_is_told_with_what_to_do(worker: ReaderWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.reader_worker.PAUSE_SECONDS", (0.01, 0.01))
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY

    with structlog.testing.capture_logs() as logs:
        worker.trouble("claim failed", error)

    [line] = logs
    assert line["reason"].startswith("another connection keeps a write transaction open: end it")


def test_nothing_is_claimed_once_all_shall_stop(shop: Shop, worker: ReaderWorker) -> None:
    arrived(shop, b"one")
    worker.desk.stop()

    assert worker.next() is None


@pytest.mark.parametrize(
    ("error", "is_trouble"),
    [
        (StoreUnavailableError("x", "y"), True),
        (ConversationError(8429, "x"), False),
        (sqlite3.IntegrityError("UNIQUE"), False),
        (ValueError("x"), False),
    ],
)
def test_whose_fault_an_error_is(error: Exception, *, is_trouble: bool) -> None:
    assert is_trouble == is_store_trouble(error)


def test_a_database_that_stays_locked_is_nobodys_fault(shop: Shop) -> None:
    shop.connect(isolation_level=None).execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        shop.connect(timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")

    assert is_store_trouble(caught.value)


def test_a_damaged_file_is_nobodys_fault() -> None:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT_INDEX

    assert is_store_trouble(error)
