"""Dynamic routing with real daemons: who asks, the handler as a process of its own, and what operators see of it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.dialog.route_requests import CONTRACT, MISSING_ROUTE, parse_inquiry
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.dns import NameServer

ORDERS, BILLING = "//shop/Orders", "//shop/Billing"
SECONDS = 40.0
ROOT = Path(__file__).parents[2]
INSTANCE = uuid.UUID("11111111-2222-4333-8444-555555555555")  # of the database that asks
MSDB = "SELECT service_broker_guid FROM sys.databases WHERE name = 'msdb'"


def service(name: str, *contracts: str) -> str:
    of = f" ({', '.join(f'[{contract}]' for contract in contracts)})" if contracts else ""
    return f"CREATE QUEUE Inbox; CREATE SERVICE [{name}] ON QUEUE Inbox{of};\n"


def route(name: str, to: str, address: str, *, instance: object = None) -> str:
    named = f", BROKER_INSTANCE = '{instance}'" if instance else ""
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}'{named}, ADDRESS = '{address}';\n"


class Handler:
    """`examples/routing_service`, for the requests that reach `directory`."""

    def __init__(self, directory: Daemon, *requesters: Daemon) -> None:
        self.file = directory.directory / "give.out"
        self.log = directory.directory / "handler.log"
        self._directory = directory
        self._requesters = requesters
        self.options: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def give(self, text: str) -> None:
        """What it answers from."""
        new = self.file.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.file)

    def command(self) -> list[str]:
        path = self._directory.directory / "directory.db"
        sockets = [part for one in self._requesters for part in ("--requester", str(one.directory / "admin.sock"))]
        command = [sys.executable, "-m", "examples.routing_service", "-d", str(path), "--queue", "Inbox"]
        return [*command, "--from", str(self.file), *sockets, *self.options]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd=ROOT)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(SECONDS)
        self._process = None
        return code

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Net:
    """
    Orders asks the directory for the route to billing.

    Shape: `gateway` None when orders asks itself, else who asks for orders.
    """

    def __init__(self, topology: Topology, *, by_gateway: bool = False) -> None:
        settings = {"dialog": {"resend_first": "500ms", "resend_cap": "1s"}}
        self.topology = topology
        self.orders = topology.add(
            "orders", databases=["orders"], broker_instances={"orders": str(INSTANCE)}, settings=settings
        )
        self.billing = topology.add("billing", databases=["billing"])
        self.directory = topology.add("directory", databases=["directory"])
        self.gateway = topology.add("gateway", forwarding=True) if by_gateway else None
        ask = route("ask", BROKER_CONFIGURATION, self.directory.address)
        if self.gateway is None:
            topology.script("orders", "orders", service(ORDERS) + ask)
            topology.script("billing", "billing", service(BILLING) + route("back", ORDERS, self.orders.address))
            back = route("back", SERVICE_BROKER, self.orders.address, instance=INSTANCE)
        else:
            topology.script("orders", "orders", service(ORDERS) + route("to", BILLING, self.gateway.address))
            topology.script("billing", "billing", service(BILLING) + route("back", ORDERS, self.gateway.address))
            topology.script("gateway", "msdb", ask + route("back", ORDERS, self.orders.address))
            back = route("back", SERVICE_BROKER, self.gateway.address)
        back += route("applications", ORDERS, self.orders.address)
        topology.script("directory", "directory", service(BROKER_CONFIGURATION, CONTRACT) + back)
        self.handler = Handler(self.directory, self.gateway or self.orders)

    def give(self, *, lifetime: int = 3600) -> None:
        """The handler knows the route to billing from now on."""
        address = self.billing.address
        self.handler.give(
            f"CREATE ROUTE found WITH SERVICE_NAME = '{BILLING}', LIFETIME = {lifetime}, ADDRESS = '{address}';"
        )

    def send(self, *bodies: str, to: str = BILLING, **more: Any) -> None:
        """Each in a conversation of its own."""
        with closing(self.orders.connect("orders")) as db, db:
            for body in bodies:
                broker.begin_dialog(db, from_service=ORDERS, to_service=to, **more).send(body)

    def received(self, count: int) -> set[str]:
        bodies: set[str] = set()
        with closing(self.billing.connect("billing")) as db:
            while len(bodies) < count:
                with db:
                    messages = broker.receive(db, queue="Inbox", wait=SECONDS)
                    bodies |= {message.body.decode() for message in messages}
                assert messages, f"only {len(bodies)} of {count} came"
        return bodies

    def requests(self) -> list[str]:
        """What the directory has been asked for and has not answered."""
        with closing(self.directory.connect("directory")) as db:
            query = "SELECT message_body FROM broker_message WHERE message_type_name = ? ORDER BY queuing_order"
            rows = db.execute(query, (MISSING_ROUTE,)).fetchall()
        return [parse_inquiry(body).service_name for (body,) in rows]

    def asked(self, count: int) -> list[str]:
        return list(wait_for(lambda: (r := self.requests()) and len(r) >= count and r, seconds=SECONDS, what="asked"))

    def status(self, to: str = BILLING) -> str:
        rows = self.orders.query(
            f"SELECT transmission_status FROM sys.transmission_queue WHERE to_service_name = '{to}'"
        )
        return str(rows[0]["transmission_status"]) if rows else ""

    def status_with(self, text: str) -> str:
        return str(wait_for(lambda: text in (s := self.status()) and s, seconds=SECONDS, what=f"{text!r} as status"))

    def request_states(self, daemon: Daemon, path: str) -> list[str]:
        with closing(sqlite3.connect(daemon.directory / path)) as db:
            rows = db.execute(
                "SELECT state FROM broker_conversation WHERE far_service = ?"
                " UNION ALL SELECT 'CD' FROM broker_tombstone WHERE is_initiator",
                (BROKER_CONFIGURATION,),
            )
            return [state for (state,) in rows]


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


@pytest.fixture
def net(topology: Topology) -> Iterator[Net]:
    net = Net(topology)
    yield net
    net.handler.kill()


@pytest.fixture
def by_gateway(topology: Topology) -> Iterator[Net]:
    net = Net(topology, by_gateway=True)
    yield net
    net.handler.kill()


def test_a_hundred_conversations_wait_for_one_request_and_go_on_when_it_is_answered(net: Net) -> None:
    net.topology.start()
    numbers = [str(number) for number in range(100)]

    net.send(*numbers)
    asked = net.asked(1)
    status = net.status_with("asking for route (9770)")
    net.give()
    net.handler.start()

    assert set(numbers) == net.received(100)
    assert [BILLING] == asked
    assert "not answered yet" in status
    assert net.directory.address in status
    wait_for(lambda: net.request_states(net.orders, "orders.db") == ["CD"], seconds=SECONDS, what="request closed")
    assert 0 == net.handler.stop()


def test_the_request_is_seen_where_it_was_made(net: Net) -> None:
    net.topology.start()

    net.send("one")
    net.asked(1)

    seen = net.orders.query(
        "SELECT state, far_service, is_initiator FROM sys.conversation_endpoints"
        f" WHERE far_service = '{BROKER_CONFIGURATION}'"
    )
    services = net.orders.query("SELECT name FROM sys.services ORDER BY name")
    assert [{"state": "CO", "far_service": BROKER_CONFIGURATION, "is_initiator": True}] == seen
    assert [ORDERS, SERVICE_BROKER] == [row["name"] for row in services]


def test_a_refusal_is_told_with_its_reason_and_the_same_is_asked_again(net: Net) -> None:
    net.topology.start()
    net.handler.give("")
    net.handler.start()

    net.send("one")
    status = net.status_with("the request failed")
    log = net.orders.log.read_text(encoding="utf-8")
    net.give()

    assert f"no route to '{BILLING}' is known here (9750)" in status
    assert "9761" in log
    assert {"one"} == net.received(1)
    assert len(net.request_states(net.orders, "orders.db")) >= 2


def test_an_expired_route_is_asked_for_again(net: Net) -> None:
    net.topology.start()
    net.give(lifetime=1)
    net.handler.start()

    net.send("one")
    assert {"one"} == net.received(1)
    expired = "SELECT is_expired FROM sys.routes WHERE name = 'found'"
    wait_for(lambda: net.orders.query(expired, "orders")[0]["is_expired"], seconds=SECONDS, what="expiry")
    net.give()
    net.send("two")

    assert {"two"} == net.received(1)
    assert 2 == len(net.request_states(net.orders, "orders.db"))


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_request_survives_a_restart_and_is_not_made_twice(net: Net, how: str) -> None:
    net.topology.start()
    net.send("one")
    net.asked(1)

    getattr(net.orders, how)()
    net.orders.start()
    net.send("two")
    status = net.status_with("not answered yet")
    net.give()
    net.handler.start()

    assert {"one", "two"} == net.received(2)
    assert "not answered yet" in status
    assert ["CD"] == wait_for(
        lambda: (states := net.request_states(net.orders, "orders.db")) == ["CD"] and states,
        seconds=SECONDS,
        what="one request, closed",
    )


def test_an_unanswered_request_is_never_made_again(net: Net) -> None:
    """Another service is asked for, answered and used meanwhile."""
    net.topology.start()
    net.send("one")
    net.send("other", to="//elsewhere")
    net.asked(2)

    net.topology.daemons["orders"].admin.sql(route("late", "//elsewhere", net.billing.address), "orders")
    net.send("more", "and more")
    wait_for(
        lambda: len(net.orders.query("SELECT conversation_handle FROM sys.transmission_queue")) >= 3,
        seconds=SECONDS,
        what="messages waiting",
    )

    assert sorted(["//elsewhere", BILLING]) == sorted(net.requests())
    assert "asking for route" in net.status()


def test_frames_that_a_gateway_drops_while_it_asks_are_sent_again_when_it_knows(by_gateway: Net) -> None:
    net = by_gateway
    assert net.gateway is not None
    net.topology.start()

    net.send("one", "two", "three")
    asked = net.asked(1)
    gateway = net.gateway.status()
    net.give()
    net.handler.start()

    assert {"one", "two", "three"} == net.received(3)
    assert [BILLING] == asked
    assert gateway["forwarding"]["dropped"].get("asking for route", 0) > 0
    assert 0 == net.gateway.status()["forwarding"]["unaccounted"]
    assert ["CD"] == wait_for(
        lambda: (states := net.request_states(net.gateway, "msdb.db")) == ["CD"] and states,  # type: ignore[arg-type]
        seconds=SECONDS,
        what="the gateway's request closed",
    )
    found = net.gateway.query("SELECT remote_service_name FROM msdb.sys.routes WHERE name = 'found'")
    assert [{"remote_service_name": BILLING}] == found


def test_a_gateway_that_restarts_while_it_asks_hears_the_answer(by_gateway: Net) -> None:
    net = by_gateway
    assert net.gateway is not None
    net.topology.start()
    net.send("one")
    net.asked(1)

    net.gateway.kill()
    net.gateway.start()
    net.give()
    net.handler.start()

    assert {"one"} == net.received(1)
    assert ["CD"] == wait_for(
        lambda: (states := net.request_states(net.gateway, "msdb.db")) == ["CD"] and states,  # type: ignore[arg-type]
        seconds=SECONDS,
        what="one request, closed",
    )


@pytest.mark.parametrize("how", ["", " WITH CLEANUP"])
def test_a_request_that_an_administrator_ends_is_made_anew(by_gateway: Net, how: str) -> None:
    net = by_gateway
    assert net.gateway is not None
    net.topology.start()
    net.send("one")
    net.asked(1)
    (request,) = net.gateway.query("SELECT conversation_handle FROM msdb.sys.conversation_endpoints")

    net.gateway.admin.sql(f"END CONVERSATION '{request['conversation_handle']}'{how}", "msdb")

    assert [BILLING, BILLING] == net.asked(2)


def test_a_gateway_that_never_asks_has_no_conversations_in_msdb(topology: Topology) -> None:
    gateway = topology.add("gateway", forwarding=True)
    gateway.start()

    assert {} == gateway.status()["databases"]

    gateway.admin.sql(route("ask", BROKER_CONFIGURATION, "tcp://127.0.0.1:1"), "msdb")
    assert ["msdb"] == list(gateway.status()["databases"])


def test_a_request_waits_while_the_instance_that_asks_is_away(net: Net) -> None:
    net.topology.start()
    net.give()
    net.send("one")
    net.asked(1)
    net.orders.stop()

    net.handler.start()
    wait_for(lambda: "request waits" in net.handler.log.read_text(), seconds=SECONDS, what="a waiting request")
    still = net.requests()
    net.orders.start()

    assert [BILLING] == still
    assert {"one"} == net.received(1)


def test_what_is_no_request_is_refused(net: Net) -> None:
    net.topology.start()
    net.give()
    net.handler.start()
    with closing(net.orders.connect("orders")) as db, db:
        for kind, body in ((MISSING_ROUTE, "<poison"), ("other", ""), (f"{CONTRACT}/MissingRemoteServiceBinding", "")):
            broker.begin_dialog(db, from_service=ORDERS, to_service=BROKER_CONFIGURATION, contract=CONTRACT).send(
                body, type=kind
            )

    errors: list[str] = []
    with closing(net.orders.connect("orders")) as db:
        while len(errors) < 3:
            with db:
                messages = broker.receive(db, queue="Inbox", wait=SECONDS)
                errors += [message.body.decode() for message in messages if message.is_error]
            assert messages

    assert ["9615"] * 3 == [error.partition("<Code>")[2][:4] for error in errors]
    net.send("one")
    assert {"one"} == net.received(1)


def test_handler_and_requester_may_be_one_database(topology: Topology) -> None:
    """The handler must not lock the database in which the route is to be made."""
    billing = topology.add("billing", databases=["billing"])
    orders = topology.add("orders", databases=["directory"])
    topology.script(
        "orders",
        "directory",
        f"CREATE QUEUE Replies; CREATE SERVICE [{ORDERS}] ON QUEUE Replies;\n"
        + service(BROKER_CONFIGURATION, CONTRACT)
        + route("ask", BROKER_CONFIGURATION, "LOCAL"),
    )
    topology.script("billing", "billing", service(BILLING) + route("back", ORDERS, orders.address))
    handler = Handler(orders, orders)
    handler.give(route("found", BILLING, billing.address))
    topology.start()
    handler.start()
    try:
        with closing(orders.connect("directory")) as db, db:
            broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING).send("one")
        with closing(billing.connect("billing")) as db, db:
            received = [message.body for message in broker.receive(db, queue="Inbox", wait=SECONDS)]
    finally:
        handler.kill()

    assert [b"one"] == received


def test_the_dns_gives_a_route(net: Net) -> None:
    net.handler.give("")
    net.topology.start()
    with NameServer() as server:
        server.records["_broker._tcp.shop.example.com"] = (60, [f"10 5 {net.billing.port} localhost."])
        host, port = server.address
        net.handler.options = ["--srv", "--domain", "example.com", "--nameserver", f"{host}:{port}"]
        net.handler.start()

        net.send("one")

        assert {"one"} == net.received(1)
    (found,) = net.orders.query("SELECT name, address FROM sys.routes WHERE address LIKE '%localhost%'", "orders")
    assert found["name"].startswith(f"dns {BILLING} ")
    assert f"tcp://localhost:{net.billing.port}" == found["address"]


def test_once_answers_what_waits_and_ends(net: Net) -> None:
    net.topology.start()
    net.give()
    net.send("one")
    net.asked(1)

    done = subprocess.run(
        [*net.handler.command(), "--once"], cwd=ROOT, capture_output=True, timeout=SECONDS, check=False
    )

    assert 0 == done.returncode, done.stderr
    assert {"one"} == net.received(1)
