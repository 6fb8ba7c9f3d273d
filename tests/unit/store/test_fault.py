"""What SQLite says becomes a sentence that tells what to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.store.sqlite.database import open_store
from broker.store.sqlite.transaction import damage, is_about_file, sentence


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


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (sqlite3.OperationalError("disk I/O error"), True),
        (sqlite3.DatabaseError("database disk image is malformed"), True),
        (sqlite3.IntegrityError("UNIQUE constraint failed"), False),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), False),
        (sqlite3.DataError("string or blob too big"), False),
    ],
)
def test_only_errors_of_the_file_are_about_the_file(error: sqlite3.DatabaseError, *, expected: bool) -> None:
    assert expected is is_about_file(error)


def test_a_file_without_our_tables_is_none_of_ours() -> None:
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(":memory:").execute("SELECT * FROM broker_queue")

    assert "no database of the broker; name it in a daemon's configuration and start that once" == sentence(
        caught.value
    )


def test_damage_within_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(open_store(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page, whole = db.execute("PRAGMA page_size").fetchone()[0], damage(db)
    with path.open("r+b") as file:
        file.seek(4 * page)
        file.write(b"\xff" * page)

    with closing(sqlite3.connect(path)) as db:
        found = damage(db)

    assert not whole
    assert "the file is damaged: stop whoever uses it, and put back a backup" in found


def test_look_for_damage_ends_when_its_time_is_up() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t (x)")
        db.executemany("INSERT INTO t VALUES (?)", [*([1],) * 5000, [None]])
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_schema SET sql = 'CREATE TABLE t (x NOT NULL)'")
        db.commit()
        db.execute("PRAGMA writable_schema = RESET")

        found = [damage(db), damage(db, seconds=-1.0), damage(db)]

    assert ["NULL value in t.x" in one for one in found] == [True, False, True]
