"""
Real daemons on hosts of their own, and applications on all of them.

    initiator-1, initiator-2 ==> gateway-1 .. gateway-3 ==> billing             one database
                                                        ==> stock-1, stock-2    one database, a mirrored pair
                                                        ==> parcel-1, parcel-2  one service, a database on each

Every database has a route to each far one through each gateway, every gateway a route to each database; that to the
pair names both partners. Both databases of the one service have the same weight, so half of its dialogs go to each, and
each dialog stays with its own. A reader is given what comes to parcel-2; what initiator-1 and billing tell each other
is sealed. Links are TLS with certificates on both sides.

Each host has a directory of its own for what its daemon keeps, and what the run has to find afterwards lies elsewhere:
configurations, logs, journals and histories.
"""

import os
import signal
import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from broker.store.sqlite.role_file import read_principal
from examples.demo.topology import Daemon, TimedOutError
from tests.chaos.child import DRAINED, LEFT_BEHIND, Application, bad_ends, leave
from tests.chaos.configuration import (
    BILLING,
    INITIATORS,
    LOCK,
    PARCELS,
    PORT,
    QUEUE,
    READER,
    SEALED,
    STOCK,
    Home,
    Sealing,
    make_initiators,
    make_targets,
    sections,
    write_scripts,
)
from tests.chaos.history import Job, Orders
from tests.chaos.judge import Message
from tests.chaos.network.impairment import Fault as Ability
from tests.chaos.network.network import Network
from tests.chaos.traffic import Traffic, Watch
from tests.support.certificates import Pair, authority, make

DISK_BYTES = 96 << 20  # of the host whose disk gets full
START_SECONDS = 300.0  # many daemons at once, on a busy machine
BUSY_SECONDS = 20.0


