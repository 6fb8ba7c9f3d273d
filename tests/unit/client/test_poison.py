"""What was handed out last is known to the next process, and nothing else is taken for it."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client import poison as rollback
from broker.client.poison import (
    QUEUES_MAX,
    RECORD_BYTES,
    LastReceive,
    RedeliveryVerdict,
    admit,
    allowance,
    forget_last,
    read_last,
    write_last,
)
from broker.client.receiving import receive
from broker.store.sqlite.quarantine import failures, resume
from broker.store.sqlite.transaction import path_of
from tests.support.shop import Shop

LAST = LastReceive(2**40, (7, 2**33, 1_750_000_000.25), 100, 3, 1.5, 4)


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "shop.db"
    file.touch(mode=0o640)
    return str(file)


def beside(path: str) -> Path:
    return Path(f"{path}.receives")


def test_what_is_noted_is_known_until_it_is_forgotten(path: str) -> None:
    """Queues beyond the last record do without."""
    other = LastReceive(1, (1, 0, 0.0), 1, 0, 0.0, 0)
    last = QUEUES_MAX - 1
    for number, record in [(1, other), (2, other), (2, LAST), (3, LAST), (last, LAST), (QUEUES_MAX, LAST)]:
        write_last(path, number, record)

    assert [None, other, LAST, LAST] == [read_last(path, number) for number in range(4)]
    assert [LAST, None] == [read_last(path, number) for number in (last, QUEUES_MAX)]
    forget_last(path, 2)
    forget_last(path, QUEUES_MAX)
    assert [other, None, LAST, LAST] == [read_last(path, number) for number in (1, 2, 3, last)]
    assert beside(path).stat().st_size <= QUEUES_MAX * RECORD_BYTES
    forget_last(path)
    assert [None] * 3 == [read_last(path, number) for number in (1, 3, last)]


def test_each_thread_and_each_database_has_its_own_view_of_the_same_files(path: str, tmp_path: Path) -> None:
    second = tmp_path / "second.db"
    second.touch()
    write_last(path, 1, LAST)
    seen: list[LastReceive | None] = []

    def look() -> None:
        seen.extend(read_last(one, 1) for one in (path, str(second), path))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert [LAST, None, LAST] == seen


def test_file_has_the_rights_of_its_database(path: str) -> None:
    before = os.umask(0)
    try:
        write_last(path, 1, LAST)
    finally:
        os.umask(before)

    assert 0o640 == beside(path).stat().st_mode & 0o777


@pytest.mark.parametrize("spoilt", [slice(0, 1), slice(40, 41), slice(52, 56)])
def test_record_that_was_written_by_halves_tells_nothing(path: str, spoilt: slice) -> None:
    write_last(path, 0, LAST)
    data = bytearray(beside(path).read_bytes())
    data[spoilt] = bytes(byte ^ 0xFF for byte in data[spoilt])
    beside(path).write_bytes(data)

    assert read_last(path, 0) is None


@pytest.mark.parametrize("is_link", [True, False])
def test_file_that_cannot_be_used_is_done_without(path: str, monkeypatch: pytest.MonkeyPatch, *, is_link: bool) -> None:
    def fail(*_: object) -> int:
        raise OSError("no")

    if is_link:
        beside(path).symlink_to("elsewhere")
    else:
        write_last(path, 1, LAST)
        for call in ("pread", "pwrite", "ftruncate"):
            monkeypatch.setattr(os, call, fail)

    write_last(path, 1, LAST)
    forget_last(path)

    assert read_last(path, 1) is None
    assert not beside(path).with_name("elsewhere").exists()


QUEUE = 2  # any number: the memory goes by it, and only turning off looks at the row


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Nothing is remembered of other tests."""
    next_process()
    yield
    next_process()


def arrived(shop: Shop, *bodies: bytes) -> sqlite3.Connection:
    db = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(db), *bodies)
    return db


def first_rows(db: sqlite3.Connection, order: int, size: int) -> list[tuple[Any, ...]]:
    """So many messages, from this one on; of the others nothing is looked at."""
    query = (
        "SELECT queuing_order, endpoint_id, message_sequence_number, '', NULL, message_enqueue_time"
        " FROM broker_message WHERE queuing_order = ?"
    )
    return db.execute(query, (order,)).fetchall() * size


