"""Real daemons as processes on loopback: what an operator and an application see of a whole instance."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from functools import partial

import pytest

import broker
from examples.demo.topology import Daemon, Topology, free_port, wait_for
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
    wait_acknowledged,
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
    _, orders, billing = shop(net, {"orders": {"endpoint": {"listen": [], "advertise": [unreachable]}}})
    net.script("gateway", "msdb", route("to", BILLING, billing.address) + route("back", ORDERS, unreachable))
    net.start()

    send(orders, "question")
    receive(billing, 1, answer="answer")

    assert ["answer"] == receive(orders, 1)


def is_over(daemon: Daemon) -> bool:
    [row] = daemon.query("SELECT lifetime FROM sys.routes WHERE name = 'to'")
    return datetime.fromisoformat(row["lifetime"]).replace(tzinfo=UTC) <= datetime.now(UTC)


@pytest.mark.promise("R1.4", "case R10")
def test_a_route_that_expires_is_ignored_stays_listed_and_comes_back_by_alter_route(net: Topology) -> None:
    """The dialog was begun and its target fixed while the route was live."""
    billing, orders = net.add("billing", databases=["billing"]), net.add("orders", databases=["orders"])
    net.script("billing", "billing", service(BILLING) + route("back", ORDERS, orders.address))
    net.script("orders", "orders", service(ORDERS))
    net.start()
    way = route("to", BILLING, billing.address, ", LIFETIME = 3600")
    orders.admin.sql(f"DROP ROUTE AutoCreatedLocal; {way}", "orders")

    with closing(orders.connect("orders")) as db:
        with db:
            dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
            dialog.send("in time")
        wait_acknowledged(orders)
        orders.admin.sql("ALTER ROUTE [to] WITH LIFETIME = 1;", "orders")
        wait_for(lambda: is_over(orders), seconds=PATIENCE, what="the route expired")
        with db:
            dialog.send("too late")
    wait_status(orders, "no route")
    orders.admin.sql("ALTER ROUTE [to] WITH LIFETIME = 3600;", "orders")

    assert ["in time", "too late"] == receive(billing, 2)


def both_services(net: Topology, port: int, way: str) -> Daemon:
    """One instance with two databases, each with a service, and routes of the database that sends."""
    endpoint = {"listen": [f"0.0.0.0:{port}"], "encryption": "disabled"}
    one = net.add("orders", databases=["orders", "billing"], settings={"endpoint": endpoint})
    net.script("orders", "orders", service(ORDERS) + way)
    net.script("orders", "billing", service(BILLING))
    return one


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.7"], ids=["known beforehand", "found by dialling"])
@pytest.mark.promise("R3.9")
def test_own_address_is_routed_by_msdb(net: Topology, host: str) -> None:
    port = free_port()
    one = both_services(net, port, route("ToBilling", BILLING, f"tcp://{host}:{port}"))
    net.start()

    send(one, "hello")

    assert ["hello"] == receive(one.directory / "billing.db", 1)
    assert one.status()["forwarding"]["held"] == 0


@pytest.mark.promise("R3.9")
def test_own_address_in_msdb_too_ends_with_a_reason(net: Topology) -> None:
    port = free_port()
    way = route("ToBilling", BILLING, f"tcp://127.0.0.1:{port}")
    one = both_services(net, port, way)
    net.script("orders", "msdb", way)
    net.start()

    send(one, "hello")

    wait_status(one, "route invalid (11294)")
    one.admin.sql("ALTER ROUTE ToBilling WITH ADDRESS = 'LOCAL'", "msdb")
    assert ["hello"] == receive(one.directory / "billing.db", 1)
