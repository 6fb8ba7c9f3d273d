"""What SQLite says becomes a sentence that tells what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.store.database import open_store
from broker.store.fault import sentence


def _error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (sqlite3.SQLITE_BUSY, "keeps a write transaction open: end it"),
        (sqlite3.SQLITE_BUSY_RECOVERY, "keeps a write transaction open: end it"),
        (sqlite3.SQLITE_FULL, "the disk is full: make room"),
        (sqlite3.SQLITE_READONLY, "cannot be written: the user of this program has to"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, "cannot be written: the user of this program has to"),
        (sqlite3.SQLITE_CANTOPEN, "a plain file, or none yet"),
        (sqlite3.SQLITE_PERM, "let the user of this program read and write it"),
        (sqlite3.SQLITE_NOTADB, "no SQLite database"),
        (sqlite3.SQLITE_CORRUPT, "is damaged: stop whoever uses it, and put back a backup"),
        (sqlite3.SQLITE_IOERR_WRITE, "the disk failed to read or write"),
        (sqlite3.SQLITE_PROTOCOL, "keep it on a local disk"),
    ],
)
def test_the_code_tells_what_to_do_and_the_words_of_sqlite_stay(code: int, what: str) -> None:
    told = sentence(_error(code))

    assert what in told
    assert told.endswith(" (as SQLite says it)")


def test_what_says_all_by_itself_stays_as_it_is() -> None:
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(":memory:").execute("SELECT * FROM missing")

    assert "no such table: missing" == sentence(caught.value)
    assert "own" == sentence(sqlite3.DatabaseError("own"))


def test_a_directory_in_the_place_of_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "orders.db").mkdir()

    with pytest.raises(StoreUnavailableError, match=r"it has to be a plain file, or none yet.*\(unable to open"):
        open_store(tmp_path / "orders.db")
