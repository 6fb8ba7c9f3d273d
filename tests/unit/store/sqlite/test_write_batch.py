"""One batch of the writer thread: all of it, some of it, and what a failure leaves; failures say what to do."""

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.client.dialog import Dialog
from broker.conversation.message_types import ERROR
from broker.errors import DemotedError, StoreUnavailableError
from broker.protocol.frame import Fault
from broker.store.port import Find, LoadRequest, PendingDialog, WriteBatch, WriteResult
from broker.store.sqlite import write_batch as module
from broker.store.sqlite.database import broker_instance, open_store
from broker.store.sqlite.transaction import LAPSED
from broker.store.sqlite.write_batch import CHECKPOINT_PAGES, SqliteStore
from tests.support.dialog import begin, far_initiator, far_target, open_database, queued, rows, states

NOW = 1_750_000_000.0
NOTHING = WriteBatch(now=NOW, load_max_bytes=1000)
REQUEST = LoadRequest(endpoint_id=1, place=(0, 0), fragments=10, max_bytes=1000)


def request_for(found: PendingDialog) -> LoadRequest:
    return replace(REQUEST, endpoint_id=found.endpoint_id)


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path, open_database(path, "Orders"), fragment_size=1000)) as store:
        yield store


@pytest.fixture
def db(store: SqliteStore) -> sqlite3.Connection:
    return store.connection


@pytest.fixture
def dialog(db: sqlite3.Connection) -> Dialog:
    """A dialog with one message sent."""
    return begin(db, b"body", lifetime=60)


@pytest.fixture
def arrival() -> WriteBatch:
    return replace(NOTHING, frames=[far_initiator("Orders").message(0, b"hello")])


def refusal(store: SqliteStore, batch: WriteBatch = NOTHING) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        store.write_in_writer(batch)
    assert (str(store.path), False) == (caught.value.path, store.connection.in_transaction)
    return caught.value.problem


def found(store: SqliteStore) -> list[int]:
    return [one.endpoint_id for one in store.write_in_writer(replace(NOTHING, find=Find.NEW)).found]


@pytest.mark.parametrize("seed", range(4))
def test_each_message_is_found_whatever_became_of_others(store: SqliteStore, path: Path, seed: int) -> None:
    """Though it may get the number of one that was found, and then acknowledged, or removed by an application."""
    chance, unseen = random.Random(seed), set[tuple[int, int]]()
    with closing(sqlite3.connect(path, isolation_level=None)) as app:
        dialogs = [begin(app), begin(app)]
        for _ in range(300):
            dialog = chance.choice(dialogs)
            step = chance.choice(["send", "send", "find", "acknowledge", "fail", "remove"])
            if step == "send":
                unseen.add((dialog.endpoint_id, dialog.send(b"a")))
            elif step == "find":
                there = set(rows(app, "SELECT endpoint_id, message_sequence_number FROM broker_transmission"))
                assert {endpoint_id for endpoint_id, _ in unseen & there} <= set(found(store))
                unseen.clear()
            elif step == "remove":
                app.execute("DELETE FROM broker_transmission WHERE endpoint_id = ?", (dialog.endpoint_id,))
            else:
                (sent,) = rows(
                    app, "SELECT send_sequence FROM broker_conversation WHERE endpoint_id = ?", dialog.endpoint_id
                )
                ack = far_target(app, dialog.conversation_id).ack(chance.randint(0, sent), 0)
                with suppress(StoreUnavailableError):
                    store.connection.execute(f"PRAGMA query_only = {step == 'fail'}")
                    store.write_in_writer(replace(NOTHING, frames=[ack]))
                store.connection.execute("PRAGMA query_only = 0")


def test_batch_with_nothing_to_do_writes_nothing(store: SqliteStore, dialog: Dialog) -> None:
    store.connection.execute("PRAGMA query_only = ON")

    assert store.write_in_writer(replace(NOTHING, is_maintenance_due=True)) == WriteResult()


def test_each_part_of_a_batch_is_written(store: SqliteStore, path: Path, dialog: Dialog, arrival: WriteBatch) -> None:
    db = store.connection

    result = store.write_in_writer(
        replace(arrival, statuses={1: "waits"}, faults={1: Fault(-8430, "too large")}),
    )

    assert (1, {1}) == (result.received.delivered["Orders"], result.received.finished)
    assert result.commit_seconds is not None
    assert ["ER", "CO"] == states(db)
    assert [ERROR, "T"] == [name for name, _ in queued(db)]
    query = "SELECT transmission_status, transmission_status_time FROM broker_conversation WHERE endpoint_id = 1"
    assert rows(db, query) == [("waits", NOW)]
    assert (broker_instance(db), [1000]) == (
        store.broker_instance,
        rows(db, "SELECT fragment_size FROM broker_database"),
    )


