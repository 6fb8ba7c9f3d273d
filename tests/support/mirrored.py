"""
A mirrored pair of real daemons, an initiator, the gateway between them, and cables that can be cut.

    orders ==> gateway ==(cables)==> first, second: one database, one of them its principal

Without a gateway the route of the initiator's own database is the mirrored one. The initiator may be a pair as well.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.protocol.layout import FrameKind
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.cable import Cable, Cut, Passage
from tests.support.loopback import instance_route, service
from tests.support.traffic import Traffic

ORDERS, BILLING = "//mirrored/Orders", "//mirrored/Billing"
INSTANCES = {"orders": "0a000000-0000-4000-8000-000000000001", "billing": "0b000000-0000-4000-8000-000000000002"}
SERVICES = {"orders": ORDERS, "billing": BILLING}
SECONDS = 60.0
HEARTBEAT = "200ms"  # so that silence is noticed within a second

STATE_CHANGED = "mirrored route state changed"


@dataclass(frozen=True, slots=True)
class Form:
    """
    How a network differs from the plain one.

    Shape: `mirrored` the databases that are a pair; `mirroring` their setting; `has_gateway` before the pair;
    `is_one_file` whether the partners share a file; if not, each has its own.
    """

    mirrored: tuple[str, ...] = ("billing",)
    mirroring: str = "lock"
    has_gateway: bool = True
    is_one_file: bool = True


PLAIN = Form()


@dataclass
class Mirrored:
    """
    The network. Shape: `partners` of each database, one where it is not mirrored; `cables` by the name of a partner:
    the first one leads to it, the second one from it.
    """

    net: Topology
    form: Form
    partners: dict[str, list[Daemon]] = field(default_factory=dict)
    cables: dict[str, tuple[Cable, Cable]] = field(default_factory=dict)

    @property
    def asker(self) -> Daemon:
        """Who has the mirrored route to billing."""
        return self.net.daemons["gateway" if self.form.has_gateway else "orders-1"]

    @property
    def billing(self) -> tuple[Daemon, Daemon]:
        """The pair; the first one is the principal at first."""
        first, second = self.partners["billing"]
        return first, second

    def path(self, database: str, daemon: Daemon) -> Path:
        """The file of a database."""
        if self.form.is_one_file and database in self.form.mirrored:
            return self.net.directory / "shared" / f"{database}.db"
        return daemon.directory / f"{database}.db"

    def start(self) -> None:
        """The second one of a pair after the first, so that the first is the principal."""
        later = {daemon.name: daemon for daemons in self.partners.values() for daemon in daemons[1:]}
        sooner = {name: daemon for name, daemon in self.net.daemons.items() if name not in later}
        for daemons in (sooner.values(), later.values()):
            for daemon in daemons:
                daemon.start(wait=False)
            for daemon in daemons:
                daemon.wait_ready()

    def traffic(self) -> Traffic:
        """Applications on both databases."""
        paths = list(dict.fromkeys(self.path("billing", daemon) for daemon in self.billing))
        initiator = self.path("orders", self.partners["orders"][0])
        return Traffic(initiator, paths, from_service=ORDERS, to_service=BILLING)

    def cut(self, daemon: Daemon, how: Cut) -> None:
        """Between the gateway, or the initiator, and a partner; the partners still share their file."""
        for cable in self.cables[daemon.name]:
            cable.cut(how)

    def mend(self, daemon: Daemon) -> None:
        """The cables are whole again."""
        for cable in self.cables[daemon.name]:
            cable.mend()

    def to_partner(self, daemon: Daemon) -> list[Passage]:
        """What passed to a partner, by whichever connection."""
        there, back = self.cables[daemon.name]
        return [one for one in there.passed if one.is_onward] + [one for one in back.passed if not one.is_onward]

    def from_partner(self, daemon: Daemon) -> list[Passage]:
        """What passed from a partner."""
        there, back = self.cables[daemon.name]
        return [one for one in there.passed if not one.is_onward] + [one for one in back.passed if one.is_onward]

    def is_asked(self, *daemons: Daemon) -> None:
        """Wait until two more PROBEs have gone to each of these partners."""

        def asked(daemon: Daemon) -> int:
            return sum(one.kind == FrameKind.PROBE for one in self.to_partner(daemon))

        goals = [asked(daemon) + 2 for daemon in daemons]
        names = " and ".join(daemon.name for daemon in daemons)
        wait_for(
            lambda: all(asked(daemon) >= goal for daemon, goal in zip(daemons, goals, strict=True)),
            seconds=SECONDS,
            what=f"{names} asked twice",
        )

    @property
    def believed(self) -> str | None:
        """The address of the principal as the last line of the asker's log about it tells; None while there is none."""
        principal: str | None = lines(self.asker, STATE_CHANGED)[-1]["principal"]
        return principal

    def dialog_frames_to(self, daemon: Daemon) -> int:
        """How many went there so far."""
        return sum(one.is_dialog for one in self.to_partner(daemon))

    def misled(self, daemon: Daemon) -> int:
        """
        Dialog frames that went to a partner which was known not to be the principal: it had never claimed to be it, or
        had denied it and been asked again, by the same connection and so by somebody who had heard that.
        """
        claims = [one.at for one in self.from_partner(daemon) if one.role == "principal"]
        first = min(claims, default=float("inf"))
        found = sum(one.is_dialog and one.at < first for one in self.to_partner(daemon))
        for cable, is_onward in zip(self.cables[daemon.name], (True, False), strict=True):
            has_denied: set[int] = set()
            is_known: set[int] = set()
            for one in cable.passed:
                if one.role:
                    (has_denied.discard if one.role == "principal" else has_denied.add)(one.link)
                    is_known.discard(one.link)
                elif one.is_onward is is_onward and one.kind == FrameKind.PROBE and one.link in has_denied:
                    is_known.add(one.link)
                found += one.is_onward is is_onward and one.is_dialog and one.link in is_known
        return found

    def close(self) -> None:
        """All processes, then the cables."""
        self.net.stop()
        for pair in self.cables.values():
            for cable in pair:
                cable.close()


