"""`broker why` beside real daemons: each cause is named where it is, with what to do about it."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest

import broker
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.command import run
from tests.support.loopback import ORDERS, PATIENCE, file_of, route, send, service

DEAD = "tcp://127.0.0.1:1"
INSTANCE = str(uuid4())  # of billing


class Shop:
    """An initiator, two gateways and a target."""

    def __init__(self, net: Topology) -> None:
        self.orders = net.add("orders", databases=["orders"])
        self.gateway = net.add("gateway", forwarding=True)
        self.narrow = net.add("narrow", forwarding=True, settings={"endpoint": {"max_hops": 1}})
        self.billing = net.add("billing", databases=["billing"], broker_instances={"billing": INSTANCE})
        gateway, billing = self.gateway.address, self.billing.address
        out = dict.fromkeys(("//Read", "//Shut", "//refused", "//lost", "//far"), gateway)
        out |= {"//dead": DEAD, "//closed": billing}
        through = {"//Read": billing, "//Shut": billing, ORDERS: self.orders.address, "//refused": DEAD}
        through["//far"] = self.narrow.address
        drop = "DROP ROUTE AutoCreatedLocal;\n"
        absent = route("absent", "//absent", billing, f", BROKER_INSTANCE = '{INSTANCE}'")
        here = [service(f"//{name}", queue=name) for name in ("Read", "Shut", "far")]
        net.script("orders", "orders", service(ORDERS) + drop + self._routes(out) + absent)
        net.script("billing", "billing", "".join(here) + route("back", ORDERS, gateway))
        net.script("billing", "msdb", route("on", "//closed", DEAD))
        net.script("gateway", "msdb", drop + self._routes(through))
        net.script("narrow", "msdb", route("far", "//far", billing))

    def _routes(self, ways: dict[str, str]) -> str:
        return "".join(route(to, to, address) for to, address in ways.items())

    def until(self, guid: object, cause: str, first: Daemon | None = None, *, why: str = "") -> dict[str, Any]:
        """What is told as soon as it is this cause, and says this of it: now and then a next hop is just dialled."""
        daemons = (self.orders, self.gateway, self.narrow, self.billing)
        admin = [word for one in daemons for word in ("--admin", f"{one.address}={one.directory / 'admin.sock'}")]
        words = ["why", guid, "--socket", (first or self.orders).directory / "admin.sock", *admin, "-o", "json"]
        told: dict[str, Any] = {}

        def is_told() -> bool:
            nonlocal told
            told = json.loads(run(*words).stdout)
            return bool(told["cause"] == cause and why in told["why"])

        try:
            wait_for(is_told, seconds=PATIENCE, what=cause)
        except broker.BrokerError:
            pytest.fail(f"not {cause!r} but {told['cause']!r} at {told['where']}: {told['why']}\n{told['findings']}")
        return told

    def arrived(self, dialog: broker.Dialog) -> Any:
        """Wait until the target has a message of the dialog, and the sender knows: the row of the target's side."""

        def row(daemon: Daemon, table: str) -> Any:
            with closing(sqlite3.connect(daemon.directory / f"{daemon.name}.db")) as db:
                query = (
                    f"SELECT c.endpoint_id, c.conversation_handle FROM broker_conversation c JOIN {table} USING"
                    " (endpoint_id) WHERE c.conversation_id = ?"
                )
                return db.execute(query, (dialog.conversation_id.bytes,)).fetchone()

        found = wait_for(lambda: row(self.billing, "broker_message"), seconds=PATIENCE, what="arrival")
        wait_for(lambda: not row(self.orders, "broker_transmission"), seconds=PATIENCE, what="acknowledgement")
        return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Topology(tmp_path_factory.mktemp("why")) as net:
        shop = Shop(net)
        net.start()
        yield shop


