"""Who has the write lock, and what an application reads that waited for it in vain."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client import transaction as module
from broker.client.transaction import holder_of, unavailable
from broker.errors import StoreBusyError, StoreUnavailableError

Shop = Any  # its class is in tests/support/shop.py

HOLDS = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def _error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    return error


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
    error = unavailable(str(shop.path), _error(sqlite3.SQLITE_BUSY), 60.04)

    assert isinstance(error, StoreBusyError)
    assert (60.04, holder) == (error.waited_s, error.holder)
    assert "others were writing for all of the 60.0 s that this call waited" in error.problem
    assert f"process {holder} (" in error.problem
    assert "has a write transaction open: end that, keep transactions short" in error.problem


def test_name_of_a_process_that_has_gone_is_left_out(
    shop: Shop, holder: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_PROCESSES", tmp_path)

    error = unavailable(str(shop.path), _error(sqlite3.SQLITE_BUSY), 1.0)

    assert f"process {holder} has a write transaction open" in error.problem


def test_nobody_has_what_nobody_writes_to(shop: Shop) -> None:
    reading = shop.connect()
    reading.execute("BEGIN")
    reading.execute("SELECT * FROM orders").fetchall()

    assert holder_of(str(shop.path)) is None
    assert holder_of(str(shop.path) + ".missing") is None


def test_lock_of_this_process_is_seen_and_not_ended_by_the_look(shop: Shop) -> None:
    db, other = shop.connect(isolation_level=None), shop.connect(isolation_level=None, timeout=0)
    db.execute("BEGIN IMMEDIATE")

    assert os.getpid() == holder_of(str(shop.path))
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
def test_table_of_locks_is_read(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: int | None
) -> None:
    db = shop.connect()
    db.execute("SELECT * FROM orders").fetchall()
    inode = Path(f"{shop.path}-shm").stat().st_ino
    table = tmp_path / "locks"
    table.write_text(line.format(inode=inode) + "\n")
    monkeypatch.setattr(module, "_LOCKS", table)

    assert expected == holder_of(str(shop.path))


def test_machine_without_a_table_of_locks_says_that_it_cannot_tell(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOCKS", tmp_path / "missing")

    error = unavailable(str(shop.path), _error(sqlite3.SQLITE_BUSY_RECOVERY), 1.0)

    assert "which process it was cannot be seen here" in error.problem


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "has read before another connection wrote, so it cannot write any more"),
        (sqlite3.SQLITE_FULL, "the disk is full: make room"),
    ],
)
def test_what_waiting_does_not_cure_is_no_matter_of_who_writes(shop: Shop, code: int, sentence: str) -> None:
    error = unavailable(str(shop.path), _error(code), 1.0)

    assert type(error) is StoreUnavailableError
    assert sentence in error.problem
