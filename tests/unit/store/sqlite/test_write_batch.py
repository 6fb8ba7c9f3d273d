"""One open file: turns that are stored where they are found again, and failures that say what to do."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.window import FIRST_BYTES
from broker.errors import DemotedError, StoreUnavailableError
from broker.store.port import Receipt, Want, WriteBatch, WriteResult
from broker.store.sqlite import write_batch as module
from broker.store.sqlite.database import broker_instance, open_store
from broker.store.sqlite.expiry import Maintenance
from broker.store.sqlite.transaction import LAPSED
from broker.store.sqlite.write_batch import CHECKPOINT_PAGES, SqliteStore, turn_in_writer
from tests.support.dialog import far_initiator, far_target, open_database, queued, rows, states

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


# --- test_turn ---
# One turn of the writer thread: all of it, some of it, and what a failure leaves.


NOTHING = WriteBatch(now=1_750_000_000.0, frames=[], find_after=None, wants=[], load_max_bytes=1000)
WANT = Want(endpoint_id=1, place=(0, 0), fragments=10, max_bytes=1000)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


@pytest.fixture
def dialog(db: sqlite3.Connection) -> Dialog:
    """A dialog with one message sent."""
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing", lifetime=60)
    dialog.send(b"body")
    return dialog


def do(db: sqlite3.Connection, turn: WriteBatch) -> WriteResult:
    return turn_in_writer(db, broker_instance(db), turn, 10)


def test_turn_with_nothing_to_do_does_nothing(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA query_only = ON")

    assert do(db, NOTHING) == WriteResult()


def test_turn_finds_what_is_new(db: sqlite3.Connection, dialog: Dialog) -> None:
    assert (1, [1]) == (
        (result := do(db, replace(NOTHING, find_after=0))).found_up_to,
        [found.endpoint_id for found in result.found],
    )


def test_turn_loads_what_is_wanted(db: sqlite3.Connection, dialog: Dialog) -> None:
    gone = replace(WANT, endpoint_id=99)

    loaded = do(db, replace(NOTHING, wants=[WANT, gone])).loaded

    assert [(WANT, [b"body"]), (gone, [])] == [(want, [m.body[-4:] for m in messages]) for want, messages, _ in loaded]


def test_turn_notes_why_dialogs_wait(db: sqlite3.Connection, dialog: Dialog) -> None:
    do(db, replace(NOTHING, statuses={1: "waits"}))

    query = "SELECT transmission_status, transmission_status_time FROM broker_conversation"
    assert rows(db, query) == [("waits", NOTHING.now)]


def test_status_is_not_noted_when_what_arrived_cannot_be_stored(db: sqlite3.Connection, dialog: Dialog) -> None:
    """All that a turn writes is one transaction."""
    db.execute("ALTER TABLE broker_message RENAME TO elsewhere")

    with pytest.raises(sqlite3.OperationalError):
        do(db, replace(NOTHING, statuses={1: "waits"}, frames=[far_initiator("Orders").message(0)]))

    assert rows(db, "SELECT transmission_status FROM broker_conversation") == [None]


def test_what_only_reads_is_done_first_and_by_itself() -> None:
    turn = replace(NOTHING, find_after=3, wants=[WANT], statuses={1: "waits"}, frames=[b"f"])

    assert turn.parts() == [
        replace(NOTHING, find_after=3, wants=[WANT]),
        replace(NOTHING, statuses={1: "waits"}, frames=[b"f"]),
    ]


@pytest.mark.parametrize(
    "more", [{}, {"find_after": 3}, {"frames": [b"f"]}, {"is_probe": True, "find_after": 3, "frames": [b"f"]}]
)
def test_other_turns_stay_whole(more: dict[str, Any]) -> None:
    turn = replace(NOTHING, **more)

    assert turn.parts() == [turn]


def test_dialog_that_begins_to_wait_is_loaded_in_the_turn_that_finds_it(db: sqlite3.Connection, dialog: Dialog) -> None:
    dialog.send(b"more")

    result = do(db, replace(NOTHING, find_after=0, known=lambda _: False, first_frames=1))

    want = Want(1, (0, 0), 1, FIRST_BYTES)
    assert [(want, [(0, 0)])] == [(one.want, [m.place for m in one.fragments]) for one in result.loaded]


def test_of_many_that_begin_to_wait_the_first_are_loaded_and_the_others_only_found(
    db: sqlite3.Connection, dialog: Dialog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOUND_LOADED", 1)
    with db:
        begin_dialog(db, from_service="Orders", to_service="//far/Billing").send(b"another")

    result = do(db, replace(NOTHING, find_after=0, known=lambda _: False))

    found = [one.endpoint_id for one in result.found]
    assert (len(found), found[:1]) == (2, [loaded.want.endpoint_id for loaded in result.loaded])


def test_what_the_loop_loads_itself_is_only_found(db: sqlite3.Connection, dialog: Dialog) -> None:
    result = do(db, replace(NOTHING, find_after=0, known={1}.__contains__))

    assert ([1], []) == ([found.endpoint_id for found in result.found], result.loaded)


def test_what_was_found_and_does_not_fit_is_left_to_the_loop(db: sqlite3.Connection, dialog: Dialog) -> None:
    result = do(db, replace(NOTHING, find_after=0, known=lambda _: False, load_max_bytes=10))

    assert ([1], [], []) == ([found.endpoint_id for found in result.found], result.loaded, result.postponed)


def test_turn_stops_loading_when_there_is_no_more_room(db: sqlite3.Connection, dialog: Dialog) -> None:
    dialog.send(b"more")
    wants = [WANT, replace(WANT, place=(1, 0)), replace(WANT, place=(0, 0))]

    result = do(db, replace(NOTHING, wants=wants, load_max_bytes=80))

    assert ([WANT], wants[1:]) == ([loaded.want for loaded in result.loaded], result.postponed)


def test_turn_looks_for_expired_dialogs_only_when_it_is_time(db: sqlite3.Connection, dialog: Dialog) -> None:
    late = replace(NOTHING, now=time.time() + 61)

    assert (do(db, late).kept.finished, states(db)) == ([], ["CO"])
    assert (do(db, replace(late, housekeeping=Maintenance())).kept.finished, states(db)) == ([1], ["ER"])


def test_housekeeping_with_nothing_to_do_writes_nothing(db: sqlite3.Connection, dialog: Dialog) -> None:
    db.execute("PRAGMA query_only = ON")

    assert do(db, replace(NOTHING, housekeeping=Maintenance())) == WriteResult()


def test_turn_tells_the_next_timer(db: sqlite3.Connection, dialog: Dialog) -> None:
    begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    db.execute("UPDATE broker_conversation SET dialog_timer = ? + endpoint_id", (NOTHING.now,))
    frames = [far_initiator("Orders").message(0)]

    assert NOTHING.now + 1 == do(db, NOTHING).next_timer
    assert NOTHING.now + 1 == do(db, replace(NOTHING, frames=frames)).next_timer
    assert NOTHING.now + 2 == do(db, replace(NOTHING, now=NOTHING.now + 1, housekeeping=Maintenance())).next_timer


def test_all_that_a_turn_writes_is_written_or_nothing(db: sqlite3.Connection, dialog: Dialog) -> None:
    """What expired and was not told of would be sent for ever; it is found again."""
    db.execute("CREATE TRIGGER full BEFORE INSERT ON broker_message BEGIN SELECT RAISE(ABORT, 'full'); END")
    turn = replace(
        NOTHING,
        now=time.time() + 61,
        housekeeping=Maintenance(),
        frames=[far_initiator("Orders").message(0)],
        statuses={1: "waits"},
    )
    with pytest.raises(sqlite3.IntegrityError):
        do(db, turn)
    assert (["CO"], [None]) == (states(db), rows(db, "SELECT transmission_status FROM broker_conversation"))

    db.execute("DROP TRIGGER full")
    result = do(db, turn)

    assert ([1], ["ER", "CO"]) == (result.kept.finished, states(db))


def test_turn_stores_what_arrived(db: sqlite3.Connection) -> None:
    receipt = do(db, replace(NOTHING, frames=[far_initiator("Orders").message(0)])).receipt

    assert receipt.delivered == Counter(Orders=1)


def test_what_arrived_is_stored_last(db: sqlite3.Connection, dialog: Dialog) -> None:
    """An acknowledgement that arrives with a wish to load does not leave a gap in what is loaded."""
    frames = [far_target(db, dialog.conversation_id).ack(1, 0)]

    result = do(db, replace(NOTHING, frames=frames, wants=[WANT]))

    assert [m.place for loaded in result.loaded for m in loaded.fragments] == [(0, 0)]
    assert result.receipt.acknowledged == {1: (1, 0)}


def test_when_finding_fails_nothing_has_been_stored(db: sqlite3.Connection) -> None:
    """What is stored and not told of would never be bound, answered or counted."""
    db.execute("ALTER TABLE broker_transmission RENAME TO elsewhere")

    with pytest.raises(sqlite3.OperationalError):
        do(db, replace(NOTHING, frames=[far_initiator("Orders").message(0)], find_after=0))

    assert rows(db, "SELECT 1 FROM broker_conversation") == []


def test_failing_receipt_leaves_no_transaction_open(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA query_only = ON")

    with pytest.raises(sqlite3.OperationalError):
        do(db, replace(NOTHING, frames=[far_initiator("Orders").message(0)]))

    assert not db.in_transaction
    assert Receipt() == WriteResult().receipt
