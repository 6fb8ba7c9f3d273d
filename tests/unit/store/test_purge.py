"""What has served is removed in slices; what is still of use stays."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.dialog import begin_dialog
from broker.store.sqlite import expiry as module
from broker.store.sqlite.expiry import PIECES, Purge
from tests.support.dialog import open_database, rows

NOW = 1_750_000_000.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database with the conversation 1, which has one message to send."""
    db = open_database(tmp_path / "bank.db", "Orders")
    begin_dialog(db, from_service="Orders", to_service="//far/Billing").send(b"a")
    yield db
    db.close()


def keep(db: sqlite3.Connection, endpoint_id: int, sequence: int, count: int) -> None:
    db.executemany(
        "INSERT INTO broker_fragment VALUES (?, ?, ?, 0, x'aa')", [(endpoint_id, sequence, n) for n in range(count)]
    )


def keep_parts(db: sqlite3.Connection, transmission_id: int, count: int) -> None:
    db.executemany(
        "INSERT INTO broker_transmission_part VALUES (?, ?, x'aa')", [(transmission_id, n) for n in range(count)]
    )


def fragments(db: sqlite3.Connection) -> dict[tuple[int, int], int]:
    found = rows(db, "SELECT endpoint_id, message_sequence_number, count(*) FROM broker_fragment GROUP BY 1, 2")
    return {(endpoint_id, sequence): count for endpoint_id, sequence, count in found}


def run(db: sqlite3.Connection) -> int:
    """Slices until there is nothing more to do."""
    purge, slices = Purge(), 1
    while purge.run(db, NOW):
        slices += 1
        assert slices < 1000
    return slices


def test_nothing_to_remove_is_no_work(db: sqlite3.Connection) -> None:
    keep(db, 1, 0, 3)
    keep_parts(db, 1, 3)

    assert not Purge().has_work(db, NOW)
    assert 1 == run(db)
    assert {(1, 0): 3} == fragments(db)
    assert 3 == len(rows(db, "SELECT 1 FROM broker_transmission_part"))


def test_fragments_of_a_received_message_are_removed_and_others_stay(db: sqlite3.Connection) -> None:
    keep(db, 1, 4, 2 * PIECES + 1)
    keep(db, 1, 5, 3)
    db.execute("INSERT INTO broker_received VALUES (1, 4)")

    assert Purge().has_work(db, NOW)
    Purge().run(db, NOW)
    assert {(1, 4): PIECES + 1, (1, 5): 3} == fragments(db)

    run(db)
    assert {(1, 5): 3} == fragments(db)
    assert [] == rows(db, "SELECT * FROM broker_received")


def test_fragments_of_conversations_that_are_gone_are_removed(db: sqlite3.Connection) -> None:
    keep(db, 1, 0, 3)
    keep(db, 7, 0, PIECES)
    keep(db, 7, 9, PIECES)
    keep(db, 8, 0, 1)

    assert Purge().has_work(db, NOW)
    assert run(db) > 2
    assert {(1, 0): 3} == fragments(db)


def test_parts_of_messages_that_are_gone_are_removed(db: sqlite3.Connection) -> None:
    keep_parts(db, 1, 3)
    keep_parts(db, 7, PIECES + 1)

    assert Purge().has_work(db, NOW)
    run(db)
    assert [1] * 3 == rows(db, "SELECT transmission_id FROM broker_transmission_part")


def test_failures_of_conversations_that_are_gone_are_removed(db: sqlite3.Connection) -> None:
    for endpoint_id in (1, 7, 8):
        db.execute("INSERT INTO broker_failure VALUES (?, 0, 1, 0, 0, NULL, 'E', '')", (endpoint_id,))

    assert Purge().has_work(db, NOW)
    run(db)
    assert [1] == rows(db, "SELECT endpoint_id FROM broker_failure")
    assert not Purge().has_work(db, NOW)


def test_what_is_gone_is_found_behind_many_that_are_not(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKS", 2)
    for endpoint_id in range(2, 7):
        begin_dialog(db, from_service="Orders", to_service="//far/Billing")
        keep(db, endpoint_id, 0, 1)
    keep(db, 9, 0, 1)
    purge = Purge()

    looks = 0
    while not purge.has_work(db, NOW):
        looks += 1
        assert looks < 10
    purge.run(db, NOW)

    assert looks == 2
    assert (9, 0) not in fragments(db)


def test_tombstones_are_removed_when_they_have_served(db: sqlite3.Connection) -> None:
    for number, at in enumerate((NOW, NOW + 1)):
        db.execute(
            "INSERT INTO broker_tombstone VALUES (?, 0, 1, 0, 0, ?, NULL, NULL, NULL, NULL)", (bytes([number] * 16), at)
        )

    assert not Purge().has_work(db, NOW - 1)
    assert Purge().has_work(db, NOW)
    run(db)
    assert [NOW + 1] == rows(db, "SELECT expire_time FROM broker_tombstone")
