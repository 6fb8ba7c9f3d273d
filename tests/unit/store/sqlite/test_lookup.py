"""A conversation is found by its handle or its id, with whom it talks."""

from __future__ import annotations

import sqlite3
import time
import uuid

import pytest

from broker.conversation.frames import Contact
from broker.conversation.message_types import END_DIALOG, ERROR, error_body
from broker.conversation.state import ConversationState
from broker.protocol.layout import NO_GUID
from broker.store.sqlite import lookup as module
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.lookup import (
    Closed,
    ConversationFacts,
    ConversationSide,
    UnderWay,
    conversations_under_way,
    find_contact,
    find_conversation,
    handles_of,
)
from broker.store.sqlite.quarantine import rest
from broker.store.sqlite.reader_slots import QueueRecord, ReaderSlot
from tests.support.shop import Shop

FAR = uuid.UUID(int=7)


@pytest.fixture
def db(shop: Shop) -> sqlite3.Connection:
    return shop.connect(isolation_level=None)


@pytest.mark.parametrize("which", ["conversation_handle", "conversation_id"])
@pytest.mark.parametrize(("named", "far"), [(None, NO_GUID), (FAR, FAR.bytes)])
def test_both_guids_find_the_side_with_whom_it_talks(
    shop: Shop, db: sqlite3.Connection, which: str, named: uuid.UUID | None, far: bytes
) -> None:
    dialog = shop.begin(db, broker_instance=named)

    found = find_contact(db, getattr(dialog, which).bytes)

    conversation, instance = dialog.conversation_id.bytes, broker_instance(db)
    assert Contact(conversation, True, "Orders", instance, "//far/Billing", far) == found


def test_of_two_sides_here_the_id_means_the_initiator_and_a_handle_its_own(shop: Shop, db: sqlite3.Connection) -> None:
    initiator, target = shop.begin(db), shop.begin(db)
    shop.change(target, "is_initiator", 0)
    shop.change(target, "conversation_id", initiator.conversation_id.bytes)

    by_id, by_handle = (find_contact(db, one.bytes) for one in (initiator.conversation_id, target.conversation_handle))

    assert by_id is not None
    assert by_handle is not None
    assert (True, False) == (by_id.is_initiator, by_handle.is_initiator)


def test_handles_of_sides_that_are_here_are_found(shop: Shop, db: sqlite3.Connection) -> None:
    dialog = shop.begin(db)

    handle = dialog.conversation_handle.bytes
    assert [(dialog.endpoint_id, handle)] == handles_of(db, [dialog.endpoint_id + 1, dialog.endpoint_id])


def test_what_is_known_of_a_side_under_way(shop: Shop, db: sqlite3.Connection) -> None:
    dialog = shop.begin(db)
    dialog.send(b"x")

    handle, conversation = dialog.conversation_handle.bytes, dialog.conversation_id.bytes
    assert [UnderWay(handle, conversation, 1, "Orders", "//far/Billing", None, 1)] == [*conversations_under_way(db)]


@pytest.mark.parametrize("state", list(ConversationState))
def test_what_is_closed_or_failed_is_not_under_way(
    shop: Shop, db: sqlite3.Connection, state: ConversationState
) -> None:
    shop.change(shop.begin(db), "state", state.value)

    assert (state not in {ConversationState.CLOSED, ConversationState.ERROR}) == bool([*conversations_under_way(db)])


def test_more_than_are_read_at_once_all_come_in_their_order(
    shop: Shop, db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 2)
    handles = [shop.begin(db).conversation_handle.bytes for _ in range(5)]

    assert handles == [one.conversation_handle for one in conversations_under_way(db)]


# --- where a conversation is ------------------------------------------------------------------------------------


def find(shop: Shop, guid: uuid.UUID) -> ConversationFacts:
    return find_conversation(shop.connect(), guid.bytes, time.time())


def one(shop: Shop, guid: uuid.UUID) -> ConversationSide:
    [side] = find(shop, guid).sides
    return side


@pytest.mark.parametrize("name", ["conversation_handle", "conversation_id"])
def test_a_side_is_found_by_its_handle_and_by_its_id(shop: Shop, name: str) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db, lifetime=60)
        dialog.send("a")
        dialog.send("b")

    side = one(shop, getattr(dialog, name))

    assert (dialog.endpoint_id, dialog.conversation_handle.bytes) == (side.endpoint_id, side.conversation_handle)
    assert ("Orders", "//far/Billing", True, "CO") == (
        side.service_name,
        side.far_service,
        side.is_initiator,
        side.state,
    )
    assert (2, 0, 2) == (side.send_sequence, side.held_from, side.held)
    assert side.held_since is not None


