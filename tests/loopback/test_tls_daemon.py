"""Daemons with certificates, as processes: what crosses them, what the views show, and what keeps one from starting."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import broker
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.certificates import Pair, authority, make

SECONDS = 30.0
ORDERS, BILLING = "//shop/Orders", "//shop/Billing"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path / "net") as topology:
        yield topology


def tls(directory: Path, name: str, pair: Pair, ca: Pair) -> dict[str, dict[str, Any]]:
    """Settings of an endpoint that asks everybody for a certificate."""
    certificate, key = pair.store(directory, name)
    (directory / "ca.pem").write_bytes(ca.pem)
    return {
        "endpoint": {
            "encryption": "required",
            "authentication": "certificate",
            "certificate": str(certificate),
            "private_key": str(key),
            "trust": [str(directory / "ca.pem")],
        }
    }


def service(name: str) -> str:
    return f"CREATE QUEUE Inbox; CREATE SERVICE [{name}] ON QUEUE Inbox;\n"


def grants(name: str, to: str) -> str:
    """What lets a neighbour connect, and send to one service."""
    return f"GRANT CONNECT ON ENDPOINT::[*] TO [CN={name}];\nGRANT SEND ON SERVICE::[{to}] TO [CN={name}];\n"


def route(to: str, daemon: Daemon) -> str:
    return f"CREATE ROUTE [r{to}] WITH SERVICE_NAME = '{to}', ADDRESS = '{daemon.address}';\n"


def test_dialog_crosses_a_gateway_over_tls_and_the_views_show_it(net: Topology, tmp_path: Path) -> None:
    ca = authority()
    pairs = {name: make(name, "127.0.0.1", by=ca) for name in ("gateway", "orders", "billing")}
    settings = {name: tls(tmp_path, name, pair, ca) for name, pair in pairs.items()}
    gateway = net.add("gateway", forwarding=True, settings=settings["gateway"])
    orders = net.add("orders", databases=["orders"], settings=settings["orders"])
    billing = net.add("billing", databases=["billing"], settings=settings["billing"])
    permitted = grants("orders", BILLING) + grants("billing", ORDERS)
    net.script("gateway", "msdb", route(BILLING, billing) + route(ORDERS, orders) + permitted)
    net.script("orders", "orders", service(ORDERS) + route(BILLING, gateway))
    net.script("orders", "msdb", grants("gateway", ORDERS))
    net.script("billing", "billing", service(BILLING) + route(ORDERS, gateway))
    net.script("billing", "msdb", grants("gateway", BILLING))
    net.start()

    with orders.connect("orders") as db:
        dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
        for number in range(50):
            dialog.send(b"x" * 3000 + str(number).encode())
    bodies: list[bytes] = []
    with closing(billing.connect("billing")) as db:

        def is_all_there() -> bool:
            with db:  # committed each time: whoever keeps the file locked keeps the rest from being stored
                bodies.extend(message.body for message in broker.receive(db, queue="Inbox", top=100, wait=1))
            return len(bodies) >= 50

        wait_for(is_all_there, seconds=SECONDS, what="fifty messages")

    assert [b"x" * 3000 + str(number).encode() for number in range(50)] == bodies
    rows = gateway.query("SELECT * FROM sys.dm_broker_connections")
    assert {"CN=orders", "CN=billing"} == {row["principal_name"] for row in rows}
    assert {("CERTIFICATE", 2, "AES")} == {
        (row["authentication_method"], row["encryption_algorithm"], row["encryption_algorithm_desc"]) for row in rows
    }
    assert {pairs["orders"].fingerprint, pairs["billing"].fingerprint} == {row["peer_certificate_id"] for row in rows}
    [endpoint] = gateway.query("SELECT * FROM sys.service_broker_endpoints")
    assert (4, "CERTIFICATE", pairs["gateway"].fingerprint, 2, "AES") == tuple(
        endpoint[name]
        for name in (
            "connection_auth",
            "connection_auth_desc",
            "certificate_id",
            "encryption_algorithm",
            "encryption_algorithm_desc",
        )
    )
    assert {"TLS"} == {connection["encryption"] for connection in gateway.status()["connections"]}


def test_instance_whose_key_is_another_ones_does_not_start(net: Topology, tmp_path: Path) -> None:
    ca = authority()
    settings = tls(tmp_path, "a", make("a", "127.0.0.1", by=ca), ca)
    settings["endpoint"]["private_key"] = str(make("b").store(tmp_path, "b")[1])
    daemon = net.add("a", forwarding=True, settings=settings)
    command = [sys.executable, "-m", "broker", "serve", "-c", str(daemon.directory / "broker.toml")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)

    assert 78 == done.returncode
    assert "endpoint.private_key" in done.stderr
    assert "is not the key of" in done.stderr


def test_peer_of_another_ca_is_refused_and_the_queue_says_why(net: Topology, tmp_path: Path) -> None:
    ca, other = authority(), authority("other CA")
    (tmp_path / "far").mkdir()
    billing = net.add(
        "billing", databases=["billing"], settings=tls(tmp_path / "far", "b", make("b", "127.0.0.1", by=other), other)
    )
    orders = net.add("orders", databases=["orders"], settings=tls(tmp_path, "a", make("a", "127.0.0.1", by=ca), ca))
    net.script("orders", "orders", service(ORDERS) + route(BILLING, billing))
    net.script("billing", "billing", service(BILLING))
    net.script("billing", "msdb", grants("a", BILLING))
    net.script("orders", "msdb", grants("b", ORDERS))
    net.start()

    with orders.connect("orders") as db:
        broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING).send(b"x")

    def status() -> str:
        rows = orders.query("SELECT transmission_status FROM sys.transmission_queue", "orders")
        return " ".join(str(row["transmission_status"]) for row in rows)

    wait_for(lambda: "is not trusted" in status(), seconds=SECONDS, what="the reason in the queue")


def test_neighbour_needs_a_grant_to_connect_and_another_to_send_and_is_told_which(
    net: Topology, tmp_path: Path
) -> None:
    ca = authority()
    settings = {name: tls(tmp_path, name, make(name, "127.0.0.1", by=ca), ca) for name in ("gateway", "orders")}
    gateway = net.add("gateway", forwarding=True, settings=settings["gateway"])
    orders = net.add("orders", databases=["orders"], settings=settings["orders"])
    net.script("orders", "orders", service(ORDERS) + route(BILLING, gateway))
    net.script("orders", "msdb", grants("gateway", ORDERS))
    net.start()
    with orders.connect("orders") as db:
        broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING).send(b"x")

    def status_has(text: str) -> None:
        def has() -> bool:
            rows = orders.query("SELECT transmission_status FROM sys.transmission_queue", "orders")
            return any(text in str(row["transmission_status"]) for row in rows)

        wait_for(has, seconds=SECONDS, what=text)

    status_has("CN=orders may not connect: no GRANT CONNECT ON ENDPOINT::[gateway] TO [CN=orders] or public")
    assert any("nobody may connect" in warning for warning in gateway.status()["transport"]["warnings"])
    gateway.query("GRANT CONNECT ON ENDPOINT::gateway TO orders", "msdb")
    status_has("not permitted: no GRANT SEND ON SERVICE::[//shop/Billing] TO [CN=orders] or public (11215)")
    [row] = gateway.query("SELECT * FROM sys.dm_broker_dispositions WHERE disposition = 'not permitted'")
    missing = "no GRANT SEND ON SERVICE::[//shop/Billing] TO [CN=orders] or public"
    assert f"CN=orders may not send: {missing}" == row["reason"]
    gateway.query("GRANT SEND ON SERVICE::[//shop/B*] TO [CN=*]", "msdb")
    status_has("service not here (9796)")
    gateway.query("DENY CONNECT ON ENDPOINT::gateway TO public", "msdb")
    status_has("may not connect: DENY CONNECT ON ENDPOINT::[gateway] TO [public]")

    assert [("GRANT", "orders"), ("DENY", "public")] == [
        (row["state_desc"], row["grantee_name"])
        for row in gateway.query("SELECT * FROM sys.server_permissions ORDER BY grantee_name")
    ]