def again(db: sqlite3.Connection, order: int = 1, size: int = 1, *, commit: bool = False) -> RedeliveryVerdict:
    """One more receive whose transaction is rolled back."""
    db.execute("BEGIN IMMEDIATE")
    answer = admit(db, path_of(db), QUEUE, first_rows(db, order, size), poison=5, may_commit=commit)
    db.execute("ROLLBACK")
    return answer


def test_the_memory_is_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "REMEMBERED_MAX", 2)
    db = arrived(shop, b"one", b"two", b"three")

    for order in (1, 2, 3):
        again(db, order)

    assert [2, 3] == [order for _, order in rollback._handed_out]


def test_a_message_alone_may_come_back_until_it_is_poison(shop: Shop) -> None:
    """In company its failures are not counted; another message of the same number is another message."""
    db = arrived(shop, b"one", b"two")
    assert {RedeliveryVerdict.YES} == {again(db, size=2, commit=True) for _ in range(20)}
    for _ in range(5):
        again(db)
    assert RedeliveryVerdict.LOOK_AGAIN == again(db, commit=False)
    assert [] == list(failures(db)), "what is found out in a transaction of the application is part of it"
    db.execute("UPDATE broker_message SET message_enqueue_time = message_enqueue_time + 1")

    answers = [again(db, commit=True) for _ in range(6)]

    (failure,) = failures(db)
    assert [RedeliveryVerdict.YES] * 5 + [RedeliveryVerdict.LOOK_AGAIN] == answers
    assert (5, 0, 1) == (failure.failures, failure.message_sequence_number, failure.messages_behind)
    assert failure.error.startswith("rolled back, or its process died, 5 times in a row after it was received alone")
    assert failure.quarantine_time is not None
    assert failure.first_failure_time < failure.quarantine_time
    assert [(4,), (4,)] == db.execute("SELECT status FROM broker_message").fetchall()


def test_while_the_disk_is_full_no_message_is_blamed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    db = arrived(shop, b"one")
    disk = os.statvfs(shop.path)
    with monkeypatch.context() as patch:
        patch.setattr(rollback, "DISK_MIN_BYTES", disk.f_blocks * disk.f_frsize + 1)
        while_full = [again(db, commit=True) for _ in range(20)]
        allowed = allowance(path_of(db), QUEUE, 8)

    with_room = [again(db, commit=True) for _ in range(5)]

    assert [RedeliveryVerdict.YES] * 20 == while_full
    assert 8 == allowed
    assert [RedeliveryVerdict.YES] * 4 + [
        RedeliveryVerdict.LOOK_AGAIN
    ] == with_room  # the last failure before there was room counts


def test_batches_grow_again_when_something_else_is_handed_out(shop: Shop) -> None:
    db = arrived(shop, *[b"%d" % n for n in range(8)])
    for _ in range(5):
        again(db, size=8)

    sizes = []
    for order in (2, 3, 4, 5):
        again(db, order)
        sizes.append(allowance(path_of(db), QUEUE, 8))

    assert [4, 8, 8, 8] == sizes


def test_a_queue_that_asks_for_it_is_turned_off_instead(shop: Shop) -> None:
    db = arrived(shop, b"one")
    (queue_id,) = db.execute("SELECT queue_id FROM broker_queue WHERE name = 'OrdersQueue'").fetchone()
    db.execute("UPDATE broker_queue SET is_poison_message_handling_enabled = 1")
    answers = []
    for _ in range(6):
        db.execute("BEGIN IMMEDIATE")
        rows = first_rows(db, 1, 1)
        answers.append(admit(db, path_of(db), queue_id, rows, poison=100, may_commit=True))
        db.execute("ROLLBACK")

    assert [RedeliveryVerdict.YES] * 5 + [RedeliveryVerdict.NONE] == answers
    assert [] == list(failures(db))
    assert (0, 5) == db.execute(
        "SELECT is_receive_enabled, rollbacks FROM broker_queue WHERE queue_id = ?", (queue_id,)
    ).fetchone()


