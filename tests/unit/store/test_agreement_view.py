"""The views of message types, contracts and priorities: what is built in, what statements made, how they join."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.client.dialog import begin_dialog
from broker.conversation.message_types import SentBy, Validation
from broker.observe.query import SELF_MADE, SystemViews
from broker.observe.views import MEMORY_VIEWS
from broker.store.sqlite.database import open_store
from broker.store.sqlite.metadata import (
    Priority,
    put_contract,
    put_message_type,
    put_priority,
    put_queue,
    put_service,
    queues,
)

Ask = Callable[[str], list[tuple[object, ...]]]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """The rows of a statement over a database with one of everything."""
    path = tmp_path / "orders.db"
    with closing(open_store(path)) as db:
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
        snapshots = {name: tuple for name in MEMORY_VIEWS if name not in SELF_MADE}
        views = SystemViews(databases={"orders": path}, snapshots=snapshots, transmission_statuses=dict)
        yield lambda statement: views.select(statement, database="orders").rows


def test_message_types_have_the_letters_of_the_original(ask: Ask) -> None:
    made = ask("SELECT name, validation, validation_desc FROM sys.service_message_types WHERE message_type_id >= 65536")

    assert {
        ("T NONE", "N", "NONE"),
        ("T EMPTY", "E", "EMPTY"),
        ("T WELL_FORMED_XML", "X", "XML"),
        ("T JSON", "J", "JSON"),
    } == set(made)


def test_what_is_built_in_is_shown_once(ask: Ask) -> None:
    types = ask("SELECT name, message_type_id, validation FROM sys.service_message_types WHERE message_type_id < 65536")
    contracts = ask("SELECT name, service_contract_id FROM sys.service_contracts WHERE service_contract_id < 65536")

    assert [("DEFAULT", 14, "N")] == [row for row in types if row[0] == "DEFAULT"]
    assert 6 == len(types)
    assert {"DEFAULT", "http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice"} == {
        name for name, _ in contracts
    }


def test_contract_joins_its_message_types(ask: Ask) -> None:
    usages = ask(
        "SELECT t.name, u.is_sent_by_initiator, u.is_sent_by_target FROM sys.service_contracts c"
        " JOIN sys.service_contract_message_usages u ON u.service_contract_id = c.service_contract_id"
        " JOIN sys.service_message_types t ON t.message_type_id = u.message_type_id WHERE c.name IN ('C', 'DEFAULT')"
        " ORDER BY c.name, t.name"
    )

    assert [("DEFAULT", 1, 1), ("T EMPTY", 0, 1), ("T JSON", 1, 0), ("DEFAULT", 1, 1)] == usages


def test_service_joins_its_contracts(ask: Ask) -> None:
    usages = ask(
        "SELECT s.name, u.service_contract_name, c.name FROM sys.services s"
        " JOIN sys.service_contract_usages u ON u.service_id = s.service_id"
        " LEFT JOIN sys.service_contracts c ON c.service_contract_id = u.service_contract_id ORDER BY 2"
    )

    assert [("S", "C", "C"), ("S", "DEFAULT", "DEFAULT"), ("S", "Nothing", None)] == usages


def test_priorities_join_contract_and_service(ask: Ask) -> None:
    found = ask(
        "SELECT p.name, p.priority, c.name, s.name, p.remote_service_name, p.service_contract_name,"
        " p.local_service_name FROM sys.conversation_priorities p"
        " LEFT JOIN sys.services s ON s.service_id = p.local_service_id"
        " LEFT JOIN sys.service_contracts c ON c.service_contract_id = p.service_contract_id ORDER BY p.priority_id"
    )

    assert [
        ("P", 9, "C", "S", "R", "C", "S"),
        ("Any", 5, None, None, None, None, None),
        ("Unknown", 1, None, None, None, "Nothing", None),
    ] == found


def test_conversations_tell_their_contract_priority_and_group(ask: Ask) -> None:
    endpoints = ask("SELECT service_contract_name, service_contract_id, priority FROM sys.conversation_endpoints")
    groups = ask("SELECT service_name, conversations, service_id FROM sys.conversation_groups")

    assert {("C", 65536, 9), ("DEFAULT", 6, 5), ("Nothing", None, 1)} == set(endpoints)
    assert [("S", 1, 1)] * 3 == groups


def test_queue_tells_whether_poison_messages_turn_it_off(ask: Ask) -> None:
    assert [("Q", 1)] == ask("SELECT name, is_poison_message_handling_enabled FROM sys.service_queues")
