"""Real daemons as processes on loopback: what an operator and an application see of a whole instance."""

import sqlite3
from contextlib import closing
from functools import partial

import pytest

import broker
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import (
    BILLING,
    ORDERS,
    PATIENCE,
    file_of,
    get,
    receive,
    receive_bytes,
    route,
    send,
    service,
    shop,
    wait_status,
)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.promise("routes 1", "routes 6", "forwarding 1", "forwarding 2")
def test_a_request_and_its_answer_cross_a_gateway(net: Topology, loop: str) -> None:
    """The third message is one of many fragments; health and metrics are served meanwhile."""
    gateway, orders, billing = shop(net)
    for daemon in net.daemons.values():
        daemon.environ["BROKER_LOOP"] = loop
    net.start()
    large = bytes(range(256)) * 20_000

    send(orders, "0", "1", large)

    assert [b"0", b"1", large] == receive_bytes(billing, 3, answer="thanks")
    assert ["thanks"] == receive(orders, 1)
    assert {loop} == {daemon.status()["loop"] for daemon in net.daemons.values()}
    assert ("ok\n", "ok\n") == (get(gateway, "/livez"), get(gateway, "/readyz"))
    assert 'broker_ledger_unaccounted_messages{database=""} 0.0' in get(gateway, "/metrics")


def is_closed(daemon: Daemon) -> bool:
    return ["CD"] == [row["state"] for row in daemon.query("SELECT state FROM sys.conversation_endpoints")]


@pytest.mark.promise("R5.1", "multiple 4")
def test_the_target_is_fixed_by_its_first_answer(net: Topology) -> None:
    """And when both sides have ended the dialog, it is closed at both."""
    _, orders, billing = shop(net)
    net.start()
    far_instance = "SELECT far_broker_instance AS far FROM sys.conversation_endpoints WHERE far_broker_instance <> ''"

    send(orders, "0")
    rows = wait_for(lambda: orders.query(far_instance), seconds=PATIENCE, what="far_broker_instance")
    for daemon in (billing, orders):
        with closing(sqlite3.connect(file_of(daemon), timeout=PATIENCE)) as db, db:
            for message in broker.receive(db, queue="Inbox", wait=PATIENCE):
                message.dialog.end()

    assert [{"far": billing.status()["databases"]["billing"]["broker_instance"]}] == rows
    for daemon in (orders, billing):
        wait_for(partial(is_closed, daemon), seconds=PATIENCE, what=f"the dialog closed at {daemon.name}")
        assert [] == daemon.query("SELECT * FROM sys.transmission_queue")


@pytest.mark.promise("A daemon of a database dies")
def test_messages_wait_while_the_target_is_down_and_the_queue_says_why(net: Topology) -> None:
    """Over a restart of the initiator as well."""
    gateway, orders, billing = shop(net)
    gateway.start()
    orders.start()

    send(orders, *map(str, range(5)))
    why = "SELECT DISTINCT to_service_name FROM sys.transmission_queue WHERE transmission_status <> ''"
    rows = wait_for(lambda: orders.query(why), seconds=PATIENCE, what="rows of the transmission queue")
    assert [{"to_service_name": BILLING}] == rows
    assert 0 == orders.stop()
    orders.start()

    billing.start()
    assert [str(number) for number in range(5)] == receive(billing, 5)


@pytest.mark.promise("Routes or settings are changed in operation", "R1.6")
def test_a_missing_route_delays_and_a_new_one_frees_at_once(net: Topology) -> None:
    gateway, orders, billing = shop(net)
    net.script("orders", "orders", service(ORDERS) + "DROP ROUTE AutoCreatedLocal;\n")
    net.start()
    send(orders, "0", "1")
    wait_status(orders, "route")

    orders.admin.sql(route("late", BILLING, gateway.address), "orders")

    assert ["0", "1"] == receive(billing, 2)


@pytest.mark.promise("statements 5")
def test_a_queue_that_is_off_takes_nothing_until_it_is_on(net: Topology) -> None:
    """Across a gateway: the sender keeps the messages and says why, and they arrive in order as soon as it is on."""
    _, orders, billing = shop(net)
    net.start()
    send(orders, "0")
    assert ["0"] == receive(billing, 1)
    billing.admin.sql("ALTER QUEUE Inbox WITH STATUS = OFF", "billing")
    send(orders, "1", "2")
    wait_status(orders, "not stored by the far side: the queue of the far service is off (11219)")
    assert 1 == len(billing.query("SELECT conversation_id FROM sys.conversation_endpoints"))

    billing.admin.sql("ALTER QUEUE Inbox WITH STATUS = ON", "billing")

    assert ["1", "2"] == receive(billing, 2)


def test_answers_come_back_over_the_connection_that_the_initiator_opened(net: Topology) -> None:
    """The gateway could never reach the initiator: its address resolves to nothing."""
    unreachable = "tcp://initiator.invalid:4022"
    gateway = net.add("gateway", forwarding=True)
    orders = net.add("orders", databases=["orders"], settings={"endpoint": {"listen": [], "advertise": [unreachable]}})
    billing = net.add("billing", databases=["billing"])
    net.script("gateway", "msdb", route("to", BILLING, billing.address) + route("back", ORDERS, unreachable))
    net.script("orders", "orders", service(ORDERS) + route("to", BILLING, gateway.address))
    net.script("billing", "billing", service(BILLING) + route("back", ORDERS, gateway.address))
    net.start()

    send(orders, "question")
    receive(billing, 1, answer="answer")

    assert ["answer"] == receive(orders, 1)
