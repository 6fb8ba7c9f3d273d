"""The views of message types, contracts and priorities: what is built in, what statements made, how they join."""

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.client.dialog import begin_dialog
from broker.conversation.message_types import END_DIALOG, ERROR, SentBy, Validation
from broker.conversation.state import ConversationState
from broker.observe.query import SELF_MADE, SystemViews
from broker.observe.sql_functions import add_functions
from broker.observe.views import MEMORY_VIEWS
from broker.security.grants import Permission, PermissionRule, PermissionState, RemoteServiceBinding
from broker.security.principal import parse_principal
from broker.store.sqlite.database import lock_store, open_store
from broker.store.sqlite.metadata import (
    Priority,
    put_binding,
    put_contract,
    put_message_type,
    put_permission,
    put_priority,
    put_queue,
    put_service,
    queues,
)
from broker.store.sqlite.views import FILE_VIEWS, QUEUE, FileView, attach, queue_numbers
from tests.support.dialog import put_message
from tests.support.shop import Shop

Ask = Callable[..., list[tuple[object, ...]]]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """The rows of a statement over msdb and a database with one of everything; of that unless msdb is named."""
    paths = {"msdb": tmp_path / "msdb.db", "orders": tmp_path / "orders.db"}
    with closing(open_store(paths["msdb"])) as msdb, closing(open_store(paths["orders"])) as db:
        for validation in Validation:
            put_message_type(db, f"T {validation}", validation)
        put_contract(db, "C", {"T JSON": SentBy.INITIATOR, "T EMPTY": SentBy.TARGET, "DEFAULT": SentBy.ANY})
        put_queue(db, "Q", is_receive_enabled=True, is_poison_message_handling_enabled=True)
        put_service(db, "S", queues(db)["Q"].queue_id, frozenset({"C", "DEFAULT", "Nothing"}))
        put_priority(db, Priority("P", "C", "S", "R", 9))
        put_priority(db, Priority("Any"))
        put_priority(db, Priority("Unknown", "Nothing", None, None, 1))
        for contract in ("C", "DEFAULT", "Nothing"):
            begin_dialog(db, from_service="S", to_service="R", contract=contract)
        for where, permission, securable, principal, state in [
            (msdb, Permission.CONNECT, "*", "CN=a", PermissionState.GRANT),
            (msdb, Permission.SEND, "//far", "public", PermissionState.DENY),
            (db, Permission.SEND, "S", "b", PermissionState.GRANT),
            (db, Permission.SEND, "S*", "b", PermissionState.DENY),
        ]:
            put_permission(where, PermissionRule(permission, securable, parse_principal(principal), state))
        put_binding(db, RemoteServiceBinding("b", "//far", "CN=far", is_anonymous_on=True))
        snapshots = {name: tuple for name in MEMORY_VIEWS if name not in SELF_MADE}
        views = SystemViews(databases=paths, snapshots=snapshots)
        yield lambda statement, database="orders": views.select(statement, database=database).rows


