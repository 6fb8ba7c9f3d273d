"""Dynamic routing with real daemons: who asks, the handler as a process, and what operators see of it."""

import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from broker.dialog.route_requests import CONTRACT, MISSING_ROUTE, parse_flat_xml
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import BILLING, ORDERS, PATIENCE, receive, route, send, service, statuses, wait_status

ROOT = Path(__file__).parents[2]
INSTANCE = uuid.UUID("11111111-2222-4333-8444-555555555555")  # of the database that asks
OF_REQUESTS = (
    "SELECT state FROM broker_conversation WHERE far_service = ?"
    " UNION ALL SELECT 'CD' FROM broker_tombstone WHERE is_initiator"
)


def shop(net: Topology, gateway: Daemon | None = None) -> tuple[Daemon, Daemon, Daemon]:
    """Orders, billing, and the directory that orders asks for the route, or the gateway for it; started."""
    settings = {"dialog": {"resend_first": "500ms", "resend_cap": "1s"}}
    orders = net.add("orders", databases=["orders"], broker_instances={"orders": str(INSTANCE)}, settings=settings)
    billing = net.add("billing", databases=["billing"])
    directory = net.add("directory", databases=["directory"])
    ask = route("ask", BROKER_CONFIGURATION, directory.address)
    if gateway is None:
        net.script("orders", "orders", service(ORDERS) + ask)
        back = route("back", SERVICE_BROKER, orders.address, f", BROKER_INSTANCE = '{INSTANCE}'")
    else:
        net.script("orders", "orders", service(ORDERS) + route("to", BILLING, gateway.address))
        net.script("gateway", "msdb", ask + route("back", ORDERS, orders.address))
        back = route("back", SERVICE_BROKER, gateway.address)
    net.script("billing", "billing", service(BILLING) + route("back", ORDERS, (gateway or orders).address))
    back += route("applications", ORDERS, orders.address)
    net.script("directory", "directory", service(BROKER_CONFIGURATION, f" ([{CONTRACT}])") + back)
    net.start()
    return orders, billing, directory


@contextmanager
def handler(directory: Daemon, asker: Daemon, billing: Daemon) -> Iterator[None]:
    """`examples/routing_service` answers what the directory was asked, with the route to billing."""
    file = directory.directory / "give.sql"
    file.write_text(route("found", BILLING, billing.address, ", LIFETIME = 3600"))
    database, socket = directory.directory / "directory.db", asker.directory / "admin.sock"
    words: list[str | Path] = ["-d", database, "--queue", "Inbox", "--from", file, "--requester", socket]
    command = [sys.executable, "-m", "examples.routing_service", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        try:
            yield
        finally:
            process.terminate()
    assert 0 == process.wait(PATIENCE)


def asked(directory: Daemon) -> list[str]:
    """What the directory has been asked for, once it has."""

    def services() -> list[str]:
        with closing(directory.connect("directory")) as db:
            query = "SELECT message_body FROM broker_message WHERE message_type_name = ?"
            return [parse_flat_xml(body).texts["SERVICE_NAME"] for (body,) in db.execute(query, (MISSING_ROUTE,))]

    return list(wait_for(services, seconds=PATIENCE, what="a request"))


def is_closed(path: Path) -> bool:
    """Whether there was one request, and it is over."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute(OF_REQUESTS, (BROKER_CONFIGURATION,)).fetchall() == [("CD",)]


@pytest.mark.promise("R2.4", "routing 12")
def test_a_hundred_conversations_wait_for_one_request_and_go_on_when_it_is_answered(net: Topology) -> None:
    orders, billing, directory = shop(net)
    numbers = [str(number) for number in range(100)]

    for number in numbers:
        send(orders, number)
    services = asked(directory)
    wait_status(orders, "asking for route (9770)")
    status = " ".join(statuses(orders))
    query = "SELECT state, is_initiator FROM sys.conversation_endpoints WHERE far_service = "
    seen = orders.query(f"{query}'{BROKER_CONFIGURATION}'")
    with handler(directory, orders, billing):
        arrived = receive(billing, 100)
        wait_for(lambda: is_closed(orders.directory / "orders.db"), seconds=PATIENCE, what="one request, closed")

    assert set(numbers) == set(arrived)
    assert [BILLING] == services
    assert "not answered yet" in status
    assert directory.address in status
    assert [{"state": "CO", "is_initiator": True}] == seen


@pytest.mark.promise("R2.4")
def test_frames_that_a_gateway_drops_while_it_asks_are_sent_again_when_it_knows(net: Topology) -> None:
    gateway = net.add("gateway", forwarding=True)
    orders, billing, directory = shop(net, gateway)

    for body in ("one", "two", "three"):
        send(orders, body)
    services = asked(directory)
    before = gateway.status()
    with handler(directory, gateway, billing):
        arrived = receive(billing, 3)
        wait_for(lambda: is_closed(gateway.directory / "msdb.db"), seconds=PATIENCE, what="one request, closed")

    assert {"one", "two", "three"} == set(arrived)
    assert [BILLING] == services
    assert before["forwarding"]["dropped"].get("asking for route", 0) > 0
    assert 0 == gateway.status()["forwarding"]["unaccounted"]
    found = gateway.query("SELECT remote_service_name FROM msdb.sys.routes WHERE name = 'found'")
    assert [{"remote_service_name": BILLING}] == found
