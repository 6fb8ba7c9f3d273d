"""What it means for one instance to leave: who is told, who rests, and what is left of its work."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from broker.admin.audit import ScriptEntry
from broker.admin.server import AdminServer
from broker.catalog.catalog import MSDB, Catalog, Database
from broker.catalog.handlers import grants_of
from broker.catalog.reload import CarryOut, Reloads
from broker.catalog.scripts import run_declared, scripts_of
from broker.config.load import load_settings
from broker.config.reload_diff import Difference
from broker.config.settings import Settings
from broker.config.values import ListenAddress
from broker.daemon.databases import Databases
from broker.daemon.reload import journal_plan, make_ready, pass_limits, peer_limits, swap_in, timeouts_of
from broker.dialog.endpoint import Endpoint, EndpointTotals
from broker.dialog.status import PathProblem
from broker.forwarding.entry import FrameOrigin
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.kernels import KERNEL_VARIABLE, choose_kernel
from broker.forwarding.outbox import Destination
from broker.net.certificates import CertificateWatch
from broker.net.drain import Drain, DrainBounds, DrainRemainder
from broker.net.link import Link
from broker.net.listener import Listener, addresses_of, bind, named_addresses
from broker.net.mirrors import Mirrors
from broker.net.peers import DeferredWork, Peers
from broker.net.tls import Security
from broker.observe.loop_lag import LoopLag
from broker.protocol.frame import Hello, Rejected
from broker.protocol.layout import VERSION
from broker.routing.address import NetworkAddress
from broker.routing.decide import RoutingFacts
from broker.routing.mirrored import OwnRoleStatus
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER, MirroredPair
from broker.routing.table import RouteTable
from broker.supervision import Supervision

if TYPE_CHECKING:
    from broker.journal.spans import Tracing
    from broker.journal.writer import Journal


class Leaving(Protocol):
    """The instance that leaves."""

    settings: Settings
    is_ready: bool
    stopping: asyncio.Event
    peers: Peers
    databases: Databases

    @property
    def listeners(self) -> Sequence[Listener]:
        """The bound ports."""


def drain_of(instance: Leaving) -> Drain:
    """The drain of an instance, with the bounds of its settings."""
    return Drain(InstanceLeaver(instance), lambda: bounds_of(instance.settings))


def bounds_of(settings: Settings) -> DrainBounds:
    """How long a drain may take by these settings."""
    return DrainBounds(settings.drain.announce, settings.drain.timeout)


class InstanceLeaver:
    """As `broker.net.drain.Leaver`. Loop-only."""

    def __init__(self, instance: Leaving) -> None:
        self._instance = instance

    def on_drain(self) -> None:
        """Nobody is to send anything here any more."""
        self._instance.is_ready = False
        self._instance.stopping.set()

    async def leave(self, seconds: float) -> None:
        """Peers and partners are told, and the databases send nothing of their own."""
        instance = self._instance
        for listener in instance.listeners:
            listener.finish()
        instance.peers.announce_departure(reason="the instance drains", seconds=seconds)
        for endpoint in instance.databases.endpoints.values():
            endpoint.quiesce()
        await instance.databases.hand_over()

    async def remainder(self) -> DrainRemainder:
        """What is held, who may still send, and which databases have something to do."""
        endpoints = self._instance.databases.endpoints.items()
        busy = (name for name, endpoint in endpoints if not (endpoint.is_quiet or endpoint.problem))
        return replace(self._instance.peers.remainder(), busy=tuple(busy))


# --- journalling ---
# The journal of an instance and what is made of it, opened as the settings say.
#
# Each needs libraries that are extras of the installation, and is imported only where it is used.


DISABLED = "OTEL_SDK_DISABLED"  # of the environment: OpenTelemetry does nothing at all


def open_journal(settings: Settings, adjacent_of: Callable[[FrameOrigin], str]) -> Journal | None:
    """
    Where the pass records what it does, at work; None without one.

    Raises:
        SettingError: what stands in the way of it.
    """
    plan = journal_plan(settings)
    if plan is None:
        return None
    from broker.journal.writer import Journal  # noqa: PLC0415

    plan = replace(plan, decoder=os.environ.get(KERNEL_VARIABLE, ""))
    journal = Journal(plan, adjacent_of=adjacent_of, follower=_open_tracing(settings))
    journal.start()
    return journal


def _open_tracing(settings: Settings) -> Tracing | None:
    if not settings.tracing.enabled or os.environ.get(DISABLED, "").strip().lower() == "true":
        return None
    from broker.journal.spans import Tracing  # noqa: PLC0415

    try:
        return Tracing(settings.instance.name)
    except ValueError as error:
        hint = "see the OTEL_* variables of the environment"
        raise settings.error(("tracing", "enabled"), f"OpenTelemetry refuses to begin: {error}", hint) from error


# --- daemon ---
# One instance, put together: settings in, a running gateway, endpoint or both.
#
# The only module that knows everybody: it gives each lower layer the ports it declares, runs the configuration's
# scripts,
# and starts and stops everything in the right order. It decides nothing by itself; how databases come and go with
# their
# roles is in `broker.daemon.databases`.


CLOSE_SECONDS = 1.0  # for what links have been given to leave them, when all is drained or has to end
EXPIRY_MAX_SECONDS = 86_400.0  # a timer further ahead is set again

log = structlog.get_logger(__name__)


class Instance:
    """
    A running instance. Made by `serve`.

    Shape: `broker_instance` 16 bytes that name it to its peers; `started_at` UTC seconds; `listeners` with the ports
    that were bound; `endpoints` the databases at work, msdb once it asks for routes; `journal` where one is kept;
    `is_ready` once everything serves, and until it begins to stop; `lag` of its loop.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.instance.name
        self.software = f"broker {version('broker')}"
        self.started_at = time.time()
        self.is_ready = False
        self.stopping = asyncio.Event()
        self.bound: list[tuple[ListenAddress, Listener]] = []  # with the address that each was configured by
        self.lag = LoopLag()
        self.drain = drain_of(self)
        self.supervision = Supervision()
        self.databases = Databases(
            settings, trouble_of=self._trouble_of, announce=self._announce, supervision=self.supervision
        )
        self.databases.seen_by = lambda path, database: ScriptEntry(self.settings.admin.audit, path, database)
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
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def listeners(self) -> list[Listener]:
        """The ports that were bound."""
        return [listener for _, listener in self.bound]

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """The databases at work, by name."""
        return self.databases.endpoints

    @property
    def past(self) -> EndpointTotals:
        """What databases counted that have gone to a partner."""
        return self.databases.past

    def standings(self) -> dict[str, OwnRoleStatus]:
        """What this instance is for each of its databases, by name."""
        return self.databases.standings()

    async def start(self, stack: AsyncExitStack) -> None:
        """
        Bring everything up; `stack` takes it down again in reverse.

        Raises:
            StoreUnavailableError, ListenFailedError, StatementError, SettingError: what stands in the way.
        """
        settings = self.settings
        self.certificates.load()
        # Take the ports first: two instances must not touch one store.
        sockets = [self._bind(address) for address in settings.endpoint.listen]
        for sock in sockets:
            stack.callback(sock.close)
        self.journal = open_journal(self.settings, _adjacent)
        if self.journal is not None:
            stack.push_async_callback(self.journal.close)  # behind everybody who has something to record
        databases = self._open(sockets, stack)
        self.catalog = Catalog(databases, self.on_catalog, self.name)
        stack.push_async_callback(self.catalog.close)
        self.databases.bind(self.catalog)
        await self._run_scripts()
        await self.catalog.load()
        stack.callback(self._cancel_expiry)
        self._are_started = True
        stack.push_async_callback(self.databases.hand_over)
        await self.databases.start()
        # Before the links, so that it stops behind them and can be asked while the instance drains.
        self.admin = AdminServer(self)
        await self.admin.start(stack)
        self.peers.start()
        self.certificates.start(stack, self._secure, self.supervision)
        stack.callback(self.mirrors.close)
        stack.push_async_callback(self.peers.close, reason="the instance stops", seconds=CLOSE_SECONDS)
        stack.push_async_callback(self.databases.hand_over)  # and those who ask are told before they are left
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

    def _bind(self, address: ListenAddress) -> socket.socket:
        return bind(address.host, address.port, reuse_port=self.settings.endpoint.reuse_port)

    def _open(self, sockets: list[socket.socket], stack: AsyncExitStack) -> dict[str, Database]:
        """The databases, and between them the pass and the links."""
        stack.push_async_callback(self.databases.close_all)
        self.broker_instance = self.databases.take(MSDB).broker_instance
        self._build(sockets)
        databases = {MSDB: self.databases.add(MSDB)}
        for name in self.databases.own:
            self.databases.take(name)
            databases[name] = self.databases.add(name)
        return databases

    def _asking(self, tables: Mapping[str, RouteTable]) -> set[str]:
        """The databases that ask for routes, or did and may get answers."""
        asking = {name for name, table in tables.items() if table.routes(BROKER_CONFIGURATION)}
        return asking | ({MSDB} if SERVICE_BROKER in self.catalog.msdb.rows.services else set())

    def _build(self, sockets: list[socket.socket]) -> None:
        """The pass and the links, each given the ports it asks for."""
        endpoint = self.settings.endpoint
        self.bound = [(one, Listener(sock, self._accept)) for one, sock in zip(endpoint.listen, sockets, strict=True)]
        hello = Hello(
            versions=(VERSION,),
            instance=self.broker_instance,
            arbitration=uuid.uuid4().bytes,
            name=self.name,
            software=self.software,
            max_frame=endpoint.max_frame,
            heartbeat_ms=int(endpoint.heartbeat * 1000),
            addresses=self.addresses(),
        )
        self.peers = Peers(
            hello,
            timeouts_of(self.settings),
            on_rejected=self._on_rejected,
            on_capacity=self._on_room,
            answer_probe=self.databases.prove,
            security=self.certificates.security,
            limits=peer_limits(self.settings),
            supervision=self.supervision,
        )
        self.mirrors = Mirrors(self.peers, self.databases.prove, on_capacity=self._on_room)
        housekeeping = DeferredWork()
        self.forwarder = Forwarder(
            pass_limits(self.settings, endpoint.max_frame),
            deliver=self.databases.deliver,
            request_link=self.peers.request_link,
            health_of=self.peers.table.health_for_routing,
            ask_for_route=self._ask,
            request_principal=self.mirrors.use,
            kernel=self._kernel,
            on_waiting=self.peers.backpressure.hold_back,
            schedule_work=housekeeping.schedule,
            report=housekeeping.report,
            ring=None if self.journal is None else self.journal.ring,
        )
        if self.journal is not None:
            self.journal.principals = lambda: self.forwarder.routing_context.principals
        self.databases.forwarder = self.forwarder
        self.peers.attach(self.forwarder, self.mirrors)
        self.mirrors.start(self.forwarder)
        housekeeping.start(self.forwarder, self.peers.backpressure.release_waiting)
        # More of them are found by dialling.
        self.forwarder.add_own_addresses(self.own(), self._loop.time())

    def own(self) -> set[NetworkAddress]:
        """The addresses that certainly lead here."""
        return addresses_of(self.listeners) | set(self.settings.endpoint.advertise)

    def addresses(self) -> tuple[str, ...]:
        """Where peers are told that this instance can be reached: as configured, else every named address it has."""
        return tuple(map(str, self.settings.endpoint.advertise or named_addresses(self.listeners)))

    async def _run_scripts(self) -> None:
        """The scripts of the configuration, msdb's first; those of a mirrored database run when it is taken over."""
        await self.reloads.begin()
        for database, path in scripts_of(self.settings, self.databases.own):
            await run_declared(self.catalog, path, database, self.databases.seen_by(path, database))

    # --- other settings ---

    async def prepare(self, settings: Settings, changed: Sequence[Difference], undo: AsyncExitStack) -> CarryOut:
        """Make ready for these settings; raises what stands in the way, and nothing has changed."""
        return partial(swap_in, self, await make_ready(self, settings, changed, undo))

    def connections(self, before: float) -> int:
        """Connections to peers that were there before an instant of the loop's clock, and still are."""
        return sum(link.opened_at < before for link in self.peers.links.values())

    def listener(self, address: ListenAddress) -> Listener:
        """One more, which does not accept yet; raises ListenFailedError."""
        return Listener(self._bind(address), self._accept)

    def _close_listeners(self) -> None:
        for listener in self.listeners:
            listener.release()

    # --- ports ---

    def _accept(self, sock: socket.socket, address: str) -> None:
        self.peers.accept(sock, address)

    def _secure(self, security: Security) -> None:
        self.peers.handshaker.secure(security, self.peers.links.values())

    def _ask(self, facts: RoutingFacts) -> None:
        """What arrived has no route, and msdb says whom to ask for one."""
        self.databases.msdb.route_requester.ask(facts.to_service, facts.to_broker_instance)

    def _on_rejected(self, link: Link, rejected: Rejected) -> None:
        for endpoint in self.endpoints.values():
            endpoint.transmitter.on_rejected(rejected, link)

    def _trouble_of(self, destination: Destination) -> PathProblem:
        """Why there is no connection to an address, or no principal of a pair, and when the next attempt is made."""
        if isinstance(destination, MirroredPair):
            return self.mirrors.trouble_of(destination)
        attempts = self.peers.table.histories.get(destination)
        if attempts is None or not attempts.problem:
            return PathProblem()
        return PathProblem(attempts.problem, max(attempts.suppressed_until, self._loop.time()))

    def _announce(self, broker_instance: bytes) -> None:
        self.peers.announce_role(broker_instance)

    def _on_room(self) -> None:
        """Links take frames again, or have come or gone: dialogs look again."""
        have_paths_changed = self._generation != self.forwarder.generation
        self._generation = self.forwarder.generation
        for endpoint in self.endpoints.values():
            if have_paths_changed:
                endpoint.transmitter.on_paths_changed()
            else:
                endpoint.transmitter.on_capacity()

    def on_catalog(self) -> None:
        """Routes, queues or services are new, or a route has expired: decide by them from the next frame on."""
        tables = self.catalog.tables()
        asking = self._asking(tables)
        if MSDB in asking:
            msdb = self.databases.converse_in_msdb()
            if msdb is not None and self._are_started:
                msdb.start()
        for name, endpoint in self.endpoints.items():
            endpoint.transmitter.table = tables[name]
        grants = grants_of(self.settings, self.catalog.msdb.rows.permissions)
        self.peers.apply_grants(grants)
        self.forwarder.set_routing(
            table=tables[MSDB],
            hosted=self.catalog.hosted(asking),
            is_forwarding=self.settings.endpoint.message_forwarding,
        )
        self.mirrors.on_routes(tables.values())
        self.peers.admission.on_routes(tables.values())
        self.peers.dialer.on_routes(tables.values())
        self.forwarder.reroute_waiting(self._loop.time())
        self._on_room()
        self._cancel_expiry()
        if self.catalog.next_expiry is not None:
            # A timer may fire a little early by the wall clock; the table would then be built in vain, and again.
            wait = (self.catalog.next_expiry - datetime.now(UTC)).total_seconds() + 0.001
            self._expiry = self._loop.call_later(min(max(0.0, wait), EXPIRY_MAX_SECONDS), self.catalog.changed)

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()

    def _not_ready(self) -> None:
        self.is_ready = False


@asynccontextmanager
async def serve(settings: Settings | str | Path) -> AsyncIterator[Instance]:
    """
    Run an instance inside the application's own event loop; it is drained when the block is left.

    Args:
        settings: As loaded, or the configuration file.

    Raises:
        SettingsError: the configuration is wrong, everything about it in one report.
        SettingError: `BROKER_KERNEL` forces a kernel that is not there, or a certificate cannot be used; or a database
            file is a copy.
        StoreUnavailableError, ListenFailedError, StatementError: what stands in the way.
    """
    if not isinstance(settings, Settings):
        settings = load_settings(Path(settings), environ=os.environ)
    async with AsyncExitStack() as stack:
        instance = Instance(settings)
        await instance.start(stack)
        yield instance
        await instance.drain.end("the application is done with it")


def _adjacent(origin: FrameOrigin) -> str:
    """What frames from there are recorded to come from: the peer's name, else its address; or the database here."""
    return origin.peer_name or origin.address if isinstance(origin, Link) else getattr(origin, "database", "")
