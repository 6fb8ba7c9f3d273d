"""
A gateway of several processes, put together: one supervisor without traffic, and its workers.

The supervisor owns what there is only one of: the identity and the routes in msdb, the admin interface, the metrics and
the port, which it keeps without listening on it. A change of routes is committed here, and a statement is answered when
every worker that serves decides by it. Workers that die are replaced; the gateway is ready while one of them serves.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib.metadata import version
from typing import Any

import structlog

from broker.admin.server import AdminServer
from broker.control.catalog import MSDB, Catalog, Database
from broker.control.certificate_watch import CertificateWatch
from broker.control.check import asking_error
from broker.control.config import Settings
from broker.control.custody import path_of, take
from broker.control.declared import run_declared
from broker.control.journal import journal_plan
from broker.control.listen import ListenAddress
from broker.control.script import script_files
from broker.daemon import DRAIN_SECONDS, loop_factory
from broker.forwarding.kernel_choice import KERNEL_VARIABLE, choose_kernel
from broker.net.listener import own_addresses, reserve
from broker.routing.address import NetworkAddress
from broker.routing.route import BROKER_CONFIGURATION
from broker.store.database import broker_instance
from broker.workers.channel import WorkerFailedError
from broker.workers.message import Begin, pack_settings
from broker.workers.slot import Slot
from broker.workers.whole import Whole

KILL_SECONDS = DRAIN_SECONDS + 10.0  # after which a worker that was told to end is killed

log = structlog.get_logger(__name__)


class Supervisor:
    """
    The one process of a gateway that carries no messages. Loop-only.

    Shape: as `broker.daemon.Instance`; `listen` the ports as bound; `slots` the places of the workers.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.software = f"broker {version('broker')}"
        self.started_at = time.time()
        self.stopping = asyncio.Event()
        self.listen: list[ListenAddress] = []
        self.slots: list[Slot] = []
        self.broker_instance: bytes
        self.catalog: Catalog
        self.admin: AdminServer
        self.certificates = CertificateWatch(settings)
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
        for path in script_files(self.settings.routes.files):
            await run_declared(self.catalog, path, MSDB)
        asking = next(self.catalog.msdb.table.all_routes(BROKER_CONFIGURATION), None)
        if asking is not None:
            raise asking_error(self.settings, asking.name)
        self.broker_instance = broker_instance(db)
        begin = Begin(pack_settings(self._worker_settings()), self.broker_instance)
        self.slots = [Slot(number, begin) for number in range(1, self.settings.endpoint.workers + 1)]
        self.admin = AdminServer(Whole(self))
        await self.admin.start(stack)
        stack.push_async_callback(self._stop_workers)
        self.certificates.start(stack, lambda _: None)  # each worker looks for itself, and uses what it finds
        self._spawn(self._distribute(), "routes")
        await self._start_workers()
        self._has_started = True
        log.info("gateway ready", listen=[str(one) for one in self.listen], workers=len(self.slots))

    async def settle(self) -> None:
        """Wait until every worker that serves decides by what was committed before."""
        wanted = self._changes
        async with self._settled:
            await self._settled.wait_for(lambda: self._loaded >= wanted)

    def kill(self) -> None:
        """End the workers at once."""
        for slot in self.slots:
            slot.kill()

    # --- the inside ---

    def _reserve(self, stack: AsyncExitStack) -> None:
        """Take the ports first: two instances must not touch one store."""
        for address in self.settings.endpoint.listen:
            sock = reserve(address.host, address.port)
            stack.callback(sock.close)
            host, port = sock.getsockname()[:2]
            self.listen.append(ListenAddress(host, port))

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

    def _worker_settings(self) -> Settings:
        """The settings of each worker: the ports as they are, and its part of the pool."""
        endpoint = self.settings.endpoint
        part = {"listen": tuple(self.listen), "message_forward_size": endpoint.message_forward_size // endpoint.workers}
        return self.settings.model_copy(update={"endpoint": endpoint.model_copy(update=part)})

    def _on_catalog(self) -> None:
        self._changes += 1
        self._changed.set()

    async def _distribute(self) -> None:
        """Have every worker load what was committed, again and again."""
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
            log.error("task failed", task=task.get_name(), exc_info=task.exception())


def run(settings: Settings) -> None:
    """Run a gateway of several processes until SIGTERM or SIGINT; a second signal ends it at once."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(settings))


async def _run(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        supervisor = Supervisor(settings)
        await supervisor.start(stack)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _stop, supervisor, number)
        await supervisor.stopping.wait()
        log.info("gateway stopping")
    log.info("gateway stopped")


def _stop(supervisor: Supervisor, number: signal.Signals) -> None:
    if supervisor.stopping.is_set():
        supervisor.kill()
        os._exit(128 + number)
    supervisor.stopping.set()
