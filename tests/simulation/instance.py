"""
An instance of the joined simulation: what `broker.daemon.instance` puts together, on machines that are played.

Forwarder, peers, links, mirrors, the keeper of a role and the conversations of a database are the product's own. Left
out are the catalog with its statements (routes are given as values) and everything that only looks or is looked at.
"""

import asyncio
import fcntl
import os
import random
import uuid
from collections.abc import Coroutine
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from broker.config.settings import EndpointSettings, Settings
from broker.daemon.roles import LockSource, RoleKeeper
from broker.dialog.endpoint import Endpoint
from broker.dialog.status import DialogContext, PathProblem
from broker.dialog.transmitter import DialogTuning
from broker.errors import StoreUnavailableError
from broker.flow import Disposition
from broker.forwarding.entry import FrameOrigin
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.net.drain import left_cleanly
from broker.net.link import Link
from broker.net.mirrors import Mirrors
from broker.net.peers import Peers
from broker.protocol.frame import Hello, Probe, ProbeReply, Rejected
from broker.protocol.layout import VERSION
from broker.routing.address import NetworkAddress
from broker.routing.decide import hosted
from broker.routing.mirrored import MirrorRole
from broker.routing.route import RouteProperties, create_route
from broker.routing.table import RouteTable, build_table
from broker.security.session import DialogCredentials
from broker.store.sqlite.database import lock_store, open_store
from broker.store.sqlite.file_identity import note_start
from broker.store.sqlite.role_file import PrincipalRecord, write_principal
from broker.store.sqlite.transaction import DaemonConnection
from broker.supervision import Supervision
from tests.simulation.machine import PORT, Net, Process
from tests.simulation.performance import WatchedStore

MAX_FRAME = 4096
HEARTBEAT_MS = 1000
SETTINGS = Settings(endpoint=EndpointSettings(handshake_timeout=2.0, connect_timeout=2.0))
DRAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Part:
    """
    What an instance is in a story.

    Shape: `routes` of msdb; `own_routes` of its database, `service` the one service in it; `path` None where there is
    no database; `is_mirrored` when it is its principal only while it has the lock of the file; `credentials` of it.
    """

    name: str
    routes: tuple[RouteProperties, ...]
    path: Path | None = None
    service: str = ""
    own_routes: tuple[RouteProperties, ...] = ()
    is_mirrored: bool = False
    credentials: DialogCredentials = field(default_factory=DialogCredentials)


@dataclass(frozen=True)
class Surroundings:
    """What all instances of a story share. Shape: `store` makes that of a database; `pool_bytes` of each instance."""

    net: Net
    chance: random.Random
    settings: DialogTuning
    store: type[WatchedStore]
    pool_bytes: int


