"""The row of a side: made, read, and written only where it has changed."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.client.dialog import begin_dialog
from broker.conversation.frames import Contact
from broker.conversation.state import ConversationState
from broker.protocol.layout import NO_GUID
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.metadata import Priority, put_priority
from broker.store.sqlite.side import (
    NAMING_PROVES_NOTHING,
    OPENING_ACKNOWLEDGED,
    OPENING_UNKNOWN,
    SideRow,
    copy_of,
    create_side,
    load_side,
    save_side,
    side_of,
)
from tests.support.dialog import open_database, rows

NOW = 1_750_000_000.0
FAR = bytes(range(16))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def create(db: sqlite3.Connection, *, is_named: bool = False) -> SideRow:
    contact = Contact(b"c" * 16, False, "Orders", broker_instance(db), "//far/Billing", FAR)
    return create_side(db, contact, "C", NOW + 60, NOW, is_named=is_named)


def load(db: sqlite3.Connection, *, is_initiator: bool = False) -> SideRow | None:
    return load_side(db, broker_instance(db), b"c" * 16, is_initiator=is_initiator)


def test_side_is_read_as_it_was_made(db: sqlite3.Connection) -> None:
    side = create(db)

    assert side == load(db)
    assert load(db, is_initiator=True) is None
    assert (ConversationState.STARTED_INBOUND, "C", 5, NOW + 60, OPENING_UNKNOWN) == (
        side.state,
        side.contract,
        side.priority,
        side.lifetime,
        side.opening,
    )


def test_priority_is_fixed_when_the_side_is_made(db: sqlite3.Connection) -> None:
    put_priority(db, Priority("high", "C", "Orders", "//far/Billing", 9))

    assert 9 == create(db).priority
    put_priority(db, Priority("high", "C", "Orders", "//far/Billing", 2))
    loaded = load(db)
    assert loaded is not None
    assert 9 == loaded.priority


def test_who_named_this_database_from_the_start_proves_nothing_by_it(db: sqlite3.Connection) -> None:
    assert NAMING_PROVES_NOTHING == create(db, is_named=True).opening


def test_changes_are_written_and_acknowledged_messages_forgotten(db: sqlite3.Connection) -> None:
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    for body in (b"a", b"b"):
        dialog.send(body)
    side = side_of(db, 1)
    assert side is not None
    before = copy_of(side)
    side.contact = side.contact.bound_to(FAR)
    side.state, side.acknowledged_sequence, side.expected = ConversationState.DISCONNECTED_INBOUND, 1, (3, 4)
    side.early_fragments, side.opening = 2, OPENING_ACKNOWLEDGED

    save_side(db, side, before)

    assert side == side_of(db, 1)
    assert [b"b"] == rows(db, "SELECT message_body FROM broker_transmission")


@pytest.mark.parametrize("far", [None, FAR])
def test_counts_are_written_beside_a_state_and_a_far_side_that_stay(db: sqlite3.Connection, far: bytes | None) -> None:
    instance = None if far is None else uuid.UUID(bytes=far)
    begin_dialog(db, from_service="Orders", to_service="//far/Billing", broker_instance=instance)
    side = side_of(db, 1)
    assert side is not None
    before = copy_of(side)
    side.acknowledged_sequence, side.expected, side.early_fragments, side.opening = 1, (3, 4), 2, OPENING_ACKNOWLEDGED

    save_side(db, side, before)

    assert side == side_of(db, 1)
    assert (ConversationState.STARTED_OUTBOUND, far or NO_GUID) == (side.state, side.contact.far_broker_instance)


def test_far_side_is_written_where_the_state_stays(db: sqlite3.Connection) -> None:
    begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    side = side_of(db, 1)
    assert side is not None
    before = copy_of(side)
    side.contact = side.contact.bound_to(FAR)

    save_side(db, side, before)

    assert side == side_of(db, 1)


def test_nothing_changed_is_nothing_written(db: sqlite3.Connection) -> None:
    side = create(db)
    changes = db.total_changes

    save_side(db, side, replace(side))

    assert changes == db.total_changes


def test_number_of_no_side_leads_to_none(db: sqlite3.Connection) -> None:
    assert side_of(db, 99) is None
