"""What ends sides without a frame: timers, lifetimes, local failures; and what is removed afterwards."""

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from broker.client.receiving import receive
from broker.conversation.body_check import error_body
from broker.conversation.message_types import DIALOG_TIMER, ERROR
from broker.protocol.frame import Fault
from broker.store.sqlite import expiry as module
from broker.store.sqlite.expiry import LINGER_SECONDS, PIECES, Maintenance, fail_dialogs, next_timer
from broker.store.sqlite.inspect import read_balance
from tests.support.dialog import QUEUE, begin, open_database, queued, rows, states

FAULT = Fault(-9727, "there is no remote service binding")
NOW = 1_750_000_000.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def lifetime_of(db: sqlite3.Connection) -> float:
    lifetime: float = rows(db, "SELECT max(lifetime) FROM broker_conversation")[0]
    return lifetime


def run(db: sqlite3.Connection, now: float, maintenance: Maintenance | None = None) -> list[int]:
    """One slice; the endpoints that it ended."""
    return (maintenance or Maintenance()).run(db, now)[0]


def run_all(db: sqlite3.Connection) -> int:
    """Slices until there is nothing more to do."""
    maintenance, slices = Maintenance(), 1
    while maintenance.run(db, NOW)[1]:
        slices += 1
        assert slices < 1000
    return slices


def ledger(db: sqlite3.Connection) -> dict[str, int]:
    assert 0 == read_balance(db).unaccounted
    return dict(rows(db, "SELECT entry, messages FROM broker_ledger"))


WORK = (
    "UPDATE broker_conversation SET dialog_timer = 1750000000 WHERE endpoint_id = 1",
    "UPDATE broker_conversation SET lifetime = 1750000000 WHERE endpoint_id = 2",
    "INSERT INTO broker_tombstone VALUES (x'00', 0, 1, 0, 0, 1, NULL, NULL, NULL, NULL)",
    "INSERT INTO broker_received VALUES (1, 1)",
    "INSERT INTO broker_fragment VALUES (99, 0, 0, 0, x'')",
    "INSERT INTO broker_failure VALUES (99, 0, 1, 0, 0, NULL, 'E', '')",
    "INSERT INTO broker_transmission_part VALUES (99, 0, x'')",
)


def test_each_kind_of_work_is_seen_and_done_and_done_again_after_a_roll_back(db: sqlite3.Connection) -> None:
    begin(db, b"a")
    begin(db, b"a")
    assert not Maintenance().has_work(db, NOW)
    for statement in WORK:
        db.execute("BEGIN")
        db.execute(statement)
        assert Maintenance().has_work(db, NOW), statement
        db.execute("ROLLBACK")
    for statement in WORK:
        db.execute(statement)
    maintenance = Maintenance()
    db.execute("BEGIN")
    maintenance.run(db, NOW)
    db.execute("ROLLBACK")
    maintenance.forget()

    assert ([2], True) == maintenance.run(db, NOW)
    assert [DIALOG_TIMER, ERROR] == [name for name, _ in queued(db)]
    tables = ("tombstone", "received", "fragment", "failure", "transmission_part")
    assert [[]] * len(tables) == [rows(db, f"SELECT 1 FROM broker_{name}") for name in tables]
    assert ([], False) == maintenance.run(db, NOW)


def test_failed_side_stays_as_long_as_its_error_is_unread(db: sqlite3.Connection) -> None:
    begin(db, b"a")
    maintenance, lifetime = Maintenance(), lifetime_of(db)
    run(db, lifetime, maintenance)

    assert [] == run(db, lifetime + 365 * 86_400, maintenance)
    assert ["ER"] == states(db)
    receive(db, queue=QUEUE)
    run(db, lifetime + LINGER_SECONDS, maintenance)
    assert [] == states(db)


@pytest.mark.parametrize("state", ["ER", "DI"])
@pytest.mark.parametrize(("seconds", "left"), [(LINGER_SECONDS - 1, 1), (LINGER_SECONDS, 0)])
def test_half_closed_side_that_has_read_all_is_closed_a_while_after_its_lifetime(
    db: sqlite3.Connection, state: str, seconds: float, left: int
) -> None:
    begin(db)
    db.execute("UPDATE broker_conversation SET state = ?", (state,))

    run(db, lifetime_of(db) + seconds)

    assert left == len(states(db))


