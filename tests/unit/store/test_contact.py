"""A conversation is found by its handle or its id, with whom it talks."""

from __future__ import annotations

import sqlite3
import uuid

import pytest

from broker.conversation.frames import Contact
from broker.protocol.layout import NO_GUID
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.lookup import find_contact
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


def test_what_is_not_here_is_not_found(shop: Shop, db: sqlite3.Connection) -> None:
    shop.begin(db)

    assert find_contact(db, FAR.bytes) is None
