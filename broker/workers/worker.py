"""
One worker: a process that forwards for a gateway of several, and answers the supervisor that started it.

It is an instance without stores, scripts and admin interface of its own: it listens on the ports of its siblings, has
the identity of the gateway, and reads the routes from the supervisor's msdb whenever it is told to. It drains and ends
on SIGTERM, and when the supervisor is no more.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from functools import partial

import msgspec
import structlog

from broker.control.catalog import MSDB, Database
from broker.control.config import Settings
from broker.control.listen import ListenAddress
from broker.control.reload import CarryOut
from broker.control.reload_change import Difference, differences
from broker.daemon import Instance
from broker.early_signal import endure
from broker.net.drain import Bounds
from broker.net.listener import bind
from broker.observe.lag import LoopLag
from broker.observe.log_level import LogLevels
from broker.observe.log_summary import tell_summaries
from broker.observe.logs import close_logging, configure_logging
from broker.observe.metrics import read_metrics
from broker.observe.process import process_samples
from broker.observe.query import shown_value
from broker.observe.snapshot import Snapshots
from broker.observe.status import read_status
from broker.process import loop_factory
from broker.reloading import make_ready, swap_in
from broker.routing.table import RouteTable
from broker.store.database import open_watch
from broker.workers.channel import answer_all
from broker.workers.message import (
    Abandon,
    Adopt,
    Begin,
    Leave,
    Levels,
    Load,
    PairKnown,
    Passed,
    Prepare,
    Question,
    Reached,
    Remains,
    Report,
    Rows,
    WorkerReport,
    unpack_settings,
)

_encode = msgspec.msgpack.Encoder().encode
_NOTHING = _encode(None)

log = structlog.get_logger(__name__)


class Worker(Instance):
    """
    The instance in a worker.

    Args:
        settings: Those of the gateway, with the ports that the supervisor has found and this worker's part of the pool.
        broker_instance: The identity of the gateway, 16 bytes.
    """

    def __init__(self, settings: Settings, broker_instance: bytes) -> None:
        super().__init__(settings)
        self.broker_instance = broker_instance
        self.lag = LoopLag()
        self.log_levels = LogLevels()

    def _bind(self, address: ListenAddress) -> socket.socket:
        return bind(address.host, address.port, is_shared=True)

    def _open(self, sockets: list[socket.socket], _stack: AsyncExitStack) -> dict[str, Database]:
        self._build(sockets)
        path = self.settings.instance.state_dir / "msdb.db"

        @contextmanager
        def borrow() -> Iterator[sqlite3.Connection]:
            with closing(open_watch(path)) as db:
                yield db

        return {MSDB: Database(MSDB, self.broker_instance, path, borrow)}

    async def _run_scripts(self) -> None:
        """The supervisor has run them."""

    async def prepare(self, settings: Settings, changed: Sequence[Difference], undo: AsyncExitStack) -> CarryOut:
        """Make ready for these settings; the supervisor has the admin interface."""
        return partial(swap_in, self, await make_ready(self, settings, changed, undo))

    async def _start_admin(self, stack: AsyncExitStack) -> None:
        """The supervisor has it; only the time is kept here."""
        self.lag.start(stack, self.supervision)
        self.supervision.keep_within(stack, "log summary", tell_summaries)

    def _asking(self, _tables: Mapping[str, RouteTable]) -> set[str]:
        return set()


class Answers:
    """
    What a worker answers. Loop-only.

    Shape: `stopping` set once it shall end.
    """

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self._begun: Worker | None = None
        self._prepared: tuple[CarryOut, list[Difference], AsyncExitStack] | None = None
        self._stack = AsyncExitStack()

    async def __call__(self, question: Question) -> bytes:  # noqa: PLR0911 - one for each kind of question
        """The answer as MessagePack; raises what stands in the way."""
        if isinstance(question, Begin):
            return await self._begin(question)
        worker = self._begun
        if worker is None:
            raise RuntimeError("asked before it has begun")
        if isinstance(question, Load):
            await worker.catalog.load()
            return _NOTHING
        if isinstance(question, Prepare | Adopt | Abandon):
            await self._change(worker, question)
            return _NOTHING
        if isinstance(question, Leave):
            worker.drain.begin("the gateway drains", Bounds(announce=0.0, timeout=question.seconds))
            return _NOTHING
        if isinstance(question, Remains):
            return _encode(await worker.drain.look())
        if isinstance(question, Report):
            return await asyncio.to_thread(_with_process, _report(worker))
        if isinstance(question, Levels):
            worker.log_levels.change(question.component, question.level, question.seconds)
            return _NOTHING
        if isinstance(question, Passed):
            return await asyncio.to_thread(_encode, list(worker.forwarder.passed))
        return await asyncio.to_thread(_rows, Snapshots(worker), question)

    async def _change(self, worker: Worker, question: Prepare | Adopt | Abandon) -> None:
        """Other settings, in two steps; whatever is made ready is used or taken back."""
        prepared, self._prepared = self._prepared, None
        if isinstance(question, Adopt):
            if prepared is None:
                raise RuntimeError("no settings were prepared")
            carry_out, changed, undo = prepared
            undo.pop_all()
            await carry_out()
            worker.reloads.note(changed)
            return
        if prepared is not None:
            await prepared[2].aclose()
        if isinstance(question, Prepare):
            settings = unpack_settings(question.settings)
            async with AsyncExitStack() as undo:
                changed = differences(worker.settings, settings)
                carry_out = await worker.prepare(settings, changed, undo)
                self._prepared = carry_out, changed, undo.pop_all()

    @property
    def has_begun(self) -> bool:
        """Whether it serves."""
        return self._begun is not None

    def tell(self) -> None:
        """Write the state of this worker into the log."""
        log.info("instance state", status={"ready": False} if self._begun is None else read_status(self._begun))

    async def close(self) -> None:
        """Drain, and let go of everything."""
        if self._begun is not None:
            await self._begun.drain.end("the worker ends")
        await self._stack.aclose()

    async def _begin(self, question: Begin) -> bytes:
        settings = unpack_settings(question.settings)
        observe = settings.observe
        name = settings.instance.name
        configure_logging(log_format=observe.log_format, level=observe.log_level, instance=name, is_queued=True)
        try:
            worker = Worker(settings, question.broker_instance)
            await worker.start(self._stack)
        except BaseException:
            self.stopping.set()
            raise
        self._begun = worker
        return _NOTHING


def _report(worker: Worker) -> WorkerReport:
    peers, forwarder = worker.peers, worker.forwarder
    reading = read_metrics(worker, worker.lag)
    return WorkerReport(
        status=read_status(worker),
        samples={name: [(labels, float(value)) for labels, value in some] for name, some in reading.samples.items()},
        down=list(reading.down),
        reached=[
            Reached(address, peers.health_of(address).name, peers.problem_of(address))
            for address in peers.known_addresses
        ],
        addresses=list(peers.hello.addresses),
        own=list(forwarder.here.own),
        pairs=[
            PairKnown(pair, one.route.principal, one.route.epoch, worker.mirrors.told(pair))
            for pair, one in worker.mirrors.in_use.items()
        ],
    )


def _with_process(report: WorkerReport) -> bytes:
    """The report, and what the process takes of its machine; for a thread."""
    report.samples.update(process_samples())
    return _encode(report)


def _rows(snapshots: Snapshots, question: Rows) -> bytes:
    """The rows of a view as they are shown, which MessagePack has types for."""
    rows = snapshots.by_view()[question.view]()
    return _encode([tuple(map(shown_value, row)) for row in rows])


async def serve(sock: socket.socket) -> None:
    """Answer the supervisor at the other end of this socket until it ends, or SIGTERM comes; drain then."""
    loop = asyncio.get_running_loop()
    answers = Answers()
    endure()
    loop.add_signal_handler(signal.SIGTERM, answers.stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, answers.tell)
    answering = loop.create_task(answer_all(sock, answers), name="answers")
    answering.add_done_callback(lambda _: answers.stopping.set())
    try:
        await answers.stopping.wait()
        if answers.has_begun:  # else it may be about to, which ends with the answers
            await answers.close()
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await answers.close()


def main(arguments: list[str]) -> None:
    """The process: `arguments` are the number of the worker and the descriptor of its socket."""
    number, descriptor = map(int, arguments)
    structlog.contextvars.bind_contextvars(worker=number)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(socket.socket(fileno=descriptor)))
    finally:
        close_logging()


if __name__ == "__main__":
    main(sys.argv[1:])