# What a query has to give, of a database with one of everything.
JOINS: dict[str, list[tuple[object, ...]]] = {
    "SELECT name, validation, validation_desc FROM sys.service_message_types WHERE message_type_id >= 65536"
    " ORDER BY name": [
        ("T EMPTY", "E", "EMPTY"),
        ("T JSON", "J", "JSON"),
        ("T NONE", "N", "NONE"),
        ("T WELL_FORMED_XML", "X", "XML"),
    ],
    "SELECT name, message_type_id, validation FROM sys.service_message_types WHERE name = 'DEFAULT' UNION ALL"
    " SELECT count(*), NULL, NULL FROM sys.service_message_types WHERE message_type_id < 65536 UNION ALL"
    " SELECT * FROM (SELECT name, NULL, NULL FROM sys.service_contracts"
    " WHERE service_contract_id < 65536 ORDER BY 1)": [
        ("DEFAULT", 14, "N"),
        (6, None, None),
        ("DEFAULT", None, None),
        ("http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice", None, None),
    ],
    "SELECT t.name, is_sent_by_initiator, is_sent_by_target FROM sys.service_contracts c"
    " JOIN sys.service_contract_message_usages u ON u.service_contract_id = c.service_contract_id"
    " JOIN sys.service_message_types t ON t.message_type_id = u.message_type_id"
    " WHERE c.name IN ('C', 'DEFAULT') ORDER BY c.name, t.name": [
        ("DEFAULT", 1, 1),
        ("T EMPTY", 0, 1),
        ("T JSON", 1, 0),
        ("DEFAULT", 1, 1),
    ],
    "SELECT s.name, u.service_contract_name, c.name FROM sys.services s"
    " JOIN sys.service_contract_usages u ON u.service_id = s.service_id"
    " LEFT JOIN sys.service_contracts c ON c.service_contract_id = u.service_contract_id ORDER BY 2": [
        ("S", "C", "C"),
        ("S", "DEFAULT", "DEFAULT"),
        ("S", "Nothing", None),
    ],
    "SELECT p.name, p.priority, c.name, s.name, p.remote_service_name, p.service_contract_name,"
    " p.local_service_name FROM sys.conversation_priorities p"
    " LEFT JOIN sys.services s ON s.service_id = p.local_service_id"
    " LEFT JOIN sys.service_contracts c ON c.service_contract_id = p.service_contract_id ORDER BY p.priority_id": [
        ("P", 9, "C", "S", "R", "C", "S"),
        ("Any", 5, None, None, None, None, None),
        ("Unknown", 1, None, None, None, "Nothing", None),
    ],
    "SELECT service_contract_name, service_contract_id, priority FROM sys.conversation_endpoints ORDER BY 1": [
        ("C", 65536, 9),
        ("DEFAULT", 6, 5),
        ("Nothing", None, 1),
    ],
    "SELECT service_name, conversations, service_id FROM sys.conversation_groups": [("S", 1, 1)] * 3,
    "SELECT class, class_desc, major_id, type, permission_name, state, state_desc, securable_name, grantee_name"
    " FROM sys.database_permissions ORDER BY securable_name": [
        (17, "SERVICE", 1, "SN", "SEND", "G", "GRANT", "S", "b"),
        (17, "SERVICE", None, "SN", "SEND", "D", "DENY", "S*", "b"),
    ],
    "SELECT * FROM sys.remote_service_bindings": [("b", 1, None, "//far", None, None, 1, "CN=far")],
    "SELECT * FROM sys.routes": [("AutoCreatedLocal", 1, None, None, None, None, "LOCAL", None, 1, 0)],
    "SELECT s.name, q.name FROM sys.service_queue_usages u JOIN sys.services s ON s.service_id = u.service_id"
    " JOIN sys.service_queues q ON q.object_id = u.service_queue_id": [("S", "Q")],
    "SELECT * FROM sys.services": [("S", 1, None, 1, "Q", '["C", "DEFAULT", "Nothing"]', 0)],
}


@pytest.mark.parametrize("query", JOINS)
@pytest.mark.promise("views 2")
def test_views_show_what_statements_have_made(ask: Ask, query: str) -> None:
    assert JOINS[query] == ask(query)


def test_permissions_of_the_instance_are_in_every_database_and_those_of_a_database_in_it_alone(ask: Ask) -> None:
    connect = [(105, "ENDPOINT", 1, 0, None, None, "CO", "CONNECT", "G", "GRANT", "*", "CN=a")]

    assert [connect] * 2 == [ask("SELECT * FROM sys.server_permissions", name) for name in ("msdb", "orders")]
    assert [("//far", "public")] == ask("SELECT securable_name, grantee_name FROM sys.database_permissions", "msdb")
    assert [] == ask("SELECT * FROM sys.remote_service_bindings", "msdb")


@pytest.fixture
def asking() -> Iterator[sqlite3.Connection]:
    """A connection to no file."""
    with closing(sqlite3.connect(":memory:", uri=True, isolation_level=None)) as db:
        yield db


def test_an_attached_file_is_read_only(shop: Shop, asking: sqlite3.Connection) -> None:
    attach(asking, shop.path, "one")

    assert {name: queue.queue_id for name, queue in queues(shop.connect()).items()} == queue_numbers(asking, "one")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        asking.execute("DELETE FROM one.broker_route")


