"""A database with another identity, or with all its conversations ended: what stays, and what the ledger says."""

import uuid

from broker.client.dialog import Dialog
from broker.client.receiving import receive
from broker.conversation.message_types import ERROR
from broker.protocol.layout import Flag
from broker.store.sqlite.administration import (
    BROKER_ERRORED,
    NEW_BROKER,
    ContentsAtRisk,
    error_conversations,
    new_broker,
    stake_of,
)
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.metadata import queues, services
from broker.store.sqlite.transaction import writing
from tests.support.shop import Shop

NEW = uuid.UUID("6b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")
NOW = 86_400.0


def error_all(shop: Shop, contract: str | None = None) -> int:
    db = shop.connect(isolation_level=None)
    with writing(db):
        return error_conversations(db, NOW, text="ended by an administrator", contract=contract)


def in_state(shop: Shop, state: str) -> Dialog:
    """A dialog with one message sent, which is in this state."""
    dialog = shop.begin(shop.connect(isolation_level=None))
    if state != "SO":
        dialog.send(b"x")
    shop.change(dialog, "state", state)
    return dialog


def test_new_broker_keeps_what_statements_made_and_no_conversation(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    dialog.send(b"x")
    shop.arrive(dialog, b"y")
    before = (queues(db), services(db))

    with writing(db):
        removed = new_broker(db, NEW)

    assert (1, NEW.bytes, before) == (removed, broker_instance(db), (queues(db), services(db)))
    tables = [
        row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'broker%'")
    ]
    kept = {table for table in tables if db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()}
    assert kept == {"broker_database", "broker_queue", "broker_service", "broker_route", "broker_ledger"}


def test_new_broker_accounts_for_every_message_that_was_sent(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    for _ in range(2):
        dialog = shop.begin(db)
        for _ in range(3):
            dialog.send(b"x")
    db.execute("DELETE FROM broker_transmission WHERE message_sequence_number = 0")
    db.execute("UPDATE broker_conversation SET acknowledged_sequence = 1")
    db.execute("INSERT INTO broker_ledger VALUES ('sent', 10), ('acknowledged', 10)")

    with writing(db):
        new_broker(db, NEW)

    assert {"sent": 16, "acknowledged": 12, NEW_BROKER: 4} == dict(db.execute("SELECT * FROM broker_ledger"))


def test_open_conversation_ends_with_an_error_at_both_ends(shop: Shop) -> None:
    dialog = in_state(shop, "CO")
    shop.arrive(dialog, b"before")

    assert (error_all(shop, "c"), error_all(shop, "DEFAULT")) == (0, 1), "those of the contract that is named"

    messages = receive(shop.connect(), queue="OrdersQueue")
    assert [message.type for message in messages] == [ERROR, "DEFAULT"]
    assert f"<Code>{BROKER_ERRORED}</Code>".encode() in messages[0].body
    sent = "SELECT message_sequence_number, flags, message_type_name FROM broker_transmission ORDER BY 1"
    assert [(0, 0, "DEFAULT"), (1, int(Flag.ERROR), ERROR)] == shop.look(sent)
    assert [("ER", 2, 1)] == shop.look("SELECT state, send_sequence, end_dialog_sequence FROM broker_conversation")


def test_far_side_is_told_only_where_it_takes_part(shop: Shop) -> None:
    """Nobody heard of SO; DI has ended there, DO here; ER and CD are over."""
    dialogs = {state: in_state(shop, state) for state in ("SO", "SI", "CO", "DI", "DO", "ER", "CD")}

    ended = error_all(shop)

    db = shop.connect()
    told = {row[0] for row in db.execute("SELECT endpoint_id FROM broker_transmission WHERE flags = 16")}
    here = {row[0] for row in db.execute("SELECT endpoint_id FROM broker_message")}
    states = {state: str(dialog.state) for state, dialog in dialogs.items()}
    number = {state: place for place, state in enumerate(dialogs, 1)}
    assert (4, {number["SI"], number["CO"]}) == (ended, told)
    assert {number[state] for state in ("SO", "SI", "CO", "DI")} == here
    assert {"SO": "ER", "SI": "ER", "CO": "ER", "DI": "ER", "DO": "DO", "ER": "ER", "CD": "CD"} == states


def test_half_a_message_is_given_up_and_a_large_one_that_is_whole_is_not(shop: Shop) -> None:
    dialog = in_state(shop, "CO")
    db = shop.connect(isolation_level=None)
    db.executemany("INSERT INTO broker_fragment VALUES (1, ?, ?, 0, x'00')", [(0, 0), (0, 1), (1, 0), (2, 5)])
    shop.change(dialog, "receive_sequence", 1)
    shop.change(dialog, "early_fragments", 1)

    error_all(shop)

    left = db.execute("SELECT message_sequence_number, fragment_number FROM broker_fragment").fetchall()
    (early,) = db.execute("SELECT early_fragments FROM broker_conversation").fetchone()
    assert ([(0, 0), (0, 1)], 0) == (left, early)


def test_end_of_a_conversation_whose_error_is_on_its_way_waits_until_the_far_side_has_it(shop: Shop) -> None:
    on_its_way, told = in_state(shop, "CO"), in_state(shop, "CO")
    error_all(shop)
    shop.change(told, "acknowledged_sequence", 2)

    for dialog in (on_its_way, told):
        dialog.end()

    db = shop.connect()
    assert ("DO", "CD") == (on_its_way.state, told.state)
    assert db.execute("SELECT flags FROM broker_transmission WHERE endpoint_id = 1 ORDER BY 1").fetchall() == [
        (0,),
        (16,),
    ]
    assert db.execute("SELECT count(*) FROM broker_message").fetchone() == (0,)


def test_conversations_are_counted_by_state_and_messages_by_where_they_wait(shop: Shop) -> None:
    db = shop.connect()
    assert "0 conversations, 0 messages to send, 0 unread" == str(stake_of(db))
    with db:
        shop.begin(db)
        sent = shop.begin(db)
        sent.send("one")
        sent.send("two")
    shop.arrive(sent, b"answer")

    stake = stake_of(db)

    assert ContentsAtRisk({"CO": 1, "SO": 1}, unsent=2, unread=1) == stake
    assert 2 == stake.count
    assert "2 conversations (1 CO, 1 SO), 2 messages to send, 1 unread" == str(stake)
