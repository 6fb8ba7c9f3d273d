"""Single sides are found by handle or number, and those under way are read in their order."""

from __future__ import annotations

import sqlite3

import pytest

from broker.conversation.state import ConversationState
from broker.store.sqlite import lookup as module
from broker.store.sqlite.lookup import UnderWay, conversations_by_state, conversations_under_way, handles_of
from tests.support.shop import Shop


@pytest.fixture
def db(shop: Shop) -> sqlite3.Connection:
    return shop.connect(isolation_level=None)


def test_what_is_not_here_is_not_found(shop: Shop, db: sqlite3.Connection) -> None:
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


def test_sides_are_counted_by_state(shop: Shop, db: sqlite3.Connection) -> None:
    assert {} == conversations_by_state(db)

    shop.begin(db)
    shop.begin(db)
    shop.begin(db).send(b"x")

    assert {"CO": 1, "SO": 2} == conversations_by_state(db)
