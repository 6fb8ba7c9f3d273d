"""The ledger as it is read: the sums of what lives, of what is gone, and of what failed, at one moment."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from broker.store.sqlite.database import open_store
from broker.store.sqlite.inspect import LedgerBalance, read_balance, unconfirmed
from broker.store.sqlite.side import FailureReason, fail, remove
from tests.support.shop import Shop


def read(shop: Shop) -> LedgerBalance:
    return read_balance(shop.connect())


def sent(shop: Shop, *bodies: str) -> int:
    """A dialog that has sent these; its endpoint_id."""
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
        for body in bodies:
            dialog.send(body)
    return dialog.endpoint_id


def change(shop: Shop, statement: str, *parameters: object) -> None:
    shop.connect(isolation_level=None).execute(statement, parameters)


def test_a_new_database_has_sent_nothing(shop: Shop) -> None:
    assert LedgerBalance() == read(shop)


def test_what_waits_is_held(shop: Shop) -> None:
    sent(shop, "one", "two")

    assert (2, 0, 2, 0) == (read(shop).sent, read(shop).acknowledged, read(shop).held, read(shop).unaccounted)


def test_what_the_far_side_has_is_acknowledged(shop: Shop) -> None:
    endpoint = sent(shop, "one", "two")
    change(shop, "UPDATE broker_conversation SET acknowledged_sequence = 1 WHERE endpoint_id = ?", endpoint)
    change(shop, "DELETE FROM broker_transmission WHERE message_sequence_number = 0")

    assert LedgerBalance(2, 1, 1, {}) == read(shop)


def test_what_fails_stays_in_the_sum_under_its_reason_when_the_conversation_is_gone(shop: Shop) -> None:
    endpoint = sent(shop, "one", "two")
    sent(shop, "three")
    db = shop.connect()
    with db:
        fail(db, endpoint, FailureReason.LIFETIME_EXCEEDED)
        remove(db, endpoint)

    assert LedgerBalance(3, 0, 1, {"lifetime exceeded": 2}) == read(shop)
    assert 0 == read(shop).unaccounted


def test_a_message_that_nobody_tells_about_is_unaccounted(shop: Shop) -> None:
    sent(shop, "one", "two")
    change(shop, "DELETE FROM broker_transmission WHERE message_sequence_number = 1")

    assert 1 == read(shop).unaccounted


def test_entries_are_those_of_the_view() -> None:
    entries = list(LedgerBalance(9, 3, 1, {"b": 2, "a": 1}).entries())

    assert [
        ("sent", None, 9),
        ("acknowledged", None, 3),
        ("held", None, 1),
        ("failed", "a", 1),
        ("failed", "b", 2),
        ("unaccounted", None, 2),
    ] == entries


def test_every_conversation_counts() -> None:
    with closing(open_store(":memory:")) as db:
        db.executemany(
            "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator,"
            " conversation_group_id, state, service_name, far_service, contract, lifetime, create_date, send_sequence,"
            " acknowledged_sequence) VALUES (?1, ?1, 1, ?1, 'CO', 'S', 'T', 'C', 0, 0, 3, 3)",
            [(number.to_bytes(16, "big"),) for number in range(1000)],
        )

        assert LedgerBalance(3000, 3000, 0, {}) == read_balance(db)


def test_what_is_not_acknowledged_is_told_over_all_conversations(shop: Shop) -> None:
    assert 0 == unconfirmed(shop.connect())
    endpoint_id = sent(shop, "one", "two", "three")
    sent(shop, "four")
    change(shop, "UPDATE broker_conversation SET acknowledged_sequence = 2 WHERE endpoint_id = ?", endpoint_id)

    assert 2 == unconfirmed(shop.connect())


def test_a_connection_with_rows_by_name_reads_the_same(shop: Shop) -> None:
    sent(shop, "one")
    db = shop.connect()
    db.row_factory = sqlite3.Row

    assert LedgerBalance(1, 0, 1, {}) == read_balance(db)
