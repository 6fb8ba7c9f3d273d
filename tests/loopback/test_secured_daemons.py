"""Daemons with certificates, as processes: what crosses a gateway, what it cannot read, and what the views say."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import broker
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.cable import Cable
from tests.support.certificates import authority, endpoint_settings, make
from tests.support.identities import identity_files
from tests.support.loopback import BILLING, ORDERS, PATIENCE, file_of, receive_bytes, send, shop

# --- links over TLS ---


def grants(name: str, to: str) -> str:
    """What lets a neighbour connect, and send to one service."""
    return f"GRANT CONNECT ON ENDPOINT::[*] TO [CN={name}];\nGRANT SEND ON SERVICE::[{to}] TO [CN={name}];\n"


@pytest.mark.promise("forwarding 2", "forwarding 19")
def test_dialog_crosses_a_gateway_over_tls_and_the_views_show_it(net: Topology, tmp_path: Path) -> None:
    ca = authority()
    pairs = {name: make(name, "127.0.0.1", by=ca) for name in ("gateway", "orders", "billing")}
    settings = {name: {"endpoint": endpoint_settings(tmp_path, name, pair, ca)} for name, pair in pairs.items()}
    gateway, orders, billing = shop(net, settings, gateway=grants("orders", BILLING) + grants("billing", ORDERS))
    net.script("orders", "msdb", grants("gateway", ORDERS))
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
    names = "connection_auth, connection_auth_desc, certificate_id, encryption_algorithm, encryption_algorithm_desc"
    [endpoint] = gateway.query(f"SELECT {names} FROM sys.service_broker_endpoints")
    assert (4, "CERTIFICATE", pairs["gateway"].fingerprint, 2, "AES") == tuple(endpoint.values())
    assert {"TLS"} == {connection["encryption"] for connection in gateway.status()["connections"]}


# --- sealed dialogs ---

SECRET = b"plain text that nobody on the way may read"


class Tap(Cable):
    """A cable that keeps a copy of every frame, as a network or a gateway could."""

    def __init__(self) -> None:
        self.seen = bytearray()
        super().__init__()

    def _note(self, frames: list[bytes], link: int, *, is_onward: bool) -> None:
        self.seen += b"".join(frames)


@pytest.fixture
def tap() -> Iterator[Tap]:
    with Tap() as tap:
        yield tap


def received(daemon: Daemon, count: int) -> list[bytes]:
    """So many messages, each answered at Billing."""
    bodies: list[bytes] = []
    with closing(sqlite3.connect(file_of(daemon), timeout=PATIENCE)) as db:

        def is_all_there() -> bool:
            with db:
                for message in broker.receive(db, queue="Inbox", top=100, wait=1):
                    bodies.append(bytes(message.body))
                    if daemon.name == "billing":
                        message.dialog.send(b"answer to " + bytes(message.body))
            return len(bodies) >= count

        wait_for(is_all_there, seconds=PATIENCE, what=f"{count} messages")
    return bodies


def bodies(first: int, last: int) -> list[bytes]:
    return [SECRET + b" %d " % number + b"x" * 70_000 * (number % 5 == 4) for number in range(first, last)]


@pytest.mark.parametrize("anonymous", [False, True], ids=["full", "anonymous"])
@pytest.mark.promise("forwarding 18")
def test_sealed_dialog_crosses_a_gateway_that_reads_nothing_and_outlives_every_restart(
    net: Topology, tap: Tap, tmp_path: Path, *, anonymous: bool
) -> None:
    """The ends reach the gateway by the tap."""
    own = identity_files(tmp_path / "keys", "orders", "billing")
    known = identity_files(tmp_path / "keys", "billing", *([] if anonymous else ["orders"]))
    binding = f"CREATE REMOTE SERVICE BINDING ToBilling TO SERVICE '{BILLING}' WITH USER = [billing]"
    gateway, orders, billing = shop(
        net,
        {
            "orders": {"databases.orders": {"peers": own["peers"]} if anonymous else own},
            "billing": {"databases.billing": known},
        },
        tap.address,
        orders=binding + (", ANONYMOUS = ON;\n" if anonymous else ";\n"),
        billing=f"GRANT SEND ON SERVICE::[{BILLING}] TO [{'public' if anonymous else 'CN=orders'}];\n",
    )
    tap.to = gateway.port
    net.start()
    with closing(orders.connect("orders")) as db:
        with db:
            dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
            for body in bodies(0, 10):
                dialog.send(body)
        assert bodies(0, 10) == received(billing, 10)
        for daemon in (orders, billing, gateway):
            daemon.kill()
            daemon.start()
        with db:
            for body in bodies(10, 20):
                dialog.send(body)
        assert bodies(10, 20) == received(billing, 10)
        answers = received(orders, 20)

    assert [b"answer to " + body for body in bodies(0, 20)] == answers
    assert len(tap.seen) > 8 * 70_000
    assert SECRET not in tap.seen
    assert b"answer to" not in tap.seen
    (at_orders,) = orders.query("SELECT security_desc, far_principal FROM orders.sys.conversation_endpoints")
    (at_billing,) = billing.query("SELECT security_desc, far_principal FROM billing.sys.conversation_endpoints")
    if anonymous:
        assert "sealed to billing, anonymous: it does not learn who sends" == at_orders["security_desc"]
        assert ("sealed to whoever began it, anonymous", None) == tuple(at_billing.values())
    else:
        assert at_orders["security_desc"].startswith("sealed to billing (sha256:")
        assert at_billing["security_desc"].startswith("sealed to CN=orders (sha256:")
        assert at_billing["security_desc"].endswith("), full")