def test_many_are_done_in_slices_and_those_that_linger_delay_no_others(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE", 2)
    for _ in range(5):
        begin(db)
    lifetime = lifetime_of(db)
    maintenance = Maintenance()

    assert [True, True, False] == [maintenance.run(db, lifetime)[1] for _ in range(3)]
    assert ["ER"] * 5 == states(db)

    begin(db, lifetime=timedelta(days=8))
    assert [6] == run(db, lifetime_of(db), maintenance)


def test_clock_that_went_forward_and_back_forgets_none(db: sqlite3.Connection) -> None:
    begin(db, lifetime=1000)
    maintenance, lifetime = Maintenance(), lifetime_of(db)
    run(db, lifetime + 5000, maintenance)
    begin(db, lifetime=2000)
    assert ["ER", "SO"] == states(db)

    run(db, lifetime, maintenance)
    run(db, lifetime_of(db), maintenance)

    assert ["ER", "ER"] == states(db)
    assert 2 == len(queued(db))


def set_timer(db: sqlite3.Connection, at: float, endpoint_id: int = 1) -> None:
    db.execute("UPDATE broker_conversation SET dialog_timer = ? WHERE endpoint_id = ?", (at, endpoint_id))


def test_timer_that_is_due_becomes_a_message_read_before_all_others_and_is_cleared(db: sqlite3.Connection) -> None:
    begin(db)
    begin(db, lifetime=60)
    beyond = lifetime_of(db) + 1
    db.execute("UPDATE broker_conversation SET lifetime = ? WHERE endpoint_id = 1", (beyond + 9,))
    db.execute("UPDATE broker_conversation SET lifetime = ? WHERE endpoint_id = 2", (beyond - 1,))
    set_timer(db, beyond + 1)
    set_timer(db, beyond, endpoint_id=2)

    run(db, beyond)
    assert ([ERROR], beyond + 1) == ([name for name, _ in queued(db)], next_timer(db)), "beyond its lifetime none fires"
    run(db, beyond + 1)

    assert (DIALOG_TIMER, b"") == queued(db)[-1]
    assert [11, 12] == rows(db, "SELECT priority FROM broker_message ORDER BY queuing_order")
    assert next_timer(db) is None


@pytest.mark.parametrize(
    ("state", "count"), [("SO", 1), ("SI", 1), ("CO", 1), ("DI", 1), ("DO", 0), ("ER", 0), ("CD", 0)]
)
def test_side_that_has_ended_or_failed_has_no_timer(db: sqlite3.Connection, state: str, count: int) -> None:
    begin(db)
    db.execute("UPDATE broker_conversation SET state = ?", (state,))
    set_timer(db, lifetime_of(db) - 2)

    run(db, lifetime_of(db) - 1)

    assert count == len(queued(db))
    assert next_timer(db) is None


def test_application_of_a_dialog_that_cannot_be_sent_reads_an_error_and_nothing_of_it_is_sent(
    db: sqlite3.Connection,
) -> None:
    """Once; a side that was ended here is closed, and one that is gone is passed over."""
    dialog, other, ended = begin(db, b"1", b"2"), begin(db, b"3"), begin(db, b"4")
    ended.end()

    for _ in range(2):
        fail_dialogs(db, {dialog.endpoint_id: FAULT, ended.endpoint_id: FAULT, 99: FAULT}, NOW)

    assert ["ER", "CO"] == states(db)
    assert [(ERROR, error_body(FAULT.code, FAULT.text))] == queued(db)
    assert [other.endpoint_id] == rows(db, "SELECT endpoint_id FROM broker_transmission")
    assert {"sent": 2, "error at this side": 4} == ledger(db)


def keep(db: sqlite3.Connection, endpoint_id: int, sequence: int, count: int) -> None:
    values = [(endpoint_id, sequence, n) for n in range(count)]
    db.executemany("INSERT INTO broker_fragment VALUES (?, ?, ?, 0, x'aa')", values)


def fragments(db: sqlite3.Connection) -> dict[tuple[int, int], int]:
    found = rows(db, "SELECT endpoint_id, message_sequence_number, count(*) FROM broker_fragment GROUP BY 1, 2")
    return {(endpoint_id, sequence): count for endpoint_id, sequence, count in found}


def test_fragments_of_a_received_message_are_removed_in_slices_and_others_stay(db: sqlite3.Connection) -> None:
    begin(db)
    keep(db, 1, 4, 2 * PIECES + 1)
    keep(db, 1, 5, 3)
    db.execute("INSERT INTO broker_received VALUES (1, 4)")

    run(db, NOW)
    assert {(1, 4): PIECES + 1, (1, 5): 3} == fragments(db)

    run_all(db)
    assert {(1, 5): 3} == fragments(db)
    assert [] == rows(db, "SELECT * FROM broker_received")


def test_pieces_whose_owner_is_gone_are_removed_in_slices_and_others_stay(db: sqlite3.Connection) -> None:
    begin(db, b"a")
    keep(db, 1, 0, 3)
    keep(db, 7, 0, PIECES)
    keep(db, 7, 9, PIECES)
    keep(db, 8, 0, 1)
    parts = [(transmission_id, n) for transmission_id, count in ((1, 3), (7, PIECES + 1)) for n in range(count)]
    db.executemany("INSERT INTO broker_transmission_part VALUES (?, ?, x'aa')", parts)
    for endpoint_id in (1, 7, 8):
        db.execute("INSERT INTO broker_failure VALUES (?, 0, 1, 0, 0, NULL, 'E', '')", (endpoint_id,))

    assert run_all(db) > 2
    assert {(1, 0): 3} == fragments(db)
    assert [1] * 3 == rows(db, "SELECT transmission_id FROM broker_transmission_part")
    assert [1] == rows(db, "SELECT endpoint_id FROM broker_failure")
    assert not Maintenance().has_work(db, NOW)


@pytest.mark.promise("The database file grows")
def test_pieces_without_an_owner_are_found_after_many_that_have_one(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCAN_MAX", 2)
    for endpoint_id in range(1, 6):
        begin(db)
        keep(db, endpoint_id, 0, 1)
    keep(db, 9, 0, 1)
    maintenance = Maintenance()

    assert [False, False, True] == [maintenance.has_work(db, NOW) for _ in range(3)]
    maintenance.run(db, NOW)
    assert (9, 0) not in fragments(db)


@pytest.mark.promise("Conversations never end")
def test_tombstones_are_removed_when_they_have_expired(db: sqlite3.Connection) -> None:
    for number, at in enumerate((NOW, NOW + 1)):
        db.execute(
            "INSERT INTO broker_tombstone VALUES (?, 0, 1, 0, 0, ?, NULL, NULL, NULL, NULL)", (bytes([number] * 16), at)
        )

    assert not Maintenance().has_work(db, NOW - 1)
    run_all(db)
    assert [NOW + 1] == rows(db, "SELECT expire_time FROM broker_tombstone")
