"""A closed side leaves a tombstone, for as long as the far side may send again, and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.client.dialog import begin_dialog
from broker.conversation.frames import Contact, Travel, ack_frame
from broker.protocol.frame import Header, decode_dialog
from broker.store.sqlite.side import REPLAY_GUARD, FailureReason, close, find_tombstone, purge_tombstones
from tests.support.dialog import open_database, rows

NOW = 1_750_000_000.0
HERE = b"h" * 16
LIFETIME = 5000.0
EMPTY = ("broker_conversation", "broker_transmission", "broker_message", "broker_failure")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def begin(db: sqlite3.Connection, **columns: object) -> bytes:
    """A dialog that has sent one message, with some columns set; its conversation id."""
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    dialog.send(b"a")
    for column, value in {"lifetime": NOW + LIFETIME, **columns}.items():
        db.execute(
            f"UPDATE broker_conversation SET {column} = ? WHERE conversation_id = ?",
            (value, dialog.conversation_id.bytes),
        )
    return dialog.conversation_id.bytes


def header_of(contact: Contact) -> Header:
    """Of any frame that this side sends."""
    return decode_dialog(ack_frame(contact, Travel(), b"m" * 16, (0, 0)))[0]


def test_closed_side_is_gone_but_for_its_tombstone_and_the_ledger(db: sqlite3.Connection) -> None:
    conversation = begin(db, receive_sequence=3, receive_sequence_frag=2)
    [handle] = rows(db, "SELECT conversation_handle FROM broker_conversation")
    db.execute("INSERT INTO broker_message SELECT NULL, 1, 1, 5, 1, 2, 'T', 0, x'', NULL, NULL")
    db.execute("INSERT INTO broker_failure VALUES (1, 2, 5, 0, 0, 0, 'error', 'traceback')")

    close(db, 1, NOW, FailureReason.FAR_SIDE_ENDED)

    assert [] == [row for table in EMPTY for row in rows(db, f"SELECT * FROM {table}")]
    kept = (conversation, 1, 3, 2, NOW, NOW + REPLAY_GUARD, handle, "Orders", "//far/Billing", None)
    assert [kept] == rows(db, "SELECT * FROM broker_tombstone")
    assert {"sent": 1, "the far side had ended": 1} == dict(rows(db, "SELECT * FROM broker_ledger"))


def test_only_the_side_that_closes_is_touched(db: sqlite3.Connection) -> None:
    begin(db)
    begin(db)

    close(db, 2, NOW, FailureReason.CLEANUP)

    assert [1] == rows(db, "SELECT endpoint_id FROM broker_conversation")
    assert [1] == rows(db, "SELECT endpoint_id FROM broker_transmission")


@pytest.mark.parametrize(
    ("is_initiator", "is_acknowledged", "lifetime", "seconds"),
    [
        (1, 0, LIFETIME, REPLAY_GUARD),
        (0, 1, LIFETIME, REPLAY_GUARD),
        (0, 0, LIFETIME, LIFETIME + REPLAY_GUARD),
        (0, -1, LIFETIME, LIFETIME + REPLAY_GUARD),
        (0, 0, -LIFETIME, REPLAY_GUARD),
    ],
    ids=["initiator", "known to have an answer", "not known", "named from the start", "past its lifetime"],
)
def test_tombstone_stays_until_nobody_can_open_the_dialog_anew(
    db: sqlite3.Connection, is_initiator: int, is_acknowledged: int, lifetime: float, seconds: float
) -> None:
    begin(
        db,
        is_initiator=is_initiator,
        is_opening_acknowledged=is_acknowledged,
        receive_sequence=1,
        lifetime=NOW + lifetime,
    )

    close(db, 1, NOW, FailureReason.CLEANUP)

    assert [NOW + seconds] == rows(db, "SELECT expire_time FROM broker_tombstone")


def test_side_of_which_nobody_heard_leaves_no_tombstone(db: sqlite3.Connection) -> None:
    begin_dialog(db, from_service="Orders", to_service="//far/Billing")

    close(db, 1, NOW, FailureReason.CLEANUP)

    assert [] == rows(db, "SELECT * FROM broker_tombstone")
    assert [] == rows(db, "SELECT * FROM broker_conversation")


def test_tombstone_is_found_by_dialog_and_side_and_moves_on(db: sqlite3.Connection) -> None:
    far = Contact(begin(db, receive_sequence=3), False, "//far/Billing", b"f" * 16, "Orders", HERE)
    close(db, 1, NOW, FailureReason.CLEANUP)

    tombstone = find_tombstone(db, HERE, header_of(far))
    assert tombstone is not None
    assert Contact(far.conversation_id, True, "Orders", HERE, "//far/Billing") == tombstone.contact
    assert (3, 0) == tombstone.expected
    tombstone.move(db, (7, 2))

    again = find_tombstone(db, HERE, header_of(far))
    assert again is not None
    assert (7, 2) == again.expected == tombstone.expected
    assert find_tombstone(db, HERE, header_of(replace(far, is_initiator=True))) is None
    assert find_tombstone(db, HERE, header_of(replace(far, conversation_id=bytes(16)))) is None


def test_tombstones_are_purged_in_slices_and_not_before_their_time(db: sqlite3.Connection) -> None:
    for number in range(5):
        begin(db)
        close(db, number + 1, NOW + number, FailureReason.CLEANUP)

    assert not purge_tombstones(db, NOW + REPLAY_GUARD - 0.001, 2)
    assert 5 == len(rows(db, "SELECT 1 FROM broker_tombstone"))
    assert purge_tombstones(db, NOW + 2 + REPLAY_GUARD, 2)
    assert not purge_tombstones(db, NOW + 2 + REPLAY_GUARD, 2)
    assert [NOW + 3, NOW + 4] == rows(db, "SELECT close_time FROM broker_tombstone ORDER BY 1")
