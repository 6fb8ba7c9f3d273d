"""Whole messages reach their queue with priority and status, unless their contract or type forbids them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from broker.conversation.frames import Contact
from broker.conversation.message_types import DIALOG_TIMER, END_DIALOG, ERROR, SentBy, Validation
from broker.protocol.frame import Envelope, encode_envelope
from broker.store.sqlite.metadata import put_contract, put_message_type
from broker.store.sqlite.reassembly import Delivery, Large
from broker.store.sqlite.side import SideRow, create_side
from tests.support.dialog import open_database, rows

NOW = 1_750_000_000.0
TYPES: Mapping[str, tuple[Validation, SentBy]] = {
    "Any": (Validation.NONE, SentBy.ANY),
    "Ours": (Validation.NONE, SentBy.TARGET),
    "Nothing": (Validation.EMPTY, SentBy.INITIATOR),
    "Xml": (Validation.WELL_FORMED_XML, SentBy.ANY),
    "Json": (Validation.JSON, SentBy.ANY),
}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "bank.db", "Billing")
    for name, (validation, _) in TYPES.items():
        put_message_type(db, name, validation)
    put_message_type(db, "Elsewhere", Validation.NONE)
    put_contract(db, "Declared", {name: sent_by for name, (_, sent_by) in TYPES.items()})
    yield db
    db.close()


def side(db: sqlite3.Connection, contract: str = "Declared", service: str = "Billing") -> SideRow:
    count = len(rows(db, "SELECT 1 FROM broker_conversation"))
    contact = Contact(bytes([count] * 16), False, service, bytes(16), "//far/Orders", bytes(range(16)))
    return create_side(db, contact, contract, NOW + 60, NOW, is_named=False)


MESSAGES = "SELECT endpoint_id, message_sequence_number, message_body, priority, status FROM broker_message ORDER BY 2"


def test_messages_are_written_when_the_batch_is_and_in_its_order(db: sqlite3.Connection) -> None:
    delivery, one = Delivery(db, NOW), side(db)
    one.priority = 7
    assert [True, True] == [delivery.put(one, sequence, "Any", b"x") for sequence in (0, 1)]
    assert delivery.put_error(one, 2, b"error")
    assert [] == rows(db, MESSAGES)

    delivery.flush()
    delivery.flush()

    assert [(1, 0, b"x", 7, 1), (1, 1, b"x", 7, 1), (1, 2, b"error", 11, 1)] == rows(db, MESSAGES)
    assert Counter(Billing=3) == delivery.delivered


def test_large_message_is_a_row_without_a_body(db: sqlite3.Connection) -> None:
    delivery = Delivery(db, NOW)
    delivery.put(side(db), 0, "Any", Large(db, 1, 0, 17))

    delivery.flush()

    assert [(None, 17)] == rows(db, "SELECT message_body, body_fragments FROM broker_message")


def test_service_that_is_gone_takes_nothing(db: sqlite3.Connection) -> None:
    delivery = Delivery(db, NOW)

    assert [False, False] == [delivery.put(side(db, service="Nobody"), 0, "Any", b"") for _ in range(2)]
    assert Counter() == delivery.delivered


def test_dialog_in_quarantine_stays_in_order_there(db: sqlite3.Connection) -> None:
    failed, tried, healthy = side(db), side(db), side(db)
    db.execute("INSERT INTO broker_failure VALUES (1, 0, 5, 0, 0, 1, 'error', 'traceback')")
    db.execute("INSERT INTO broker_failure VALUES (2, 0, 1, 0, 0, NULL, 'error', 'traceback')")
    delivery = Delivery(db, NOW)

    for one in (failed, tried, healthy):
        delivery.put(one, 1, "Any", b"")
    delivery.flush()

    assert [(1, 4), (2, 1), (3, 1)] == rows(db, "SELECT endpoint_id, status FROM broker_message ORDER BY 1")


@pytest.mark.parametrize(
    ("type_name", "body", "number"),
    [
        ("Any", b"anything", None),
        ("Ours", b"", 8457),
        ("Nothing", b"", None),
        ("Nothing", b"x", 8430),
        ("Xml", b"<a/>", None),
        ("Xml", b"<a>", 9616),
        ("Json", b'{"a": 1}', None),
        ("Json", b"{", 8430),
        ("Elsewhere", b"", 8498),
        ("Unheard of", b"", 8428),
        (END_DIALOG, b"", 8428),
        (ERROR, b"", 8428),
        (DIALOG_TIMER, b"", 8428),
    ],
)
def test_declared_contract_is_kept_to(db: sqlite3.Connection, type_name: str, body: bytes, number: int | None) -> None:
    delivery, one = Delivery(db, NOW), side(db)

    refusals = [delivery.refusal(one, type_name, body) for _ in range(2)]

    assert [number] * 2 == [None if refusal is None else refusal.number for refusal in refusals]


def test_contract_that_is_not_declared_lets_all_pass_but_the_brokers_own(db: sqlite3.Connection) -> None:
    delivery, one = Delivery(db, NOW), side(db, "Undeclared")

    assert delivery.refusal(one, "Xml", b"<a>") is None
    assert delivery.refusal(one, END_DIALOG, b"") is not None


@pytest.mark.parametrize(("type_name", "number"), [("Any", None), ("Json", 8430), ("Ours", 8457)])
def test_large_message_is_checked_too(db: sqlite3.Connection, type_name: str, number: int | None) -> None:
    one = side(db)
    db.executemany(
        "INSERT INTO broker_fragment VALUES (1, 0, ?, 0, ?)",
        [(0, encode_envelope(Envelope(type=type_name))), (1, b"1" * 2**21)],
    )

    refusal = Delivery(db, NOW).refusal(one, type_name, Large(db, 1, 0, 2))

    assert number == (None if refusal is None else refusal.number)
