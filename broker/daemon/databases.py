"""
The databases of a running instance, and how they come and go.

One that this instance alone has is opened at the start and stays. A mirrored one is here while this instance is its
principal: coming is all that a start does (lock, copy fence, schema, epoch, scripts of the configuration) and then its
routes, services and conversations; going is the same in reverse, with the turn under way ended and nothing acknowledged
that was not committed. From the moment it goes, what comes for it is refused as for a mirror. Loop-only; files are
opened and closed in threads once the instance serves.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path

from broker.catalog.catalog import MSDB, Auditing, Catalog, Database
from broker.catalog.database_files import path_of, take
from broker.catalog.dry_run import COPY_HINT, COPY_PROBLEM
from broker.catalog.identities import Identities, credentials_of
from broker.catalog.scripts import own_scripts, run_declared
from broker.config.settings import Settings
from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.daemon.roles import RoleKeeper, boot_time, role_source
from broker.dialog.endpoint import Endpoint, EndpointTotals
from broker.dialog.status import DialogContext, PathProblem
from broker.dialog.transmitter import DialogTuning
from broker.errors import StatementError
from broker.flow import Disposition
from broker.forwarding.entry import FrameOrigin
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.outbox import Destination
from broker.net.drain import left_cleanly
from broker.protocol.frame import Probe, ProbeReply
from broker.routing.mirrored import MirrorRole, OwnRoleStatus
from broker.security.session import DialogCredentials
from broker.store.sqlite.role_file import PrincipalRecord, write_principal
from broker.store.sqlite.side import note_own_certificate
from broker.store.sqlite.transaction import writing
from broker.store.sqlite.write_batch import SqliteStore
from broker.supervision import SupervisedTask, Supervision


class Databases:
    """
    Args:
        settings: As `load_settings` gives them, with absolute paths.
        trouble_of: Why there is no connection to an address, or no principal of a pair.
        announce: Tells those who asked what this instance is for a broker instance now.
        supervision: Keeps the tasks of the databases.

    Shape: `endpoints` the databases at work by name, msdb once it asks for routes; `forwarder` is given before the
    first one is added; `seen_by` records the run of a script of the configuration in a database.
    """

    forwarder: Forwarder
    catalog: Catalog

    def __init__(
        self,
        settings: Settings,
        *,
        trouble_of: Callable[[Destination], PathProblem],
        announce: Callable[[bytes], None],
        supervision: Supervision | None = None,
    ) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.seen_by: Callable[[Path, str], Auditing | None] = lambda _path, _database: None
        self._past = EndpointTotals()
        self._leaving: dict[str, Endpoint] = {}
        self._settings = settings
        self._trouble_of = trouble_of
        self._announce = announce
        self._endpoint_of: dict[bytes, Endpoint] = {}
        self._open: dict[str, tuple[Endpoint, ExitStack]] = {}
        self._taken: dict[str, tuple[SqliteStore, ExitStack]] = {}
        self._credentials: dict[str, DialogCredentials] = {}
        self._supervision = supervision or Supervision()
        self._identities = Identities(settings, self.identify)
        self._watch: SupervisedTask | None = None
        self._epochs: dict[str, int] = {}
        self._keepers: dict[str, RoleKeeper] = {}
        self._opened_at = time.time()

    # --- at the start, and at the end ---

    def take(self, name: str) -> SqliteStore:
        """
        Open a file of this instance alone.

        Raises:
            StoreUnavailableError, SettingError: as `custody.take`.
        """
        self._taken[name] = self._take(name, None)
        return self._taken[name][0]

    def add(self, name: str) -> Database:
        """
        What was taken becomes one of the databases, not at work yet.

        Raises:
            SettingError: it has the identity of another one.
        """
        endpoint = self._make(name, *self._taken.pop(name))
        if name != MSDB:
            self._serve(name, endpoint)
        return Database(name, endpoint.broker_instance, endpoint.path, endpoint.pause_writer)

    @property
    def own(self) -> list[str]:
        """The databases that this instance alone has, in the order of the configuration."""
        return [name for name, one in self._settings.databases.items() if one.mirroring == "off"]

    def bind(self, catalog: Catalog) -> None:
        """From now on databases come and go in this catalog; those that are mirrored are mirrors at first."""
        self.catalog = catalog
        catalog.fail_over = self
        for name, one in self._settings.databases.items():
            source = role_source(one)
            if source is not None:
                instance = None if one.broker_instance is None else one.broker_instance.bytes
                catalog.mirrors[name] = instance
                kept = self._supervision
                self._keepers[name] = RoleKeeper(
                    name, one.path, source, self, broker_instance=instance, supervision=kept, clock=boot_time
                )

    async def start(self) -> None:
        """
        All that are here begin to work, and those that are mirrored come when it is their turn.

        Raises:
            BrokerError: one that should come does not.
        """
        for endpoint in self.endpoints.values():
            endpoint.start()
        for keeper in self._keepers.values():
            await keeper.start()
        self._watch_identities()

    def use(self, settings: Settings) -> None:
        """These settings hold from now on for the databases that are there, their certificates left out."""
        self._settings = settings
        for endpoint, _ in self._open.values():
            endpoint.transmitter.apply(dialog_settings(settings))
        for name, keeper in self._keepers.items():
            source = role_source(settings.databases[name])
            if source is not None:
                keeper.use(source)
        self._identities.use(settings)
        self._watch_identities()

    async def adopt(self, loaded: Mapping[str, DialogCredentials]) -> None:
        """These databases have these certificates from now on."""
        await self._identities.adopt(loaded)

    def _watch_identities(self) -> None:
        """Certificates are looked at once there are some."""
        if self._watch is None and any(one.certificate or one.peers for one in self._settings.databases.values()):
            self._watch = self._supervision.keep("identities", self._identities.watch)

    async def hand_over(self) -> None:
        """At the end: partners may have at once what they share, whatever else takes time here."""
        for keeper in self._keepers.values():
            await keeper.close()

    async def close_all(self) -> None:
        """End what is under way, and give all files back."""
        if self._watch is not None:
            await self._watch.stop()
        for name in reversed(list(self._open)):
            await self._close(name)
        for store, taken in self._taken.values():  # the start has failed
            store.close()
            taken.close()
        self._taken.clear()

    # --- the pass, the links, and whoever looks ---

    def deliver(self, database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        """The port `Deliver` of the pass."""
        endpoint = self._endpoint_of.get(database)
        if endpoint is not None:
            endpoint.receive(frames, origin)
            return
        self._past.dropped[Disposition.DATABASE_IS_MIRROR] += len(frames)  # it has gone in the middle of a pass
        ring = self.forwarder.ring
        for frame in frames:
            if ring is not None:
                ring.report(frame, Disposition.DATABASE_IS_MIRROR, ring.arrival_of(frame), ring.arrival.entered)
            origin.reject(frame, Disposition.DATABASE_IS_MIRROR)

    def prove(self, probe: Probe) -> ProbeReply:
        """What this instance is for a broker instance."""
        for standing in self.standings().values():
            if standing.broker_instance == probe.broker_instance:
                return ProbeReply(probe.id, probe.broker_instance, standing.role.value, standing.epoch)
        return ProbeReply(probe.id, probe.broker_instance, MirrorRole.UNKNOWN.value)

    @property
    def past(self) -> EndpointTotals:
        """What databases counted that are not at work any more."""
        past = EndpointTotals(*(Counter(getattr(self._past, one.name)) for one in fields(EndpointTotals)))
        for endpoint in self._leaving.values():
            past.add(endpoint)
        return past

    def standings(self) -> dict[str, OwnRoleStatus]:
        """What this instance is for each of its databases, msdb left out, by name."""
        return {name: self._standing(name) for name in self._settings.databases}

    def _standing(self, name: str) -> OwnRoleStatus:
        keeper = self._keepers.get(name)
        if keeper is not None:
            return keeper.standing
        endpoint = self.endpoints.get(name)
        instance = None if endpoint is None else endpoint.broker_instance
        return OwnRoleStatus(instance, MirrorRole.PRINCIPAL, self._epochs.get(name, 0), self._opened_at, "off")

    def converse_in_msdb(self) -> Endpoint | None:
        """From now on msdb has conversations: requests for routes, and nothing else; None when it had them before."""
        if MSDB in self.endpoints:
            return None
        endpoint = self.endpoints[MSDB] = self.msdb
        self._endpoint_of[endpoint.broker_instance] = endpoint
        return endpoint

    @property
    def msdb(self) -> Endpoint:
        """The database of the instance itself."""
        return self._open[MSDB][0]

    # --- `FailOver` of the catalog ---

    def check(self, name: str) -> None:
        """Whether SET PARTNER FAILOVER may be carried out here. Raises StatementError."""
        keeper = self._keepers.get(name)
        if keeper is None:
            raise StatementError(1416, f"the database {name!r} is not mirrored: its mirroring is off")
        keeper.check_fail_over()

    async def carry_out(self, name: str) -> str:
        """Step down, and tell who is the principal then."""
        return await self._keepers[name].fail_over()

    # --- `Hosting` of the keepers ---

    async def open(self, name: str, least_epoch: int) -> PrincipalRecord:
        """
        Take a mirrored database over and serve it.

        Raises:
            BrokerError: it cannot be; nothing of it is left here.
        """
        keeper = self._keepers[name]
        store, taken = await asyncio.to_thread(self._take, name, least_epoch, keeper.standing.epoch)
        endpoint = self._make(name, store, taken)
        database = Database(name, endpoint.broker_instance, endpoint.path, endpoint.pause_writer, is_served=False)
        try:
            await self.catalog.add(database)
            for _, path in own_scripts(self._settings, name):
                await run_declared(self.catalog, path, name, self.seen_by(path, name))
            reign = PrincipalRecord(endpoint.broker_instance, store.epoch, self._settings.instance.name, time.time())
            await asyncio.to_thread(write_principal, store.path, reign)
            self._serve(name, endpoint)
        except BaseException:
            await self.catalog.remove(name, partial(self._close, name))
            raise
        database.is_served = True
        self.catalog.mirrors.pop(name, None)
        self.catalog.changed()
        store.connection.is_confirmed = keeper.is_confirmed
        endpoint.fence_by(keeper.is_confirmed, keeper.on_demoted)
        endpoint.start()
        return reign

    def refuse(self, name: str, broker_instance: bytes | None) -> None:
        """From this moment on nothing comes into the database any more."""
        database = self.catalog.databases.get(name)
        if database is not None:
            database.is_served = False
        endpoint = self.endpoints.pop(name, None)
        if endpoint is not None:
            del self._endpoint_of[endpoint.broker_instance]
            self._leaving[name] = endpoint
        self.catalog.mirrors[name] = broker_instance
        if self.catalog.is_loaded:
            self.catalog.changed()

    async def close(self, name: str) -> None:
        """Behind `refuse`: end what is under way, and give the file back."""
        await self.catalog.remove(name, partial(self._close, name))

    def announce(self, broker_instance: bytes) -> None:
        """Tell those who asked what this instance is for a broker instance now."""
        self._announce(broker_instance)

    # --- one database ---

    def _take(self, name: str, least_epoch: int | None, told: int = 0) -> tuple[SqliteStore, ExitStack]:
        with ExitStack() as taken:
            db = take(self._settings, name, taken, least_epoch=least_epoch, told=told)
            path = path_of(self._settings, name)
            credentials = self._credentials[name] = credentials_of(self._settings, name)
            with writing(db):
                note_own_certificate(db, credentials.principal)
            size = self._settings.dialog.fragment_size
            store = SqliteStore(path, db, fragment_size=size, credentials=credentials)
            return store, taken.pop_all()

    def _make(self, name: str, store: SqliteStore, taken: ExitStack) -> Endpoint:
        endpoint = Endpoint(
            name,
            store.path,
            store,
            tuning=dialog_settings(self._settings),
            forwarder=self.forwarder,
            context=DialogContext(self._trouble_of, left_cleanly),
            credentials=self._credentials[name],
            supervision=self._supervision,
        )
        self._open[name] = endpoint, taken
        self._epochs[name] = store.epoch
        return endpoint

    async def identify(self, name: str, credentials: DialogCredentials) -> None:
        """A database has other certificates from now on, or knows others."""
        known = self._credentials.get(name)
        endpoint = self.endpoints.get(name)
        if known is None or endpoint is None:
            return  # a mirror; they are loaded when it comes
        known.own, known.peers = credentials.own, credentials.peers

        def note_in_writer(db: sqlite3.Connection) -> None:
            with writing(db):
                note_own_certificate(db, credentials.principal)

        await endpoint.run_in_writer(note_in_writer)
        endpoint.transmitter.on_paths_changed()  # dialogs that waited for a certificate look again

    def _serve(self, name: str, endpoint: Endpoint) -> None:
        if endpoint.broker_instance in {self.msdb.broker_instance, *self._endpoint_of}:
            raise self._settings.error(("databases", name, "path"), COPY_PROBLEM, COPY_HINT)
        self.endpoints[name] = endpoint
        self._endpoint_of[endpoint.broker_instance] = endpoint

    async def _close(self, name: str) -> None:
        endpoint, taken = self._open.pop(name)
        await endpoint.close()
        if self._leaving.pop(name, None) is not None:
            self._past.add(endpoint)
        await asyncio.to_thread(taken.close)


def dialog_settings(settings: Settings) -> DialogTuning:
    """How conversations behave, as the dialogs take it."""
    dialog = settings.dialog
    return DialogTuning(
        backoff=Backoff(dialog.resend_first, dialog.resend_cap),
        travel=Travel(dialog.hop_limit, int(dialog.time_to_live * 1000)),
        window=dialog.window,
        fragment_size=dialog.fragment_size,
        window_bytes=dialog.window_size,
    )