@contextmanager
def mirrored(directory: Path, form: Form = PLAIN) -> Iterator[Mirrored]:
    """The daemons of a form, not started."""
    with ExitStack() as stack:
        made = Mirrored(Topology(directory), form)
        stack.callback(made.close)
        (directory / "shared").mkdir()
        endpoint: dict[str, Any] = {"heartbeat": HEARTBEAT, "connect_timeout": "1s", "handshake_timeout": "1s"}
        if form.has_gateway:
            made.net.add("gateway", forwarding=True, settings={"endpoint": endpoint})
        for database in ("orders", "billing"):
            is_pair = database in form.mirrored
            made.partners[database] = [
                _add(made, f"{database}-{number}", database, endpoint) for number in (1, 2)[: 1 + is_pair]
            ]
        _write_routes(made)
        yield made


def role_file(daemon: Daemon) -> Path:
    """What its role command prints."""
    return daemon.directory / "role"


def say(daemon: Daemon, word: str) -> None:
    """From now on its role command prints this."""
    new = daemon.directory / "role.new"
    new.write_text(word, encoding="utf-8")
    new.replace(role_file(daemon))


def role(daemon: Daemon, database: str = "billing") -> tuple[str, int]:
    """What a daemon is for its database, and since which epoch."""
    found = daemon.status()["mirroring"][database]
    return found["role"], found["epoch"]


def becomes(daemon: Daemon, wanted: str, epoch: int | None = None, database: str = "billing") -> None:
    """Wait until a daemon is that."""

    def is_so() -> bool:
        found = role(daemon, database)
        return found[0] == wanted and epoch in {None, found[1]}

    wait_for(is_so, seconds=SECONDS, what=f"{daemon.name} {wanted} {epoch}: {daemon.last_words()}")


def fail_over(daemon: Daemon, database: str = "billing") -> str:
    """SET PARTNER FAILOVER at the principal; what it told."""
    [told] = daemon.admin.sql(f"ALTER DATABASE {database} SET PARTNER FAILOVER", None)["messages"]
    return str(told)


def lines(daemon: Daemon, event: str) -> list[Mapping[str, Any]]:
    """Lines of its log with this event, in order."""
    text = daemon.log.read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.splitlines() if f'"{event}"' in line]
    return [line for line in found if line["event"] == event]


def stored(path: Path, query: str) -> Any:
    """One value of a database file."""
    with closing(sqlite3.connect(path, timeout=SECONDS)) as db:
        return db.execute(query).fetchone()[0]


def _add(made: Mirrored, name: str, database: str, endpoint: Mapping[str, Any]) -> Daemon:
    settings: dict[str, dict[str, Any]] = {"endpoint": dict(endpoint)}
    is_pair = database in made.form.mirrored
    if is_pair:
        made.cables[name] = there, back = Cable(), Cable()
        settings["endpoint"]["advertise"] = [there.address]
        path = str(made.net.directory / "shared" / f"{database}.db") if made.form.is_one_file else f"{database}.db"
        settings[f"databases.{database}"] = {"path": path, "mirroring": made.form.mirroring}
        if made.form.mirroring == "command":
            command = {"role_command": ["cat", str(made.net.directory / name / "role")], "role_interval": "100ms"}
            settings[f"databases.{database}"] |= command
    daemon = made.net.add(name, databases=[database], broker_instances=INSTANCES, settings=settings)
    if is_pair:
        role_file(daemon).write_text("mirror", encoding="utf-8")
        hub = made.net.daemons.get("gateway") or made.net.daemons["orders-1"]
        there.to, back.to = daemon.port, hub.port
    return daemon


def _write_routes(made: Mirrored) -> None:
    hub = made.net.daemons.get("gateway")
    if hub is not None:
        ways = [_route(made, database, made.partners[database]) for database in SERVICES]
        made.net.script("gateway", "msdb", "\n".join(["DROP ROUTE AutoCreatedLocal;", *ways]))
    for database, far in (("orders", "billing"), ("billing", "orders")):
        for daemon in made.partners[database]:
            cables = made.cables.get(daemon.name)
            if hub is None and database == "orders":
                way = _route(made, far, made.partners[far])
            else:
                next_hop = hub or made.net.daemons["orders-1"]
                address = cables[1].address if cables else next_hop.address
                way = instance_route(f"to {far}", SERVICES[far], INSTANCES[far], address)
            made.net.script(daemon.name, database, service(SERVICES[database]) + way)


def _route(made: Mirrored, database: str, partners: Sequence[Daemon]) -> str:
    cables = [made.cables[one.name][0].address if one.name in made.cables else one.address for one in partners]
    return instance_route(f"to {database}", SERVICES[database], INSTANCES[database], *cables)
