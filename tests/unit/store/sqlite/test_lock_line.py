"""The write lock of a database: the line of those that wait for it, processes that are stopped, and other programs."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from broker.store.sqlite.hints import Bell
from broker.store.sqlite.transaction import is_busy, take_write_lock
from broker.store.sqlite.write_lock import LINE_SECONDS, WriteLockLine

BOUND_SECONDS = 0.2  # the time-out of our connection
TURNS = 20
HOLDER = "db.execute('BEGIN IMMEDIATE'); print('holds', flush=True); sys.stdin.read(1); db.execute('COMMIT')"
WAITER = "print('waits', flush=True); take_write_lock(db); print('holds', flush=True); db.execute('COMMIT')"
FOREIGN = """
print('writes', flush=True)
while True:
    db.execute('BEGIN IMMEDIATE')
    db.execute('UPDATE turn SET number = number + 1')
    db.execute('COMMIT')
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA journal_mode = WAL; CREATE TABLE turn (number INTEGER); INSERT INTO turn VALUES (0)")
    return path


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=BOUND_SECONDS, isolation_level=None, check_same_thread=False)) as db:
        yield db


def process(path: Path, body: str) -> subprocess.Popen[str]:
    """Another process on the file, which has printed its first line."""
    head = f"import sqlite3, sys\ndb = sqlite3.connect({str(path)!r}, timeout=60, isolation_level=None)\n"
    if "take_write_lock" in body:
        head += "from broker.store.sqlite.transaction import take_write_lock\n"
    started = subprocess.Popen(
        [sys.executable, "-c", head + body], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stdout.readline()
    return started


def test_stopped_holder_holds_up_others_for_their_time_out_and_no_longer_once_it_goes_on(
    path: Path, db: sqlite3.Connection
) -> None:
    with process(path, HOLDER) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        with pytest.raises(sqlite3.OperationalError) as caught:
            take_write_lock(db)
        assert is_busy(caught.value)

        os.kill(holder.pid, signal.SIGCONT)
        holder.communicate("x")
        take_write_lock(db)
        db.execute("COMMIT")


@pytest.fixture
def bell(path: Path) -> Iterator[Bell]:
    """As a daemon makes it."""
    bell = Bell.open(str(path), is_made=True)
    assert bell is not None
    yield bell
    bell.close()


@pytest.mark.usefixtures("bell")
def test_first_in_line_tries_and_the_next_one_when_it_has_left(path: Path) -> None:
    with closing(WriteLockLine(str(path))) as second, ThreadPoolExecutor(1) as thread:
        with closing(WriteLockLine(str(path))) as first:
            first.pause()
            waiting = thread.submit(second.pause)
            with pytest.raises(TimeoutError):
                waiting.result(LINE_SECONDS / 2)
        waiting.result()


def test_first_in_line_that_is_stopped_holds_up_the_others_for_a_moment(
    path: Path, db: sqlite3.Connection, bell: Bell
) -> None:
    db.execute("PRAGMA busy_timeout = 60000")
    with process(path, HOLDER) as holder, process(path, WAITER) as first, ThreadPoolExecutor(1) as thread:
        while bell.try_lock():  # until the other one has it
            bell.unlock()
        os.kill(first.pid, signal.SIGSTOP)
        try:
            waiting = thread.submit(take_write_lock, db)
            holder.communicate("x")
            waiting.result(10)
            db.execute("COMMIT")
        finally:
            os.kill(first.pid, signal.SIGCONT)


def test_stopped_waiter_holds_up_nobody(path: Path, db: sqlite3.Connection) -> None:
    take_write_lock(db)
    with process(path, WAITER) as waiter:
        os.kill(waiter.pid, signal.SIGSTOP)
        db.execute("COMMIT")
        for _ in range(TURNS):
            take_write_lock(db)
            db.execute("COMMIT")

        os.kill(waiter.pid, signal.SIGCONT)
        printed, _ = waiter.communicate()
        assert printed == "holds\n"


def test_other_programs_and_ours_take_turns(path: Path, db: sqlite3.Connection) -> None:
    db.execute("PRAGMA busy_timeout = 60000")
    with process(path, FOREIGN) as other:
        try:
            (before,) = db.execute("SELECT number FROM turn").fetchone()
            for _ in range(TURNS):  # of ours, next to a program that begins again at once
                take_write_lock(db)
                db.execute("COMMIT")
            while db.execute("SELECT number FROM turn").fetchone()[0] < before + TURNS:  # of the other's, next to ours
                take_write_lock(db)
                db.execute("COMMIT")
            assert other.poll() is None  # an error about the lock would have ended it
        finally:
            other.kill()
