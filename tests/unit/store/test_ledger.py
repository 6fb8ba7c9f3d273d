"""Whatever is taken away is counted: sent = acknowledged + held + failed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.store.sqlite.side import FailureReason, fail, remove
from tests.support.dialog import open_database, rows


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def begin(db: sqlite3.Connection, *bodies: bytes, acknowledged: int = 0) -> Dialog:
    """A dialog of which so many messages are acknowledged."""
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    for body in bodies:
        dialog.send(body)
    key = "endpoint_id = (SELECT max(endpoint_id) FROM broker_conversation)"
    db.execute(f"UPDATE broker_conversation SET acknowledged_sequence = ? WHERE {key}", (acknowledged,))
    db.execute(f"DELETE FROM broker_transmission WHERE {key} AND message_sequence_number < ?", (acknowledged,))
    return dialog


def entries(db: sqlite3.Connection) -> dict[str, int]:
    return dict(rows(db, "SELECT entry, messages FROM broker_ledger"))


def test_what_is_taken_away_is_counted_under_its_reason(db: sqlite3.Connection) -> None:
    begin(db, b"a", b"b", b"c", acknowledged=1)
    begin(db, b"other")

    fail(db, 1, FailureReason.LIFETIME_EXCEEDED)

    assert {"lifetime exceeded": 2} == entries(db)
    assert [b"other"] == rows(db, "SELECT message_body FROM broker_transmission")


def test_same_reason_adds_up_and_others_stand_beside_it(db: sqlite3.Connection) -> None:
    for _ in range(3):
        begin(db, b"a", b"b")

    fail(db, 1, FailureReason.CLEANUP)
    fail(db, 2, "whatever a caller says")
    fail(db, 3, FailureReason.CLEANUP)

    assert {"ended with cleanup": 4, "whatever a caller says": 2} == entries(db)


def test_nothing_held_makes_no_entry(db: sqlite3.Connection) -> None:
    begin(db, b"a", acknowledged=1)

    fail(db, 1, FailureReason.CLEANUP)

    assert {} == entries(db)


@pytest.mark.parametrize("reason", ["sent", "acknowledged"])
def test_reason_is_not_one_of_the_sums(db: sqlite3.Connection, reason: str) -> None:
    with pytest.raises(AssertionError):
        fail(db, 1, reason)


def test_removed_conversation_leaves_its_sums(db: sqlite3.Connection) -> None:
    begin(db, b"a", b"b", b"c", acknowledged=2)
    begin(db, b"a", acknowledged=1)
    begin(db)

    for endpoint_id in (1, 2, 3):
        fail(db, endpoint_id, FailureReason.FAR_SIDE_ENDED)
        remove(db, endpoint_id)

    assert {"sent": 4, "acknowledged": 3, "the far side had ended": 1} == entries(db)
    assert [] == rows(db, "SELECT * FROM broker_conversation")


def test_row_factory_of_an_application_does_not_matter(db: sqlite3.Connection) -> None:
    begin(db, b"a")
    db.row_factory = lambda _cursor, _row: pytest.fail("a row was read")

    fail(db, 1, FailureReason.CLEANUP)
    remove(db, 1)

    db.row_factory = None
    assert {"sent": 1, "ended with cleanup": 1} == entries(db)
