"""The views over the file of a database: what each tells of the rows that are there."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.client.dialog import begin_dialog
from broker.conversation.state import ConversationState
from broker.observe.tsql import add_functions
from broker.store.sqlite.database import open_store
from broker.store.sqlite.metadata import put_queue, put_service, queues
from broker.store.sqlite.views import FILE_VIEWS, QUEUE, STATUS_FUNCTION, FileView

FAR = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database with one service, its queue, and the functions that the views call."""
    with closing(open_store(tmp_path / "orders.db")) as connection:
        put_queue(connection, "OrdersQueue", is_receive_enabled=True)
        put_service(connection, "//shop/Orders", queues(connection)["OrdersQueue"].queue_id, frozenset({"//shop/C"}))
        add_functions(connection, now=datetime.now(UTC))
        connection.create_function(STATUS_FUNCTION, 1, lambda _handle: "tried")
        yield connection


def rows(db: sqlite3.Connection, view: FileView, *, now: float = 0.0, queue_id: int = 0) -> list[dict[str, object]]:
    cursor = db.execute(view.render(db="main", now=now, queue_id=queue_id))
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def add_message(db: sqlite3.Connection, *, body: bytes, queue_id: int = 1) -> None:
    db.execute(
        "INSERT INTO broker_message (queue_id, endpoint_id, message_sequence_number, message_type_name,"
        " message_enqueue_time, message_body) VALUES (?, 1, 0, 't', 2.0, ?)",
        (queue_id, body),
    )


def test_route_that_never_expires(db: sqlite3.Connection) -> None:
    assert rows(db, FILE_VIEWS["sys.routes"]) == [
        {
            "name": "AutoCreatedLocal",
            "route_id": 1,
            "principal_id": None,
            "remote_service_name": None,
            "broker_instance": None,
            "lifetime": None,
            "address": "LOCAL",
            "mirror_address": None,
            "weight": 1,
            "is_expired": 0,
        }
    ]


@pytest.mark.parametrize(("now", "is_expired"), [(999.9, 0), (1000.0, 1), (2000.0, 1)])
def test_route_is_expired_from_its_instant_on(db: sqlite3.Connection, now: float, is_expired: int) -> None:
    db.execute("UPDATE broker_route SET lifetime = 1000.0, broker_instance = ?", (FAR.bytes,))

    (row,) = rows(db, FILE_VIEWS["sys.routes"], now=now)

    assert ("1970-01-01 00:16:40.000", str(FAR).upper(), is_expired) == (
        row["lifetime"],
        row["broker_instance"],
        row["is_expired"],
    )


def test_service_names_its_queue_and_contracts(db: sqlite3.Connection) -> None:
    (row,) = rows(db, FILE_VIEWS["sys.services"])

    assert row == {
        "name": "//shop/Orders",
        "service_id": 1,
        "principal_id": None,
        "service_queue_id": 1,
        "queue_name": "OrdersQueue",
        "contracts": '["//shop/C"]',
    }


@pytest.mark.parametrize("is_on", [True, False])
def test_queue_tells_its_status_and_what_waits(db: sqlite3.Connection, *, is_on: bool) -> None:
    put_queue(db, "OrdersQueue", is_receive_enabled=is_on)
    add_message(db, body=b"x")

    (row,) = rows(db, FILE_VIEWS["sys.service_queues"])

    assert (int(is_on), int(is_on), 1) == (
        row["is_receive_enabled"],
        row["is_enqueue_enabled"],
        row["message_count"],
    )


def test_endpoint_of_a_dialog_begun_here(db: sqlite3.Connection) -> None:
    dialog = begin_dialog(db, from_service="//shop/Orders", to_service="//shop/Billing", contract="c", lifetime=60)
    dialog.send(b"x")

    (row,) = rows(db, FILE_VIEWS["sys.conversation_endpoints"])

    expected = {
        "conversation_handle": str(dialog.conversation_handle).upper(),
        "conversation_id": str(dialog.conversation_id).upper(),
        "is_initiator": 1,
        "service_id": 1,
        "state": "CO",
        "state_desc": "CONVERSING",
        "far_service": "//shop/Billing",
        "far_broker_instance": None,
        "send_sequence": 1,
        "end_dialog_sequence": None,
        "receive_sequence": 0,
        "first_out_of_order_sequence": None,
        "is_system": 0,
        "service_name": "//shop/Orders",
        "service_contract_name": "c",
    }
    assert expected == {name: row[name] for name in expected}


def test_every_state_has_its_words(db: sqlite3.Connection) -> None:
    begin_dialog(db, from_service="//shop/Orders", to_service="//shop/Billing")
    told = {}
    for state in ConversationState:
        db.execute("UPDATE broker_conversation SET state = ?", (state.value,))
        told[state.value] = rows(db, FILE_VIEWS["sys.conversation_endpoints"])[0]["state_desc"]

    assert told == {state.value: state.name for state in ConversationState}


