"""Everything that the writer does of itself, in one slice; and what is rolled back is done again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.dialog import begin_dialog
from broker.conversation.message_types import DIALOG_TIMER, ERROR
from broker.store.port import MaintenanceResult
from broker.store.sqlite.expiry import Maintenance
from tests.support.dialog import open_database, queued, rows

NOW = 1_750_000_000.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def make_work(db: sqlite3.Connection) -> None:
    """A timer that is due, a dialog past its lifetime, and a tombstone and a fragment that have served."""
    for _ in range(2):
        begin_dialog(db, from_service="Orders", to_service="//far/Billing").send(b"a")
    db.execute("UPDATE broker_conversation SET dialog_timer = ?, lifetime = ? WHERE endpoint_id = 1", (NOW, NOW + 9))
    db.execute("UPDATE broker_conversation SET lifetime = ? WHERE endpoint_id = 2", (NOW,))
    db.execute("INSERT INTO broker_tombstone VALUES (x'00', 0, 1, 0, 0, ?, NULL, NULL, NULL, NULL)", (NOW,))
    db.execute("INSERT INTO broker_fragment VALUES (99, 0, 0, 0, x'')")


def test_slice_does_something_of_everything(db: sqlite3.Connection) -> None:
    make_work(db)
    keeper = Maintenance()

    assert keeper.has_work(db, NOW)
    kept = keeper.run(db, NOW)

    assert ([2], True) == (kept.finished, kept.has_more)
    assert [DIALOG_TIMER, ERROR] == [name for name, _ in queued(db)]
    assert [] == rows(db, "SELECT 1 FROM broker_tombstone UNION ALL SELECT 1 FROM broker_fragment")
    assert MaintenanceResult() == keeper.run(db, NOW)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE broker_conversation SET dialog_timer = 1 WHERE endpoint_id = 1",
        "UPDATE broker_conversation SET lifetime = 1 WHERE endpoint_id = 1",
        "INSERT INTO broker_tombstone VALUES (x'00', 0, 1, 0, 0, 1, NULL, NULL, NULL, NULL)",
        "INSERT INTO broker_received VALUES (1, 1)",
        "INSERT INTO broker_fragment VALUES (99, 0, 0, 0, x'')",
        "INSERT INTO broker_transmission_part VALUES (99, 0, x'')",
    ],
)
def test_each_kind_of_work_is_seen(db: sqlite3.Connection, statement: str) -> None:
    begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    assert not Maintenance().has_work(db, NOW)

    db.execute(statement)

    assert Maintenance().has_work(db, NOW)


def test_what_was_rolled_back_is_done_again(db: sqlite3.Connection) -> None:
    make_work(db)
    keeper = Maintenance()
    db.execute("BEGIN")
    keeper.run(db, NOW)
    db.execute("ROLLBACK")

    keeper.forget()

    assert [2] == keeper.run(db, NOW).finished