FAR = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database with one service, its queue, and the functions that the views call."""
    with closing(open_store(tmp_path / "orders.db")) as connection:
        put_queue(connection, "OrdersQueue", is_receive_enabled=True)
        put_service(connection, "//shop/Orders", queues(connection)["OrdersQueue"].queue_id, frozenset({"//shop/C"}))
        add_functions(connection, now=datetime.now(UTC))
        yield connection


def rows(db: sqlite3.Connection, view: FileView, *, now: float = 0.0, queue_id: int = 0) -> list[dict[str, object]]:
    cursor = db.execute(view.render(db="main", now=now, queue_id=queue_id))
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


@pytest.mark.parametrize(("now", "is_expired"), [(999.9, 0), (1000.0, 1), (2000.0, 1)])
def test_route_is_expired_from_its_instant_on(db: sqlite3.Connection, now: float, is_expired: int) -> None:
    db.execute("UPDATE broker_route SET lifetime = 1000.0, broker_instance = ?", (FAR.bytes,))

    (row,) = rows(db, FILE_VIEWS["sys.routes"], now=now)

    assert ("1970-01-01 00:16:40.000", str(FAR).upper(), is_expired) == (
        row["lifetime"],
        row["broker_instance"],
        row["is_expired"],
    )


def test_state_of_an_endpoint_has_its_name(db: sqlite3.Connection) -> None:
    begin_dialog(db, from_service="//shop/Orders", to_service="//shop/Billing")
    for state in ConversationState:
        db.execute("UPDATE broker_conversation SET state = ?", (state.value,))
        assert state.name == rows(db, FILE_VIEWS["sys.conversation_endpoints"])[0]["state_desc"]


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


@pytest.mark.parametrize(
    ("written", "status"),
    [(None, ""), ("on its way: queued for sending", ""), ("no route to 'B' (9798)", "no route to 'B' (9798)")],
)
@pytest.mark.promise("views 5", "views 6")
def test_status_is_that_of_the_dialog_and_empty_while_nothing_keeps_a_message(
    shop: Shop, written: str | None, status: str
) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    dialog.send(b"x")
    shop.change(dialog, "transmission_status", written)
    add_functions(db, now=datetime.now(UTC))
    lock = lock_store(shop.path)

    (row,) = rows(db, FILE_VIEWS["sys.transmission_queue"])

    assert (status, status, written) == (row["transmission_status"], dialog.transmission_status, row["progress"])
    os.close(lock)


@pytest.mark.parametrize(
    ("name", "expected"), [(END_DIALOG, (2, "E")), (ERROR, (1, "X")), ("made", (65536, "E")), ("not made", (None, "N"))]
)
@pytest.mark.promise("views 1")
def test_queue_knows_the_message_type_of_a_message(
    db: sqlite3.Connection, name: str, expected: tuple[object, ...]
) -> None:
    put_message_type(db, "made", Validation.EMPTY)
    put_message(db, message_type_name=name)

    (row,) = rows(db, QUEUE, queue_id=1)

    assert expected == (row["message_type_id"], row["validation"])


@pytest.mark.promise("views 1")
def test_queue_shows_its_own_messages_only(db: sqlite3.Connection) -> None:
    dialog = begin_dialog(db, from_service="//shop/Orders", to_service="//shop/Billing")
    put_message(db, b"mine", message_enqueue_time=2.0)
    put_message(db, b"other", queue_id=2)

    (row,) = rows(db, QUEUE, queue_id=1)

    assert row == {
        "status": 1,
        "priority": 5,
        "queuing_order": 1,
        "conversation_group_id": str(dialog.conversation_group_id).upper(),
        "conversation_handle": str(dialog.conversation_handle).upper(),
        "message_sequence_number": 0,
        "service_name": "//shop/Orders",
        "service_id": 1,
        "service_contract_name": "DEFAULT",
        "service_contract_id": 6,
        "message_type_name": "T",
        "message_type_id": None,
        "validation": "N",
        "message_body": b"mine",
        "message_enqueue_time": "1970-01-01 00:00:02.000",
        "body_bytes": 4,
    }
