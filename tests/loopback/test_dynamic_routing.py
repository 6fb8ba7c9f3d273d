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

import pytest

from broker.dialog.route_requests import CONTRACT, MISSING_ROUTE, parse_inquiry
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import BILLING, ORDERS, PATIENCE, receive, route, send, service, statuses, wait_status

ROOT = Path(__file__).parents[2]
INSTANCE = uuid.UUID("11111111-2222-4333-8444-555555555555")  # of the database that asks


class Handler:
    """`examples/routing_service`, for the requests that reach `directory`."""

    def __init__(self, directory: Daemon, requester: Daemon) -> None:
        self.file = directory.directory / "give.out"
        self.file.write_text("")
        path, socket = directory.directory / "directory.db", requester.directory / "admin.sock"
        command = [sys.executable, "-m", "examples.routing_service", "-d", str(path), "--queue", "Inbox"]
        self._command = [*command, "--from", str(self.file), "--requester", str(socket)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code, 0 when it was not started."""
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(PATIENCE)
        self._process = None
        return code


class Asking:
    """
    Orders asks the directory for the route to billing.

    Shape: `gateway` None when orders asks itself, else who asks for orders.
    """

    def __init__(self, net: Topology, *, by_gateway: bool = False) -> None:
        settings = {"dialog": {"resend_first": "500ms", "resend_cap": "1s"}}
        self.orders = net.add(
            "orders", databases=["orders"], broker_instances={"orders": str(INSTANCE)}, settings=settings
        )
        self.billing = net.add("billing", databases=["billing"])
        self.directory = net.add("directory", databases=["directory"])
        self.gateway = net.add("gateway", forwarding=True) if by_gateway else None
        ask = route("ask", BROKER_CONFIGURATION, self.directory.address)
        if self.gateway is None:
            net.script("orders", "orders", service(ORDERS) + ask)
            net.script("billing", "billing", service(BILLING) + route("back", ORDERS, self.orders.address))
            back = route("back", SERVICE_BROKER, self.orders.address, f", BROKER_INSTANCE = '{INSTANCE}'")
        else:
            net.script("orders", "orders", service(ORDERS) + route("to", BILLING, self.gateway.address))
            net.script("billing", "billing", service(BILLING) + route("back", ORDERS, self.gateway.address))
            net.script("gateway", "msdb", ask + route("back", ORDERS, self.orders.address))
            back = route("back", SERVICE_BROKER, self.gateway.address)
        back += route("applications", ORDERS, self.orders.address)
        net.script("directory", "directory", service(BROKER_CONFIGURATION, f" ([{CONTRACT}])") + back)
        self.handler = Handler(self.directory, self.gateway or self.orders)

    def give(self, lifetime: int = 3600) -> None:
        """The handler knows the route to billing from now on."""
        new = self.handler.file.with_suffix(".new")
        new.write_text(route("found", BILLING, self.billing.address, f", LIFETIME = {lifetime}"))
        new.replace(self.handler.file)

    def send(self, *bodies: str) -> None:
        """Each in a conversation of its own."""
        for body in bodies:
            send(self.orders, body)

    def requests(self) -> list[str]:
        """What the directory has been asked for and has not answered."""
        with closing(self.directory.connect("directory")) as db:
            query = "SELECT message_body FROM broker_message WHERE message_type_name = ? ORDER BY queuing_order"
            rows = db.execute(query, (MISSING_ROUTE,)).fetchall()
        return [parse_inquiry(body).service_name for (body,) in rows]

    def asked(self, count: int = 1) -> list[str]:
        return list(wait_for(lambda: (r := self.requests()) and len(r) >= count and r, seconds=PATIENCE, what="asked"))

    @property
    def asker(self) -> Daemon:
        return self.gateway or self.orders

    def request_states(self) -> list[str]:
        """Of all requests of who asks."""
        path = self.asker.directory / ("msdb.db" if self.gateway else "orders.db")
        with closing(sqlite3.connect(path)) as db:
            rows = db.execute(
                "SELECT state FROM broker_conversation WHERE far_service = ?"
                " UNION ALL SELECT 'CD' FROM broker_tombstone WHERE is_initiator",
                (BROKER_CONFIGURATION,),
            )
            return [state for (state,) in rows]

    def is_closed(self) -> None:
        """Wait until there was one request, and it is over."""
        wait_for(lambda: self.request_states() == ["CD"], seconds=PATIENCE, what="one request, closed")


@pytest.fixture
def asking(request: pytest.FixtureRequest, net: Topology) -> Iterator[Asking]:
    asking = Asking(net, by_gateway=getattr(request, "param", False))
    net.start()
    yield asking
    asking.handler.stop(signal.SIGKILL)


by_gateway = pytest.mark.parametrize("asking", [True], indirect=True, ids=["by gateway"])


def test_a_hundred_conversations_wait_for_one_request_and_go_on_when_it_is_answered(asking: Asking) -> None:
    numbers = [str(number) for number in range(100)]

    asking.send(*numbers)
    asked = asking.asked()
    wait_status(asking.orders, "asking for route (9770)")
    status = " ".join(statuses(asking.orders))
    seen = asking.orders.query(
        "SELECT state, is_initiator FROM sys.conversation_endpoints WHERE far_service = '" + BROKER_CONFIGURATION + "'"
    )
    asking.give()
    asking.handler.start()

    assert set(numbers) == set(receive(asking.billing, 100))
    assert [BILLING] == asked
    assert "not answered yet" in status
    assert asking.directory.address in status
    assert [{"state": "CO", "is_initiator": True}] == seen
    asking.is_closed()
    assert 0 == asking.handler.stop()


def test_a_refusal_is_told_with_its_reason_and_the_same_is_asked_again(asking: Asking) -> None:
    asking.handler.start()

    asking.send("one")
    wait_status(asking.orders, f"no route to '{BILLING}' is known here (9750)")
    log = asking.orders.log.read_text(encoding="utf-8")
    asking.give()

    assert "9761" in log
    assert ["one"] == receive(asking.billing, 1)
    assert len(asking.request_states()) >= 2


def test_an_expired_route_is_asked_for_again(asking: Asking) -> None:
    asking.give(lifetime=1)
    asking.handler.start()

    asking.send("one")
    assert ["one"] == receive(asking.billing, 1)
    expired = "SELECT is_expired FROM sys.routes WHERE name = 'found'"
    wait_for(lambda: asking.orders.query(expired, "orders")[0]["is_expired"], seconds=PATIENCE, what="expiry")
    asking.give()
    asking.send("two")

    assert ["two"] == receive(asking.billing, 1)
    assert 2 == len(asking.request_states())


def test_a_request_survives_a_restart_and_is_not_made_twice(asking: Asking) -> None:
    asking.send("one")
    asking.asked()

    asking.orders.kill()
    asking.orders.start()
    asking.send("two")
    wait_status(asking.orders, "not answered yet")
    asking.give()
    asking.handler.start()

    assert {"one", "two"} == set(receive(asking.billing, 2))
    asking.is_closed()


@by_gateway
def test_frames_that_a_gateway_drops_while_it_asks_are_sent_again_when_it_knows(asking: Asking) -> None:
    asking.send("one", "two", "three")
    asked = asking.asked()
    before = asking.asker.status()
    asking.give()
    asking.handler.start()

    assert {"one", "two", "three"} == set(receive(asking.billing, 3))
    assert [BILLING] == asked
    assert before["forwarding"]["dropped"].get("asking for route", 0) > 0
    assert 0 == asking.asker.status()["forwarding"]["unaccounted"]
    asking.is_closed()
    found = asking.asker.query("SELECT remote_service_name FROM msdb.sys.routes WHERE name = 'found'")
    assert [{"remote_service_name": BILLING}] == found


@by_gateway
def test_a_request_that_an_administrator_ends_is_made_anew(asking: Asking) -> None:
    asking.send("one")
    asking.asked()
    (request,) = asking.asker.query("SELECT conversation_handle FROM msdb.sys.conversation_endpoints")

    asking.asker.admin.sql(f"END CONVERSATION '{request['conversation_handle']}' WITH CLEANUP", "msdb")

    assert [BILLING, BILLING] == asking.asked(2)
