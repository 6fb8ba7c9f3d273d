"""
Who takes part in the demo: the databases, the instances that host them, and the routes between them.

    orders ==> gateway-a, gateway-b ==> billing-east, billing-west (one service, two instances that share its load)
                                    ==> shipping-1, shipping-2 (one database, a mirrored pair)

Every database has a route to each far service through each gateway. The gateways have a plain route to each database
but the mirrored one, whose route names both partners.
"""

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from .journal import FILE_AGE
from .topology import Daemon, Topology, free_port

QUEUE = "DemoQueue"
GATEWAYS = ("gateway-a", "gateway-b")
SHARED = "shared"  # directory of the file that both partners of the pair have


@dataclass(frozen=True, slots=True)
class Home:
    """A database of the demo. Shape: `hosts` names of the instances that have its file, two of a mirrored pair."""

    database: str
    service: str
    hosts: tuple[str, ...]

    @property
    def is_mirrored(self) -> bool:
        """Whether it is that of the pair."""
        return len(self.hosts) > 1

    def path(self, net: Topology) -> Path:
        """Its file."""
        return net.directory / (SHARED if self.is_mirrored else self.hosts[0]) / f"{self.database}.db"

    def principal(self, net: Topology) -> Daemon:
        """Who serves it now; the first of its hosts when none does."""
        running = [daemon for daemon in self.daemons(net) if daemon.is_running]
        serving = [daemon for daemon in running if self.database in daemon.status()["databases"]]
        return (serving or self.daemons(net))[0]

    def daemons(self, net: Topology) -> list[Daemon]:
        """All its hosts."""
        return [net.daemons[name] for name in self.hosts]


ORDERS = Home("orders", "//demo/Orders", ("orders",))
BILLING = [Home(name, "//demo/Billing", (name,)) for name in ("billing-east", "billing-west")]
SHIPPING = Home("shipping", "//demo/Shipping", ("shipping-1", "shipping-2"))
TARGETS = (*BILLING, SHIPPING)
HOMES = (ORDERS, *TARGETS)


def demo_topology(directory: Path, *, journal: Path | None = None) -> Topology:
    """The instances with their services and routes, not started; `journal` where all of them keep theirs."""
    net = Topology(directory)
    kept: dict[str, dict[str, object]] = {}
    if journal:
        kept["journal"] = {"directory": str(journal), "sample": 1.0, "file_age": FILE_AGE}
    (directory / SHARED).mkdir(parents=True)
    instances = {home.database: str(uuid4()) for home in HOMES}
    for name in GATEWAYS:
        net.add(name, forwarding=True, settings=kept | _page())
    for home in HOMES:
        shared = {f"databases.{home.database}": {"path": str(home.path(net)), "mirroring": "lock"}}
        for name in home.hosts:
            own = kept | _page() | (shared if home.is_mirrored else {})
            net.add(name, databases=[home.database], broker_instances=instances, settings=own)
    for gateway in GATEWAYS:
        # Only what is named here passes: no AutoCreatedLocal.
        routes = [_route(home.database, home, instances, *home.daemons(net)) for home in HOMES]
        net.script(gateway, "msdb", "\n".join(["DROP ROUTE AutoCreatedLocal;", *routes]))
    for home in HOMES:
        routes = [
            _route(f"{far.database}-{gateway}", far, instances, net.daemons[gateway])
            for far in (TARGETS if home is ORDERS else (ORDERS,))
            for gateway in GATEWAYS
        ]
        service = f"CREATE QUEUE {QUEUE};\nCREATE SERVICE [{home.service}] ON QUEUE {QUEUE};"
        for name in home.hosts:
            net.script(name, home.database, "\n".join([service, *routes]))
    return net


def _page() -> dict[str, dict[str, object]]:
    """The settings of an instance that shows its status page to everybody on this machine."""
    return {"admin": {"listen": f"127.0.0.1:{free_port()}", "loopback_role": "viewer"}}


def _route(name: str, far: Home, instances: dict[str, str], *next_hops: Daemon) -> str:
    """A route to a database; with two next hops they are a mirrored pair."""
    words = zip(("ADDRESS", "MIRROR_ADDRESS"), next_hops, strict=False)
    addresses = ", ".join(f"{word} = '{daemon.address}'" for word, daemon in words)
    return (
        f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{far.service}',"
        f" BROKER_INSTANCE = '{instances[far.database]}', {addresses};"
    )
