"""The rows of a side: made, read, written only where they changed; its ledger, its keys and its tombstone."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.conversation.frames import Contact
from broker.conversation.state import ConversationState
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.ledger import REPLAY_GUARD, FailureReason, close
from broker.store.sqlite.metadata import Priority, put_priority
from broker.store.sqlite.session_keys import note_own_certificate
from broker.store.sqlite.side import (
    NAMING_PROVES_NOTHING,
    OPENING_UNKNOWN,
    SideRow,
    SideTable,
    dialogs_between,
    shorten_lifetime,
    side_of,
)
from tests.support.dialog import begin, open_database, rows
from tests.support.shop import Shop


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def test_whose_certificate_the_database_has_is_written_when_it_changes(db: sqlite3.Connection) -> None:
    for subject in ("CN=shop", "CN=shop", None):
        before = db.total_changes
        note_own_certificate(db, subject)
        assert [subject] == rows(db, "SELECT certificate FROM broker_database")
        assert db.total_changes - before <= 1

    before = db.total_changes
    note_own_certificate(db, None)
    assert before == db.total_changes


NOW = 1_750_000_000.0
FAR = bytes(range(16))


def table(db: sqlite3.Connection) -> SideTable:
    return SideTable(db, broker_instance(db), NOW)


def create(db: sqlite3.Connection, *, is_named: bool = False) -> SideRow:
    contact = Contact(b"c" * 16, False, "Orders", broker_instance(db), "//far/Billing", FAR)
    return table(db).create(contact, "C", NOW + 60, is_named=is_named)


def begun(db: sqlite3.Connection, **contact: Any) -> SideRow:
    """The side of a dialog begun here that has sent two messages."""
    begin(db, b"a", b"b", **contact)
    side = side_of(db, 1)
    assert side is not None
    return side


@pytest.mark.parametrize(("is_named", "opening"), [(False, OPENING_UNKNOWN), (True, NAMING_PROVES_NOTHING)])
def test_side_is_read_as_it_was_made_with_the_priority_of_that_moment(
    db: sqlite3.Connection, *, is_named: bool, opening: int
) -> None:
    put_priority(db, Priority("high", "C", "Orders", "//far/Billing", 9))
    side = create(db, is_named=is_named)
    put_priority(db, Priority("high", "C", "Orders", "//far/Billing", 2))

    assert side == table(db).load(b"c" * 16, is_initiator=False)
    assert table(db).load(b"c" * 16, is_initiator=True) is None
    assert side_of(db, 99) is None
    assert (ConversationState.STARTED_INBOUND, "C", 9, NOW + 60, opening) == (
        side.state,
        side.contract,
        side.priority,
        side.lifetime,
        side.opening,
    )


LIFETIME = 5000.0


def begin_as(db: sqlite3.Connection, **columns: object) -> bytes:
    """A dialog that has sent one message, with some columns set; its conversation id."""
    dialog = begin(db, b"a")
    for column, value in {"lifetime": NOW + LIFETIME, **columns}.items():
        db.execute(
            f"UPDATE broker_conversation SET {column} = ? WHERE conversation_id = ?",
            (value, dialog.conversation_id.bytes),
        )
    return dialog.conversation_id.bytes


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
@pytest.mark.promise(11)
def test_tombstone_stays_until_nobody_can_open_the_dialog_anew(
    db: sqlite3.Connection, is_initiator: int, is_acknowledged: int, lifetime: float, seconds: float
) -> None:
    begin_as(
        db,
        is_initiator=is_initiator,
        is_opening_acknowledged=is_acknowledged,
        receive_sequence=1,
        lifetime=NOW + lifetime,
    )

    close(db, 1, NOW, FailureReason.CLEANUP)

    assert [NOW + seconds] == rows(db, "SELECT expire_time FROM broker_tombstone")


def test_open_dialogs_are_found_by_both_services(shop: Shop) -> None:
    """Those that are not over, and began here."""
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    handle = dialog.conversation_handle.bytes
    shop.change(dialog, "conversation_group_id", b"g" * 16)
    shop.change(dialog, "create_date", 1.5)
    for column, value in [("state", "DO"), ("state", "CD"), ("is_initiator", 0)]:
        shop.change(shop.begin(db), column, value)

    assert [(handle, b"g" * 16, 1.5)] == dialogs_between(db, "Orders", "//far/Billing")
    assert [] == dialogs_between(db, "Orders", "//far/Other") + dialogs_between(db, "Billing", "//far/Billing")


def test_lifetime_is_only_ever_shortened(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    shop.change(dialog, "lifetime", 50.0)
    told = []
    for lifetime in (60.0, 40.0):
        shorten_lifetime(db, dialog.conversation_handle.bytes, lifetime)
        told += shop.look("SELECT lifetime FROM broker_conversation")

    assert [50.0, 40.0] == told
