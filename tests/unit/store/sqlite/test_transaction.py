"""A write to the file: whole or not at all, after those of others, and only in the epoch of the connection."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from broker.errors import DemotedError
from broker.store.sqlite.database import open_store
from broker.store.sqlite.metadata import put_queue, queues
from broker.store.sqlite.transaction import (
    BUSY_SECONDS,
    LAPSED,
    DaemonConnection,
    ask,
    begin_within,
    commit,
    damage,
    epoch,
    is_about_file,
    is_busy,
    path_of,
    plain,
    roll_back,
    sentence,
    writing,
)
from broker.store.sqlite.write_lock import PAUSE
from tests.support.asleep import sleep_by
from tests.support.shop import sqlite_error

SENTENCES = [
    (sqlite3.SQLITE_BUSY, "keeps a write transaction open: end it"),
    (sqlite3.SQLITE_BUSY_RECOVERY, "keeps a write transaction open: end it"),
    (sqlite3.SQLITE_FULL, "the disk is full: free some space"),
    (sqlite3.SQLITE_READONLY, "cannot be written: the user of this program has to"),
    (sqlite3.SQLITE_READONLY_DIRECTORY, "cannot be written: the user of this program has to"),
    (sqlite3.SQLITE_CANTOPEN, "a plain file, or none yet"),
    (sqlite3.SQLITE_PERM, "let the user of this program read and write it"),
    (sqlite3.SQLITE_NOTADB, "not an SQLite database"),
    (sqlite3.SQLITE_CORRUPT, "is damaged: stop all programs that use it, and put back a backup"),
    (sqlite3.SQLITE_IOERR_WRITE, "the disk failed to read or write"),
    (sqlite3.SQLITE_PROTOCOL, "keep it on a local disk"),
]


@pytest.mark.parametrize(("code", "what"), SENTENCES)
def test_the_code_tells_what_to_do_and_the_words_of_sqlite_stay(code: int, what: str) -> None:
    told = sentence(sqlite_error(code))

    assert what in told
    assert told.endswith(" (as SQLite says it)")
    assert what.startswith("keeps a write transaction open") == is_busy(sqlite_error(code))


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("missing", "no such table: missing"),
        ("broker_queue", "no database of the broker. If a daemon runs on it"),
    ],
)
def test_a_table_that_is_missing_says_which_file_it_is(table: str, what: str) -> None:
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(":memory:").execute(f"SELECT * FROM {table}")

    assert sentence(caught.value).startswith(what)


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
    assert "the file is damaged: stop all programs that use it, and put back a backup" in found


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


def test_rows_are_tuples_whatever_the_application_wants_of_its_own(path: Path, db: sqlite3.Connection) -> None:
    db.row_factory, db.text_factory = sqlite3.Row, bytes

    assert [(1, 2)] == ask(db, "SELECT 1 AS one, ? AS two", (2,)).fetchall()
    with plain(db):
        assert [("text",)] == db.execute("SELECT 'text'").fetchall()
    assert (str(path), sqlite3.Row) == (path_of(db), db.row_factory)
    assert b"text" == db.execute("SELECT 'text'").fetchone()[0]


@pytest.mark.parametrize(("end", "names"), [(commit, ["Orders"]), (roll_back, [])])
def test_what_was_begun_is_kept_or_undone_as_a_whole(
    path: Path,
    db: sqlite3.Connection,
    end: Callable[[sqlite3.Connection], None],
    names: list[str],
) -> None:
    begin_within(db, 1.0)
    put_queue(db, "Orders", is_receive_enabled=True)
    end(db)

    roll_back(db)  # nothing is under way any more, and that is no error

    assert (names, False) == (_queue_names_seen_by_others(path), db.in_transaction)


def _queue_names_seen_by_others(path: Path) -> list[str]:
    other = sqlite3.connect(path)
    names = list(queues(other))
    other.close()
    return names


def test_writing_looks_often_whether_the_lock_is_free(
    path: Path, db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as SQLite waits, which looks ever more rarely and meets no short gap between others' transactions."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 50:
            other.execute("COMMIT")

    sleep_by(monkeypatch, sleep)

    with writing(db):
        put_queue(db, "Orders", is_receive_enabled=True)

    assert (50, True) == (len(pauses), max(pauses) <= PAUSE)
    assert db.execute("PRAGMA busy_timeout").fetchone() == (BUSY_SECONDS * 1000,)
    other.close()


def test_who_begins_waits_for_no_longer_than_said_and_later_as_before(path: Path, db: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(sqlite3.OperationalError, match="locked"):
            begin_within(db, 0.01)

        other.execute("ROLLBACK")
    begin_within(db, 0.01)
    assert (True, (int(BUSY_SECONDS * 1000),)) == (
        db.in_transaction,
        db.execute("PRAGMA busy_timeout").fetchone(),
    )


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT 1", ValueError),
        ("SELECT 1", KeyboardInterrupt),
        ("ROLLBACK", ValueError),  # as SQLite ends the transaction by itself when the disk is full
        ("INSERT INTO child VALUES (99)", None),
    ],
)
def test_writing_leaves_nothing_behind_a_failure(
    db: sqlite3.Connection, statement: str, error: type[BaseException] | None
) -> None:
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("CREATE TABLE child (queue_id REFERENCES broker_queue DEFERRABLE INITIALLY DEFERRED)")

    with pytest.raises(error or sqlite3.IntegrityError), writing(db):  # noqa: PT012
        put_queue(db, "Orders", is_receive_enabled=True)
        db.execute(statement)
        if error is not None:
            raise error

    assert (db.in_transaction, queues(db)) == (False, {})


@pytest.mark.parametrize("found", [4, 2], ids=["taken over", "an older copy was put back"])
@pytest.mark.promise(13)
def test_a_connection_writes_in_its_own_epoch_only(db: DaemonConnection, found: int) -> None:
    with writing(db):
        db.execute("UPDATE broker_database SET epoch = 3")
    db.epoch = 3
    with writing(db):
        db.execute("UPDATE broker_database SET epoch = ?", (found,))

    with pytest.raises(DemotedError, match=f"its epoch is {found}, ours was 3"):
        _write(db)

    assert (found, False) == (epoch(db), db.in_transaction)
    assert 1 == db.execute("SELECT count(*) FROM broker_route").fetchone()[0]


def _write(db: sqlite3.Connection) -> None:
    with writing(db):
        db.execute("DELETE FROM broker_route")


def _begin_and_commit(db: sqlite3.Connection) -> None:
    begin_within(db, 1.0)
    db.execute("DELETE FROM broker_route")
    commit(db)


@pytest.mark.parametrize("way", [_write, _begin_and_commit])
@pytest.mark.parametrize(("confirmed", "count"), [([False], 1), ([True, False], 1), ([True, True], 0)])
def test_a_connection_writes_only_while_its_role_is_confirmed(
    path: Path, db: DaemonConnection, way: Callable[[sqlite3.Connection], None], confirmed: list[bool], count: int
) -> None:
    """Checked when a transaction begins, and again right before it is committed."""
    remaining = iter(confirmed)
    db.is_confirmed = lambda: next(remaining)

    if count:
        with pytest.raises(DemotedError, match=LAPSED) as caught:
            way(db)
        roll_back(db)
        assert str(path) == caught.value.path
    else:
        way(db)

    assert (None, count) == (next(remaining, None), db.execute("SELECT count(*) FROM broker_route").fetchone()[0])
