"""END CONVERSATION in all its forms: what is counted, what is left for the daemon, what is undone."""

import sqlite3
import time
from typing import Any
from uuid import uuid4

import pytest

from broker.client import ending
from broker.client.dialog import Dialog
from broker.client.ending import ENDABLE, DialogSelection, EndMode, count_selected, end_selected
from broker.conversation.body_check import error_body
from broker.conversation.state import ConversationState
from broker.protocol.layout import Flag
from broker.store.sqlite.inspect import read_balance
from broker.store.sqlite.schema import LARGE_BYTES
from tests.support.shop import Shop

EVERYBODY = DialogSelection(
    ENDABLE, None, time.time() + 86_400
)  # read when tests are collected, perhaps an hour before they run


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
    monkeypatch.setattr(ending, "SLICE", 2)
    monkeypatch.setattr(ending, "_NEXT", ending._NEXT.replace("LIMIT 500", "LIMIT 2"))
    begin(shop, 5)

    ended = list(end_selected(db, EVERYBODY, EndMode()))

    assert [2, 4, 5] == ended
    assert {"conversations": ["DO"] * 5, "sent": [b""] * 5} == shop.seen()


def test_cleanup_forgets_those_too_that_wait_for_the_far_side(shop: Shop, db: sqlite3.Connection) -> None:
    begin(shop, 3, state="DO")

    all_states = DialogSelection(tuple(ConversationState), None, time.time() + 60)
    assert [0] == list(end_selected(db, all_states, EndMode()))
    assert [3] == list(end_selected(db, all_states, EndMode(is_cleanup=True)))
    assert {"conversations": [], "sent": []} == shop.seen()


def test_who_is_chosen_is_counted_with_what_would_be_lost(shop: Shop, db: sqlite3.Connection) -> None:
    begin(shop, 2, state="DI")
    connection = shop.connect()
    with connection:
        dialog = shop.begin(connection)
        dialog.send(b"to be sent")
    shop.arrive(dialog, b"unread", b"unread too")

    members = {one.state: one for one in count_selected(db, EVERYBODY)}

    assert {"DI", "CO"} == members.keys()
    assert (2, 0, 0) == (members["DI"].conversations, members["DI"].unread, members["DI"].unsent)
    assert (1, 2, 1) == (members["CO"].conversations, members["CO"].unread, members["CO"].unsent)


@pytest.mark.parametrize(
    "other",
    [
        DialogSelection(ENDABLE, "Billing", time.time() + 60),
        DialogSelection(ENDABLE, None, 0.0),
        DialogSelection((ConversationState.CONVERSING,), None, time.time() + 60),
        DialogSelection(ENDABLE, None, time.time() + 60, uuid4()),
    ],
    ids=["service", "age", "state", "far database"],
)
def test_nobody_else_is_chosen(shop: Shop, db: sqlite3.Connection, other: DialogSelection) -> None:
    begin(shop, 2, state="DI")

    assert [] == count_selected(db, other)
    assert [0] == list(end_selected(db, other, EndMode()))


LARGE = bytes(LARGE_BYTES + 1)
FAILED = "SELECT entry, messages FROM broker_ledger WHERE entry NOT IN ('sent', 'acknowledged')"


@pytest.mark.parametrize(
    ("state", "reason"), [("DI", "the far side had ended"), ("ER", "error at this side"), ("SO", "error at this side")]
)
def test_what_is_not_sent_any_more_is_counted_under_its_reason(shop: Shop, state: str, reason: str) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    dialog.send_many([b"one", b"two", LARGE])
    shop.change(dialog, "state", state)

    dialog.end()

    assert [(reason, 3)] == shop.look(FAILED)
    balance = read_balance(shop.connect())
    assert (3, 0) == (balance.sent, balance.unaccounted)
    assert [] == shop.look("SELECT * FROM broker_conversation")


@pytest.mark.parametrize("is_one_transaction", [False, True])
def test_end_with_an_error_drops_nothing_that_was_sent_before(shop: Shop, *, is_one_transaction: bool) -> None:
    """The daemon may have sent any of it, and a number that the far side has stored cannot be that of the Error."""
    db = shop.connect(isolation_level=None)
    if is_one_transaction:
        db.execute("BEGIN")
    dialog = shop.begin(db)
    dialog.send_many([b"one", b"two", LARGE])

    dialog.end(error=17, description="out of stock")
    db.commit()

    held = shop.look("SELECT message_sequence_number, flags FROM broker_transmission ORDER BY message_sequence_number")
    assert [(0, 0), (1, 0), (2, 0), (3, int(Flag.ERROR))] == held
    body = "SELECT message_body FROM broker_transmission WHERE flags > 0"
    assert [error_body(17, "out of stock")] == shop.look(body)
    assert [] == shop.look(FAILED)
    assert [("DO", 3)] == shop.look("SELECT state, end_dialog_sequence FROM broker_conversation")


@pytest.mark.parametrize("cleanup", [False, True])
def test_bodies_of_unread_large_messages_are_left_to_the_daemon(shop: Shop, cleanup: bool) -> None:  # noqa: FBT001
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    dialog.send(b"one")
    shop.arrive_large(dialog, LARGE, number=7)

    dialog.end(cleanup=cleanup)

    assert [(dialog.endpoint_id, 7)] == shop.look("SELECT * FROM broker_received")
    assert [] == shop.look("SELECT * FROM broker_message")


def test_end_with_cleanup_is_counted_and_tells_nobody(shop: Shop, db: sqlite3.Connection) -> None:
    dialog, other = shop.begin(db, encryption=True), shop.begin(db, encryption=True)
    dialog.send_many([b"one", b"two"])
    db.execute("DELETE FROM broker_transmission WHERE message_sequence_number = 0")
    shop.change(dialog, "acknowledged_sequence", 1)

    dialog.end(cleanup=True)

    assert [("ended with cleanup", 1)] == shop.look(FAILED)
    assert 0 == read_balance(shop.connect()).unaccounted
    assert {"conversations": ["SO"], "sent": []} == shop.seen()
    assert [] == shop.look("SELECT * FROM broker_tombstone")
    assert [other.conversation_id.bytes] == shop.look("SELECT conversation_id FROM broker_session_key")


@pytest.mark.parametrize(
    ("how", "number"),
    [
        ({"cleanup": True, "error": 5}, 8424),
        ({"cleanup": True, "description": "why"}, 8424),
        ({"description": "something went wrong"}, 8424),
        ({"error": 5, "description": "x" * 3001}, 8424),
        ({"error": 2**31}, 8403),
        ({"error": 0}, 8403),
    ],
)
def test_end_that_cannot_be_is_refused(shop: Shop, how: dict[str, Any], number: int, dialog: Dialog) -> None:
    assert number == shop.refusal(lambda: dialog.end(**how))
    assert {"conversations": ["SO"], "sent": []} == shop.seen()


@pytest.mark.parametrize("how", [{}, {"error": 5}, {"cleanup": True}])
@pytest.mark.parametrize("state", ["CO", "DI", "ER"])
def test_end_is_undone_by_a_rollback(shop: Shop, how: dict[str, Any], state: str) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
        dialog.send(b"one")
    shop.arrive(dialog, b"unread")
    shop.change(dialog, "state", state)

    dialog.end(**how)
    db.rollback()

    assert {"conversations": [state], "sent": [b"one"]} == shop.seen()
    assert [b"unread"] == shop.look("SELECT message_body FROM broker_message")
    assert [] == shop.look("SELECT * FROM broker_ledger") + shop.look("SELECT * FROM broker_tombstone")
