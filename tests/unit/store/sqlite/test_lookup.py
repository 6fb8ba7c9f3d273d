"""A conversation is found by its handle or its id, with whom it talks."""

import sqlite3
import time
import uuid
from contextlib import closing
from dataclasses import replace

import pytest

from broker.conversation.body_check import error_body
from broker.conversation.frames import Contact
from broker.conversation.message_types import END_DIALOG, ERROR
from broker.conversation.state import ConversationState
from broker.protocol.layout import NO_GUID
from broker.security.secured import Mode, Secured
from broker.store.sqlite import lookup as module
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.failure import rest
from broker.store.sqlite.lookup import (
    ConversationFacts,
    ConversationSide,
    Inbound,
    UnderWay,
    conversations_under_way,
    find_contact,
    find_conversation,
)
from broker.store.sqlite.quarantine import failures
from broker.store.sqlite.reader_slots import QueueRecord, ReaderSlot
from broker.store.sqlite.session_keys import note_own_certificate, put_secured
from tests.support.shop import Shop

FAR = uuid.UUID(int=7)


@pytest.fixture
def db(shop: Shop) -> sqlite3.Connection:
    return shop.connect(isolation_level=None)


@pytest.mark.parametrize(("named", "far"), [(None, NO_GUID), (FAR, FAR.bytes)])
def test_of_two_sides_here_the_id_means_the_initiator_and_a_handle_its_own(
    shop: Shop, db: sqlite3.Connection, named: uuid.UUID | None, far: bytes
) -> None:
    initiator, target = shop.begin(db, broker_instance=named), shop.begin(db)
    shop.change(target, "is_initiator", 0)
    shop.change(target, "conversation_id", initiator.conversation_id.bytes)
    guids = (initiator.conversation_id, initiator.conversation_handle, target.conversation_handle)

    by_id, by_handle, other = (find_contact(db, one.bytes) for one in guids)

    conversation, instance = initiator.conversation_id.bytes, broker_instance(db)
    assert Contact(conversation, True, "Orders", instance, "//far/Billing", far) == by_id == by_handle
    assert Contact(conversation, False, "Orders", instance, "//far/Billing", NO_GUID) == other


@pytest.mark.parametrize(("mode", "principal"), [(Mode.FULL, "CN=shop"), (Mode.ANONYMOUS, None), (None, None)])
def test_a_side_proves_the_principal_of_its_database_where_it_is_sealed_in_full(
    shop: Shop, db: sqlite3.Connection, mode: Mode | None, principal: str | None
) -> None:
    note_own_certificate(db, "CN=shop")
    dialog = shop.begin(db)
    put_secured(db, dialog.conversation_id.bytes, Secured(mode, "CN=far"), 0.0, is_initiator=True)

    [side] = find_conversation(db, dialog.conversation_handle.bytes, 0.0).sides

    assert principal == side.principal


def test_sides_under_way_are_read_in_their_order_and_not_what_is_closed_or_failed(
    shop: Shop, db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 2)
    dialog = shop.begin(db)
    dialog.send(b"x")
    handles = {}
    for state in ConversationState:
        handles[state] = shop.begin(db).conversation_handle.bytes
        db.execute("UPDATE broker_conversation SET state = ? WHERE conversation_handle = ?", (state, handles[state]))

    first, *others = conversations_under_way(db)

    handle, conversation = dialog.conversation_handle.bytes, dialog.conversation_id.bytes
    assert UnderWay(handle, conversation, 1, "Orders", "//far/Billing", None, 1) == first
    over = {ConversationState.CLOSED, ConversationState.ERROR}
    assert [handles[state] for state in handles if state not in over] == [one.conversation_handle for one in others]


def find(shop: Shop, guid: uuid.UUID) -> ConversationFacts:
    return find_conversation(shop.connect(), guid.bytes, time.time())


def one(shop: Shop, guid: uuid.UUID) -> ConversationSide:
    [side] = find(shop, guid).sides
    return side


def test_what_has_come_is_told_with_its_queue(shop: Shop, db: sqlite3.Connection) -> None:
    """Whole messages and fragments that are early, the failure of a reader, and the readers that live."""
    dialog = shop.begin(shop.connect(isolation_level=None))
    shop.arrive(dialog, b"1", b"2")
    shop.arrive(dialog, b"", type_name=END_DIALOG)
    shop.arrive_large(dialog, b"x" * 130_000)
    shop.change(dialog, "receive_sequence", 1)
    db.execute("INSERT INTO broker_fragment VALUES (?, 2, 0, 0, x'00')", (dialog.endpoint_id,))
    db.execute("INSERT INTO broker_failure VALUES (?, 7, 3, 1, 2, NULL, 'ValueError: x', 't')", (dialog.endpoint_id,))
    db.execute("UPDATE broker_message SET status = 4 WHERE queuing_order = 3")
    db.execute("UPDATE broker_queue SET is_receive_enabled = 0")
    with closing(ReaderSlot(str(shop.path))) as slot:
        slot.record([QueueRecord("OrdersQueue", 1, 0.0, None), QueueRecord("BillingQueue", 1, 0.0, None)])

        inbound = one(shop, dialog.conversation_id).inbound

    expected = Inbound(
        queue_name="OrdersQueue",
        is_receive_enabled=False,
        ready=3,
        ready_since=86400.5,
        quarantined=1,
        unconfirmed=0,
        early_fragments=1,
        is_taken=False,
        readers=1,
        poison=next(failures(db)),
        error_code=None,
        error_text="",
    )
    assert expected == inbound
    assert inbound.poison is not None
    assert (7, "ValueError: x") == (inbound.poison.message_sequence_number, inbound.poison.error)
    db.execute("DELETE FROM broker_service")
    assert replace(expected, queue_name=None, readers=0) == one(shop, dialog.conversation_id).inbound


def test_a_group_that_rests_is_taken(shop: Shop, db: sqlite3.Connection) -> None:
    dialog = shop.begin(db)
    other = shop.begin(db)
    [group] = shop.look(
        "SELECT conversation_group_id FROM broker_conversation WHERE endpoint_id = ?", dialog.endpoint_id
    )
    rest(db, group, time.time(), 60)

    taken = [one(shop, side.conversation_id).inbound.is_taken for side in (dialog, other)]

    assert [True, False] == taken


def test_a_closed_side_is_found_by_the_handle_that_its_application_has(shop: Shop, db: sqlite3.Connection) -> None:
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


def test_errors_that_are_unread_or_on_their_way_are_told(shop: Shop, db: sqlite3.Connection) -> None:
    dialog, plain = shop.begin(db), shop.begin(db)
    for sender in (dialog, plain):
        sender.send("a")
    shop.arrive(dialog, error_body(-8490, "no <service> & more"), type_name=ERROR)
    db.execute("UPDATE broker_message SET priority = 11")
    before = one(shop, dialog.conversation_id)
    dialog.end(error=9, description="out of stock")
    plain.end()

    ended, other = one(shop, dialog.conversation_id), one(shop, plain.conversation_id)

    assert (-8490, "no <service> & more") == (before.inbound.error_code, before.inbound.error_text)
    assert (None, "") == (before.sent_error_code, before.sent_error_text)
    assert ("DO", 2, 9, "out of stock") == (ended.state, ended.held, ended.sent_error_code, ended.sent_error_text)
    assert ("DO", None, "") == (other.state, other.sent_error_code, other.sent_error_text)