def test_a_closed_side_keeps_the_handle_that_its_application_has(db: sqlite3.Connection) -> None:
    dialog = begin_dialog(db, from_service="//shop/Orders", to_service="//shop/Billing")
    dialog.send(b"hello")
    (before,) = rows(db, FILE_VIEWS["sys.conversation_endpoints"])
    db.execute("UPDATE broker_conversation SET state = 'DI'")

    dialog.end()

    (row,) = rows(db, FILE_VIEWS["sys.conversation_endpoints"])
    assert ("CD", before["conversation_handle"]) == (row["state"], row["conversation_handle"])


def test_out_of_order_columns_tell_what_arrived_early(db: sqlite3.Connection) -> None:
    begin_dialog(db, from_service="//shop/Orders", to_service="//shop/Billing")
    db.execute("UPDATE broker_conversation SET receive_sequence = 5, receive_sequence_frag = 2")
    for sequence, fragment in [(5, 0), (5, 1), (7, 3), (6, 0), (7, 1)]:
        db.execute("INSERT INTO broker_fragment VALUES (1, ?, ?, 0, x'')", (sequence, fragment))

    (row,) = rows(db, FILE_VIEWS["sys.conversation_endpoints"])

    assert (
        row["first_out_of_order_sequence"],
        row["last_out_of_order_sequence"],
        row["last_out_of_order_frag"],
    ) == (6, 7, 3)


def test_transmission_queue_tells_where_a_message_goes(db: sqlite3.Connection) -> None:
    dialog = begin_dialog(db, from_service="//shop/Orders", to_service="//shop/Billing", broker_instance=FAR)
    dialog.send(b"hello", type="t")
    db.execute("UPDATE broker_transmission SET enqueue_time = 1.25")

    (row,) = rows(db, FILE_VIEWS["sys.transmission_queue"])

    assert row == {
        "conversation_handle": str(dialog.conversation_handle).upper(),
        "to_service_name": "//shop/Billing",
        "to_broker_instance": str(FAR).upper(),
        "from_service_name": "//shop/Orders",
        "service_contract_name": "DEFAULT",
        "enqueue_time": "1970-01-01 00:00:01.250",
        "message_sequence_number": 0,
        "message_type_name": "t",
        "is_conversation_error": 0,
        "is_end_of_dialog": 0,
        "message_body": b"hello",
        "transmission_status": "tried",
        "priority": 5,
        "conversation_id": str(dialog.conversation_id).upper(),
        "body_bytes": 5,
    }


@pytest.mark.parametrize(("error", "flags"), [(None, (0, 1)), (7, (1, 0))])
def test_transmission_queue_tells_an_end_from_an_error(
    db: sqlite3.Connection, error: int | None, flags: tuple[int, int]
) -> None:
    dialog = begin_dialog(db, from_service="//shop/Orders", to_service="//shop/Billing")
    dialog.send(b"x")
    dialog.end(error=error)

    last = rows(db, FILE_VIEWS["sys.transmission_queue"])[-1]

    assert flags == (last["is_conversation_error"], last["is_end_of_dialog"])


def test_queue_shows_its_own_messages_only(db: sqlite3.Connection) -> None:
    dialog = begin_dialog(db, from_service="//shop/Orders", to_service="//shop/Billing")
    add_message(db, body=b"mine")
    add_message(db, body=b"other", queue_id=2)

    (row,) = rows(db, QUEUE, queue_id=1)

    assert row == {
        "status": 1,
        "priority": 5,
        "queuing_order": 1,
        "conversation_handle": str(dialog.conversation_handle).upper(),
        "message_sequence_number": 0,
        "service_name": "//shop/Orders",
        "message_type_name": "t",
        "message_body": b"mine",
        "message_enqueue_time": "1970-01-01 00:00:02.000",
        "body_bytes": 4,
    }


def test_empty_view_has_the_same_columns(db: sqlite3.Connection) -> None:
    view = FILE_VIEWS["sys.services"]

    cursor = db.execute(view.render_empty())

    assert (list(view.columns), []) == ([column[0] for column in cursor.description], cursor.fetchall())


def test_counting_a_large_view_does_not_render_its_rows(db: sqlite3.Connection) -> None:
    """COUNT(*) is answered from the table: no function of the view is called for any row."""
    called: list[object] = []
    db.create_function(STATUS_FUNCTION, 1, called.append)
    dialog = begin_dialog(db, from_service="//shop/Orders", to_service="//shop/Billing")
    dialog.send(b"x")

    view = FILE_VIEWS["sys.transmission_queue"].render(db="main", now=time.time())
    (count,) = db.execute(f"SELECT COUNT(*) FROM ({view})").fetchone()

    assert (count, called) == (1, [])
