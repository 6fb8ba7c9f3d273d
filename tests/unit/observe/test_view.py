from __future__ import annotations

import re
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.application.dialog import begin_dialog
from broker.conversation.state import State
from broker.observe.file_view import FileView
from broker.observe.function import add_functions
from broker.observe.view import (
    FILE_VIEWS,
    GUID_COLUMNS,
    INSTANT_COLUMNS,
    MEMORY_VIEWS,
    MSDB_ROUTES,
    QUEUE,
    STATUS_FUNCTION,
    UNTRIED,
    make_row,
)
from broker.store.database import open_store
from broker.store.metadata import put_queue, put_service, queues

PAGE = Path(__file__).parents[3] / "docs" / "views.md"
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


def page_columns() -> dict[str, list[str]]:
    """The first column of the first table below each heading of the page."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {}
    for section in sections:
        table = re.search(r"^\| Column \|.*?(?=\n\n|\Z)", section, flags=re.MULTILINE | re.DOTALL)
        if table:
            found[section.splitlines()[0]] = re.findall(r"^\| \*?`(\w+)`\*? \|", table[0], flags=re.MULTILINE)
    return found


# --- the page and the code ----------------------------------------------------------------------------------


def test_page_tells_every_view_and_column_in_order() -> None:
    expected = {name: list(view.columns) for name, view in FILE_VIEWS.items()}
    expected |= {name: list(columns) for name, columns in MEMORY_VIEWS.items() if name != MSDB_ROUTES}
    expected["A queue itself"] = list(QUEUE.columns)

    assert expected == page_columns()


# The columns of the original, in the order in which its pages have them.
ORIGINAL = {
    "sys.routes": "name route_id principal_id remote_service_name broker_instance lifetime address mirror_address",
    "sys.dm_broker_forwarded_messages": (
        "conversation_id is_initiator to_service_name to_broker_instance from_service_name from_broker_instance"
        " adjacent_broker_address message_sequence_number message_fragment_number hops_remaining time_to_live"
        " time_consumed message_id"
    ),
    "sys.dm_broker_connections": (
        "connection_id transport_stream_id state state_desc connect_time login_time last_activity_time"
        " authentication_method principal_name remote_user_name is_accept login_state login_state_desc"
        " peer_certificate_id encryption_algorithm encryption_algorithm_desc receives_posted sends_posted"
        " is_receive_flow_controlled is_send_flow_controlled total_bytes_sent total_bytes_received"
        " total_fragments_sent total_fragments_received total_sends total_receives peer_arbitration_id"
    ),
    "sys.conversation_endpoints": (
        "conversation_handle conversation_id is_initiator service_contract_id conversation_group_id service_id lifetime"
        " state state_desc far_service far_broker_instance principal_id far_principal_id"
        " outbound_session_key_identifier inbound_session_key_identifier security_timestamp dialog_timer send_sequence"
        " last_send_tran_id end_dialog_sequence receive_sequence receive_sequence_frag system_sequence"
        " first_out_of_order_sequence last_out_of_order_sequence last_out_of_order_frag is_system priority"
    ),
    "sys.transmission_queue": (
        "conversation_handle to_service_name to_broker_instance from_service_name service_contract_name enqueue_time"
        " message_sequence_number message_type_name is_conversation_error is_end_of_dialog message_body"
        " transmission_status priority"
    ),
    "sys.dm_broker_queue_monitors": (
        "database_id queue_id state last_empty_rowset_time last_activated_time tasks_waiting"
    ),
}


@pytest.mark.parametrize("view", ORIGINAL)
def test_a_view_begins_with_the_columns_of_the_original_and_the_page_marks_the_others(view: str) -> None:
    expected = ORIGINAL[view].split()
    columns = list(FILE_VIEWS[view].columns) if view in FILE_VIEWS else list(MEMORY_VIEWS[view])
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {view}\n")[2].partition("\n## ")[0]

    assert expected == columns[: len(expected)]
    assert expected == re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)[: len(expected)]
    assert columns[len(expected) :] == re.findall(r"^\| \*`(\w+)`\* \|", section, flags=re.MULTILINE)


def test_page_tells_every_state() -> None:
    told = re.findall(r"^\| ([A-Z]{2}) \| (\w+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert told == [(state.value, state.name) for state in State]


def test_page_tells_the_status_of_what_was_not_tried() -> None:
    assert f"`{UNTRIED}`" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("names", [GUID_COLUMNS, INSTANT_COLUMNS])
def test_special_columns_are_columns_of_some_view(names: frozenset[str]) -> None:
    every = {name for view in (*FILE_VIEWS.values(), QUEUE) for name in view.columns}
    every |= {name for columns in MEMORY_VIEWS.values() for name in columns}

    assert names <= every


# --- views of a file ----------------------------------------------------------------------------------------


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
    for state in State:
        db.execute("UPDATE broker_conversation SET state = ?", (state.value,))
        told[state.value] = rows(db, FILE_VIEWS["sys.conversation_endpoints"])[0]["state_desc"]

    assert told == {state.value: state.name for state in State}


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


# --- rows of memory views -----------------------------------------------------------------------------------


def test_row_has_a_value_for_each_column_in_order() -> None:
    row = make_row("sys.databases", path="/a", name="orders")

    assert row == ("orders", None, None, None, None, "/a")


def test_row_with_a_value_for_no_column_is_a_bug() -> None:
    with pytest.raises(AssertionError, match=r"sys.databases has no column \['nam'\]"):
        make_row("sys.databases", nam="orders")


def add_message(db: sqlite3.Connection, *, body: bytes, queue_id: int = 1) -> None:
    db.execute(
        "INSERT INTO broker_message (queue_id, endpoint_id, message_sequence_number, message_type_name,"
        " message_enqueue_time, message_body) VALUES (?, 1, 0, 't', 2.0, ?)",
        (queue_id, body),
    )
