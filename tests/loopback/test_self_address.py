"""A route that leads back to the very instance: msdb's routes decide, and never a third time (R3.9)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from examples.demo.topology import Daemon, Topology, free_port, wait_for

ORDERS, BILLING = "//shop/Orders", "//shop/Billing"
SECONDS = 30.0


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


def both_services(net: Topology, *, listen: str, routes: str) -> Daemon:
    """One instance with two databases, each with a service, and routes of the database that sends."""
    host, _, port = listen.rpartition(":")
    one = net.add(
        "one",
        databases=["orders", "billing"],
        settings={"endpoint": {"listen": [f"{host}:{port}"], "encryption": "disabled"}},
    )
    net.script("one", "orders", f"CREATE QUEUE Inbox; CREATE SERVICE [{ORDERS}] ON QUEUE Inbox;\n{routes}")
    net.script("one", "billing", f"CREATE QUEUE Inbox; CREATE SERVICE [{BILLING}] ON QUEUE Inbox;")
    return one


def send(daemon: Daemon) -> None:
    with daemon.connect("orders") as db:
        broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING).send(b"hello")
    db.close()


def received(db: sqlite3.Connection) -> list[bytes]:
    with db:
        return [message.body for message in broker.receive(db, queue="Inbox", wait=SECONDS)]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.7"], ids=["known beforehand", "found by dialling"])
def test_own_address_is_routed_by_msdb(net: Topology, host: str) -> None:
    port = free_port()
    route = f"CREATE ROUTE ToBilling WITH SERVICE_NAME = '{BILLING}', ADDRESS = 'tcp://{host}:{port}';"
    one = both_services(net, listen=f"0.0.0.0:{port}", routes=route)
    net.start()

    send(one)
    db = one.connect("billing")
    assert received(db) == [b"hello"]
    db.close()

    assert one.status()["forwarding"]["held"] == 0


def test_own_address_in_msdb_too_ends_with_a_reason(net: Topology) -> None:
    port = free_port()
    route = f"CREATE ROUTE ToBilling WITH SERVICE_NAME = '{BILLING}', ADDRESS = 'tcp://127.0.0.1:{port}';"
    one = both_services(net, listen=f"0.0.0.0:{port}", routes=route)
    net.script("one", "msdb", route)
    net.start()

    send(one)

    def status() -> str:
        rows = one.query("SELECT transmission_status FROM orders.sys.transmission_queue")
        return str(rows[0]["transmission_status"]) if rows else ""

    wait_for(lambda: "route invalid (11294)" in status(), seconds=SECONDS, what=f"the reason in {status()!r}")
    one.admin.sql("ALTER ROUTE ToBilling WITH ADDRESS = 'LOCAL'", "msdb")
    db = one.connect("billing")
    assert received(db) == [b"hello"]
    db.close()