def test_what_is_new_is_found_once_and_all_of_it_on_request(store: SqliteStore, dialog: Dialog) -> None:
    found = [
        [one.endpoint_id for one in store.write_in_writer(replace(NOTHING, find=find)).found]
        for find in (Find.NOTHING, Find.NEW, Find.NEW, Find.ALL, Find.NEW)
    ]

    assert [[], [1], [], [1], []] == found


@pytest.mark.parametrize("is_lost_at_the_end", [False, True])
def test_what_a_failed_batch_had_found_is_found_again(
    store: SqliteStore, dialog: Dialog, path: Path, *, is_lost_at_the_end: bool
) -> None:
    if is_lost_at_the_end:
        store.connection.set_trace_callback(lambda _: path.exists() and path.rename(path.with_name("away")))
        refusal(store, replace(NOTHING, find=Find.NEW, statuses={1: "waits"}))
        store.connection.set_trace_callback(None)
        path.with_name("away").rename(path)
    else:
        store.connection.execute("PRAGMA query_only = ON")
        refusal(store, replace(NOTHING, find=Find.NEW, statuses={1: "waits"}))

    assert [1] == [one.endpoint_id for one in store.write_in_writer(replace(NOTHING, find=Find.NEW)).found]


def test_what_is_requested_is_loaded_until_there_is_no_capacity(store: SqliteStore, dialog: Dialog) -> None:
    dialog.send(b"more")
    gone, more = replace(REQUEST, endpoint_id=99), replace(REQUEST, place=(1, 0))

    result = store.write_in_writer(replace(NOTHING, load=[gone, REQUEST, more], load_max_bytes=80))

    bodies = [(request, [one.body[-4:] for one in fragments]) for request, fragments, _ in result.loaded]
    assert ([(gone, []), (REQUEST, [b"body"])], [more]) == (bodies, result.postponed)


