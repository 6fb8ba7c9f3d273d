"""Certificates of `broker certs` in use: two daemons talk, and go on while authority and certificate are renewed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import broker
from broker.security.certificate_files import read_certificates
from broker.security.identity import describe
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.command import run

SECONDS = 60.0
ORDERS, BILLING = "//shop/Orders", "//shop/Billing"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path / "net") as topology:
        yield topology


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


def meet(net: Topology, one: Daemon, other: Daemon, service: str, far: str) -> None:
    """Scripts of one side."""
    principal = f"CN={other.name}"
    grants = f"GRANT CONNECT ON ENDPOINT::[*] TO [{principal}]; GRANT SEND ON SERVICE::[{service}] TO [{principal}];"
    route = f"CREATE ROUTE Far WITH SERVICE_NAME = '{far}', ADDRESS = '{other.address}';"
    net.script(one.name, "msdb", grants)
    net.script(one.name, one.name, f"CREATE QUEUE Inbox; CREATE SERVICE [{service}] ON QUEUE Inbox; {route}")


def send(orders: Daemon, body: bytes) -> None:
    with closing(orders.connect("orders")) as db, db:
        broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING, encryption=False).send(body)


def receive(billing: Daemon) -> list[bytes]:
    with closing(billing.connect("billing")) as db, db:
        return [message.body for message in broker.receive(db, queue="Inbox", wait=1)]


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
    send(orders, b"by the first certificate")
    assert [b"by the first certificate"] == wait_for(lambda: receive(billing), seconds=SECONDS, what="a message")
    old = shown(orders)

    certs("renew", ca / "ca.pem")  # of which billing hears nothing
    certs("renew", orders.directory / "tls" / "orders.pem", "--ca", ca)

    new = describe(read_certificates(orders.directory / "tls" / "orders.pem")[0]).fingerprint
    wait_for(lambda: new == shown(orders), seconds=SECONDS, what="the new certificate")
    assert old != new
    billing.stop()
    billing.start()  # so that there is a new connection
    send(orders, b"by the second certificate")
    assert [b"by the second certificate"] == wait_for(lambda: receive(billing), seconds=SECONDS, what="a message")
    rows = billing.query("SELECT principal_name, peer_certificate_id FROM sys.dm_broker_connections")
    assert {("CN=orders", new.removeprefix("sha256:"))} == {tuple(row.values()) for row in rows}


@pytest.mark.timeout(300)
def test_self_signed_one_is_renewed_while_the_link_stays_possible(net: Topology) -> None:
    daemons = {}
    for name in ("orders", "billing"):
        directory = net.directory / name / "tls"
        certs("init", "--self-signed", directory, "--name", name, "--host", "127.0.0.1")
        endpoint = {
            "encryption": "required",
            "authentication": "certificate",
            "certificate": f"tls/{name}.pem",
            "private_key": f"tls/{name}.key",
            "trust": ["tls/peers/*.pem"],
        }
        daemons[name] = net.add(name, databases=[name], settings={"endpoint": endpoint})
    orders, billing = daemons["orders"], daemons["billing"]
    hand_over(orders, billing, "orders.pem")
    hand_over(billing, orders, "billing.pem")
    meet(net, orders, billing, ORDERS, BILLING)
    meet(net, billing, orders, BILLING, ORDERS)
    net.start()
    old = shown(orders)

    certs("renew", orders.directory / "tls" / "orders.pem", "--prepare")
    hand_over(orders, billing, "orders.trust.pem")
    billing.stop()
    billing.start()  # knows both
    send(orders, b"by the first certificate")
    assert [b"by the first certificate"] == wait_for(lambda: receive(billing), seconds=SECONDS, what="a message")
    certs("renew", orders.directory / "tls" / "orders.pem")
    wait_for(lambda: old != shown(orders), seconds=SECONDS, what="the new certificate")
    billing.stop()
    billing.start()  # so that there is a new connection
    send(orders, b"by the second certificate")

    assert [b"by the second certificate"] == wait_for(lambda: receive(billing), seconds=SECONDS, what="a message")
    rows = billing.query("SELECT peer_certificate_id FROM sys.dm_broker_connections")
    assert {shown(orders)} == {f"sha256:{row['peer_certificate_id']}" for row in rows}


def hand_over(giver: Daemon, taker: Daemon, file: str) -> None:
    """A file of certificates, in place of the one before."""
    peers = taker.directory / "tls" / "peers"
    peers.mkdir(exist_ok=True)
    shutil.copy(giver.directory / "tls" / file, peers / f"{giver.name}.pem")
