"""What is known of a function that reads a queue: where it is, and where it runs."""

import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import structlog

from broker.client.reader_pool import reader
from broker.client.reader_worker import ReaderConnection, ReaderDatabase, ReaderWorker, Work, open_connection
from broker.errors import StoreUnavailableError
from broker.protocol.layout import show_guid
from broker.store.sqlite.failure import Blame, note_failure
from broker.store.sqlite.group_locks import live_slots
from broker.store.sqlite.quarantine import failures
from broker.store.sqlite.reader_slots import records
from examples.demo.topology import wait_for
from tests.support.reading import count
from tests.support.shop import Shop


@reader("OrdersQueue", retry_delay=0, attempts=2)
def handle(_db: Any, _messages: Any) -> None:
    raise AssertionError


@pytest.fixture
def desk(shop: Shop) -> Iterator[ReaderDatabase]:
    desk = ReaderDatabase("shop", shop.path, [handle])
    yield desk
    desk.close()


def claimed(desk: ReaderDatabase) -> tuple[Any, float | None]:
    db = open_connection(desk.path, is_async=handle.is_async)
    try:
        return desk.claim(db, handle)
    finally:
        db.close_all()


def test_nothing_to_do_locks_nothing(shop: Shop, desk: ReaderDatabase) -> None:
    other = shop.connect(isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    assert (None, None) == claimed(desk)


def test_what_a_predecessor_in_the_slot_left_counts_as_a_crash_and_is_free(shop: Shop) -> None:
    dialog = shop.arrived(b"one")
    group = dialog.conversation_group_id.bytes
    db = shop.connect(isolation_level=None)
    db.execute("INSERT INTO broker_group_lock VALUES (?, 0, ?, NULL)", (group, time.time()))
    desk = ReaderDatabase("shop", shop.path, [handle])

    with structlog.testing.capture_logs() as logs:
        claim, _ = claimed(desk)
    number = desk.slot
    desk.close()

    (failure,) = failures(db)
    assert 0 == number
    assert claim is not None
    assert group == claim.lock.conversation_group_id
    assert 1 == failure.failures
    assert [("reader died", "OrdersQueue", "Orders", show_guid(dialog.conversation_handle))] == [
        (one["event"], one["queue"], one["service"], one["conversation_handle"]) for one in logs
    ]


def test_a_group_that_fails_while_a_claim_waits_for_the_write_lock_is_not_claimed(
    shop: Shop, desk: ReaderDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.arrived(b"one")
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
    desk.count_waiting("OrdersQueue", 3)
    claimed(desk)

    def has_told() -> bool:
        return [("OrdersQueue", 3, True)] == [
            (one.queue_name, one.tasks_waiting, (one.last_empty_time or 0) >= before) for one in records(str(shop.path))
        ]

    wait_for(has_told, seconds=30, what="the reader's record")


def test_a_file_that_cannot_be_written_is_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("broker.client.reader_worker.disown", refuse)

    with pytest.raises(StoreUnavailableError, match="unable to open"):
        ReaderDatabase("shop", shop.path, [handle])

    assert set() == live_slots(str(shop.path), [0])


@pytest.fixture
def db(shop: Shop) -> Iterator[ReaderConnection]:
    db = open_connection(shop.path, is_async=False)
    db.hand_out()
    yield db
    db.take_back()
    db.close_all()


def test_the_first_write_begins_a_transaction_that_has_the_write_lock(shop: Shop, db: ReaderConnection) -> None:
    db.execute("SELECT * FROM orders")
    before = db.in_transaction

    db.execute("INSERT INTO orders (state) VALUES ('x')")

    assert (False, True) == (before, db.in_transaction)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        shop.connect(timeout=0).execute("INSERT INTO orders (state) VALUES ('y')")


@pytest.mark.parametrize(
    ("misdeed", "sentence"),
    [
        (lambda db: db.commit(), r"rolls back when it raises: leave out commit\(\)"),
        (lambda db: db.__enter__(), 'leave out "with db:"'),
        (lambda db: db.executescript("SELECT 1"), "leave out executescript"),
        (lambda db: db.close(), r"leave out close\(\)"),
        (lambda db: db.execute("COMMIT"), "not authorized"),
        (lambda db: db.execute("END TRANSACTION"), "not authorized"),
    ],
    ids=["commit", "with", "executescript", "close", "COMMIT", "END"],
)
def test_what_ends_the_transaction_is_refused(shop: Shop, db: ReaderConnection, misdeed: Any, sentence: str) -> None:
    db.execute("INSERT INTO orders (state) VALUES ('x')")

    with pytest.raises(sqlite3.DatabaseError, match=sentence):
        misdeed(db)

    assert [] == shop.connect().execute("SELECT * FROM orders").fetchall()


def test_the_reader_commits_and_undoes_what_the_function_set(shop: Shop, db: ReaderConnection) -> None:
    db.execute("INSERT INTO orders (state) VALUES ('x')")
    db.row_factory = sqlite3.Row
    db.text_factory = bytes

    db.take_back()
    db.begin()
    db.commit_all()

    assert [("x",)] == shop.connect().execute("SELECT state FROM orders").fetchall()
    assert [("x",)] == db.execute("SELECT state FROM orders").fetchall()
    assert "IMMEDIATE" == db.isolation_level


@pytest.fixture
def worker(shop: Shop) -> Iterator[ReaderWorker]:
    desk = ReaderDatabase("shop", shop.path, [handle])
    worker = ReaderWorker(desk, handle)
    yield worker
    desk.stop()
    worker.close()
    desk.close()


def next_work(worker: ReaderWorker) -> Work:
    work = worker.next()
    assert work is not None
    return work


@pytest.mark.parametrize(
    ("end", "failures"),
    [
        (lambda work: work.fail(RuntimeError("no such order")), [("RuntimeError: no such order", 1)]),
        (lambda work: work.release(), []),
        (lambda work: work.finish(), []),
    ],
    ids=["failed", "given back", "claim lost"],
)
def test_a_work_that_is_not_finished_changes_nothing(
    shop: Shop, worker: ReaderWorker, request: pytest.FixtureRequest, end: Any, failures: list[Any]
) -> None:
    shop.arrived(b"one")
    work = next_work(worker)
    work.argument()
    if "claim lost" in request.node.name:
        shop.connect(isolation_level=None).execute("DELETE FROM broker_group_lock")
    work.db.execute("INSERT INTO orders (state) VALUES ('done')")

    with structlog.testing.capture_logs() as logs:
        end(work)

    assert (1, 0) == (count(shop, "broker_message"), count(shop, "orders"))
    assert failures == shop.look("SELECT error, failures FROM broker_failure")
    rests = shop.look("SELECT lock_time, retry_time FROM broker_group_lock")
    assert len(failures) == len(rests)
    for lock_time, retry_time in rests:
        assert 0 <= retry_time - datetime.fromisoformat(logs[0]["retry_at"]).timestamp() < 0.001
        assert logs[0]["retry_s"] == pytest.approx(retry_time - lock_time, abs=0.001)


def test_a_work_that_fails_after_its_lock_was_lost_leaves_the_lock_of_another_reader(
    shop: Shop, worker: ReaderWorker
) -> None:
    shop.arrived(b"one")
    work = next_work(worker)
    work.argument()
    shop.connect(isolation_level=None).execute("UPDATE broker_group_lock SET reader = 7")

    with structlog.testing.capture_logs() as logs:
        work.fail(RuntimeError("a secret"))

    assert [(7, None)] == shop.look("SELECT reader, retry_time FROM broker_group_lock")
    assert 0 == count(shop, "broker_failure")
    assert [("claim lost", False)] == [(line["event"], "secret" in line["reason"]) for line in logs]


@pytest.mark.parametrize("error", [None, LookupError("no such dialog")])
def test_a_work_whose_dialog_somebody_removed_meanwhile_is_no_failure(
    shop: Shop, worker: ReaderWorker, error: Exception | None
) -> None:
    dialog = shop.arrived(b"one")
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


def test_a_claim_whose_messages_are_gone_is_given_back(shop: Shop, worker: ReaderWorker) -> None:
    dialog = shop.arrived(b"one")
    claim, _ = worker.database.claim(worker._db, handle)
    assert claim is not None
    dialog.end()

    assert not Work(worker, worker._db, claim).load()
    assert 0 == count(shop, "broker_group_lock")


def test_a_failure_may_turn_its_queue_off(shop: Shop, worker: ReaderWorker) -> None:
    shop.arrived(b"one")
    poison = "UPDATE broker_queue SET is_poison_message_handling_enabled = 1, rollbacks = 4 WHERE name = 'OrdersQueue'"
    shop.connect(isolation_level=None).execute(poison)
    work = next_work(worker)
    work.argument()

    work.fail(RuntimeError("no such order"))

    assert 1 == count(shop, "broker_queue", "is_receive_enabled = 0")


def test_a_failure_that_cannot_be_noted_is_noted_later(
    shop: Shop, worker: ReaderWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.arrived(b"one")
    work = next_work(worker)
    work.argument()
    monkeypatch.setattr("broker.client.reader_worker.PAUSE_SECONDS", (0.01, 0.01))
    calls = []
    note = work._record

    def fail_once(error: BaseException) -> None:
        calls.append(error)
        if len(calls) == 1:
            raise sqlite3.OperationalError("disk I/O error")
        note(error)

    monkeypatch.setattr(work, "_record", fail_once)

    work.fail(RuntimeError("no such order"))

    assert 2 == len(calls)
    assert 1 == count(shop, "broker_failure")


def test_a_store_that_fails_is_asked_again(shop: Shop, worker: ReaderWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.arrived(b"one")
    monkeypatch.setattr("broker.client.reader_worker.PAUSE_SECONDS", (0.01, 0.01))
    claim, left = worker.database.claim, [2]

    def fail_twice(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise sqlite3.OperationalError("disk I/O error")
        return claim(*arguments)

    monkeypatch.setattr(worker.database, "claim", fail_twice)

    next_work(worker).finish()

    assert (0, 0) == (count(shop, "broker_message"), left[0])