def test_of_many_that_begin_to_wait_the_first_are_loaded_and_the_others_only_found(
    store: SqliteStore, dialog: Dialog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOUND_LOADED", 1)
    begin(store.connection, b"another")

    result = store.write_in_writer(replace(NOTHING, find=Find.NEW, request_for=request_for))

    found = [one.endpoint_id for one in result.found]
    assert (len(found), found[:1]) == (2, [loaded.request.endpoint_id for loaded in result.loaded])


@pytest.mark.parametrize("more", [{}, {"request_for": request_for, "load_max_bytes": 10}])
def test_what_is_not_wanted_or_does_not_fit_is_only_found(
    store: SqliteStore, dialog: Dialog, more: dict[str, object]
) -> None:
    result = store.write_in_writer(replace(NOTHING, find=Find.NEW, **more))  # type: ignore[arg-type]

    assert ([1], [], []) == ([one.endpoint_id for one in result.found], result.loaded, result.postponed)


def test_the_next_timer_is_returned(store: SqliteStore, dialog: Dialog, arrival: WriteBatch) -> None:
    begin(store.connection)
    store.connection.execute("UPDATE broker_conversation SET dialog_timer = ? + endpoint_id", (NOW,))
    late = replace(NOTHING, now=NOW + 1, is_maintenance_due=True)

    assert [NOW + 1, NOW + 1, NOW + 2] == [
        store.write_in_writer(batch).next_timer for batch in (NOTHING, arrival, late)
    ]


def test_all_that_a_batch_writes_is_written_or_nothing(store: SqliteStore, dialog: Dialog, arrival: WriteBatch) -> None:
    """What expired and was not reported would be sent for ever; it is found again."""
    db = store.connection
    db.execute("CREATE TRIGGER full BEFORE INSERT ON broker_message BEGIN SELECT RAISE(ABORT, 'full'); END")
    batch = replace(arrival, now=time.time() + 61, is_maintenance_due=True, statuses={1: "waits"})
    refusal(store, batch)
    assert (["CO"], [None]) == (states(db), rows(db, "SELECT transmission_status FROM broker_conversation"))

    db.execute("DROP TRIGGER full")
    result = store.write_in_writer(batch)

    assert ([1], ["ER", "CO"]) == (result.finished, states(db))


def test_arrivals_are_stored_last(store: SqliteStore, dialog: Dialog) -> None:
    """An acknowledgement that arrives with a request to load does not leave a gap in what is loaded."""
    frames = [far_target(store.connection, dialog.conversation_id).ack(1, 0)]

    result = store.write_in_writer(replace(NOTHING, frames=frames, load=[REQUEST]))

    assert [m.place for loaded in result.loaded for m in loaded.fragments] == [(0, 0)]
    assert result.received.acknowledged == {1: (1, 0)}


def test_the_log_is_copied_back_by_the_daemon_before_an_application_has_to(
    store: SqliteStore, path: Path, arrival: WriteBatch
) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE own (content)")
        other.execute("INSERT INTO own VALUES (zeroblob(?))", (CHECKPOINT_PAGES * 4096,))
    before = path.stat().st_size

    store.write_in_writer(arrival)

    assert before < CHECKPOINT_PAGES * 4096 < path.stat().st_size


def test_nothing_is_stored_into_a_file_that_is_gone_and_it_goes_on_when_that_is_back(
    store: SqliteStore, path: Path, arrival: WriteBatch
) -> None:
    path.rename(path.with_name("away"))

    assert "the file is gone" in refusal(store, arrival)
    with pytest.raises(StoreUnavailableError):
        store.catalog_connection()
    assert [] == queued(store.connection)
    path.with_name("away").rename(path)
    store.write_in_writer(arrival)
    assert [("T", b"hello")] == queued(store.connection)


def test_full_disk_is_reported_and_a_probe_shows_when_there_is_space(store: SqliteStore, arrival: WriteBatch) -> None:
    probe = replace(NOTHING, is_probe=True)
    pages = store.connection.execute("PRAGMA page_count").fetchone()[0]
    store.connection.execute(f"PRAGMA max_page_count = {pages}")

    assert "the disk is full: free some space" in refusal(store, probe)
    store.connection.execute("PRAGMA max_page_count = 1000000")
    store.write_in_writer(probe)
    assert [] == rows(store.connection, "SELECT 1 FROM broker_fragment")


def test_damaged_file_is_reported(path: Path, arrival: WriteBatch) -> None:
    with closing(open_store(path)) as db:
        store = SqliteStore(path, db, fragment_size=1000)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA shrink_memory")
        with path.open("r+b") as file:  # everything after the first page is overwritten
            file.seek(4096)
            file.write(b"\x55" * (path.stat().st_size - 4096))

        assert "put back a backup, or save what can be read" in refusal(store, arrival)
        with pytest.raises(StoreUnavailableError, match="put back a backup, or save what can be read"):
            SqliteStore(path, db, fragment_size=1000)


@pytest.mark.parametrize("is_writing", [True, False])
def test_daemon_that_is_not_the_principal_any_more_stores_and_reads_nothing(
    store: SqliteStore, path: Path, arrival: WriteBatch, *, is_writing: bool
) -> None:
    store.connection.epoch = store.epoch
    store.write_in_writer(NOTHING)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE broker_database SET epoch = 5")

    assert "its epoch is 5, ours was 0" in refusal(store, arrival if is_writing else NOTHING)
    with pytest.raises(DemotedError):
        store.catalog_connection()
    assert [] == queued(store.connection)


@pytest.mark.parametrize(("confirmed", "stored"), [([], 0), ([True], 0), ([True, True], 1)])
def test_process_that_stood_still_for_too_long_acknowledges_nothing(
    store: SqliteStore, arrival: WriteBatch, confirmed: list[bool], stored: int
) -> None:
    """Before the batch, within it, and within its commit: then it is stored, and must not be acknowledged."""
    remaining = iter(confirmed)
    store.connection.is_confirmed = lambda: next(remaining, False)

    assert LAPSED == refusal(store, arrival)
    assert LAPSED == refusal(store, replace(NOTHING, find=Find.NEW))
    with pytest.raises(DemotedError, match=LAPSED):
        store.catalog_connection()
    assert stored == len(queued(store.connection))


# --- how a batch splits ---


def test_what_only_reads_is_done_first_and_by_itself() -> None:
    reading: dict[str, Any] = {"find": Find.NEW, "load": [REQUEST]}
    writing: dict[str, Any] = {"statuses": {1: "waits"}, "frames": [b"f"], "is_maintenance_due": True}

    assert replace(NOTHING, **reading, **writing).parts() == [
        replace(NOTHING, **reading),
        replace(NOTHING, **writing),
    ]


@pytest.mark.parametrize(
    "more", [{}, {"find": Find.NEW}, {"frames": [b"f"]}, {"is_probe": True, "find": Find.NEW, "frames": [b"f"]}]
)
def test_other_batches_stay_whole(more: dict[str, Any]) -> None:
    batch = replace(NOTHING, **more)

    assert batch.parts() == [batch]
