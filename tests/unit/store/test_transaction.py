"""A write to the file: whole or not at all, after those of others, and only in the epoch of the connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.errors import DemotedError
from broker.store.sqlite.database import open_store
from broker.store.sqlite.metadata import put_queue, queues
from broker.store.sqlite.transaction import (
    BUSY_SECONDS,
    LAPSED,
    LOCK_PAUSE,
    begin_within,
    check_epoch,
    commit,
    epoch,
    is_busy,
    roll_back,
    writing,
)
from tests.support.asleep import sleep_by


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_store(path)
    yield connection
    connection.close()


def test_only_a_file_that_others_have_is_busy(path: Path, db: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError) as wrong:
        db.execute("SELECT * FROM no_such_table")
    with (
        writing(db),
        closing(sqlite3.connect(path, timeout=0)) as other,
        pytest.raises(sqlite3.OperationalError) as busy,
    ):
        other.execute("BEGIN IMMEDIATE")

    assert [False, True] == [is_busy(wrong.value), is_busy(busy.value)]


def test_writing_commits_at_its_end(path: Path, db: sqlite3.Connection) -> None:
    with writing(db):
        put_queue(db, "Orders", is_receive_enabled=True)
        during = _queue_names_seen_by_others(path)

    assert (during, _queue_names_seen_by_others(path)) == ([], ["Orders"])


@pytest.mark.parametrize(("end", "names"), [(commit, ["Orders"]), (roll_back, [])])
def test_what_was_begun_is_kept_or_undone_as_a_whole(
    path: Path, db: sqlite3.Connection, end: Callable[[sqlite3.Connection], None], names: list[str]
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

    assert (50, LOCK_PAUSE) == (len(pauses), max(pauses))
    assert db.execute("PRAGMA busy_timeout").fetchone() == (BUSY_SECONDS * 1000,)
    other.close()


def test_writing_waits_as_long_as_the_connection_says(path: Path, db: sqlite3.Connection) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    db.execute("PRAGMA busy_timeout = 20")

    with pytest.raises(sqlite3.OperationalError, match="locked"), writing(db):
        raise AssertionError("another has the lock")

    assert db.execute("PRAGMA busy_timeout").fetchone() == (20,)
    other.close()


def test_who_begins_waits_for_no_longer_than_said_and_later_as_before(path: Path, db: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(sqlite3.OperationalError, match="locked"):
            begin_within(db, 0.01)

        other.execute("ROLLBACK")
    begin_within(db, 0.01)
    assert (True, (int(BUSY_SECONDS * 1000),)) == (db.in_transaction, db.execute("PRAGMA busy_timeout").fetchone())


@pytest.mark.parametrize("failure", [ValueError("no"), KeyboardInterrupt()])
def test_writing_leaves_nothing_behind_a_failure(db: sqlite3.Connection, failure: BaseException) -> None:
    def failing() -> None:
        with writing(db):
            put_queue(db, "Orders", is_receive_enabled=True)
            raise failure

    with pytest.raises(type(failure)):
        failing()

    assert (db.in_transaction, queues(db)) == (False, {})


def test_failure_that_ended_the_transaction_itself_is_the_one_that_is_told(db: sqlite3.Connection) -> None:
    """SQLite ends the transaction by itself when the disk is full; then there is none to roll back."""

    def failing() -> None:
        with writing(db):
            db.execute("ROLLBACK")
            raise ValueError("disk full")

    with pytest.raises(ValueError, match="disk full"):
        failing()

    assert not db.in_transaction


def test_commit_that_fails_leaves_no_transaction_open(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("CREATE TABLE child (queue_id REFERENCES broker_queue DEFERRABLE INITIALLY DEFERRED)")

    with pytest.raises(sqlite3.IntegrityError), writing(db):
        db.execute("INSERT INTO child VALUES (99)")

    assert (db.in_transaction, db.execute("SELECT * FROM child").fetchall()) == (False, [])


def test_a_connection_writes_in_its_own_epoch_only(path: Path) -> None:
    with closing(open_store(path)) as db:
        with writing(db):
            db.execute("UPDATE broker_database SET epoch = 3")
        db.epoch = 3
        with writing(db):
            db.execute("UPDATE broker_database SET epoch = 4")

        with pytest.raises(DemotedError, match="its epoch is 4, ours was 3"), writing(db):
            db.execute("DELETE FROM broker_route")

        assert 4 == epoch(db)
        assert not db.in_transaction
        assert 1 == db.execute("SELECT count(*) FROM broker_route").fetchone()[0]


def _write(db: sqlite3.Connection) -> None:
    with writing(db):
        db.execute("DELETE FROM broker_route")


def _begin_and_commit(db: sqlite3.Connection) -> None:
    begin_within(db, 1.0)
    db.execute("DELETE FROM broker_route")
    commit(db)


@pytest.mark.parametrize("way", [_write, _begin_and_commit])
@pytest.mark.parametrize("looks", [[False], [True, False]], ids=["at the begin", "before the commit"])
def test_a_connection_writes_only_while_its_role_is_confirmed(
    path: Path, way: Callable[[sqlite3.Connection], None], looks: list[bool]
) -> None:
    """Looked at when a transaction begins, and again right before it is committed."""
    with closing(open_store(path)) as db:
        left = iter(looks)
        db.is_confirmed = lambda: next(left)

        with pytest.raises(DemotedError, match=LAPSED) as caught:
            way(db)
        roll_back(db)

        assert str(path) == caught.value.path
        assert (None, 1) == (next(left, None), db.execute("SELECT count(*) FROM broker_route").fetchone()[0])


def test_a_connection_whose_role_is_confirmed_writes(path: Path) -> None:
    with closing(open_store(path)) as db:
        db.is_confirmed = lambda: True

        _write(db)
        check_epoch(db)

        assert 0 == db.execute("SELECT count(*) FROM broker_route").fetchone()[0]
