"""
Applications that send by a timetable, and those that receive what they sent: each a process of its own.

A message is due at an instant, whatever became of the earlier ones; it carries that instant, and its latency counts
from then to the end of the `receive` that brought it. What is due at the same time goes in one transaction.
"""

import multiprocessing
import sqlite3
import time
from array import array
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from struct import Struct
from types import TracebackType
from typing import Any, Self

import broker
from bench.dialogs import QUEUE, ApplicationError
from broker.errors import BrokerError

STAMP = Struct(">Iq")  # number of the step, and when the message was due, nanoseconds of the monotonic clock
PAYLOAD = 1024
BATCH = 1000  # messages in a transaction at most
OVERTIME = 1.0  # of the seconds of a step, after which what was not sent is left
PATIENCE = 60.0  # seconds for one answer, beside those of the step

Work = Callable[..., None]
"""(connection to its database, the pipe of its questions and answers, arguments)."""


class Application:
    """A process that answers questions, one at a time. Use as a context manager."""

    def __init__(self, work: Work, path: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, self._theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(work, path, self._theirs, arguments), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()  # which it sees, and ends
        self._process.join(PATIENCE if error is None else 0.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def say(self, *question: Any) -> None:
        """Ask; `answer` takes what comes of it. Raises ApplicationError when it has ended."""
        try:
            self._pipe.send(question)
        except OSError:
            raise _ended() from None

    def answer(self, seconds: float = PATIENCE) -> Any:
        """
        Of the oldest question that is open.

        Raises:
            ApplicationError: it has ended, or does not answer within so many seconds.
        """
        try:
            if self._pipe.poll(seconds):
                return self._pipe.recv()
        except (EOFError, OSError):
            raise _ended() from None
        raise ApplicationError(f"an application of the benchmark has not answered within {seconds:g} s")

    def ask(self, *question: Any, seconds: float = PATIENCE) -> Any:
        """Ask and wait. Raises ApplicationError, as `answer`."""
        self.say(*question)
        return self.answer(seconds)


def quantile(ordered: Sequence[float], part: float) -> float:
    """Of what is in order, the value below which so much of it is; 0 of nothing."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


def _ended() -> BrokerError:
    return ApplicationError("an application of the benchmark has ended; its error is above")


def _main(work: Work, path: str, pipe: Connection, arguments: tuple[Any, ...]) -> None:
    db = sqlite3.connect(path, timeout=PATIENCE)
    try:
        work(db, pipe, *arguments)
    except (EOFError, BrokenPipeError):  # nobody asks any more
        pass
    finally:
        db.close()


def offer(db: sqlite3.Connection, pipe: Connection, dialogs: int) -> None:
    """Answers (step, messages a second, seconds) with the number of messages that were sent, when they are."""
    with db:
        known = [
            broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing") for _ in range(dialogs)
        ]
    while True:
        step, hertz, seconds = pipe.recv()
        pipe.send(_offer(db, known, step, hertz, seconds))


def _offer(db: sqlite3.Connection, dialogs: Sequence[broker.Dialog], step: int, hertz: float, seconds: float) -> int:
    begun, total, sent = time.monotonic_ns(), int(hertz * seconds), 0
    filling = bytes(PAYLOAD - STAMP.size)
    while sent < total:
        passed = (time.monotonic_ns() - begun) * 1e-9
        if passed > seconds * (1 + OVERTIME):
            break
        due = min(total, int(passed * hertz) + 1, sent + BATCH)
        if due <= sent:
            time.sleep(sent / hertz - passed if sent / hertz > passed else 0)
            continue
        bodies: list[list[bytes]] = [[] for _ in dialogs]
        for number in range(sent, due):
            bodies[number % len(dialogs)].append(STAMP.pack(step, begun + int(number / hertz * 1e9)) + filling)
        with db:
            for dialog, several in zip(dialogs, bodies, strict=True):
                if several:
                    dialog.send_many(several)
        sent = due
    return sent


def witness(db: sqlite3.Connection, pipe: Connection) -> None:
    """Receives, and answers (step, count) with the latencies of a step, seconds, when so many of it have come."""
    step, wanted, latencies = -1, 0, array("d")
    while True:
        with db:
            messages = broker.receive(db, queue=QUEUE, top=BATCH, wait=0.05)
        now = time.monotonic_ns()
        for message in messages:
            number, due_at = STAMP.unpack_from(message.body)
            if number != step:
                step, latencies = number, array("d")
            latencies.append((now - due_at) * 1e-9)
        if not wanted and pipe.poll():
            _, wanted = pipe.recv()
        if wanted and len(latencies) >= wanted:
            pipe.send(latencies)
            wanted = 0
