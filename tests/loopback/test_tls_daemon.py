"""Daemons with certificates, as processes: what crosses them, what the views show, and what keeps one from starting."""

from pathlib import Path
from typing import Any

import pytest

from examples.demo.topology import Topology
from tests.support.certificates import Pair, authority, endpoint_settings, make
from tests.support.loopback import BILLING, ORDERS, receive_bytes, route, send, service


def tls(directory: Path, name: str, pair: Pair, ca: Pair) -> dict[str, dict[str, Any]]:
    return {"endpoint": endpoint_settings(directory, name, pair, ca)}


def grants(name: str, to: str) -> str:
    """What lets a neighbour connect, and send to one service."""
    return f"GRANT CONNECT ON ENDPOINT::[*] TO [CN={name}];\nGRANT SEND ON SERVICE::[{to}] TO [CN={name}];\n"


@pytest.mark.promise("forwarding 2", "forwarding 19")
def test_dialog_crosses_a_gateway_over_tls_and_the_views_show_it(net: Topology, tmp_path: Path) -> None:
    ca = authority()
    pairs = {name: make(name, "127.0.0.1", by=ca) for name in ("gateway", "orders", "billing")}
    settings = {name: tls(tmp_path, name, pair, ca) for name, pair in pairs.items()}
    gateway = net.add("gateway", forwarding=True, settings=settings["gateway"])
    orders = net.add("orders", databases=["orders"], settings=settings["orders"])
    billing = net.add("billing", databases=["billing"], settings=settings["billing"])
    permitted = grants("orders", BILLING) + grants("billing", ORDERS)
    net.script(
        "gateway",
        "msdb",
        route("rBILLING", BILLING, billing.address) + route("rORDERS", ORDERS, orders.address) + permitted,
    )
    net.script("orders", "orders", service(ORDERS) + route("rBILLING", BILLING, gateway.address))
    net.script("orders", "msdb", grants("gateway", ORDERS))
    net.script("billing", "billing", service(BILLING) + route("rORDERS", ORDERS, gateway.address))
    net.script("billing", "msdb", grants("gateway", BILLING))
    net.start()

    bodies = [b"x" * 3000 + str(number).encode() for number in range(50)]
    send(orders, *bodies)

    assert bodies == receive_bytes(billing, 50)
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
