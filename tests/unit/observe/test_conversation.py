"""Conversations are found in the file of their database, by handle or by id."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid4

import pytest

import broker
from broker.observe.database_stats import find_conversation
from broker.protocol.layout import NO_GUID
from broker.store.sqlite.database import broker_instance, open_store
from broker.store.sqlite.metadata import put_queue, put_service

FAR = UUID(int=7)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    with closing(open_store(path)) as db:
        put_queue(db, "Q", is_receive_enabled=True)
        put_service(db, "//a", 1, frozenset())
    return path


def begin(database: Path, broker_instance: UUID | None = None) -> broker.Dialog:
    with closing(sqlite3.connect(database)) as db, db:
        return broker.begin_dialog(db, from_service="//a", to_service="//b", broker_instance=broker_instance)


@pytest.mark.parametrize("which", ["conversation_handle", "conversation_id"])
def test_both_guids_of_a_conversation_find_it(database: Path, which: str) -> None:
    dialog = begin(database)

    contact = find_conversation(database, getattr(dialog, which))

    assert contact is not None
    assert (dialog.conversation_id.bytes, True, "//a", "//b", NO_GUID) == (
        contact.conversation_id,
        contact.is_initiator,
        contact.service_name,
        contact.far_service,
        contact.far_broker_instance,
    )
    with closing(sqlite3.connect(database)) as db:
        assert broker_instance(db) == contact.broker_instance


def test_the_instance_that_it_names_is_told(database: Path) -> None:
    contact = find_conversation(database, begin(database, FAR).conversation_handle)

    assert contact is not None
    assert FAR.bytes == contact.far_broker_instance


def test_of_both_sides_in_one_file_the_id_means_the_initiator_and_a_handle_its_own(database: Path) -> None:
    dialog = begin(database)
    handle = uuid4()
    with closing(sqlite3.connect(database)) as db, db:
        db.execute(
            "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator,"
            " conversation_group_id, state, service_name, far_service, contract, lifetime, create_date)"
            " VALUES (?, ?, 0, ?, 'CO', '//b', '//a', 'DEFAULT', 0, 0)",
            (handle.bytes, dialog.conversation_id.bytes, handle.bytes),
        )

    by_id = find_conversation(database, dialog.conversation_id)
    by_handle = find_conversation(database, handle)

    assert by_id is not None
    assert by_handle is not None
    assert (True, False) == (by_id.is_initiator, by_handle.is_initiator)


def test_an_unknown_guid_finds_nothing(database: Path) -> None:
    begin(database)

    assert find_conversation(database, uuid4()) is None


def test_a_file_that_is_not_there_or_no_database_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database")

    assert find_conversation(tmp_path / "none.db", uuid4()) is None
    assert find_conversation(tmp_path / "text.db", uuid4()) is None
