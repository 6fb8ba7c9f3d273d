"""Many conversations that are alike, ended as an application would end each."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import ending as crowd
from broker.client.ending import ENDABLE, DialogSelection, EndMode, count, end_crowd
from broker.conversation.state import ConversationState
from broker.errors import ConversationError
from tests.support.shop import Shop

EVERYBODY = DialogSelection(
    ENDABLE, None, time.time() + 86_400
)  # read when tests are collected, perhaps an hour before they run


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


@pytest.fixture
def db(shop: Shop) -> sqlite3.Connection:
    return shop.connect(isolation_level=None)


def begin(shop: Shop, number: int, *, state: str = "CO") -> None:
    db = shop.connect()
    with db:
        for _ in range(number):
            shop.begin(db)
    with db:
        db.execute("UPDATE broker_conversation SET state = ? WHERE state = 'SO'", (state,))


def test_they_end_in_slices_and_the_far_sides_are_told(
    shop: Shop, db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "SLICE", 2)
    monkeypatch.setattr(crowd, "_NEXT", crowd._NEXT.replace("LIMIT 500", "LIMIT 2"))
    begin(shop, 5)

    ended = list(end_crowd(db, EVERYBODY, EndMode()))

    assert [2, 4, 5] == ended
    assert {"conversations": ["DO"] * 5, "sent": [b""] * 5} == shop.seen()


def test_an_error_is_told_with_its_code(shop: Shop, db: sqlite3.Connection) -> None:
    begin(shop, 1)

    list(end_crowd(db, EVERYBODY, EndMode(9001, "abandoned")))

    [body] = shop.seen()["sent"]
    assert b"9001" in body
    assert b"abandoned" in body


def test_cleanup_forgets_those_too_that_wait_for_the_far_side(shop: Shop, db: sqlite3.Connection) -> None:
    begin(shop, 3, state="DO")

    assert [0] == list(end_crowd(db, DialogSelection(tuple(ConversationState), None, time.time() + 60), EndMode()))
    assert [3] == list(
        end_crowd(db, DialogSelection(tuple(ConversationState), None, time.time() + 60), EndMode(is_cleanup=True))
    )

    assert {"conversations": [], "sent": []} == shop.seen()


def test_who_is_chosen_is_counted_with_what_would_be_lost(shop: Shop, db: sqlite3.Connection) -> None:
    begin(shop, 2, state="DI")
    connection = shop.connect()
    with connection:
        dialog = shop.begin(connection)
        dialog.send(b"to be sent")
    shop.arrive(dialog, b"unread", b"unread too")

    members = {one.state: one for one in count(db, EVERYBODY)}

    assert {"DI", "CO"} == members.keys()
    assert (2, 0, 0) == (members["DI"].conversations, members["DI"].unread, members["DI"].unsent)
    assert (1, 2, 1) == (members["CO"].conversations, members["CO"].unread, members["CO"].unsent)


@pytest.mark.parametrize(
    "other",
    [
        DialogSelection(ENDABLE, "Billing", time.time() + 60),
        DialogSelection(ENDABLE, None, 0.0),
        DialogSelection((ConversationState.CONVERSING,), None, time.time() + 60),
    ],
    ids=["service", "age", "state"],
)
def test_nobody_else_is_chosen(shop: Shop, db: sqlite3.Connection, other: DialogSelection) -> None:
    begin(shop, 2, state="DI")

    assert [] == count(db, other)
    assert [0] == list(end_crowd(db, other, EndMode()))


def test_an_error_that_cannot_be_sent_ends_nobody(shop: Shop, db: sqlite3.Connection) -> None:
    begin(shop, 2)

    with pytest.raises(ConversationError, match="8424"):
        list(end_crowd(db, EVERYBODY, EndMode(9001, "x" * 4000)))

    assert ["CO", "CO"] == shop.seen()["conversations"]