class Instance:
    """
    One instance, through all its lives.

    Shape: `life` how often it was started; `process` the last one; `endpoint` its database while it is at work here;
    `claimed` epoch of which it claims to be the principal, as a stale copy does; None when it does not.
    """

    def __init__(self, part: Part, around: Surroundings, broker_instance: bytes) -> None:
        self.part = part
        self.around = around
        self.broker_instance = broker_instance  # of its database, or of msdb where it has none
        self.life = 0
        self.process: Process
        self.forwarder: Forwarder
        self.peers: Peers
        self.mirrors: Mirrors
        self.keeper: RoleKeeper | None = None
        self.endpoint: Endpoint | None = None
        self.is_up = False
        self.claimed: int | None = None
        self._kept: ExitStack | None = None
        self._lock = -1

    @property
    def address(self) -> NetworkAddress:
        return NetworkAddress(self.part.name, PORT)

    # --- lives ---

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        self.process = Process(self.part.name)
        self.process.context.run(self._build)

    def do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.process.context.run(asyncio.get_running_loop().create_task, work)

    def kill(self, *, is_dark: bool = False) -> None:
        """The process is gone; with the power of its machine when that is dark."""
        self.is_up, self.claimed = False, None
        self.around.net.end(self.process, is_dark=is_dark)
        self._give_back()
        self.endpoint = self._leaving = None
        if self.keeper is not None:
            self.keeper._watch.close()
            self.keeper = None

    async def stop(self) -> None:
        """End in order, as `broker.daemon.instance` does."""
        self.around.net.listeners.pop(self.part.name, None)
        if self.keeper is not None:
            await self.keeper.close()
        await self.peers.close(reason="the instance stops", seconds=DRAIN_SECONDS)
        if self.endpoint is not None:
            endpoint, self.endpoint = self.endpoint, None
            await endpoint.close()

    def lose_lock(self) -> None:
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def claim(self, epoch: int | None) -> None:
        """Tell those who asked that it is the principal of this epoch, which is another one; None: it is not."""
        is_other, self.claimed = epoch != self.claimed, epoch
        if is_other and self.is_up and not self.process.is_frozen:
            self.process.context.run(self.peers.announce_role, self.broker_instance)

    # --- building ---

    def _build(self) -> None:
        part, around = self.part, self.around
        supervision = Supervision()
        hello = Hello(
            versions=(VERSION,),
            instance=uuid.uuid5(uuid.NAMESPACE_DNS, part.name).bytes,
            arbitration=uuid.uuid4().bytes,
            name=part.name,
            software="played",
            max_frame=MAX_FRAME,
            heartbeat_ms=HEARTBEAT_MS,
            addresses=(str(self.address),),
        )
        self.peers = Peers(
            hello,
            SETTINGS,
            make_forwarder=partial(
                Forwarder,
                Limits(pool_bytes=around.pool_bytes, max_frame=MAX_FRAME, max_hops=16),
                deliver=self._deliver,
            ),
            on_rejected=self._on_rejected,
            on_capacity=self._on_room,
            answer_probe=self._prove,
            supervision=supervision,
            jitter=around.chance.random,
        )
        self.forwarder, self.mirrors = self.peers.forwarder, self.peers.mirrors
        self._generation = -1
        self.forwarder.add_own_addresses({self.address}, asyncio.get_running_loop().time())
        self.routes, self.own_routes = table_of(part.routes), table_of(part.own_routes)
        if part.path is not None and part.is_mirrored:
            self.keeper = self._make_keeper(part.path, supervision)
        elif part.path is not None:
            self._host(self._take(part.path, None, 0), supervision)
        self._supervision = supervision
        self.on_routes()
        if self.endpoint is not None:
            self.endpoint.start()
        self.peers.start()
        around.net.listeners[part.name] = (self.process, self.peers.accept)
        if self.keeper is not None:
            supervision_task = asyncio.get_running_loop().create_task(self.keeper.start())
            supervision_task.add_done_callback(_raise)

    def _make_keeper(self, path: Path, supervision: Supervision) -> RoleKeeper:
        return RoleKeeper(self.part.name, path, LockSource(), self, supervision=supervision)

    def reroute(self, routes: tuple[RouteProperties, ...], own_routes: tuple[RouteProperties, ...]) -> None:
        self.routes, self.own_routes = table_of(routes), table_of(own_routes)
        self.process.context.run(self.on_routes)

    def on_routes(self) -> None:
        """As `broker.daemon.instance` does when its catalog has changed."""
        part, tables = self.part, (self.routes, self.own_routes)
        is_mirror = part.is_mirrored and self.endpoint is None
        services = self.forwarder.set_routing(
            table=self.routes,
            hosted=hosted(
                {} if self.endpoint is None else {self.broker_instance: [part.service]},
                mirrors=[self.broker_instance] if is_mirror else [],
            ),
            is_forwarding=part.path is None,
        )
        if self.endpoint is not None:
            self.endpoint.transmitter.on_routes(self.own_routes, services)
        self.peers.on_routes(tables)
        self.forwarder.reroute_waiting(asyncio.get_running_loop().time())
        self._on_room()

    # --- ports ---

    def _on_room(self) -> None:
        have_paths_changed = self._generation != self.forwarder.generation
        self._generation = self.forwarder.generation
        if self.endpoint is not None:
            if have_paths_changed:
                self.endpoint.transmitter.on_paths_changed()
            else:
                self.endpoint.transmitter.on_capacity()

    def _on_rejected(self, link: Link, rejected: Rejected) -> None:
        if self.endpoint is not None:
            self.endpoint.on_rejected(rejected, link, link.peer_shown)

    def _deliver(self, database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        if self.endpoint is not None and database == self.broker_instance:
            self.endpoint.receive(frames, origin)
            return
        for frame in frames:
            origin.reject(frame, Disposition.DATABASE_IS_MIRROR)

    def _prove(self, probe: Probe) -> ProbeReply:
        role, epoch = MirrorRole.UNKNOWN, 0
        if self.part.path is not None and probe.broker_instance == self.broker_instance:
            role = MirrorRole.PRINCIPAL
            if self.keeper is not None:
                role, epoch = self.keeper.standing.role, self.keeper.standing.epoch
            if self.claimed is not None and self.endpoint is None:
                role, epoch = MirrorRole.PRINCIPAL, self.claimed
        return ProbeReply(probe.id, probe.broker_instance, role.value, epoch)

    # --- the database; `Hosting` of the keeper ---

    async def open(self, _name: str, least_epoch: int) -> PrincipalRecord:
        assert self.keeper is not None
        assert self.part.path is not None
        store = await asyncio.to_thread(self._take, self.part.path, least_epoch, self.keeper.standing.epoch)
        reign = PrincipalRecord(uuid.UUID(bytes=self.broker_instance), store.epoch, self.part.name, 0.0)
        await asyncio.to_thread(write_principal, store.path, reign)
        self._host(store, self._supervision)
        assert self.endpoint is not None
        self.endpoint.fence_by(self.keeper.is_confirmed, self.keeper.on_demoted)
        self.on_routes()
        self.endpoint.start()
        return reign

    def refuse(self, _name: str, _broker_instance: bytes | None) -> None:
        """From this moment on nothing comes into the database any more."""
        if self.endpoint is not None:
            self._leaving, self.endpoint = self.endpoint, None
        self.on_routes()

    async def close(self, _name: str) -> None:
        """End what is under way, and give the file back."""
        endpoint, self._leaving = self._leaving, None
        if endpoint is not None:
            await endpoint.close()
        await asyncio.to_thread(self._give_back)

    def announce(self, broker_instance: bytes) -> None:
        self.peers.announce_role(broker_instance)

    _leaving: Endpoint | None = None

    def _take(self, path: Path, least_epoch: int | None, told: int) -> WatchedStore:
        with ExitStack() as taken:
            self._lock = lock_store(path)
            taken.callback(self._unlock)
            db: DaemonConnection = taken.enter_context(closing(open_store(path, may_make=False)))
            db.execute("PRAGMA synchronous = OFF")
            least = None if least_epoch is None else max(least_epoch, told + 1)
            db.epoch = note_start(db, path, path.parent, least_epoch=least)
            size = self.around.settings.fragment_size
            store = self.around.store(path, db, fragment_size=size, credentials=self.part.credentials)
            taken.callback(store.close)
            self._kept = taken.pop_all()
        return store

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        os.close(lock)

    def _give_back(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def _host(self, store: WatchedStore, supervision: Supervision) -> None:
        self.endpoint = Endpoint(
            self.part.name,
            store,
            tuning=self.around.settings,
            forwarder=self.forwarder,
            context=DialogContext(lambda _: PathProblem(), left_cleanly),
            credentials=self.part.credentials,
            supervision=supervision,
        )


@lru_cache(maxsize=64)
def table_of(routes: tuple[RouteProperties, ...]) -> RouteTable:
    now = datetime.now(UTC)
    return build_table([create_route(f"route {number}", one, now=now) for number, one in enumerate(routes)], now=now)


def _raise(task: asyncio.Task[None]) -> None:
    """A database that cannot be kept is a bug, unless it is held elsewhere."""
    if (
        not task.cancelled()
        and task.exception() is not None
        and not isinstance(task.exception(), StoreUnavailableError)
    ):
        raise task.exception()  # type: ignore[misc]
