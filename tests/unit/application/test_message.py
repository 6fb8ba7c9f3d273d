"""What a received message tells, small and large, plain and of the broker's own types."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.trace import get_current_span

from broker.client.receiving import receive
from broker.conversation.message_types import DEFAULT, DIALOG_TIMER, END_DIALOG, ERROR, error_body
from broker.store.sqlite.schema import LARGE_BYTES

Shop = Any  # its class is in conftest.py, which nothing imports

LARGE = bytes(range(256)) * (LARGE_BYTES // 256) + b"end"
GROUP = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


def test_message_tells_all_of_itself(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db, contract="C", related_conversation_group=GROUP)
    shop.change(dialog, "priority", 7)
    shop.arrive(dialog, b"zero", b"one", type_name="T")

    message = receive(db, queue="OrdersQueue")[1]

    told = (message.type, message.body, message.contract, message.service_name, message.message_sequence_number)
    assert ("T", b"one", "C", "Orders", 1) == told
    assert (GROUP, 7) == (message.conversation_group_id, message.priority)
    assert datetime(1970, 1, 2, 0, 0, 0, 500_000, UTC) == message.message_enqueue_time
    assert (False, 3, b"one") == (message.is_large, message.body_length, message.open().read())
    assert dialog.conversation_handle == message.dialog.conversation_handle
    assert f"<Message 1 'T' of {dialog.conversation_handle}>" == repr(message)


def test_message_tells_its_headers_and_the_context_of_its_sender(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(db), b"zero", b"one")
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    db.execute(
        "UPDATE broker_message SET headers = ? WHERE message_sequence_number = 1", (f'{{"traceparent": "{parent}"}}',)
    )

    without, with_headers = receive(db, queue="OrdersQueue")

    assert ({}, None) == (without.headers, without.trace_context)
    assert {"traceparent": parent} == with_headers.headers
    assert 0x00F067AA0BA902B7 == get_current_span(with_headers.trace_context).get_span_context().span_id


@pytest.mark.parametrize(
    ("type_name", "kinds"),
    [
        (DEFAULT, (False, False, False)),
        (END_DIALOG, (True, False, False)),
        (ERROR, (False, True, False)),
        (DIALOG_TIMER, (False, False, True)),
    ],
)
def test_message_tells_what_it_is(shop: Shop, type_name: str, kinds: tuple[bool, bool, bool]) -> None:
    db = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(db), b"", type_name=type_name)

    (message,) = receive(db, queue="OrdersQueue")

    assert kinds == (message.is_end, message.is_error, message.is_timer)
    assert (None, "") == (message.error_code, message.error_description)


@pytest.mark.parametrize(
    ("body", "code", "description"),
    [
        (error_body(42, "out of <stock> & more"), 42, "out of <stock> & more"),
        (error_body(-8489, "its lifetime\nis over"), -8489, "its lifetime\nis over"),
        (b"<Error><Code> 7 </Code><Description/></Error>", 7, ""),
        (b"no XML \xff at all", None, ""),
        (b"", None, ""),
        (b"<Code>1</Code><Description>&#" + b"9" * 5000 + b";</Description>", 1, f"&#{'9' * 5000};"),
    ],
)
def test_error_is_told_in_parts(shop: Shop, body: bytes, code: int | None, description: str) -> None:
    db = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(db), body, type_name=ERROR)

    (message,) = receive(db, queue="OrdersQueue")

    assert (code, description) == (message.error_code, message.error_description)


def test_large_body_is_a_stream_inside_the_transaction(shop: Shop) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
    shop.arrive_large(dialog, LARGE)

    (message,) = receive(db, queue="OrdersQueue")

    assert (True, len(LARGE), "large") == (message.is_large, message.body_length, message.type)
    assert LARGE == message.body == message.open().read()
    assert [] == shop.look("SELECT * FROM broker_received")
    db.commit()
    assert [(dialog.endpoint_id, 0)] == shop.look("SELECT * FROM broker_received")
    assert [] == shop.look("SELECT * FROM broker_message")


def test_large_message_is_there_again_after_a_rollback(shop: Shop) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
    shop.arrive_large(dialog, LARGE)

    receive(db, queue="OrdersQueue")
    db.rollback()

    assert LARGE == receive(db, queue="OrdersQueue")[0].body
    assert [] == shop.look("SELECT * FROM broker_received")


@pytest.mark.parametrize("begin", ["", "BEGIN"])
def test_large_body_in_autocommit_mode_outlives_its_fragments(shop: Shop, begin: str) -> None:
    """Each call is a transaction of its own, so what it gave is copied; not where the application has begun one."""
    db = shop.connect(isolation_level=None)
    shop.arrive_large(shop.begin(db), LARGE)
    db.execute(begin)

    (message,) = receive(db, queue="OrdersQueue")
    db.execute("DELETE FROM broker_fragment")

    if begin:
        with pytest.raises(ValueError, match="before the transaction"):
            _ = message.body
    else:
        assert LARGE == message.body
