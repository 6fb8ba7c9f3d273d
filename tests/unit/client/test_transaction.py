"""The application's connection: its transaction joined or begun, all or nothing; its troubles told as ours."""

import resource
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from broker.client import transaction as module
from broker.client.dialog import get_dialog, send
from broker.client.receiving import receive
from broker.client.transaction import commit, is_always_open, is_autocommit, look, transaction, unavailable, whole
from broker.errors import StoreBusyError, StoreUnavailableError
from broker.store.sqlite import write_lock
from broker.store.sqlite.schema import PART_BYTES
from broker.store.sqlite.transaction import ask
from tests.support.asleep import sleep_by
from tests.support.dialog import put_message
from tests.support.shop import Shop, sqlite_error

HOLDS = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(shop: Shop) -> Iterator[int]:
    """Another process that writes; its id."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, shop.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.communicate()


def test_process_that_writes_is_named(shop: Shop, holder: int) -> None:
    error = unavailable(str(shop.path), sqlite_error(sqlite3.SQLITE_BUSY), 60.04)

    assert isinstance(error, StoreBusyError)
    assert (60.04, holder) == (error.waited_s, error.holder)
    assert f"process {holder} (" in error.problem
    assert "has a write transaction open: end that, keep transactions short" in error.problem


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "has read before another connection wrote, so it can no longer write"),
        (sqlite3.SQLITE_FULL, "the disk is full: free some space"),
    ],
)
def test_what_waiting_does_not_cure_is_no_matter_of_who_writes(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, sentence: str
) -> None:
    error = unavailable(str(shop.path), sqlite_error(code), 1.0)

    assert type(error) is StoreUnavailableError
    assert sentence in error.problem
    monkeypatch.setattr(write_lock, "_LOCKS", tmp_path / "missing")
    error = unavailable(str(shop.path), sqlite_error(sqlite3.SQLITE_BUSY_RECOVERY), 1.0)
    assert "which process has a write transaction open cannot be seen here" in error.problem


INSERT = "INSERT INTO orders (id) VALUES (?)"


def _ids(shop: Shop) -> list[int]:
    """What others see."""
    return [row[0] for row in shop.connect().execute("SELECT id FROM orders ORDER BY id")]


def _failing(db: sqlite3.Connection, error: Exception, *, within: Any = transaction) -> None:
    with within(db):
        ask(db, INSERT, (2,))
        if str(error) == "disk full":
            db.rollback()  # SQLite ends the transaction by itself then, and there is none to roll back
        elif str(error) == "at the commit":
            ask(db, "INSERT INTO child VALUES (99)")
            return
        raise error


@pytest.mark.parametrize("isolation_level", [None, "", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_failure_undoes_what_was_begun_here(shop: Shop, isolation_level: Any) -> None:
    """And leaves what the application had done."""
    db = shop.connect(isolation_level=isolation_level)
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("CREATE TABLE child (id REFERENCES orders DEFERRABLE INITIALLY DEFERRED)")
    failures: list[Exception] = [ValueError("no"), ValueError("disk full")]
    if isolation_level is None:
        failures.append(sqlite3.IntegrityError("at the commit"))

    for failure in failures:
        with pytest.raises(type(failure)):
            _failing(db, failure)
        assert (_ids(shop), db.in_transaction) == ([], False)

    db.execute("BEGIN")
    db.execute(INSERT, (1,))
    with pytest.raises(ValueError, match="no"):
        _failing(db, ValueError("no"), within=whole)
    with pytest.raises(sqlite3.IntegrityError):
        db.execute(INSERT, (1,))
    with whole(db):
        ask(db, INSERT, (3,))
    db.execute("COMMIT")
    assert [1, 3] == _ids(shop)
    db.execute("BEGIN")
    with pytest.raises(ValueError, match="disk full"):
        _failing(db, ValueError("disk full"), within=whole)


@contextmanager
def _no_room(path: Path) -> Iterator[None]:
    """No file of this process may grow above the log of the database as it is now."""
    size = Path(f"{path}-wal").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("isolation_level", [None, ""])
def test_full_disk_at_the_commit_is_told_and_nothing_is_committed(shop: Shop, isolation_level: Any) -> None:
    """In a call by itself, and in the commit of the broker for the application."""
    db = shop.connect(isolation_level=isolation_level)
    dialog = shop.begin(db)

    def send() -> None:
        dialog.send(b"x" * 2000)
        commit(db)

    if isolation_level is not None:
        dialog.send(b"x" * 2000)
    with _no_room(shop.path), pytest.raises(StoreUnavailableError, match=r"see .* whether there is room"):
        send()

    db.rollback()
    assert [] == shop.seen()["sent"]


@pytest.mark.parametrize("isolation_level", ["", "IMMEDIATE", None])
@pytest.mark.parametrize("is_joined", [True, False])
def test_call_that_has_waited_as_long_as_it_may_says_how_long(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    isolation_level: Any,
    is_joined: bool,  # noqa: FBT001
) -> None:
    """Whatever is called: nothing is done, no transaction is left open that was not, and it may be tried again."""
    db = shop.connect(isolation_level=isolation_level, timeout=0)
    dialog = shop.begin(db)
    db.commit()
    holder = shop.connect()
    holder.execute(INSERT, (1,))
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.02)
    calls: list[Callable[[], object]] = [
        lambda: shop.begin(db),
        lambda: dialog.send(b"x"),
        lambda: dialog.send_many([b"x"]),
        dialog.end,
        lambda: dialog.set_timer(1),
        lambda: receive(db, queue="OrdersQueue", conversation=dialog),
    ]

    for call in calls:
        if is_joined:
            db.execute("BEGIN")
        if call is calls[-1]:
            holder.commit()
            shop.arrive(dialog, b"y")
            holder.execute(INSERT, (2,))
        with pytest.raises(StoreBusyError, match=r"others were writing for all of the 0\.\d s") as caught:
            call()
        assert 0.02 <= caught.value.waited_s < 60
        assert "database is locked" not in str(caught.value)
        assert is_joined == db.in_transaction
        db.rollback()
    holder.rollback()
    assert 0 == dialog.send(b"x")


def test_transaction_that_read_before_others_wrote_cannot_write(shop: Shop) -> None:
    """The application's own BEGIN was not IMMEDIATE: no waiting helps, it has to begin again."""
    db, other = shop.connect(isolation_level=None), shop.connect()
    db.execute("BEGIN")
    db.execute("SELECT * FROM orders").fetchall()
    other.execute(INSERT, (1,))
    other.commit()

    with pytest.raises(StoreUnavailableError, match=r"has read before another .* can no longer write: roll it back"):
        transaction(db).__enter__()

    assert db.in_transaction
    db.rollback()
    with transaction(db):
        ask(db, INSERT, (2,))
    assert _ids(shop) == [1, 2]


