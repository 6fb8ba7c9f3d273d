"""
Applications of the benchmark, each a process of its own as applications are: one interpreter would share its lock.

They say when they are ready, wait for the word, and give one number back.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import broker
from broker.bench.machine import peak_mib
from broker.errors import BrokerError

QUEUE = "BenchQueue"
PAYLOAD = b"x" * 1024
WAIT = 60.0  # seconds for one message
RESULT_SECONDS = 3600.0
PIECE = 1024 * 1024  # bytes of a large message read at a time

Work = Callable[..., float]
"""(connection to its database, what says ready and waits for the word, arguments) -> a number."""


class ApplicationError(BrokerError):
    """A process of the benchmark ended without its result."""


class Child:
    """One application in a process of its own. Use as a context; `ready`, `go`, `result`."""

    def __init__(self, work: Work, path: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(work, path, theirs, arguments), daemon=True)
        self._theirs = theirs

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.is_alive() and error is not None:
            self._process.kill()
        self._process.join()
        self._pipe.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def ready(self) -> None:
        """Wait until it has connected and prepared. Raises ApplicationError."""
        self.result()

    def go(self) -> None:
        """Let it begin."""
        self._pipe.send(None)

    def result(self) -> float:
        """Its number, when it is done. Raises ApplicationError."""
        try:
            if self._pipe.poll(RESULT_SECONDS):
                return float(self._pipe.recv())
        except EOFError:
            pass
        raise ApplicationError("an application of the benchmark ended without a result; its error is above")


def _main(work: Work, path: str, pipe: Connection, arguments: tuple[Any, ...]) -> None:
    db = sqlite3.connect(path, timeout=WAIT)

    def begin() -> None:
        pipe.send(0.0)
        pipe.recv()

    pipe.send(work(db, begin, *arguments))
    db.close()


def produce(db: sqlite3.Connection, begin: Callable[[], None], messages: int, batch: int, dialogs: int) -> float:
    """Send so many messages, one transaction a batch, on several dialogs in turn."""
    with db:
        known = [
            broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing") for _ in range(dialogs)
        ]
    begin()
    for number in range(messages // batch):
        with db:
            dialog = known[number % dialogs]
            for _ in range(batch):
                dialog.send(PAYLOAD)
    return float(messages)


def consume(db: sqlite3.Connection, messages: int, batch: int) -> None:
    """Receive so many messages, one transaction a batch."""
    received = 0
    while received < messages:
        with db:
            taken = broker.receive(db, queue=QUEUE, top=batch, wait=WAIT)
        if not taken:
            raise ApplicationError(f"{received:,} of {messages:,} messages came")
        received += len(taken)


def take(db: sqlite3.Connection, begin: Callable[[], None], messages: int, batch: int) -> float:
    """Receive so many messages, as `consume`."""
    begin()
    consume(db, messages, batch)
    return float(messages)


def request(db: sqlite3.Connection, begin: Callable[[], None], count: int, parallel: int) -> float:
    """
    So many exchanges, always `parallel` of them under way, each on a dialog of its own.

    A request is sent in one transaction, its answer received in another.
    """
    with db:
        begun = [
            broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing")
            for _ in range(parallel)
        ]
    begin()
    for dialog in begun[:count]:
        with db:
            dialog.send(PAYLOAD)
    for answered in range(count):
        with db:
            [answer] = broker.receive(db, queue=QUEUE, top=1, wait=WAIT)
        if answered + parallel < count:
            with db:
                answer.dialog.send(PAYLOAD)
    return float(count)


def reply(db: sqlite3.Connection, begin: Callable[[], None], count: int) -> float:
    """Answer so many requests, each received and answered in a transaction of its own."""
    begin()
    for _ in range(count):
        with db:
            for request in broker.receive(db, queue=QUEUE, top=1, wait=WAIT):
                request.dialog.send(request.body)
    return float(count)


def take_large(db: sqlite3.Connection, begin: Callable[[], None], mib: int) -> float:
    """Receive one large message as a stream. Returns: peak MiB of this process."""
    begin()
    with db:
        [message] = broker.receive(db, queue=QUEUE, top=1, wait=RESULT_SECONDS)
        length = 0
        with message.open() as body:
            while piece := body.read(PIECE):
                length += len(piece)
    if length != mib * PIECE:
        raise ApplicationError(f"{length:,} bytes came of {mib:,} MiB")
    return peak_mib(multiprocessing.current_process().pid or 0)
