"""Contracts between real daemons: what both ends of a conversation see."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

import broker
from broker.errors import ConversationError
from examples.demo.topology import Daemon, Topology
from tests.support.loopback import BILLING, ORDERS, PATIENCE, file_of, route, service

CONTRACT = "//shop/Invoicing"
TYPES = (
    "CREATE MESSAGE TYPE Invoice VALIDATION = JSON; CREATE MESSAGE TYPE Receipt VALIDATION = EMPTY;\n"
    f"CREATE CONTRACT [{CONTRACT}] (Invoice SENT BY INITIATOR, Receipt SENT BY TARGET);\n"
)


def shop(net: Topology, types: str = "") -> tuple[Daemon, Daemon]:
    """An initiator with these types and a target with the contract."""
    orders, billing = net.add("orders", databases=["orders"]), net.add("billing", databases=["billing"])
    for daemon, own, far, to, own_types in (
        (orders, ORDERS, BILLING, billing, types),
        (billing, BILLING, ORDERS, orders, TYPES),
    ):
        way = service(own, f" ([{CONTRACT}])") + route("far", far, to.address)
        net.script(daemon.name, daemon.name, own_types + way)
    net.start()
    return orders, billing


def begin(db: sqlite3.Connection) -> broker.Dialog:
    return broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING, contract=CONTRACT)


def read(db: sqlite3.Connection) -> broker.Message:
    """One message, the connection committing each by itself."""
    (message,) = broker.receive(db, queue="Inbox", wait=PATIENCE)
    return message


def test_agreed_messages_pass_and_others_are_refused_where_they_are_sent(net: Topology) -> None:
    here, there = [sqlite3.connect(file_of(daemon), isolation_level=None) for daemon in shop(net, TYPES)]
    with closing(here), closing(there):
        dialog = begin(here)
        dialog.send("{}", type="Invoice")
        invoice = read(there).dialog

        refused = []
        for side, body, message_type in ((dialog, "{", "Invoice"), (dialog, "", "Receipt"), (invoice, "{}", "Invoice")):
            with pytest.raises(ConversationError) as caught:
                side.send(body, type=message_type)
            refused.append(caught.value.number)
        invoice.send("", type="Receipt")
        receipt = read(here)

    assert [8430, 8432, 8434] == refused
    assert ("Receipt", b"") == (receipt.type, receipt.body)
