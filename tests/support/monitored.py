"""
A network in which there is something to see of everything that is measured.

    orders ==> gateway-a (one process, journal) ==> billing
           ==> gateway-b                        ==> shipping-1, shipping-2: one database, a mirrored pair

Everybody speaks TLS and has limits. Besides good traffic there are messages for a service that no gateway knows, which
are dropped and sent again, and a stranger who breaks the protocol.
"""

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import broker
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.certificates import Pair, authority, endpoint_settings, make
from tests.support.loopback import instance_route, route, service
from tests.support.prometheus import Prometheus, prometheus
from tests.support.traffic import Traffic

ORDERS, BILLING, SHIPPING, NOWHERE = "//seen/Orders", "//seen/Billing", "//seen/Shipping", "//seen/Nowhere"
SERVICES = {"orders": ORDERS, "billing": BILLING, "shipping": SHIPPING}
INSTANCES = {
    "orders": "0a000000-0000-4000-8000-000000000001",
    "billing": "0b000000-0000-4000-8000-000000000002",
    "shipping": "0c000000-0000-4000-8000-000000000003",
}
GATEWAYS = ("gateway-a", "gateway-b")
HOSTS = {"orders": ("orders",), "billing": ("billing",), "shipping": ("shipping-1", "shipping-2")}
WAYS = {"billing": "gateway-a", "shipping": "gateway-b"}
SECONDS = 60.0
HTTP = b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"


@dataclass(frozen=True)
class Monitored:
    """
    The network, who scrapes it, and what was sent.

    Shape: `sent` messages by database, each answered once; the first `before` of them had been scraped when the others
    were sent.
    """

    net: Topology
    server: Prometheus
    before: Mapping[str, int]
    sent: Mapping[str, int]


@contextmanager
def monitored(directory: Path, *, rules: Path) -> Iterator[Monitored]:
    """All of it, with its traffic behind it; requests and their answers have all been acknowledged."""
    net = _network(directory)
    targets = {name: f"127.0.0.1:{daemon.observe_port}" for name, daemon in net.daemons.items()}
    with net:
        for daemon in net.daemons.values():
            daemon.start()  # one after the other: the first of the pair is its principal, and a machine has few cores
        with prometheus(directory / "prometheus", targets, rules=[rules]) as server:
            server.wait_for("up == 1", series=len(targets))
            _stranger(net)
            # A series that begins has not grown yet for Prometheus, so there is some traffic before the rest.
            before = {name: _talk(net, name, 4) for name in WAYS}
            for name, count in before.items():
                _wait_delivered(server, name, count)
            sent = {name: count + _talk(net, name, 40) for name, count in before.items()}
            _lose(net.daemons["orders"])
            wait_for(
                lambda: server.total("sum(broker_retransmits_total)") > 1, seconds=SECONDS, what="a message sent again"
            )
            yield Monitored(net, server, before, sent)


def _network(directory: Path) -> Topology:
    net = Topology(directory)
    (directory / "shared").mkdir(parents=True)
    ca = authority()
    names = (*GATEWAYS, *(name for hosts in HOSTS.values() for name in hosts))
    files = directory / "tls"
    files.mkdir()
    for name in names:
        settings = _settings(files, name, ca, directory)
        database = next((key for key, hosts in HOSTS.items() if name in hosts), None)
        if database == "shipping":
            path = str(directory / "shared" / "shipping.db")
            settings["databases.shipping"] = {"path": path, "mirroring": "lock"}
        net.add(
            name,
            forwarding=name in GATEWAYS,
            databases=[database] if database else [],
            broker_instances=INSTANCES,
            settings=settings,
        )
    _write_scripts(net)
    return net


def _settings(files: Path, name: str, ca: Pair, directory: Path) -> dict[str, dict[str, Any]]:
    return {
        "endpoint": endpoint_settings(files, name, make(name, "127.0.0.1", by=ca), ca),
        "journal": {"directory": str(directory / "flows"), "file_age": "1s"},
        "limits": {"connections_per_peer": 100, "messages_per_second": 100_000},
        "dialog": {"resend_first": "200ms", "resend_cap": "1s"},
    }


def _write_scripts(net: Topology) -> None:
    grants = "".join(
        f"GRANT CONNECT ON ENDPOINT::[*] TO [CN={name}];\n"
        + "".join(f"GRANT SEND ON SERVICE::[{to}] TO [CN={name}];\n" for to in (*SERVICES.values(), NOWHERE))
        for name in net.daemons
    )
    for gateway in GATEWAYS:
        homes = ["orders", *(database for database, way in WAYS.items() if way == gateway)]
        routes = [_route(database, *(net.daemons[name] for name in HOSTS[database])) for database in homes]
        net.script(gateway, "msdb", "\n".join(["DROP ROUTE AutoCreatedLocal;", *routes, grants]))
    for database, hosts in HOSTS.items():
        ways = {far: WAYS[far] for far in WAYS} if database == "orders" else {"orders": WAYS[database]}
        routes = [_route(far, net.daemons[gateway]) for far, gateway in ways.items()]
        if database == "orders":
            routes.append(route("nowhere", NOWHERE, net.daemons["gateway-a"].address))
        for name in hosts:
            net.script(name, database, "".join([service(SERVICES[database]), *routes]))
            net.script(name, "msdb", grants)


def _route(database: str, *next_hops: Daemon) -> str:
    addresses = [daemon.address for daemon in next_hops]
    return instance_route(f"to {database}", SERVICES[database], INSTANCES[database], *addresses)


def delivered(database: str) -> str:
    """The expression for what has been delivered to the service of a database."""
    return f'broker_messages_delivered_total{{instance="{HOSTS[database][0]}",service="{SERVICES[database]}"}}'


def _wait_delivered(server: Prometheus, database: str, count: int) -> None:
    wait_for(
        lambda: server.total(delivered(database)) == count, seconds=SECONDS, what=f"{count} for {database} scraped"
    )


def _talk(net: Topology, database: str, count: int) -> int:
    """At least so many requests to a database, and their answers; how many of each."""
    host = net.daemons[HOSTS[database][0]]
    path = net.directory / "shared" / "shipping.db" if database == "shipping" else host.directory / f"{database}.db"
    initiator = net.daemons["orders"].directory / "orders.db"
    with Traffic(initiator, [path], from_service=ORDERS, to_service=SERVICES[database]) as traffic:
        traffic.start()
        traffic.goes_on(count)
        traffic.finish()
        assert [] == traffic.faults()
        return sum(traffic.sent.values())


def _lose(orders: Daemon) -> None:
    with closing(orders.connect("orders")) as db, db:
        dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=NOWHERE)
        dialog.send(b"for nobody")


def _stranger(net: Topology) -> None:
    """Somebody with a certificate who speaks HTTP to gateway-a; waits for the end of the connection."""
    files = net.directory / "tls"
    context = ssl.create_default_context(cafile=files / "ca.pem")
    context.load_cert_chain(files / "orders.pem", files / "orders.key")
    context.set_alpn_protocols(["sbrk/1"])
    address = "127.0.0.1", net.daemons["gateway-a"].port
    with (
        socket.create_connection(address, timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=address[0]) as one,
    ):
        one.sendall(HTTP)
        with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
            while one.recv(4096):
                pass