HERE = "orders, database orders"
CAUSES = [
    ("//nowhere", "no route", "no route", HERE, "USE [orders]; CREATE ROUTE [//nowhere] WITH SERVICE_NAME = "),
    ("//dead", "next hop not reached", "Connection refused", HERE, f"start the instance at {DEAD}"),
    (
        "//lost",
        "no route",
        "",
        "gateway",
        "and in its script if it has one: USE [msdb]; CREATE ROUTE [//lost]",
    ),
    ("//refused", "held", "Connection refused", "gateway", f"start the instance at {DEAD}"),
    ("//closed", "forwarding disabled", "", "billing", "set endpoint.message_forwarding = true at billing"),
    ("//far", "hops exhausted", "a copy was dropped here", "narrow", "raise endpoint.max_hops of narrow"),
    ("//absent", "error -8490", "", HERE, "and in its script if it has one: USE [billing]; CREATE"),
]


@pytest.mark.parametrize("case", CAUSES, ids=[case[0] for case in CAUSES])
def test_each_cause_is_told_with_its_place_and_what_to_do(shop: Shop, case: tuple[str, str, str, str, str]) -> None:
    to, cause, why, where, remedy = case
    more = {"broker_instance": UUID(INSTANCE)} if to == "//absent" else {}
    told = shop.until(send(shop.orders, "x", to=to, **more).conversation_handle, cause, why=why)

    assert where == told["where"]
    assert remedy in told["remedy"]
    assert ("with broker sql" in told["remedy"]) == ("with broker sql --socket " in told["remedy"])
    waits = f"the dialog of {ORDERS} with //absent has failed" if more else f"1 message from {ORDERS} to {to} waits in"
    assert told["symptom"].startswith(waits)


@pytest.mark.promise("A message has not arrived")
def test_nobody_receives_then_everything_is_acknowledged_then_the_far_side_has_ended(shop: Shop) -> None:
    dialog = send(shop.orders, "x", to="//Read")

    handle = shop.arrived(dialog)[1]
    unread = shop.until(dialog.conversation_handle, "waiting for RECEIVE")
    with closing(shop.billing.connect("billing")) as db, db:
        [message] = broker.receive(db, queue="Read", conversation=UUID(bytes=handle))
    read = shop.until(dialog.conversation_handle, "acknowledged")
    from_target = shop.until(UUID(bytes=handle), "acknowledged", shop.billing)
    with closing(shop.billing.connect("billing")) as db, db:
        broker.get_dialog(db, message.dialog.conversation_handle).end()
    shop.until(dialog.conversation_handle, "waiting for RECEIVE")
    with closing(shop.orders.connect("orders")) as db, db:
        broker.receive(db, queue="Inbox", top=100)
    ended = shop.until(dialog.conversation_handle, "far side ended")

    assert "1 message for //Read waits in the queue Read of billing" in unread["symptom"]
    assert "no reader runs on this queue" in unread["why"]
    assert "start the application that receives from Read" in unread["remedy"]
    assert "everything that //shop/Orders sent is acknowledged: 1 message" == read["symptom"]
    assert {"orders", "gateway", "billing"} == {one["instance"] for one in read["answers"]}
    assert {"orders", "billing"} <= {one["instance"] for one in from_target["answers"]}
    assert "//Read has ended the dialog, //shop/Orders has not" == ended["symptom"]
    assert "END CONVERSATION is left to do: by the application of //shop/Orders, or at orders" in ended["remedy"]


@pytest.mark.promise("A message has not arrived", "views 6")
def test_the_queue_and_the_dialog_give_one_reason_why_a_message_waits(shop: Shop) -> None:
    for to in ("//nowhere", "//dead"):
        send(shop.orders, "x", to=to)
    why = (
        "SELECT conversation_handle, transmission_status FROM sys.transmission_queue"
        " WHERE to_service_name IN ('//nowhere', '//dead') AND transmission_status <> '' AND body_bytes = 1"
    )

    def both() -> list[tuple[str, str]]:
        """The statuses of view and dialog."""
        rows = {row["conversation_handle"]: row["transmission_status"] for row in shop.orders.query(why)}
        with closing(sqlite3.connect(file_of(shop.orders))) as db:
            return [(said, broker.get_dialog(db, handle).transmission_status) for handle, said in rows.items()]

    pairs = wait_for(lambda: len(both()) >= 2 and both(), seconds=PATIENCE, what="the reasons")

    assert [] == [pair for pair in pairs if pair[0] != pair[1]]
