"""What a database holds is counted."""

from __future__ import annotations

from broker.store.sqlite.inspect import ContentsAtRisk, stake_of
from tests.support.shop import Shop


def test_conversations_are_counted_by_state_and_messages_by_where_they_wait(shop: Shop) -> None:
    db = shop.connect()
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


def test_an_empty_database_holds_nothing(shop: Shop) -> None:
    assert "0 conversations, 0 messages to send, 0 unread" == str(stake_of(shop.connect()))
