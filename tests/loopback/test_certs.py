"""Certificates of `broker certs` in use: two daemons talk, and go on while authority and certificate are renewed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.security.certificate_files import read_certificates
from broker.security.identity import describe
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.command import run
from tests.support.loopback import BILLING, ORDERS, PATIENCE, receive, route, send, service


def certs(*arguments: object) -> None:
    result = run("certs", *arguments)
    assert 0 == result.exit_code, result.output


def add(net: Topology, name: str, ca: Path) -> Daemon:
    """An instance with a certificate of the authority, which trusts a copy of what that has now."""
    directory = net.directory / name
    certs("issue", name, "--host", "127.0.0.1", "--ca", ca, "--out", directory / "tls")
    shutil.copy(ca / "ca.pem", directory / "tls" / "trust.pem")
    endpoint = {
        "encryption": "required",
        "authentication": "certificate",
        "certificate": f"tls/{name}.pem",
        "private_key": f"tls/{name}.key",
        "trust": ["tls/trust.pem"],
    }
    return net.add(name, databases=[name], settings={"endpoint": endpoint})


def meet(net: Topology, one: Daemon, other: Daemon, own: str, far: str) -> None:
    """Scripts of one side."""
    principal = f"CN={other.name}"
    grants = f"GRANT CONNECT ON ENDPOINT::[*] TO [{principal}]; GRANT SEND ON SERVICE::[{own}] TO [{principal}];"
    net.script(one.name, "msdb", grants)
    net.script(one.name, one.name, service(own) + route("Far", far, other.address))


def shown(daemon: Daemon) -> str:
    """SHA-256 of what a daemon shows now."""
    [row] = daemon.query("SELECT certificate_id FROM sys.service_broker_endpoints")
    return f"sha256:{row['certificate_id']}"


@pytest.mark.timeout(300)
def test_daemons_go_on_while_authority_and_certificate_are_renewed(net: Topology, tmp_path: Path) -> None:
    ca = tmp_path / "ca"
    certs("init", ca)
    orders, billing = add(net, "orders", ca), add(net, "billing", ca)
    meet(net, orders, billing, ORDERS, BILLING)
    meet(net, billing, orders, BILLING, ORDERS)
    net.start()
    send(orders, "by the first certificate", encryption=False)
    assert ["by the first certificate"] == receive(billing, 1)
    old = shown(orders)

    certs("renew", ca / "ca.pem")  # of which billing hears nothing
    certs("renew", orders.directory / "tls" / "orders.pem", "--ca", ca)

    new = describe(read_certificates(orders.directory / "tls" / "orders.pem")[0]).fingerprint
    wait_for(lambda: new == shown(orders), seconds=PATIENCE, what="the new certificate")
    assert old != new
    billing.stop()
    billing.start()  # so that there is a new connection
    send(orders, "by the second certificate", encryption=False)
    assert ["by the second certificate"] == receive(billing, 1)
    rows = billing.query("SELECT principal_name, peer_certificate_id FROM sys.dm_broker_connections")
    assert {("CN=orders", new.removeprefix("sha256:"))} == {tuple(row.values()) for row in rows}
