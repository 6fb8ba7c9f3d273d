"""The rows of a side: made, read, written only where they changed; its ledger, its keys and its tombstone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.frames import Contact
from broker.conversation.state import ConversationState
from broker.security.secured import Mode, Secured
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.ledger import REPLAY_GUARD, FailureReason, close, fail, purge_tombstones
from broker.store.sqlite.metadata import Priority, put_priority
from broker.store.sqlite.session_keys import load_secured, note_own_certificate, put_secured
from broker.store.sqlite.side import (
    NAMING_PROVES_NOTHING,
    OPENING_ACKNOWLEDGED,
    OPENING_UNKNOWN,
    SideRow,
    SideTable,
    dialogs_between,
    shorten_lifetime,
    side_of,
)
from tests.support.dialog import open_database, rows
from tests.support.shop import Shop


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
    for _ in range(3):
        begin(db, b"a", b"b")

    fail(db, 1, FailureReason.LIFETIME_EXCEEDED)
    fail(db, 3, FailureReason.CLEANUP)
    fail(db, 4, "whatever a caller says")
    fail(db, 5, FailureReason.CLEANUP)

    assert {"lifetime exceeded": 2, "ended with cleanup": 4, "whatever a caller says": 2} == entries(db)
    assert [b"other"] == rows(db, "SELECT message_body FROM broker_transmission")


ID = b"c" * 16


@pytest.mark.parametrize(
    "secured",
    [Secured(Mode.FULL, "CN=billing"), Secured(Mode.ANONYMOUS, "billing", b"s" * 32), Secured(None)],
    ids=["full", "anonymous", "none"],
)
@pytest.mark.parametrize("is_initiator", [True, False])
def test_what_was_put_is_loaded_for_that_side_only(
    db: sqlite3.Connection, secured: Secured, *, is_initiator: bool
) -> None:
    put_secured(db, ID, secured, 1.5, is_initiator=is_initiator)

    assert secured == load_secured(db, ID, is_initiator=is_initiator)
    assert load_secured(db, ID, is_initiator=not is_initiator) is None
    assert [(1.5, None)] == rows(db, "SELECT security_timestamp, far_certificate FROM broker_session_key")


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
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing", **contact)
    for body in (b"a", b"b"):
        dialog.send(body)
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


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("state", [ConversationState.CONVERSING, ConversationState.DISCONNECTED_INBOUND])
def test_what_has_changed_is_written_and_acknowledged_messages_are_removed(
    db: sqlite3.Connection, state: ConversationState, *, is_bound: bool
) -> None:
    side = begun(db)
    if is_bound:
        side.contact = side.contact.bound_to(FAR)
    side.state, side.acknowledged_sequence, side.expected = state, 1, (3, 4)
    side.early_fragments, side.opening = 2, OPENING_ACKNOWLEDGED

    table(db).save(side)

    assert side == side_of(db, 1)
    assert [b"b"] == rows(db, "SELECT message_body FROM broker_transmission")
    changes = db.total_changes
    table(db).save(side)
    assert changes == db.total_changes, "nothing changed is nothing written"
    side.expected = (3, 5)
    table(db).save(side)
    assert side == side_of(db, 1), "and the far side that is known stays"


LIFETIME = 5000.0
EMPTY = ("broker_conversation", "broker_transmission", "broker_message", "broker_failure")


def begin_as(db: sqlite3.Connection, **columns: object) -> bytes:
    """A dialog that has sent one message, with some columns set; its conversation id."""
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    dialog.send(b"a")
    for column, value in {"lifetime": NOW + LIFETIME, **columns}.items():
        db.execute(
            f"UPDATE broker_conversation SET {column} = ? WHERE conversation_id = ?",
            (value, dialog.conversation_id.bytes),
        )
    return dialog.conversation_id.bytes


def test_closed_side_is_gone_but_for_its_tombstone_and_the_ledger(db: sqlite3.Connection) -> None:
    conversation = begin_as(db, receive_sequence=3, receive_sequence_frag=2)
    [handle] = rows(db, "SELECT conversation_handle FROM broker_conversation")
    db.execute("INSERT INTO broker_message SELECT NULL, 1, 1, 5, 1, 2, 'T', 0, x'', NULL, NULL")
    db.execute("INSERT INTO broker_failure VALUES (1, 2, 5, 0, 0, 0, 'error', 'traceback')")
    begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    begin_as(db)

    close(db, 1, NOW, FailureReason.FAR_SIDE_ENDED)
    close(db, 2, NOW, FailureReason.CLEANUP)

    kept = (conversation, 1, 3, 2, NOW, NOW + REPLAY_GUARD, handle, "Orders", "//far/Billing", None)
    assert [kept] == rows(db, "SELECT * FROM broker_tombstone"), "and none of a side that has sent and received nothing"
    assert {"sent": 1, "the far side had ended": 1} == entries(db)
    left = {table: rows(db, f"SELECT endpoint_id FROM {table}") for table in EMPTY}
    assert {"broker_conversation": [3], "broker_transmission": [3], "broker_message": [], "broker_failure": []} == left


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


def test_tombstones_are_purged_in_slices_and_not_before_their_time(db: sqlite3.Connection) -> None:
    for number in range(5):
        begin_as(db)
        close(db, number + 1, NOW + number, FailureReason.CLEANUP)

    assert not purge_tombstones(db, NOW + REPLAY_GUARD - 0.001, 2)
    assert 5 == len(rows(db, "SELECT 1 FROM broker_tombstone"))
    assert purge_tombstones(db, NOW + 2 + REPLAY_GUARD, 2)
    assert not purge_tombstones(db, NOW + 2 + REPLAY_GUARD, 2)
    assert [NOW + 3, NOW + 4] == rows(db, "SELECT close_time FROM broker_tombstone ORDER BY 1")


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
