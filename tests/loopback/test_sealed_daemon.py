"""Sealed dialogs between daemons, as processes: what crosses a gateway, what it cannot read, and what the views say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import broker
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.cable import Cable
from tests.support.identities import identity_files
from tests.support.loopback import BILLING, ORDERS, PATIENCE, route, service

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


class Shop:
    """Orders, a gateway behind a tap, and Billing."""

    def __init__(self, net: Topology, tap: Tap, keys: Path, *, anonymous: bool) -> None:
        self.net = net
        self.gateway = net.add("gateway", forwarding=True)
        own = identity_files(keys, "orders", "billing")
        if anonymous:
            own = {"peers": own["peers"]}
        self.orders = net.add("orders", databases=["orders"], settings={"databases.orders": own})
        known = identity_files(keys, "billing", *([] if anonymous else ["orders"]))
        self.billing = net.add("billing", databases=["billing"], settings={"databases.billing": known})
        tap.to = self.gateway.port
        through = tap.address
        net.script(
            "gateway", "msdb", route("to", BILLING, self.billing.address) + route("back", ORDERS, self.orders.address)
        )
        binding = f"CREATE REMOTE SERVICE BINDING ToBilling TO SERVICE '{BILLING}' WITH USER = [billing]"
        binding += ", ANONYMOUS = ON;\n" if anonymous else ";\n"
        net.script("orders", "orders", service(ORDERS) + route("to", BILLING, through) + binding)
        grant = f"GRANT SEND ON SERVICE::[{BILLING}] TO [{'public' if anonymous else 'CN=orders'}];\n"
        net.script("billing", "billing", service(BILLING) + route("back", ORDERS, through) + grant)
        net.start()

    def receive(self, daemon: Daemon, name: str, count: int) -> list[bytes]:
        """So many messages, each answered at Billing."""
        bodies: list[bytes] = []
        with closing(daemon.connect(name)) as db:

            def is_all_there() -> bool:
                with db:
                    for message in broker.receive(db, queue="Inbox", top=100, wait=1):
                        bodies.append(bytes(message.body))
                        if name == "billing":
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
    shop = Shop(net, tap, tmp_path / "keys", anonymous=anonymous)
    with closing(shop.orders.connect("orders")) as db:
        with db:
            dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
            for body in bodies(0, 10):
                dialog.send(body)
        assert bodies(0, 10) == shop.receive(shop.billing, "billing", 10)
        for daemon in (shop.orders, shop.billing, shop.gateway):
            daemon.kill()
            daemon.start()
        with db:
            for body in bodies(10, 20):
                dialog.send(body)
        assert bodies(10, 20) == shop.receive(shop.billing, "billing", 10)
        answers = shop.receive(shop.orders, "orders", 20)

    assert [b"answer to " + body for body in bodies(0, 20)] == answers
    assert len(tap.seen) > 8 * 70_000
    assert SECRET not in tap.seen
    assert b"answer to" not in tap.seen
    (at_orders,) = shop.orders.query("SELECT security_desc, far_principal FROM orders.sys.conversation_endpoints")
    (at_billing,) = shop.billing.query("SELECT security_desc, far_principal FROM billing.sys.conversation_endpoints")
    if anonymous:
        assert "sealed to billing, anonymous: it does not learn who sends" == at_orders["security_desc"]
        assert ("sealed to whoever began it, anonymous", None) == tuple(at_billing.values())
    else:
        assert at_orders["security_desc"].startswith("sealed to billing (sha256:")
        assert at_billing["security_desc"].startswith("sealed to CN=orders (sha256:")
        assert at_billing["security_desc"].endswith("), full")
