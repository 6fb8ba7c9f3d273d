"""
One instance, built from its settings: a running gateway, endpoint or both.

This is the only module that knows every part. It gives each lower layer the ports it declares, runs the scripts of the
configuration, starts and stops everything in the right order, and swaps in the parts that a reload has made ready.
`broker.daemon.databases` opens and closes databases as their roles change.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from broker.admin.audit import ScriptEntry
from broker.admin.server import AdminServer
from broker.catalog.catalog import MSDB, Catalog, Database
from broker.catalog.handlers import grants_of
from broker.catalog.reload import CarryOut, Reloads
from broker.catalog.scripts import named_scripts, run_declared
from broker.config.load import load_settings
from broker.config.reload_diff import Difference
from broker.config.settings import Settings
from broker.config.values import ListenAddress
from broker.daemon.databases import Databases
from broker.daemon.reload import Ready, make_ready, open_journal, pass_limits
from broker.dialog.endpoint import Endpoint, EndpointTotals
from broker.dialog.status import PathProblem
from broker.forwarding.entry import FrameOrigin
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.kernels import KERNEL_VARIABLE, choose_kernel
from broker.forwarding.outbox import Destination
from broker.net.certificates import CertificateWatch
from broker.net.drain import Drain, DrainRemainder
from broker.net.link import Link, LinkState
from broker.net.listener import Listener, addresses_of, bind, named_addresses
from broker.net.mirrors import Mirrors
from broker.net.peers import Peers, largest_frame, refresh_narrow
from broker.observe.instance import LoopLag
from broker.observe.logs import reconfigure_logging
from broker.protocol.frame import Hello, Rejected
from broker.protocol.layout import VERSION
from broker.routing.address import NetworkAddress
from broker.routing.decide import RoutingFacts
from broker.routing.mirrored import OwnRoleStatus
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER, MirroredPair
from broker.routing.table import RouteTable
from broker.supervision import Supervision, Timer

if TYPE_CHECKING:
    from broker.journal.writer import Journal


CLOSE_SECONDS = 1.0  # for what links have been given to leave them, when all is drained or has to end
EXPIRY_MAX_SECONDS = 86_400.0  # a timer further ahead is set again

log = structlog.get_logger(__name__)


class Instance:
    """
    A running instance. Made by `serve`. Loop-only.

    Attributes:
        broker_instance: 16 bytes that name it to its peers.
        started_at: UTC seconds.
        is_ready: Once everything serves, and until it begins to stop.
        listeners: Those of the endpoint.
        endpoints: The databases that are served, by name; msdb once it asks for routes.
        journal: Where one is kept.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.instance.name
        self.software = f"broker {version('service-broker')}"
        self.started_at = time.time()
        self.is_ready = False
        self.stopping = asyncio.Event()
        self.listeners: list[Listener] = []
        self.lag = LoopLag()
        self.drain = Drain(self, lambda: self.settings.drain)
        self.supervision = Supervision()
        self.databases = Databases(
            settings,
            problem_of_path=self._problem_of_path,
            announce=self._announce,
            audit=lambda path, database: ScriptEntry(self.settings.admin.audit, path, database),
            supervision=self.supervision,
        )
        self.endpoints: Mapping[str, Endpoint] = self.databases.endpoints
        self.broker_instance: bytes
        self.catalog: Catalog
        self.forwarder: Forwarder
        self.peers: Peers
        self.mirrors: Mirrors
        self.admin: AdminServer
        self.journal: Journal | None = None
        self.certificates = CertificateWatch(settings)
        self.reloads = Reloads(self)
        self._kernel = choose_kernel(os.environ.get(KERNEL_VARIABLE, ""))
        self._are_started = False  # the endpoints
        self._generation = -1
        self._loop = asyncio.get_running_loop()
        self._expiry = Timer()

    @property
    def past(self) -> EndpointTotals:
        """The counts of databases that are no longer served."""
        return self.databases.past

    def standings(self) -> dict[str, OwnRoleStatus]:
        """Return the role of this instance for each of its databases, by name."""
        return self.databases.standings()

    async def start(self, stack: AsyncExitStack) -> None:
        """
        Start all parts; `stack` stops them again in reverse order.

        Raises:
            StoreUnavailableError: A database cannot be opened or used.
            ListenFailedError: The instance cannot listen on an address.
            StatementError: A statement in a script of the configuration is refused; a `DdlSyntaxError` if it is not
                understood.
            SettingError: A setting cannot be used, or a file that a setting names.
        """
        settings = self.settings
        self.certificates.load()
        stack.callback(self._close_listeners)
        for address in settings.endpoint.listen:  # first: two instances must not touch one store
            self.listeners.append(self._new_listener(address))
        self.journal = open_journal(
            settings, adjacent_of=_adjacent, principals=lambda: self.forwarder.routing_context.principals
        )
        if self.journal is not None:
            stack.push_async_callback(self.journal.close)  # after all that record something
        databases = self._open(stack)
        self.catalog = Catalog(databases, self.on_catalog, self.name)
        stack.push_async_callback(self.catalog.close)
        self.databases.bind(self.catalog)
        await self._run_scripts()
        await self.catalog.load()
        self.certificates.warn(connects=self.catalog.leads_out)
        stack.callback(self._expiry.cancel)
        self._are_started = True
        stack.push_async_callback(self.databases.hand_over)
        await self.databases.start()
        # Before the links, so that it stops after them and answers while the instance drains.
        self.admin = AdminServer(self)
        await self.admin.start(stack)
        self.peers.start()
        secure, links = self.peers.handshaker.secure, self.peers.links
        self.certificates.start(stack, lambda security: secure(security, links.values()), self.supervision)
        stack.push_async_callback(self.peers.close, reason="the instance stops", seconds=CLOSE_SECONDS)
        stack.push_async_callback(self.databases.hand_over)  # and peers are notified before they are left
        for listener in self.listeners:
            listener.start()
        stack.callback(self._close_listeners)
        self.is_ready = True
        stack.callback(self._not_ready)
        log.info(
            "instance ready",
            listen=[f"{listener.host}:{listener.port}" for listener in self.listeners],
            databases=list(self.endpoints),
            forwarding=settings.endpoint.message_forwarding,
            kernel=self.forwarder.kernel_name,
            encryption=settings.endpoint.encryption,
            authentication=settings.endpoint.authentication,
        )

    # --- building ---

    def _open(self, stack: AsyncExitStack) -> dict[str, Database]:
        """The databases, and after msdb the forwarder and the links."""
        stack.push_async_callback(self.databases.close_all)
        self.broker_instance = self.databases.take(MSDB).broker_instance
        self._build()
        databases = {MSDB: self.databases.load(MSDB)}
        for name in self.databases.own:
            self.databases.take(name)
            databases[name] = self.databases.load(name)
        return databases

    def _build(self) -> None:
        """The forwarder and the links, each given the ports it asks for."""
        endpoint = self.settings.endpoint
        hello = Hello(
            versions=(VERSION,),
            instance=self.broker_instance,
            arbitration=uuid.uuid4().bytes,
            name=self.name,
            software=self.software,
            max_frame=endpoint.max_frame,
            heartbeat_ms=int(endpoint.heartbeat * 1000),
            addresses=self._addresses(),
        )
        self.peers = Peers(
            hello,
            self.settings,
            make_forwarder=partial(
                Forwarder,
                pass_limits(self.settings, endpoint.max_frame),
                deliver=self.databases.deliver,
                ask_for_route=self._ask,
                kernel=self._kernel,
                ring=None if self.journal is None else self.journal.ring,
            ),
            on_rejected=self._on_rejected,
            on_capacity=self._on_capacity,
            answer_probe=self.databases.answer_probe,
            security=self.certificates.security,
            supervision=self.supervision,
        )
        self.forwarder, self.mirrors = self.peers.forwarder, self.peers.mirrors
        self.databases.attach(self.forwarder)
        # More of them are found by dialling.
        self.forwarder.add_own_addresses(self.own(), self._loop.time())

    def own(self) -> set[NetworkAddress]:
        """The addresses that certainly lead here."""
        return addresses_of(self.listeners) | set(self.settings.endpoint.advertise)

    def _addresses(self) -> tuple[str, ...]:
        """Return the addresses at which peers reach this instance: the configured ones, or all named ones it has."""
        return tuple(map(str, self.settings.endpoint.advertise or named_addresses(self.listeners)))

    async def _run_scripts(self) -> None:
        """The scripts of the configuration, msdb's first; those of a mirrored database run when it is taken over."""
        await self.reloads.begin()
        databases = (MSDB, *self.databases.own)
        for name, path in [(one, path) for one in databases for path in named_scripts(self.settings, one)]:
            await run_declared(self.catalog, path, name, self.databases.audit(path, name))

    # --- a reload ---

    async def prepare(self, settings: Settings, changed: Sequence[Difference], undo: AsyncExitStack) -> CarryOut:
        """Make ready for these settings; on an error nothing has changed."""
        ready = await make_ready(
            settings, changed, undo, admin=self.admin, listeners=self.listeners, listen=self._new_listener
        )
        return partial(self._swap_in, ready)

    async def _swap_in(self, ready: Ready) -> None:
        """
        Go by these settings from now on. Does not fail.

        The order is that in which things depend on each other: what the forwarder accepts before the links that feed
        it, certificates before listeners. It is one iteration of the loop, but for what is only given back after it.
        """
        settings, before = ready.settings, self.settings
        unused = [one for one in self.listeners if one not in ready.listeners]
        own = self.own()
        self.settings = settings
        if settings.observe != before.observe:
            observe, name = settings.observe, settings.instance.name
            reconfigure_logging(log_format=observe.log_format, level=observe.log_level, instance=name)
        if ready.plan is not None and self.journal is not None:
            self.journal.use(ready.plan)
        links = list(self.peers.links.values())
        largest = largest_frame(links, settings.endpoint.max_frame)
        self.forwarder.limit(pass_limits(settings, largest))
        refresh_narrow(links, largest)
        for listener in ready.listeners:
            if listener not in self.listeners:
                listener.start()
        self.listeners = ready.listeners
        if ready.security is not None:
            self.certificates.use(settings, ready.security)
        self.peers.apply(settings, self._addresses(), self.certificates.security)
        if self.own() != own:
            self.forwarder.add_own_addresses(self.own(), self._loop.time(), *(own - self.own()))
        self.databases.use(settings)
        self.admin.carry_out(ready.admin)
        self.catalog.changed()
        for one in unused:
            one.release()
        await self.databases.adopt(ready.credentials)

    def connections(self, before: float) -> int:
        """Connections to peers that were there before an instant of the loop's clock, and still are."""
        closing = LinkState.LINGERING
        return sum(link.opened_at < before and link.state is not closing for link in self.peers.links.values())

    def _new_listener(self, address: ListenAddress) -> Listener:
        """One more listener, which does not accept yet. Raises ListenFailedError."""
        sock = bind(address.host, address.port, reuse_port=self.settings.endpoint.reuse_port)
        return Listener(sock, self._accept, address)

    def _close_listeners(self) -> None:
        for listener in self.listeners:
            listener.release()

    # --- the ports of the parts ---

    def _accept(self, sock: socket.socket, address: str) -> None:
        self.peers.accept(sock, address)

    def _ask(self, facts: RoutingFacts) -> bool:
        """Request a route for a frame that arrived and has none; msdb knows which peer to ask."""
        return self.databases.msdb.route_requester.ask(facts)

    def _announce(self, broker_instance: bytes) -> None:
        self.peers.announce_role(broker_instance)

    def _on_rejected(self, link: Link, rejected: Rejected) -> None:
        for endpoint in self.endpoints.values():
            endpoint.on_rejected(rejected, link, link.peer_shown)

    def _problem_of_path(self, destination: Destination) -> PathProblem:
        """Why there is no connection to an address, or no principal of a pair, and when the next attempt is made."""
        if isinstance(destination, MirroredPair):
            return self.mirrors.trouble_of(destination)
        attempts = self.peers.table.histories.get(destination)
        if attempts is None or not attempts.problem:
            return PathProblem()
        return PathProblem(attempts.problem, max(attempts.suppressed_until, self._loop.time()))

    def _on_capacity(self) -> None:
        """Links accept frames again, or have come or gone: dialogs go on."""
        have_paths_changed = self._generation != self.forwarder.generation
        self._generation = self.forwarder.generation
        for endpoint in self.endpoints.values():
            if have_paths_changed:
                endpoint.transmitter.on_paths_changed()
            else:
                endpoint.transmitter.on_capacity()

    def on_catalog(self) -> None:
        """Routes, queues or services have changed, or a route has expired: decide by them from the next frame on."""
        tables = self.catalog.tables()
        asking = self._asking(tables)
        if MSDB in asking:
            msdb = self.databases.converse_in_msdb()
            if msdb is not None and self._are_started:
                msdb.start()
        grants = grants_of(self.settings, self.catalog.msdb.rows.permissions)
        self.peers.apply_grants(grants)
        services = self.forwarder.set_routing(
            table=tables[MSDB],
            hosted=self.catalog.hosted(asking),
            is_forwarding=self.settings.endpoint.message_forwarding,
        )
        for name, endpoint in self.endpoints.items():
            endpoint.transmitter.on_routes(tables[name], services)
        self.peers.on_routes(tables.values())
        self.forwarder.reroute_waiting(self._loop.time())
        self._on_capacity()
        self._expiry.cancel()
        if self.catalog.next_expiry is not None:
            # A timer may fire a little early by the wall clock; the table would then be built in vain, and again.
            wait = (self.catalog.next_expiry - datetime.now(UTC)).total_seconds() + 0.001
            self._expiry.after(min(max(0.0, wait), EXPIRY_MAX_SECONDS), self.catalog.changed)

    def _asking(self, tables: Mapping[str, RouteTable]) -> set[str]:
        """The databases that ask for routes, or did and may get answers."""
        asking = {name for name, table in tables.items() if table.routes(BROKER_CONFIGURATION)}
        return asking | ({MSDB} if SERVICE_BROKER in self.catalog.msdb.rows.services else set())

    def _not_ready(self) -> None:
        self.is_ready = False

    # --- the port `Leaver` of its drain ---

    def on_drain(self) -> None:
        """Report not ready, and set `stopping`."""
        self.is_ready = False
        self.stopping.set()

    async def leave(self, seconds: float) -> None:
        """Accept no new peers, notify those that are there, let databases send nothing new, hand over mirrored ones."""
        for listener in self.listeners:
            listener.finish()
        self.peers.own_departure.announce(reason="the instance drains", seconds=seconds)
        for endpoint in self.endpoints.values():
            endpoint.quiesce()
        await self.databases.hand_over()

    async def remainder(self) -> DrainRemainder:
        """What is held, which peers may still send, and which databases are busy."""
        busy = (name for name, one in self.endpoints.items() if not (one.is_quiet or one.problem))
        return replace(self.peers.own_departure.remainder(), busy=tuple(busy))


@asynccontextmanager
async def serve(settings: Settings | str | Path) -> AsyncIterator[Instance]:
    """
    Run an instance in the application's event loop; it is drained when the block is left.

    Args:
        settings: Path of the configuration file, or loaded settings.

    Raises:
        SettingsError: the configuration has errors; all of them are reported.
        SettingError: a certificate cannot be used, a database file is a copy, or `BROKER_KERNEL` names a kernel that is
            not installed.
        StoreUnavailableError: a database cannot be opened or used.
        ListenFailedError: the instance cannot listen on an address.
        StatementError: a statement in a script of the configuration is refused.
    """
    if not isinstance(settings, Settings):
        settings = load_settings(Path(settings), environ=os.environ)
    async with AsyncExitStack() as stack:
        instance = Instance(settings)
        await instance.start(stack)
        yield instance
        await instance.drain.end("the application is done with it")


def _adjacent(origin: FrameOrigin) -> str:
    """Return the origin of frames for the journal: the peer's name, its address if it has none, or the database."""
    return origin.peer_name or origin.address if isinstance(origin, Link) else getattr(origin, "database", "")