def test_both_sides_of_a_dialog_within_a_database_are_found_the_initiator_first(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    db.execute(
        "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator, conversation_group_id,"
        " state, service_name, far_service, contract, lifetime, create_date) VALUES (?, ?, 0, ?, 'CO', 'Billing',"
        " 'Orders', 'C', 0, 0)",
        (b"h" * 16, dialog.conversation_id.bytes, b"g" * 16),
    )

    assert ["Orders", "Billing"] == [side.service_name for side in find(shop, uuid.UUID(bytes=b"h" * 16)).sides]


def test_what_has_come_is_told_with_its_queue(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    shop.arrive(dialog, b"1", b"2")
    shop.arrive(dialog, b"", type_name=END_DIALOG)
    db = shop.connect(isolation_level=None)
    db.execute("UPDATE broker_message SET status = 4 WHERE queuing_order = 3")
    db.execute("UPDATE broker_queue SET is_receive_enabled = 0")

    inbound = one(shop, dialog.conversation_id).inbound

    assert ("OrdersQueue", False, 2, 1) == (
        inbound.queue_name,
        inbound.is_receive_enabled,
        inbound.ready,
        inbound.quarantined,
    )
    assert (86400.5, "DEFAULT", None) == (inbound.ready_since, inbound.next_type, inbound.error_code)


def test_a_service_that_was_dropped_has_no_queue(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    shop.connect(isolation_level=None).execute("DELETE FROM broker_service")

    assert one(shop, dialog.conversation_id).inbound.queue_name is None


def test_fragments_before_their_turn_are_counted_and_those_of_whole_messages_not(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    shop.arrive_large(dialog, b"x" * 130_000)
    shop.change(dialog, "receive_sequence", 1)
    shop.connect(isolation_level=None).execute(
        "INSERT INTO broker_fragment VALUES (?, 2, 0, 0, x'00')", (dialog.endpoint_id,)
    )

    assert 1 == one(shop, dialog.conversation_id).inbound.early_fragments


def test_an_unread_error_message_tells_its_number_and_text(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    shop.arrive(dialog, error_body(-8490, "no <service> & more"), type_name=ERROR)
    shop.connect(isolation_level=None).execute("UPDATE broker_message SET priority = 11")

    inbound = one(shop, dialog.conversation_id).inbound

    assert (-8490, "no <service> & more") == (inbound.error_code, inbound.error_text)


def test_the_failure_of_a_reader_is_told(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    shop.connect(isolation_level=None).execute(
        "INSERT INTO broker_failure VALUES (?, 7, 3, 1, 2, NULL, 'ValueError: x', 't')", (dialog.endpoint_id,)
    )

    poison = one(shop, dialog.conversation_id).inbound.poison

    assert poison is not None
    assert (7, 3, 2, None, "ValueError: x") == (
        poison.message_sequence_number,
        poison.failures,
        poison.last_failure_time,
        poison.quarantine_time,
        poison.error,
    )


def test_a_group_that_rests_is_taken(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    other = shop.begin(db)
    [group] = shop.look(
        "SELECT conversation_group_id FROM broker_conversation WHERE endpoint_id = ?", dialog.endpoint_id
    )
    rest(db, group, time.time(), 60)

    taken = [one(shop, side.conversation_id).inbound.is_taken for side in (dialog, other)]

    assert [True, False] == taken


def test_readers_that_live_are_counted(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    slot = ReaderSlot(str(shop.path))
    slot.record([QueueRecord("OrdersQueue", 1, 0.0, None), QueueRecord("BillingQueue", 1, 0.0, None)])

    before = one(shop, dialog.conversation_id).inbound.readers
    slot.close()

    assert (1, 0) == (before, one(shop, dialog.conversation_id).inbound.readers)


def test_a_closed_side_is_found_by_the_handle_that_its_application_has(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    shop.begin(db).send(b"another")
    dialog = shop.begin(db)
    dialog.send(b"one")
    shop.change(dialog, "state", "DI")

    dialog.end()

    found = find(shop, dialog.conversation_handle)
    assert ((), [(dialog.conversation_id.bytes, dialog.conversation_handle.bytes)]) == (
        found.sides,
        [(one.conversation_id, one.conversation_handle) for one in found.closed],
    )
    assert found == find(shop, dialog.conversation_id)


def test_a_closed_side_is_known_by_its_tombstone(shop: Shop) -> None:
    shop.connect(isolation_level=None).execute(
        "INSERT INTO broker_tombstone VALUES (?, 0, 4, 0, 1.5, 2.5, NULL, NULL, NULL, NULL)", (b"c" * 16,)
    )

    assert ConversationFacts((), (Closed(b"c" * 16, 0, 4, 1.5, 2.5),)) == find(shop, uuid.UUID(bytes=b"c" * 16))  # type: ignore[arg-type]


def test_an_error_that_is_on_its_way_is_told_until_it_is_acknowledged(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    dialog.send("a")
    before = one(shop, dialog.conversation_id)
    dialog.end(error=9, description="out of stock")

    ended = one(shop, dialog.conversation_id)

    assert (None, "") == (before.sent_error_code, before.sent_error_text)
    assert ("DO", 2, 9, "out of stock") == (ended.state, ended.held, ended.sent_error_code, ended.sent_error_text)


def test_a_plain_end_that_is_on_its_way_is_no_error(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    dialog.send("a")
    dialog.end()

    ended = one(shop, dialog.conversation_id)

    assert ("DO", None, "") == (ended.state, ended.sent_error_code, ended.sent_error_text)