def test_transaction_that_has_only_begun_gets_the_lock_before_it_reads(shop: Shop) -> None:
    """Else the broker's own look into its tables would be what makes it too old to write."""
    db, other = shop.connect(isolation_level=None), shop.connect()
    db.execute("BEGIN")
    other.execute(INSERT, (1,))
    other.commit()

    with transaction(db):
        found = ask(db, "SELECT id FROM orders").fetchall()
        ask(db, INSERT, (2,))
    db.execute("COMMIT")

    assert ([(1,)], [1, 2]) == (found, _ids(shop))


def test_joined_transaction_waits_for_another_writer_where_sqlite_would_not(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite never waits for the write lock in a transaction that has read."""
    holder, db = shop.connect(), shop.connect(isolation_level=None, timeout=30)
    db.execute("BEGIN")
    db.execute("SELECT * FROM orders").fetchall()
    holder.execute(INSERT, (1,))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            holder.rollback()

    sleep_by(monkeypatch, pause)
    with transaction(db):
        ask(db, INSERT, (2,))
    db.execute("COMMIT")

    assert (3, [2]) == (len(pauses), _ids(shop))


@pytest.mark.parametrize(
    ("autocommit", "isolation_level", "is_autocommitting", "is_open"),
    [
        (-1, None, True, False),  # sqlite3.LEGACY_TRANSACTION_CONTROL, the default of Python 3.12
        (-1, "", False, False),
        (True, "", True, False),
        (False, None, False, True),
    ],
)
def test_transaction_control_of_python_3_12_is_known(
    shop: Shop,
    autocommit: int,
    isolation_level: Any,
    is_autocommitting: bool,  # noqa: FBT001
    is_open: bool,  # noqa: FBT001
) -> None:
    factory = type("Later", (sqlite3.Connection,), {"autocommit": autocommit})
    db = shop.connect(factory=factory, isolation_level=isolation_level)

    assert (is_autocommitting, is_open) == (is_autocommit(db), is_always_open(db))


def test_reading_waits_too_and_tells_what_waiting_does_not_cure(shop: Shop) -> None:
    db = shop.connect()
    busy = sqlite_error(sqlite3.SQLITE_BUSY)
    answers: list[Any] = [busy, busy, 7]

    def call() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    assert 7 == look(db, call)
    with pytest.raises(StoreUnavailableError, match="no database of the broker"):
        look(db, lambda: db.execute("SELECT * FROM broker_missing"))


# --- transactions of an application around dialogs ---


@pytest.mark.parametrize("level", ["", "IMMEDIATE", "EXCLUSIVE", None])
def test_readers_contending_for_a_queue_get_every_message_once_and_in_order(shop: Shop, level: Any) -> None:
    """Every third transaction is rolled back, so that its messages go to whoever comes next."""
    owner = shop.connect(isolation_level=None)
    dialogs = [shop.begin(owner) for _ in range(3)]
    for dialog in dialogs:
        shop.arrive(dialog, *[b"%d" % n for n in range(40)])
    failures: list[Exception] = []

    def work() -> None:
        db = sqlite3.connect(shop.path, timeout=0, isolation_level=level)
        try:
            for turn in count():
                if level is None:
                    db.execute("BEGIN")
                messages = receive(db, queue="OrdersQueue", top=4)
                if not messages:
                    db.rollback()
                    return
                for message in messages:
                    number = f"{message.dialog.endpoint_id}:{message.body.decode()}"
                    db.execute("INSERT INTO orders (state) VALUES (?)", (number,))
                    message.dialog.send(message.body)
                if turn % 3 == 2:
                    db.rollback()
                else:
                    db.commit()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            failures.append(error)
        finally:
            db.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == failures
    taken = shop.look("SELECT state FROM orders ORDER BY id")
    for dialog in dialogs:
        expected = [f"{dialog.endpoint_id}:{n}" for n in range(40)]
        assert expected == [state for state in taken if state.startswith(f"{dialog.endpoint_id}:")]
    assert 120 == len(shop.seen()["sent"])


@pytest.mark.parametrize("mode", ["OFF", "NORMAL"])
@pytest.mark.promise(1)
def test_connection_whose_commits_may_be_lost_with_the_power_sends_nothing(shop: Shop, mode: str) -> None:
    """A number that was sent and is given again would be a duplicate there: the message behind it would be lost."""
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    db.execute(f"PRAGMA synchronous = {mode}")
    calls: list[Callable[[], object]] = [
        lambda: dialog.send(b"x"),
        lambda: dialog.send_many([b"x"]),
        lambda: send([dialog], b"x"),
        dialog.end,
        lambda: get_dialog(db, dialog.conversation_handle).end(error=1),
    ]

    for call in calls:
        with pytest.raises(StoreUnavailableError, match=f"synchronous = {mode}, .* set PRAGMA synchronous = FULL"):
            call()

    assert {"conversations": ["SO"], "sent": []} == shop.seen()
    shop.arrive(dialog, b"y")
    assert [b"y"] == [message.body for message in receive(db, queue="OrdersQueue")]
    dialog.end(cleanup=True)


def test_body_of_any_length_takes_little_memory(shop: Shop) -> None:
    """Sent from an iterable, received as a file; what SQLite itself keeps is bounded by its page cache."""
    size = 64 * 1024 * 1024
    piece = bytes(1024 * 1024)
    db = shop.connect()
    tracemalloc.start()
    try:
        with db:
            dialog = shop.begin(db)
            dialog.send(piece for _ in range(size // len(piece)))
            db.execute(
                "INSERT INTO broker_fragment SELECT ?, 0, part_number, 0, CASE part_number WHEN 0"
                " THEN CAST(x'00000001' || x'80' || body AS BLOB) ELSE body END FROM broker_transmission_part",
                (dialog.endpoint_id,),
            )
            fragments = {"message_body": None, "body_fragments": size // PART_BYTES}
            put_message(db, endpoint_id=dialog.endpoint_id, **fragments)
        with db:
            (message,) = receive(db, queue="OrdersQueue")
            read = 0
            with message.open() as body:
                while part := body.read(100_000):
                    read += len(part)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert size == read == message.body_length
    assert peak < size // 8