class Fleet:
    """
    All of it.

    Shape: `daemons`, `applications` by host; `traffic` what the daemons have counted in this phase; `watch` what the
    partners of a pair with a lock say of themselves.
    """

    def __init__(self, directory: Path, network: Network, *, gateways: int, seed: int, pair: str) -> None:
        self.directory = directory
        self.network = network
        self.seed = seed
        self.has_lock = pair == LOCK  # the pair has one file, and a lock decides about its roles
        self.gateways = tuple(f"gateway-{number}" for number in range(1, gateways + 1))
        self.initiators, self.targets = make_initiators(), make_targets()
        self.homes = [*self.initiators, *self.targets]
        self.orders = directory / "orders.json"
        self.histories = directory / "histories"
        self.tls = directory / "tls"
        self.authority = authority("fault run CA")
        self.daemons: dict[str, Daemon] = {}
        self.applications: dict[str, Application] = {}
        self.traffic, self.watch = Traffic(self), Watch(self)
        self._excused: set[str] = set()
        self._is_up = False
        self._frozen: dict[str, int] = {}  # process ids
        for path in (self.histories, self.tls, directory / "applications"):
            path.mkdir(parents=True)
        clocked, small = network.can(Ability.CLOCK), network.can(Ability.DISK)
        self.names = (*INITIATORS, *self.gateways, BILLING, *STOCK, *PARCELS)
        self.sealing = Sealing(directory / "dialog", [home.name for home in self.homes if home.hosts[0] in SEALED])
        for name in self.names:
            has_clock = clocked and name in (INITIATORS[1], BILLING)
            network.host(name, disk_bytes=DISK_BYTES if small and name == BILLING else None, has_clock=has_clock)
        self.trust(self.authority)
        if self.has_lock:
            (network.hosts[STOCK[0]].directory / "shared").mkdir()
        for name in self.names:
            self.certify(name, self.authority)
            self._add(name)
        for name in self.names:
            write_scripts(self, name)

    # --- what is where ---

    def homes_of(self, name: str) -> list[Home]:
        """The databases of a host."""
        return [home for home in self.homes if name in home.hosts]

    @property
    def stock(self) -> Home:
        """The database of the pair."""
        return next(home for home in self.targets if home.hosts == STOCK)

    def file(self, home: Home, name: str) -> Path:
        """The file of a database on a host; a pair with a lock has one, which lies at the first partner."""
        if self.has_lock and len(home.hosts) > 1:
            return self.network.hosts[home.hosts[0]].directory / "shared" / f"{home.name}.db"
        return self.network.hosts[name].directory / f"{home.name}.db"

    def address(self, near: str, far: str) -> str:
        """What one host dials to reach the daemon of another."""
        hosts = self.network.hosts
        return f"tcp://{self.network.address(hosts[near], hosts[far], PORT)}"

    def neighbours(self, name: str) -> list[str]:
        """Who talks to it directly."""
        if name in self.gateways:
            return [other for other in self.names if other not in self.gateways]
        return list(self.gateways)

    @property
    def principal(self) -> str:
        """The host of the pair whose role file says so, or the file of the pair that has one."""
        if self.has_lock:
            reign = read_principal(self.file(self.stock, STOCK[0]))
            return STOCK[0] if reign is None else reign.principal
        return next((name for name in STOCK if self.role_file(name).read_text().startswith("principal")), STOCK[0])

    @property
    def mirror(self) -> str:
        """The host of the pair that is not the principal."""
        return next(name for name in STOCK if name != self.principal)

    def role_file(self, name: str) -> Path:
        """What the role command of a partner prints."""
        return self.directory / f"{name}.role"

    def serving(self, home: Home) -> str:
        """The host whose file of a database counts."""
        return self.principal if len(home.hosts) > 1 else home.hosts[0]

    # --- certificates ---

    def certify(self, name: str, by: Pair) -> None:
        """Give a host a new certificate; a daemon that runs finds it by itself."""
        hosts, near = self.network.hosts, self.network.hosts[name]
        addresses = {near.address}
        for other in self.neighbours(name):
            addresses.add(self.network.address(hosts[other], near, PORT).rpartition(":")[0])
        pair = make(name, *sorted(addresses), by=by)
        for suffix, data in (("key", pair.key_pem()), ("pem", pair.pem)):
            fresh = self.tls / f"{name}.{suffix}.fresh"
            fresh.write_bytes(data)
            fresh.chmod(0o600)
            fresh.replace(self.tls / f"{name}.{suffix}")

    def trust(self, *authorities: Pair) -> None:
        """Whom all hosts trust."""
        fresh = self.tls / "trust.fresh"
        fresh.write_bytes(b"".join(one.pem for one in authorities))
        fresh.replace(self.tls / "trust.pem")

    # --- starting and ending ---

    def start(self, phase: str) -> None:
        """Everything, in an order in which nobody is missed."""
        Orders(phase, is_sending=False).write(self.orders)
        for name, role in zip(STOCK, ("principal 1", "mirror"), strict=True):
            self.role_file(name).write_text(role, encoding="ascii")  # nobody asks, where there is a lock
        for daemon in self.daemons.values():
            daemon.start(wait=False)
        for daemon in self.daemons.values():
            daemon.wait_ready(START_SECONDS)
        for name, application in self.applications.items():
            if name != STOCK[1]:
                application.start()
        self._is_up = True

    def stop(self, name: str) -> None:
        """
        SIGTERM in the middle of traffic, and wait for the end of a daemon.

        Raises:
            BadEndError: it did not end in time, or with another exit code than those of a drain.
        """
        self.daemons[name].terminate()
        leave(name, self.daemons[name], codes=[DRAINED, LEFT_BEHIND])

    def ended(self) -> list[str]:
        """Sentences on daemons and applications that should run and do not, nothing being done to them."""
        daemons = [f"{name} has ended by itself" for name, one in self.daemons.items() if not one.is_running]
        applications = [one for one in self.applications.values() if one.is_wanted and not one.is_running]
        return daemons + [f"{one.job.name} has ended by itself" for one in applications] + self.bad_ends()

    def bad_ends(self) -> list[str]:
        """Sentences on applications that have not ended in good order when they were told to, each once."""
        found = [told for one in self.applications.values() for told in one.bad_ends]
        for one in self.applications.values():
            one.bad_ends.clear()
        return found

    def revive(self) -> list[str]:
        """Start again what does not run, and wait; the names of what had ended without an excuse."""
        dead = [name for name, daemon in self.daemons.items() if not daemon.is_running]
        for name in dead:
            self.daemons[name].start(wait=False)
        for name in dead:
            self.daemons[name].wait_ready(START_SECONDS)
        for name, application in self.applications.items():
            if application.is_wanted and not application.is_running:
                dead.append(name)
                application.start()
        unexcused = [name for name in dead if name not in self._excused]
        self._excused.clear()
        return unexcused

    def excuse(self, name: str) -> None:
        """What runs on this host may have ended; `revive` does not count it."""
        self._excused.add(name)

    def freeze(self, name: str) -> None:
        """SIGSTOP of a daemon."""
        self._frozen[name] = self.daemons[name].pid
        os.kill(self._frozen[name], signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT of one that was stopped."""
        if name in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(self._frozen.pop(name), signal.SIGCONT)

    def pause(self, seconds: float) -> None:
        """Let the traffic go on for a while."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))
            self.traffic.sample()

    def close(self) -> list[str]:
        """End all, whatever state they are in; sentences on what had ended before, or does not end as it should."""
        found = self.ended() if self._is_up else []
        self._is_up = False
        for application in self.applications.values():
            application.stop()
        for name in list(self._frozen):
            self.thaw(name)
        found += bad_ends({name: daemon for name, daemon in self.daemons.items() if daemon.is_running})
        return found + self.bad_ends()

    # --- looking ---

    def held(self) -> set[Message]:
        """Messages that are in the transmission queues."""
        return self._messages("is_initiator", "broker_transmission")

    def waiting(self) -> set[Message]:
        """Messages that are in the queues of their receivers."""
        return self._messages("NOT is_initiator", "broker_message")

    def _messages(self, sender: str, table: str) -> set[Message]:
        query = (
            f"SELECT conversation_id, {sender}, message_sequence_number"
            f" FROM {table} JOIN broker_conversation USING (endpoint_id)"
        )
        return {(str(uuid.UUID(bytes=one)), bool(is_own), number) for one, is_own, number in self.rows(query)}

    def open_dialogs(self) -> tuple[set[str], set[str]]:
        """
        Conversations with a side that is not closed: first those that began, and those that have yet to begin.

        The latter began while a wrong clock said so; it said when they will be over as well, and they last as long.
        """
        query = "SELECT conversation_id, create_date FROM broker_conversation"
        now, begun, astray = time.time(), set[str](), set[str]()
        for one, at in self.rows(query):
            (begun if at <= now else astray).add(str(uuid.UUID(bytes=one)))
        return begun, astray

    @property
    def copies(self) -> dict[str, str]:
        """The database of each file."""
        return {str(self.file(home, name)): home.name for home in self.homes for name in home.hosts}

    @property
    def services(self) -> dict[str, str]:
        """The service of each file."""
        return {str(self.file(home, name)): home.service for home in self.homes for name in home.hosts}

    def in_clear(self, conversations: Collection[str]) -> set[str]:
        """Those of these conversations, all with a target that has certificates, that are not sealed there."""
        home = next(home for home in self.targets if home.hosts == (BILLING,))
        query = "SELECT conversation_id FROM broker_session_key WHERE security = 'FULL' AND NOT is_initiator"
        return set(conversations) - {str(uuid.UUID(bytes=one)) for (one,) in self.rows(query, home)}

    def rows(self, query: str, *homes: Home) -> Iterator[tuple[Any, ...]]:
        """What the files that count answer, of these databases or of all."""
        for home in homes or self.homes:
            path = self.file(home, self.serving(home))
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
                yield from db.execute(query).fetchall()

    # --- configurations ---

    def _add(self, name: str) -> None:
        host = self.network.hosts[name]
        daemon = Daemon(self.directory / "daemons" / name, name, settings=sections(self, name))
        daemon.prefix, daemon.environ = host.words, {"PYTHONFAULTHANDLER": "1"}
        self.daemons[name] = daemon
        for home in self.homes_of(name):
            far = self.targets if home in self.initiators else []
            kind = "initiator" if far else "reader" if name == READER else "target"
            job = Job(
                name=f"application-{name}",
                kind=kind,
                database=str(self.file(home, name)),
                histories=str(self.histories),
                orders=str(self.orders),
                queue=QUEUE,
                service=home.service,
                targets=list(dict.fromkeys(one.service for one in far)),
                sealed=[one.service for one in far if {name, *one.hosts} == set(SEALED)],
                given=[one.service for one in far if READER in one.hosts],
                seed=self.seed,
            )
            self.applications[name] = Application(host, job, self.directory / "applications" / f"{name}.json")


def wait_until(
    is_so: Callable[[], object], *, seconds: float, what: str, every: float = 0.02, why: Callable[[], str] = str
) -> None:
    """
    Wait for a condition that may fail while files or sockets come and go.

    Args:
        is_so: Asked `every` so many seconds.
        seconds: Until it is given up.
        what: Is waited for, in words.
        why: Tells what is missing.

    Raises:
        TimedOutError: it was in vain.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError, sqlite3.Error):
            if is_so():
                return
        time.sleep(every)
    raise TimedOutError(f"{what}: not within {seconds:g} s {why()}".rstrip())
