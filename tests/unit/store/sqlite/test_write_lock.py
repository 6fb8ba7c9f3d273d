"""The write lock of a database: the process that has it, and waits for it that take long."""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.client.transaction import transaction
from broker.store.sqlite import write_lock
from broker.store.sqlite.transaction import writing
from broker.store.sqlite.write_batch import SqliteStore
from broker.store.sqlite.write_lock import RECENT_SECONDS, LockHolder, LockWait, WriteLockWaits, holder_of
from tests.support.asleep import sleep_by
from tests.support.dialog import open_database

Shop = Any  # its class is in tests/support/shop.py


def test_a_lock_of_this_process_is_seen_and_not_ended_by_it(shop: Shop) -> None:
    db, other = shop.connect(isolation_level=None), shop.connect(isolation_level=None, timeout=0)
    db.execute("BEGIN IMMEDIATE")

    holder = holder_of(str(shop.path))

    assert holder is not None
    assert os.getpid() == holder.pid
    with pytest.raises(sqlite3.OperationalError):
        other.execute("BEGIN IMMEDIATE")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1: POSIX  ADVISORY  WRITE 77 fe:00:{inode} 120 120", 77),
        ("1: POSIX  ADVISORY  WRITE 77 fe:00:{inode} 0 EOF", 77),
        ("1: POSIX  ADVISORY  WRITE 0 fe:00:{inode} 120 120", None),  # of another container
        ("1: POSIX  ADVISORY  WRITE 77 fe:00:{inode} 121 121", None),
        ("1: POSIX  ADVISORY  WRITE 77 fe:00:{inode} 100 110", None),
        ("1: POSIX  ADVISORY  READ 77 fe:00:{inode} 120 120", None),
        ("1: FLOCK  ADVISORY  WRITE 77 fe:00:{inode} 0 EOF", None),
        ("1: -> POSIX  ADVISORY  WRITE 77 fe:00:{inode} 120 120", None),  # waits for it
        ("1: POSIX  ADVISORY  WRITE 77 fe:00:9{inode} 120 120", None),
        ("", None),
    ],
)
def test_the_table_of_locks_is_read(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: int | None
) -> None:
    shop.connect().execute("SELECT * FROM orders").fetchall()
    inode = Path(f"{shop.path}-shm").stat().st_ino
    table = tmp_path / "locks"
    table.write_text(line.format(inode=inode) + "\n")
    monkeypatch.setattr(write_lock, "_LOCKS", table)
    monkeypatch.setattr(write_lock, "_PROCESSES", tmp_path / "none")

    assert (None if expected is None else LockHolder(expected, "")) == holder_of(str(shop.path))


class Clock:
    """Time that only passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(write_lock, "time", clock)
    return clock


def test_a_wait_of_two_seconds_is_reported_once_and_when_it_is_over(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_lock, "holder_of", lambda path: LockHolder(77, path))
    seen: list[LockWait] = []
    waits = WriteLockWaits(lambda: "x.db", seen.append)
    holder = LockHolder(77, "x.db")

    for clock.now in (0, 1.9):
        waits.go_on()
    assert ([], None, 1.9) == (seen, waits.now().present, waits.now().seconds)
    for clock.now in (2, 3):
        waits.go_on()
    assert [LockWait(1_000_000, 2, holder)] == seen
    assert (LockWait(1_000_000, 3, holder), 3) == (waits.now().present, waits.now().seconds)
    clock.now = 4
    waits.end()
    assert LockWait(1_000_000, 4, holder, is_over=True) == seen[-1]
    clock.now = 5
    assert (None, 4) == (waits.now().present, waits.now().seconds)


def test_long_waits_are_counted_for_ten_minutes_and_short_ones_never(clock: Clock) -> None:
    seen: list[LockWait] = []
    waits = WriteLockWaits(lambda: "x.db", seen.append)

    for began, seconds in ((0, 3), (60, 3), (90, 1), (120, 3), (63 + RECENT_SECONDS, 3)):
        clock.now = began
        waits.go_on()
        clock.now = began + seconds
        waits.go_on()
        waits.end()
    waits.end()  # without a wait

    assert [1, 2, 3, 2] == [wait.number for wait in seen if not wait.is_over]
    assert [120, 63 + RECENT_SECONDS] == [wait.began - 1_000_000 for wait in waits.now().recent]
    assert 13 == waits.now().seconds


def test_a_daemon_and_an_application_that_wait_say_which_process_writes(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "orders.db"
    with (
        closing(SqliteStore(path, open_database(path, "Orders"), fragment_size=1000)) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
        closing(sqlite3.connect(path)) as application,
    ):

        def pause(_seconds: float) -> None:
            clock.now += 1
            if clock.now == 4:
                other.execute("ROLLBACK")

        sleep_by(monkeypatch, pause)
        other.execute("BEGIN IMMEDIATE")
        with capture_logs() as lines, writing(store.connection):
            pass
        clock.now = 0
        other.execute("BEGIN IMMEDIATE")
        with transaction(application):
            pass

    (held, taken) = lines
    assert ("write lock held", "warning", 2.0, os.getpid(), 1) == (
        held["event"],
        held["log_level"],
        held["seconds"],
        held["pid"],
        held["number"],
    )
    assert ("write lock taken", 4.0, os.getpid()) == (taken["event"], taken["seconds"], taken["pid"])
    who = "another connection of this process has a write transaction open"
    assert [f"{path}: waiting for 2 s to write: {who}"] == [record.getMessage() for record in caplog.records]
