"""
The databases of a running instance: opening, serving, takeover and closing.

A database that only this instance has is opened at the start and stays open. A mirrored database is open while this
instance is its principal. A takeover does all that a start does (lock, copy fence, schema, epoch, scripts of the
configuration), and then loads its routes, services and conversations. To give the database up is the same in reverse:
the batch under way ends, and only committed frames are acknowledged. As soon as the database is given up, frames for it
are rejected as for a mirror. `broker.daemon.roles` decides when to take over and when to step down.

Loop-only; files are opened and closed in threads once the instance serves.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Self

from broker.catalog.catalog import MSDB, Auditing, Catalog, Database
from broker.catalog.database_files import path_of, take
from broker.catalog.dry_run import COPY_HINT, COPY_PROBLEM
from broker.catalog.identities import Identities, credentials_of
from broker.catalog.scripts import named_scripts, run_declared
from broker.config.settings import Settings
from broker.daemon.reload import dialog_tuning
from broker.daemon.roles import RoleKeeper, boot_time, role_source
from broker.dialog.endpoint import Endpoint, EndpointTotals
from broker.dialog.status import DialogContext, PathProblem
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
from broker.store.sqlite.session_keys import note_own_certificate
from broker.store.sqlite.transaction import writing
from broker.store.sqlite.write_batch import SqliteStore
from broker.supervision import SupervisedTask, Supervision


class OpenDatabase:
    """
    One database of this instance, from its file to its end.

    Attributes:
        was_served: Whether frames are, or were, delivered to it; when they are no longer, what is under way ends.
    """

    def __init__(self, name: str, store: SqliteStore, credentials: DialogCredentials, held: ExitStack) -> None:
        self.name = name
        self.store = store
        self.credentials = credentials  # shared with the endpoint, and changed when its files change
        self.was_served = False
        self._held = held  # the lock and the connection
        self._endpoint: Endpoint | None = None

    @classmethod
    def take(cls, settings: Settings, name: str, *, least_epoch: int | None = None, told: int = 0) -> Self:
        """
        Lock and open a file. Blocking.

        Raises:
            StoreUnavailableError, SettingError: As `broker.catalog.database_files.take`.
        """
        with ExitStack() as held:
            db = take(settings, name, held, least_epoch=least_epoch, reported_epoch=told)
            credentials = credentials_of(settings, name)
            with writing(db):
                note_own_certificate(db, credentials.principal)
            size = settings.dialog.fragment_size
            store = SqliteStore(path_of(settings, name), db, fragment_size=size, credentials=credentials)
            return cls(name, store, credentials, held.pop_all())

    @property
    def endpoint(self) -> Endpoint:
        """The database at work, once it is loaded."""
        assert self._endpoint is not None, f"{self.name} is not loaded"
        return self._endpoint

    def load(self, endpoint: Endpoint) -> None:
        """It has this endpoint from now on."""
        self._endpoint = endpoint

    async def close(self) -> None:
        """End what is under way, and give the file back."""
        if self._endpoint is None:
            self.store.close()
        else:
            await self._endpoint.close()
        await asyncio.to_thread(self._held.close)


class Databases:
    """
    The databases of one instance; the ports `Hosting` of the role keepers and `FailOver` of the catalog.

    Args:
        settings: As `load_settings` gives them, with absolute paths.
        problem_of_path: Why there is no connection to an address, or no principal of a pair.
        announce: Reports what this instance is for a broker instance to the peers that asked.
        audit: Records the run of a script of the configuration in a database.
        supervision: Keeps the tasks of the databases.
    """

    _forwarder: Forwarder
    _catalog: Catalog

    def __init__(
        self,
        settings: Settings,
        *,
        problem_of_path: Callable[[Destination], PathProblem],
        announce: Callable[[bytes], None],
        audit: Callable[[Path, str], Auditing | None],
        supervision: Supervision,
    ) -> None:
        self.endpoints: dict[str, Endpoint] = {}  # those that are served, by name; msdb once it asks for routes
        self.audit = audit
        self.announce = announce
        self._settings = settings
        self._context = DialogContext(problem_of_path, left_cleanly)
        self._supervision = supervision
        self._open: dict[str, OpenDatabase] = {}  # all that are not closed
        self._endpoint_of: dict[bytes, Endpoint] = {}  # those that are served, by broker instance
        self._keepers: dict[str, RoleKeeper] = {}  # of those that are mirrored
        self._closed = EndpointTotals()
        self._identities = Identities(settings, self.identify)
        self._watch: SupervisedTask | None = None
        self._opened_at = time.time()

    # --- the start and the end ---

    def take(self, name: str) -> SqliteStore:
        """
        Open a file that only this instance has.

        Raises:
            StoreUnavailableError, SettingError: As `OpenDatabase.take`.
        """
        one = self._open[name] = OpenDatabase.take(self._settings, name)
        return one.store

    def attach(self, forwarder: Forwarder) -> None:
        """Send and receive by it; called once, before the first database is loaded."""
        self._forwarder = forwarder

    def load(self, name: str) -> Database:
        """
        Make a database that was taken ready to serve.

        Raises:
            SettingError: It has the identity of another one.
        """
        one = self._open[name]
        self._load(one)
        if name != MSDB:
            self._serve(one)
        return Database(name, one.store.broker_instance, one.store.path, one.endpoint.pause_writer)

    @property
    def own(self) -> list[str]:
        """The databases that only this instance has, in the order of the configuration."""
        return [name for name, one in self._settings.databases.items() if one.mirroring == "off"]

    def bind(self, catalog: Catalog) -> None:
        """Let databases come and go in this catalog; those that are mirrored are mirrors at first. Called once."""
        self._catalog = catalog
        catalog.fail_over = self
        for name, one in self._settings.databases.items():
            source = role_source(one)
            if source is not None:
                instance = None if one.broker_instance is None else one.broker_instance.bytes
                catalog.mirrors[name] = instance
                self._keepers[name] = RoleKeeper(
                    name,
                    one.path,
                    source,
                    self,
                    broker_instance=instance,
                    supervision=self._supervision,
                    clock=boot_time,
                )

    async def start(self) -> None:
        """
        Start the databases that are served, and take over the mirrored ones that are this instance's.

        Raises:
            BrokerError: One cannot be taken over.
        """
        for endpoint in self.endpoints.values():
            endpoint.start()
        for keeper in self._keepers.values():
            await keeper.start()
        self._watch_identities()

    def use(self, settings: Settings) -> None:
        """Go by these settings from now on, certificates left out."""
        self._settings = settings
        for one in self._open.values():
            one.endpoint.transmitter.apply(dialog_tuning(settings))
        for name, keeper in self._keepers.items():
            source = role_source(settings.databases[name])
            if source is not None:
                keeper.use(source)
        self._identities.use(settings)
        self._watch_identities()

    async def adopt(self, loaded: Mapping[str, DialogCredentials]) -> None:
        """These databases have these certificates from now on."""
        await self._identities.adopt(loaded)

    async def hand_over(self) -> None:
        """At the end: partners may have at once what they share, however long the rest takes here."""
        for keeper in self._keepers.values():
            await keeper.close()

    async def close_all(self) -> None:
        """End what is under way, and give all files back."""
        if self._watch is not None:
            await self._watch.stop()
        for name in reversed(list(self._open)):
            await self._close(name)

    # --- frames, peers and views ---

    def deliver(self, database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        """The port `Deliver` of the forwarder."""
        endpoint = self._endpoint_of.get(database)
        if endpoint is not None:
            endpoint.receive(frames, origin)
            return
        self._closed.dropped[Disposition.DATABASE_IS_MIRROR] += len(frames)  # given up in the middle of a pass
        ring = self._forwarder.ring
        for frame in frames:
            if ring is not None:
                ring.report(frame, Disposition.DATABASE_IS_MIRROR, ring.arrival_of(frame), ring.arrival.entered)
            origin.reject(frame, Disposition.DATABASE_IS_MIRROR)

    def answer_probe(self, probe: Probe) -> ProbeReply:
        """Return the role of this instance for a broker instance."""
        for status in self.standings().values():
            if status.broker_instance == probe.broker_instance:
                return ProbeReply(probe.id, probe.broker_instance, status.role.value, status.epoch)
        return ProbeReply(probe.id, probe.broker_instance, MirrorRole.UNKNOWN.value)

    @property
    def past(self) -> EndpointTotals:
        """The counts of databases that are no longer served."""
        past = EndpointTotals(*(Counter(getattr(self._closed, one.name)) for one in fields(EndpointTotals)))
        for one in filter(self._is_leaving, self._open.values()):
            past.add(one.endpoint)
        return past

    def _is_leaving(self, one: OpenDatabase) -> bool:
        """Whether frames for it are rejected as for a mirror, and what is under way ends."""
        return one.was_served and one.name not in self.endpoints

    def standings(self) -> dict[str, OwnRoleStatus]:
        """Return the role of this instance for each of its databases, msdb left out, by name."""
        return {name: self._standing(name) for name in self._settings.databases}

    def _standing(self, name: str) -> OwnRoleStatus:
        keeper = self._keepers.get(name)
        if keeper is not None:
            return keeper.standing
        one = self._open.get(name)
        instance, epoch = (None, 0) if one is None else (one.store.broker_instance, one.store.epoch)
        return OwnRoleStatus(instance, MirrorRole.PRINCIPAL, epoch, self._opened_at, "off")

    def converse_in_msdb(self) -> Endpoint | None:
        """From now on msdb has conversations: requests for routes, and nothing else; None when it had them before."""
        if MSDB in self.endpoints:
            return None
        self._add(self._open[MSDB])
        return self.msdb

    @property
    def msdb(self) -> Endpoint:
        """The database of the instance itself."""
        return self._open[MSDB].endpoint

    # --- the port `FailOver` of the catalog ---

    def check(self, name: str) -> None:
        """Check that SET PARTNER FAILOVER is allowed here. Raises StatementError."""
        keeper = self._keepers.get(name)
        if keeper is None:
            raise StatementError(1416, f"the database {name!r} is not mirrored: its mirroring is off")
        keeper.check_fail_over()

    async def carry_out(self, name: str) -> str:
        """Step down, and return a sentence that says which instance is the principal then."""
        return await self._keepers[name].fail_over()

    # --- the port `Hosting` of the role keepers ---

    async def open(self, name: str, least_epoch: int) -> PrincipalRecord:
        """
        Take a mirrored database over and serve it.

        Raises:
            BrokerError: It is not possible; nothing of it is left here.
        """
        keeper = self._keepers[name]
        one = await asyncio.to_thread(
            OpenDatabase.take, self._settings, name, least_epoch=least_epoch, told=keeper.standing.epoch
        )
        self._open[name] = one
        endpoint, store = self._load(one), one.store
        database = Database(name, store.broker_instance, store.path, endpoint.pause_writer, is_served=False)
        try:
            await self._catalog.add(database)
            for path in named_scripts(self._settings, name):
                await run_declared(self._catalog, path, name, self.audit(path, name))
            instance = uuid.UUID(bytes=store.broker_instance)
            reign = PrincipalRecord(instance, store.epoch, self._settings.instance.name, time.time())
            await asyncio.to_thread(write_principal, store.path, reign)
            self._serve(one)
        except BaseException:
            await self.close(name)
            raise
        database.is_served = True
        self._catalog.mirrors.pop(name, None)
        self._catalog.changed()
        store.connection.is_confirmed = keeper.is_confirmed
        endpoint.fence_by(keeper.is_confirmed, keeper.on_demoted)
        endpoint.start()
        return reign

    def refuse(self, name: str, broker_instance: bytes | None) -> None:
        """Reject all frames for a database from this moment on."""
        database = self._catalog.databases.get(name)
        if database is not None:
            database.is_served = False
        endpoint = self.endpoints.pop(name, None)  # a takeover that failed was not served
        if endpoint is not None:
            del self._endpoint_of[endpoint.broker_instance]
        self._catalog.mirrors[name] = broker_instance
        if self._catalog.is_loaded:
            self._catalog.changed()

    async def close(self, name: str) -> None:
        """After `refuse`: end what is under way, and give the file back."""
        await self._catalog.remove(name, partial(self._close, name))

    # --- one database ---

    def _load(self, one: OpenDatabase) -> Endpoint:
        endpoint = Endpoint(
            one.name,
            one.store,
            tuning=dialog_tuning(self._settings),
            forwarder=self._forwarder,
            context=self._context,
            credentials=one.credentials,
            supervision=self._supervision,
        )
        one.load(endpoint)
        return endpoint

    def _serve(self, one: OpenDatabase) -> None:
        if one.store.broker_instance in {self.msdb.broker_instance, *self._endpoint_of}:
            raise self._settings.error(("databases", one.name, "path"), COPY_PROBLEM, COPY_HINT)
        self._add(one)

    def _add(self, one: OpenDatabase) -> None:
        one.was_served = True
        self.endpoints[one.name] = self._endpoint_of[one.store.broker_instance] = one.endpoint

    async def _close(self, name: str) -> None:
        one = self._open[name]
        is_leaving = self._is_leaving(one)
        await one.close()
        if is_leaving:
            self._closed.add(one.endpoint)
        del self._open[name]  # only now, so that no count is missing while the database closes

    # --- certificates ---

    def _watch_identities(self) -> None:
        """Certificates are watched once there are some."""
        if self._watch is None and any(one.certificate or one.peers for one in self._settings.databases.values()):
            self._watch = self._supervision.keep("identities", self._identities.watch)

    async def identify(self, name: str, credentials: DialogCredentials) -> None:
        """A database has other certificates from now on, or knows others; a mirror loads them when it is taken over."""
        if name not in self.endpoints:
            return
        one = self._open[name]
        one.credentials.own, one.credentials.peers = credentials.own, credentials.peers

        def note_in_writer(db: sqlite3.Connection) -> None:
            with writing(db):
                note_own_certificate(db, credentials.principal)

        await one.endpoint.run_in_writer(note_in_writer)
        one.endpoint.transmitter.on_paths_changed()  # dialogs that waited for a certificate
