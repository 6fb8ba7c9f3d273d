"""One open file: turns that are stored where they are found again, and failures that say what to do."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.errors import DemotedError, StoreUnavailableError
from broker.store.port import WriteBatch
from broker.store.sqlite.database import broker_instance, open_store
from broker.store.sqlite.transaction import LAPSED
from broker.store.sqlite.write_batch import CHECKPOINT_PAGES, SqliteStore
from tests.support.dialog import far_initiator, open_database, queued, rows

NOW = 1_800_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path, open_database(path, "Billing"), fragment_size=1000)) as store:
        yield store


def turn(*frames: bytes) -> WriteBatch:
    return WriteBatch(now=NOW, frames=list(frames), find_after=None, wants=[], load_max_bytes=1000)


def refusal(store: SqliteStore, *frames: bytes) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        store.turn_in_writer(turn(*frames))
    assert str(store.path) == caught.value.path
    return caught.value.problem


def test_a_turn_is_stored(store: SqliteStore) -> None:
    result = store.turn_in_writer(turn(far_initiator().message(0, b"hello")))

    assert 1 == result.receipt.delivered["Billing"]
    assert [("T", b"hello")] == queued(store.connection)


def test_it_knows_its_identity_and_settles_by_what_messages_are_cut(store: SqliteStore) -> None:
    assert broker_instance(store.connection) == store.broker_instance
    assert [1000] == rows(store.connection, "SELECT fragment_size FROM broker_database")


def test_a_commit_of_somebody_else_changes_the_version(store: SqliteStore, path: Path) -> None:
    before = store.version()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE own (n)")

    assert before != store.version()
    assert store.version() == store.version()


def test_nothing_is_stored_into_a_file_that_is_gone_and_it_goes_on_when_that_is_back(
    store: SqliteStore, path: Path
) -> None:
    frame = far_initiator().message(0, b"hello")
    path.rename(path.with_name("away"))

    problem = refusal(store, frame)
    with pytest.raises(StoreUnavailableError):
        store.lend()
    unstored = queued(store.connection)
    path.with_name("away").rename(path)
    store.turn_in_writer(turn(frame))

    assert "the file is gone" in problem
    assert [] == unstored
    assert [("T", b"hello")] == queued(store.connection)


def test_what_was_stored_while_the_file_went_is_not_acknowledged(store: SqliteStore, path: Path) -> None:
    """It went between the look at it and the commit."""

    def go(_: str) -> None:
        if path.exists():
            path.rename(path.with_name("away"))

    store.connection.set_trace_callback(go)

    assert "the file is gone" in refusal(store, far_initiator().message(0, b"hello"))


def test_a_backup_that_is_put_over_the_open_file_is_noticed(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "backup")
    (tmp_path / "backup").replace(path)

    assert "was replaced by another one" in refusal(store)


def test_a_full_disk_says_so_and_goes_on_when_there_is_room(store: SqliteStore) -> None:
    frame = far_initiator().message(0, bytes(100_000))
    pages = store.connection.execute("PRAGMA page_count").fetchone()[0]
    store.connection.execute(f"PRAGMA max_page_count = {pages}")

    problem = refusal(store, frame)
    unstored = rows(store.connection, "SELECT count(*) FROM broker_conversation")
    store.connection.execute("PRAGMA max_page_count = 1000000")
    store.turn_in_writer(turn(frame))

    assert "the disk is full: make room" in problem
    assert ([0], 1) == (unstored, len(queued(store.connection)))


def test_a_writer_that_does_not_end_is_told_and_waited_for(store: SqliteStore, path: Path) -> None:
    frame = far_initiator().message(0, b"hello")
    store.connection.execute("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        problem = refusal(store, frame)

    store.turn_in_writer(turn(frame))

    assert "another connection keeps a write transaction open: end it" in problem
    assert [("T", b"hello")] == queued(store.connection)


def test_a_file_that_may_only_be_read_is_told(store: SqliteStore) -> None:
    store.connection.execute("PRAGMA query_only = ON")

    assert "cannot be written: the user of this program has to" in refusal(store, far_initiator().message(0))


def damage(path: Path) -> None:
    """Everything behind the first page is overwritten."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x55" * (path.stat().st_size - 4096))


def test_a_file_that_is_damaged_is_told(store: SqliteStore, path: Path) -> None:
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.connection.execute("PRAGMA shrink_memory")
    damage(path)

    assert "put back a backup, or save what can be read" in refusal(store, far_initiator().message(0))


def test_a_file_that_was_damaged_before_is_told(path: Path) -> None:
    db = open_store(path)
    with closing(db):
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA shrink_memory")
        damage(path)

        with pytest.raises(StoreUnavailableError, match="put back a backup, or save what can be read"):
            SqliteStore(path, db, fragment_size=1000)


def test_a_file_that_cannot_be_looked_at_is_told(store: SqliteStore) -> None:
    store._watch.close()

    with pytest.raises(StoreUnavailableError, match="closed database"):
        store.version()


@pytest.mark.parametrize("is_writing", [True, False])
def test_whoever_is_not_the_principal_any_more_stores_and_reads_nothing(path: Path, *, is_writing: bool) -> None:
    db = open_database(path, "Billing")
    with closing(SqliteStore(path, db, fragment_size=1000)) as store:
        db.epoch = store.epoch
        store.turn_in_writer(turn())
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE broker_database SET epoch = 5")

        with pytest.raises(DemotedError, match="its epoch is 5, ours was 0") as caught:
            store.turn_in_writer(turn(*[far_initiator().message(0, b"hello")] * is_writing))
        with pytest.raises(DemotedError):
            store.lend()

        assert str(path) == caught.value.path
        assert [] == queued(db)
        assert not db.in_transaction


@pytest.mark.parametrize(("looks", "stored"), [([], 0), ([True], 0), ([True, True], 1)])
def test_whoever_stood_still_for_too_long_is_told_that_nothing_was_stored(
    store: SqliteStore, looks: list[bool], stored: int
) -> None:
    """Before the turn, within it, and within its commit: then it is stored, and must not be acknowledged."""
    left = iter(looks)
    store.connection.is_confirmed = lambda: next(left, False)

    assert LAPSED == refusal(store, far_initiator().message(0, b"hello"))
    assert (stored, False) == (len(queued(store.connection)), store.connection.in_transaction)


def test_whoever_is_not_confirmed_finds_nothing_and_lends_nothing(store: SqliteStore) -> None:
    store.connection.is_confirmed = lambda: False

    assert LAPSED == refusal(store)
    with pytest.raises(DemotedError, match=LAPSED):
        store.lend()


def test_the_log_is_copied_back_by_the_daemon_before_an_application_has_to(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE own (content)")
        other.execute("INSERT INTO own VALUES (zeroblob(?))", (CHECKPOINT_PAGES * 4096,))
    before = path.stat().st_size

    store.turn_in_writer(turn(far_initiator().message(0, b"hello")))

    assert before < CHECKPOINT_PAGES * 4096 < path.stat().st_size