@pytest.mark.promise("An application dies", "A dialog is in quarantine")
def test_a_poison_message_received_by_hand_puts_its_dialog_aside_and_others_go_on(shop: Shop) -> None:
    """The whole of it: `receive`, in transactions that an application rolls back."""
    arrived(shop, b"good")
    arrived(shop, b"poison", b"behind")
    arrived(shop, b"fine")
    done: list[bytes] = []
    attempts = 0

    db = shop.connect()
    while messages := receive(db, queue="OrdersQueue"):
        attempts += 1
        assert attempts < 50
        if any(message.body == b"poison" for message in messages):
            db.rollback()
        else:
            done += [message.body for message in messages]
            db.commit()

    (failure,) = failures(shop.connect())
    assert [b"good", b"fine"] == done
    assert (5, 1) == (failure.failures, failure.messages_behind)
    assert failure.quarantine_time is not None


DIES = """
import os, signal, sqlite3, sys
import broker
db = sqlite3.connect(sys.argv[1])
messages = broker.receive(db, queue="OrdersQueue", top=int(sys.argv[2]))
print(*(message.body.decode() for message in messages), sep=",", flush=True)
if any(message.body == b"deadly" for message in messages):
    os.kill(os.getpid(), signal.SIGKILL)
db.commit()
"""


def run_one(shop: Shop, top: int) -> list[str]:
    """A process that receives once; a deadly message kills it, with its transaction open."""
    done = subprocess.run(
        [sys.executable, "-c", DIES, shop.path, str(top)], capture_output=True, text=True, check=False, timeout=60
    )
    assert "" == done.stderr
    return done.stdout.strip().split(",")


@pytest.mark.promise("An application dies")
def test_message_that_kills_whoever_receives_it_is_put_aside_and_others_go_on(shop: Shop) -> None:
    """What the process knew died with it; the next one knows it all the same."""
    arrived(shop, b"deadly", b"behind")
    arrived(shop, b"fine")

    received = [run_one(shop, 1) for _ in range(6)]

    (failure,) = failures(shop.connect())
    assert [["deadly"]] * 5 + [["fine"]] == received
    assert (5, 0, 1) == (failure.failures, failure.message_sequence_number, failure.messages_behind)
    assert failure.error.startswith("rolled back, or its process died, 5 times in a row")
    assert failure.quarantine_time is not None


def next_process() -> None:
    """As a process that has just begun."""
    for memory in (rollback._handed_out, rollback._rollbacks, rollback._adopted):
        memory.clear()


def rolled_back(shop: Shop) -> list[bytes]:
    """What a process receives that then rolls back; it is followed by another one."""
    db = shop.connect()
    bodies = [message.body for message in receive(db, queue="OrdersQueue", top=1)]
    db.rollback()
    db.close()
    next_process()
    return bodies


def test_a_dialog_that_is_resumed_is_given_to_the_next_process(shop: Shop) -> None:
    db = arrived(shop, b"mended")
    given = [rolled_back(shop) for _ in range(6)]
    (failure,) = failures(db)

    resume(db, failure.endpoint_id)

    assert [[b"mended"]] * 5 + [[]] == given
    assert [[b"mended"]] * 5 + [[]] == [rolled_back(shop) for _ in range(6)]


def test_what_the_process_before_committed_is_no_failure(shop: Shop) -> None:
    arrived(shop, *[b"%d" % number for number in range(20)])

    for _ in range(20):
        db = shop.connect()
        receive(db, queue="OrdersQueue", top=1)
        db.commit()
        next_process()

    assert [] == list(failures(shop.connect()))
    assert [] == receive(shop.connect(), queue="OrdersQueue")


def test_nothing_is_judged_where_it_is_not_wanted(shop: Shop) -> None:
    arrived(shop, b"one", b"two")

    db = shop.connect()
    sizes = []
    for _ in range(20):
        sizes.append(len(receive(db, queue="OrdersQueue", poison=0)))
        db.rollback()

    assert {2} == set(sizes)
