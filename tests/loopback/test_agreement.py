"""Contracts, priorities and the options of a database between real daemons: what both ends of a conversation see."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from broker.errors import ConversationError
from examples.demo.topology import Daemon, Topology, wait_for

ORDERS, BILLING, CONTRACT = "//shop/Orders", "//shop/Billing", "//shop/Invoicing"
SECONDS = 30.0
TYPES = (
    "CREATE MESSAGE TYPE Invoice VALIDATION = JSON; CREATE MESSAGE TYPE Receipt VALIDATION = EMPTY;\n"
    f"CREATE CONTRACT [{CONTRACT}] (Invoice SENT BY INITIATOR, Receipt SENT BY TARGET);\n"
)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


def shop(net: Topology, *, orders_too: bool) -> tuple[Daemon, Daemon]:
    """An initiator and a target; the contract is declared at the target, and at both when `orders_too`."""
    orders = net.add("orders", databases=["orders"])
    billing = net.add("billing", databases=["billing"])
    for daemon, own, far, address, types in (
        (orders, ORDERS, BILLING, billing.address, TYPES if orders_too else ""),
        (billing, BILLING, ORDERS, orders.address, TYPES),
    ):
        service = f"CREATE QUEUE Inbox; CREATE SERVICE [{own}] ON QUEUE Inbox ([{CONTRACT}]);\n"
        way = f"CREATE ROUTE [far] WITH SERVICE_NAME = '{far}', ADDRESS = '{address}';\n"
        net.script(daemon.name, daemon.name, types + service + way)
    net.start()
    return orders, billing


def begin(db: sqlite3.Connection) -> broker.Dialog:
    return broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING, contract=CONTRACT)


def read(db: sqlite3.Connection, count: int = 1) -> list[broker.Message]:
    """So many messages, the connection committing each by itself."""
    found: list[broker.Message] = []
    while len(found) < count:
        messages = broker.receive(db, queue="Inbox", wait=SECONDS)
        assert messages, f"only {len(found)} of {count} came"
        found += messages
    return found


def connect(daemon: Daemon) -> sqlite3.Connection:
    db = daemon.connect(daemon.name)
    db.isolation_level = None
    return db


def state(db: sqlite3.Connection) -> list[str]:
    return [row[0] for row in db.execute("SELECT state FROM broker_conversation")]


@pytest.mark.parametrize(
    ("message_type", "body", "code"),
    [("Unknown", "", -8428), ("Receipt", "", -8457), ("Invoice", "{", -8430)],
)
def test_what_the_target_does_not_take_ends_the_conversation_at_both_ends(
    net: Topology, message_type: str, body: str, code: int
) -> None:
    """The initiator has not declared the contract, so it may send anything."""
    orders, billing = shop(net, orders_too=False)
    here, there = connect(orders), connect(billing)

    begin(here).send(body, type=message_type)

    for db in (here, there):
        (message,) = read(db)
        assert message.is_error
        assert f"<Code>{code}</Code>" in bytes(message.body).decode()
    here.close()
    there.close()


def test_agreed_messages_pass_and_others_are_refused_where_they_are_sent(net: Topology) -> None:
    orders, billing = shop(net, orders_too=True)
    here, there = connect(orders), connect(billing)
    dialog = begin(here)
    dialog.send("{}", type="Invoice")
    (invoice,) = read(there)

    refused = []
    for side, body, message_type in (
        (dialog, "{", "Invoice"),
        (dialog, "", "Receipt"),
        (invoice.dialog, "{}", "Invoice"),
    ):
        with pytest.raises(ConversationError) as caught:
            side.send(body, type=message_type)
        refused.append(caught.value.number)
    invoice.dialog.send("", type="Receipt")

    assert [8430, 8432, 8434] == refused
    assert [("Receipt", b"")] == [(message.type, bytes(message.body)) for message in read(here)]
    here.close()
    there.close()


def test_error_for_all_conversations_is_read_at_both_ends(net: Topology) -> None:
    orders, billing = shop(net, orders_too=True)
    here, there = connect(orders), connect(billing)
    dialog = begin(here)
    dialog.send("{}", type="Invoice")
    read(there)

    orders.query("ALTER DATABASE orders SET ERROR_BROKER_CONVERSATIONS WITH ROLLBACK IMMEDIATE")

    for db in (here, there):
        (message,) = read(db)
        assert "<Code>-9719</Code>" in bytes(message.body).decode()
        message.dialog.end()
    wait_for(lambda: state(here) == state(there) == [], seconds=SECONDS, what="both sides are over")
    here.close()
    there.close()


def test_priority_is_that_of_each_side(net: Topology) -> None:
    orders, billing = shop(net, orders_too=True)
    here, there = connect(orders), connect(billing)
    orders.query("CREATE BROKER PRIORITY P FOR CONVERSATION SET (PRIORITY_LEVEL = 7)", "orders")
    script = f"(CONTRACT_NAME = [{CONTRACT}], REMOTE_SERVICE_NAME = '{ORDERS}', PRIORITY_LEVEL = 2)"
    billing.query(f"CREATE BROKER PRIORITY P FOR CONVERSATION SET {script}", "billing")

    begin(here).send("{}", type="Invoice")
    (message,) = read(there)

    assert message.type == "Invoice"
    priority = "SELECT priority FROM sys.conversation_endpoints"
    assert [[{"priority": 7}], [{"priority": 2}]] == [
        orders.query(priority, "orders"),
        billing.query(priority, "billing"),
    ]
    here.close()
    there.close()
