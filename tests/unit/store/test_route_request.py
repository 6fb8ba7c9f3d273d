"""Requests for routes as rows: found while they are open, told apart by group, remembered for a time."""

from __future__ import annotations

import sqlite3

import pytest

from broker.conversation.state import ConversationState
from broker.store.sqlite.metadata import (
    is_begun_here,
    open_requests,
    put_group,
    put_lifetime,
    shorten_lifetime,
    state_of,
)
from tests.support.shop import Shop

FAR = "//far/Billing"


@pytest.fixture
def db(shop: Shop) -> sqlite3.Connection:
    return shop.connect(isolation_level=None)


def test_an_open_request_is_found_by_who_asks_whom(shop: Shop, db: sqlite3.Connection) -> None:
    dialog = shop.begin(db)
    handle = dialog.conversation_handle.bytes
    put_group(db, handle, b"g" * 16)
    shop.change(dialog, "create_date", 1.5)

    assert [(handle, b"g" * 16, 1.5)] == open_requests(db, "Orders", FAR)
    assert [] == open_requests(db, "Orders", "//far/Other") + open_requests(db, "Billing", FAR)


@pytest.mark.parametrize(("column", "value"), [("state", "DO"), ("state", "CD"), ("is_initiator", 0)])
def test_what_is_over_or_was_asked_by_the_other_side_is_no_open_request(
    shop: Shop, db: sqlite3.Connection, column: str, value: object
) -> None:
    shop.change(shop.begin(db), column, value)

    assert [] == open_requests(db, "Orders", FAR)


def test_a_lifetime_is_put_and_only_ever_shortened(shop: Shop, db: sqlite3.Connection) -> None:
    handle = shop.begin(db).conversation_handle.bytes
    told = []
    for change, lifetime in [(put_lifetime, 50.0), (shorten_lifetime, 60.0), (shorten_lifetime, 40.0)]:
        change(db, handle, lifetime)
        told += shop.look("SELECT lifetime FROM broker_conversation")

    assert [50.0, 50.0, 40.0] == told


def test_a_side_tells_its_state_and_who_has_begun_it(shop: Shop, db: sqlite3.Connection) -> None:
    ours, theirs = shop.begin(db), shop.begin(db)
    shop.change(theirs, "is_initiator", 0)
    shop.change(theirs, "state", "ER")

    handles = [one.conversation_handle.bytes for one in (ours, theirs)]
    assert [True, False] == [is_begun_here(db, handle) for handle in handles]
    assert [ConversationState.STARTED_OUTBOUND, ConversationState.ERROR, ConversationState.CLOSED] == [
        state_of(db, one) for one in (*handles, b"?" * 16)
    ]
