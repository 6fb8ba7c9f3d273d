"""
A gateway of several processes, put together: one supervisor without traffic, and its workers.

The supervisor owns what there is only one of: the identity and the routes in msdb, the admin interface, the metrics and
the port, which it keeps without listening on it. A change of routes is committed here, and a statement is answered when
every worker that serves decides by it. Workers that die are replaced; the gateway is ready while one of them serves.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Any

import structlog

from broker.admin.audit import ScriptEntry
from broker.admin.server import AdminServer
from broker.control.catalog import MSDB, Catalog, Database
from broker.control.certificate_watch import CertificateWatch
from broker.control.check import asking_error
from broker.control.config import Settings
from broker.control.custody import path_of, take
from broker.control.declared import run_declared
from broker.control.journal import journal_plan
from broker.control.leave import bounds_of
from broker.control.listen import ListenAddress
from broker.control.named_script import named_scripts
from broker.control.reload import CarryOut, Reloads
from broker.control.reload_change import Difference
from broker.forwarding.kernel_choice import KERNEL_VARIABLE, choose_kernel
from broker.net.drain import Drain
from broker.net.listener import reserve
from broker.net.own_address import own_addresses
from broker.routing.address import NetworkAddress
from broker.routing.route import BROKER_CONFIGURATION
from broker.store.database import broker_instance
from broker.supervision import Supervision
from broker.workers.channel import WorkerFailedError
from broker.workers.leaving import SupervisorLeaver
from broker.workers.message import Begin, pack_settings
from broker.workers.reloading import Port, make_workers_ready
from broker.workers.slot import Slot
from broker.workers.whole import Whole

KILL_SECONDS = 10.0  # after which a worker that was told to end is killed

log = structlog.get_logger(__name__)


class Supervisor:
    """
    The one process of a gateway that carries no messages. Loop-only.

    Shape: as `broker.daemon.Instance`; `ports` that are kept for the workers; `slots` the places of the workers.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.software = f"broker {version('broker')}"
        self.started_at = time.time()
        self.stopping = asyncio.Event()
        self.ports: list[Port] = []
        self.reloads = Reloads(self)
        self.slots: list[Slot] = []
        self.drain = Drain(SupervisorLeaver(self), lambda: bounds_of(self.settings))
        self.broker_instance: bytes
        self.catalog: Catalog
        self.admin: AdminServer
        self.certificates = CertificateWatch(settings)
        self.supervision = Supervision()
        self._has_started = False
        self._changes = 0  # of the catalog, counted
        self._loaded = 0  # the one that every worker has
        self._changed = asyncio.Event()
        self._settled = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_ready(self) -> bool:
        """Whether it has come up, at least one worker serves and answers, and it does not stop."""
        return self._has_started and not self.stopping.is_set() and any(not slot.problem for slot in self.slots)

    @property
    def listen(self) -> list[ListenAddress]:
        """The ports as bound."""
        return [port.bound for port in self.ports]

    @property
    def own(self) -> set[NetworkAddress]:
        """The addresses that certainly lead here; workers may find more."""
        bound = {address for listen in self.listen for address in own_addresses(listen.host, listen.port)}
        return bound | set(self.settings.endpoint.advertise)

    async def start(self, stack: AsyncExitStack) -> None:
        """
        Bring everything up; `stack` takes it down again in reverse.

        Raises:
            StoreUnavailableError, ListenFailedError, StatementError, SettingError, WorkerFailedError: what stands in
                the way.
        """
        # Each worker will do so as well; a mistake is to be told before they try.
        choose_kernel(os.environ.get(KERNEL_VARIABLE, ""))
        self.certificates.load()
        journal_plan(self.settings)
        self._reserve(stack)
        db = self._open_msdb(stack)
        await self.catalog.load()
        await self.reloads.begin()
        for path in named_scripts(self.settings, ("routes", "files"), self.settings.routes.files):
            await run_declared(self.catalog, path, MSDB, ScriptEntry(self.settings.admin.audit, path, MSDB))
        asking = next(self.catalog.msdb.table.all_routes(BROKER_CONFIGURATION), None)
        if asking is not None:
            raise asking_error(self.settings, asking.name)
        self.broker_instance = broker_instance(db)
        begin = self.begin_with(self.settings, self.ports)
        self.slots = [Slot(number, begin, self.supervision) for number in range(1, self.settings.endpoint.workers + 1)]
        self.admin = AdminServer(Whole(self))
        await self.admin.start(stack)
        self.supervision.keep_within(stack, "routes", self._distribute)
        stack.push_async_callback(self._stop_workers)
        # Each worker looks for itself, and uses what it finds.
        self.certificates.start(stack, lambda _: None, self.supervision)
        await self._start_workers()
        self._has_started = True
        log.info("gateway ready", listen=[str(one) for one in self.listen], workers=len(self.slots))

    async def settle(self) -> None:
        """Wait until every worker that serves decides by what was committed before."""
        wanted = self._changes
        async with self._settled:
            await self._settled.wait_for(lambda: self._loaded >= wanted)

    async def prepare(self, settings: Settings, changed: Sequence[Difference], undo: AsyncExitStack) -> CarryOut:
        """Make ready for these settings, here and in all workers; raises what stands in the way."""
        return await make_workers_ready(self, settings, changed, undo)

    def connections(self, before: float) -> int:
        """Connections to peers that were there at an instant of the loop's clock, as far as the workers told it."""
        reports = [slot.report for slot in self.slots if slot.report is not None]
        if asyncio.get_running_loop().time() - before < 1.0:
            return sum(len(report.status["connections"]) for report in reports)
        return sum(report.status["reload"]["connections_as_before"] for report in reports)

    def kill(self) -> None:
        """End the workers at once."""
        for slot in self.slots:
            slot.kill()

    # --- the inside ---

    def _reserve(self, stack: AsyncExitStack) -> None:
        """Take the ports first: two instances must not touch one store."""
        stack.callback(self._release)
        for address in self.settings.endpoint.listen:
            self.ports.append(Port(address, reserve(address.host, address.port)))

    def _release(self) -> None:
        for port in self.ports:
            port.sock.close()

    def _open_msdb(self, stack: AsyncExitStack) -> sqlite3.Connection:
        path = path_of(self.settings, MSDB)
        db = take(self.settings, MSDB, stack)
        lock = threading.Lock()

        @contextmanager
        def borrow() -> Iterator[sqlite3.Connection]:
            with lock:
                yield db

        database = Database(MSDB, broker_instance(db), path, borrow, may_ask=False)
        self.catalog = Catalog({MSDB: database}, self._on_catalog, self.settings.instance.name)
        stack.push_async_callback(self.catalog.close)
        return db

    def begin_with(self, settings: Settings, ports: Sequence[Port]) -> Begin:
        """How each worker begins: with the ports as they are, and its part of the pool."""
        endpoint, listen = settings.endpoint, tuple(port.bound for port in ports)
        part = {"listen": listen, "message_forward_size": endpoint.message_forward_size // endpoint.workers}
        own = settings.with_values({"endpoint": endpoint.with_values(part)})
        return Begin(pack_settings(own), self.broker_instance)

    def _on_catalog(self) -> None:
        self._changes += 1
        self._changed.set()

    async def _distribute(self) -> None:
        """Have every worker load what was committed, again and again."""
        if self._loaded < self._changes:  # begun anew, in the middle of it
            self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._changes
            await asyncio.gather(*(slot.load() for slot in self.slots))
            async with self._settled:
                self._loaded = wanted
                self._settled.notify_all()

    async def _start_workers(self) -> None:
        firsts = []
        for slot in self.slots:
            first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            firsts.append(first)
            self._spawn(slot.run(first), f"worker {slot.number}")
        results = await asyncio.gather(*firsts, return_exceptions=True)
        for result in results:
            if isinstance(result, WorkerFailedError):
                raise result

    async def _stop_workers(self) -> None:
        self.stopping.set()
        for slot in self.slots:
            slot.stop()
        running = [task for task in self._tasks if task.get_name().startswith("worker")]
        if running:
            _, stuck = await asyncio.wait(running, timeout=KILL_SECONDS)
            if stuck:
                self.kill()
        for task in self._tasks:
            if task not in running:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and task.exception() is not None:
            self.supervision.note(task.get_name())
            log.error("task failed", task=task.get_name(), reason=repr(task.exception()), exc_info=task.exception())


@asynccontextmanager
async def serve(settings: Settings) -> AsyncIterator[Supervisor]:
    """
    Run a gateway of several processes.

    Raises:
        StoreUnavailableError, ListenFailedError, StatementError, SettingError, WorkerFailedError: what stands in the
            way.
    """
    async with AsyncExitStack() as stack:
        supervisor = Supervisor(settings)
        await supervisor.start(stack)
        yield supervisor
        await supervisor.drain.end("whoever runs it is done with it")
