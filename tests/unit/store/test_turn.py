"""One turn of the writer thread: all of it, some of it, and what a failure leaves."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.window import FIRST_BYTES
from broker.store.port import Receipt, Want, WriteBatch, WriteResult
from broker.store.sqlite import write_batch as module
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.expiry import Maintenance
from broker.store.sqlite.write_batch import turn_in_writer
from tests.support.dialog import far_initiator, far_target, open_database, rows, states

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
