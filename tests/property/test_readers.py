"""
Pauses between tries: workers of several reader processes on one file, interleaved at their steps, with a played clock.

The steps are those of the real `Desk` and `Work`: lock a group and load its messages, then fail or finish. Wherever a
worker waits for the write lock, other workers may do their steps first. Processes die, or lose their locks and work on,
and are started again. The checks compare only when each message was tried.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import structlog
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from broker.client import reader_worker
from broker.client.reader_pool import reader
from broker.client.reader_worker import ReaderConnection, ReaderDatabase, ReaderWorker, Work
from broker.store.sqlite.quarantine import failures
from tests.support.shop import Shop

FAST_DIRECTORY = Path("/dev/shm")
NOW = 1_700_000_000.0
ATTEMPTS = 4
CONCURRENCY = 3
PROCESSES = 2
SPREAD = 0.75  # a pause is at least so much of its nominal length
DEPTH = 2  # workers that wait for the write lock at a time
# Conversation groups by dialog: fixed, because the spread of a pause is a hash of the group.
GROUPS = {
    b"a": b"group of a and b",
    b"b": b"group of a and b",
    b"c": b"group of c      ",
    b"d": b"group of d      ",
}
SECONDS = st.sampled_from([0.0, 0.001, 0.1, 0.6, 1.3, 5.0, 12.0])


@reader("OrdersQueue", concurrency=CONCURRENCY, attempts=ATTEMPTS)
def handle(_db: Any, _messages: Any) -> None:
    raise AssertionError


@dataclass(repr=False)
class Process:
    """A reader process; `is_alive` is False once others see it as dead, though its workers may go on."""

    desk: ReaderDatabase
    is_alive: bool = True
    is_locking: bool = False

    def __post_init__(self) -> None:
        self.workers = [ReaderWorker(self.desk, handle) for _ in range(CONCURRENCY)]
        self.idle = self.workers[:]

    def close(self) -> None:
        self.desk.close()
        for worker in self.workers:
            worker.close()


@dataclass(repr=False)
class Try:
    """A call of the function; the first of `bodies` is blamed when it fails."""

    process: Process
    worker: ReaderWorker
    work: Work
    bodies: list[bytes]
    started: float
    failed: float | None = None
    is_ending: bool = False


@dataclass
class Play:
    """The processes, what they work on, and every call of the function so far; `started` has dead processes too."""

    data: st.DataObject
    shop: Shop
    now: float = NOW
    started: list[Process] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)  # those that live
    working: list[Try] = field(default_factory=list)
    tries: dict[bytes, list[Try]] = field(default_factory=dict)  # by the body of the first message
    depth: int = 0

    def step(self) -> None:
        """One step of one worker or process, a while after the one before."""
        self.now += self.data.draw(SECONDS)
        steps: list[Callable[[], None]] = []
        if len(self.processes) < PROCESSES:
            steps.append(self.start)
        for process in self.processes:
            if process.idle and not process.is_locking:
                steps += [partial(self.lock, process)] * 3
        for one in [one for one in self.working if not one.is_ending]:
            steps += [partial(self.end, one, is_failure=is_failure) for is_failure in (True, True, False)]
        if self.processes and not self.processes[0].is_locking:
            steps += [partial(self.lose, self.processes[0], is_over=is_over) for is_over in (True, False)]
        if steps:
            steps[self.data.draw(st.integers(0, len(steps) - 1))]()

    def start(self) -> None:
        process = Process(ReaderDatabase("shop", self.shop.path, [handle]))
        self.processes.append(process)
        self.started.append(process)

    def lose(self, process: Process, *, is_over: bool) -> None:
        """The kernel gives up the lock of a process: because it died, or somebody removed the lock file."""
        process.desk._slot.close()
        process.is_alive = False
        self.processes.remove(process)
        if is_over:
            self.working = [one for one in self.working if one.process is not process]

    def lock(self, process: Process) -> None:
        worker = process.idle.pop()
        process.is_locking = True
        claim, _ = process.desk.claim(worker._db, handle)
        process.is_locking = False
        if claim is None:
            process.idle.append(worker)
            tried = {GROUPS[body[:1]] for body in self.tries}
            assert not [one for one in self.bodies() if GROUPS[one[:1]] not in tried], "waits for another group"
            return
        work = Work(worker, worker._db, claim)
        assert work.load()
        self.check_call(Try(process, worker, work, [one.body for one in work.messages], self.now))

    def check_call(self, one: Try) -> None:
        """The pause since the last failure is over, and no other worker has these messages."""
        assert not [other for other in self.working if other.process.is_alive and set(other.bodies) & set(one.bodies)]
        before = self.tries.setdefault(one.bodies[0], [])
        assert len(before) < ATTEMPTS, "tried again after the last attempt"
        if before:
            since = before[-1].started if before[-1].failed is None else before[-1].failed
            pause = SPREAD * 2.0 ** (len(before) - 1)
            assert one.started - since >= pause - 0.001, f"try {len(before) + 1} after {one.started - since} s"
            assert len(one.bodies) == 1
        before.append(one)
        self.working.append(one)

    def end(self, one: Try, *, is_failure: bool) -> None:
        one.is_ending = True
        one.work.argument()
        if is_failure:
            one.failed = self.now if one.process.is_alive else None
            one.work.fail(ValueError("no"))
        else:
            self.others()
            one.work.db.executemany("INSERT INTO orders (state) VALUES (?)", [(body,) for body in one.bodies])
            one.work.finish()
        self.working = [other for other in self.working if other is not one]
        one.process.idle.append(one.worker)

    def bodies(self) -> list[bytes]:
        """Of the messages that wait and are not in quarantine."""
        found: list[bytes] = self.shop.look("SELECT message_body FROM broker_message WHERE status = 1")
        return found

    def check(self) -> None:
        """A dialog is in quarantine after the last attempt, not before."""
        for failure in failures(self.shop.connect()):
            if failure.quarantine_time is not None:
                (body,) = self.shop.look(
                    "SELECT message_body FROM broker_message WHERE queuing_order = ?", failure.queuing_order
                )
                assert len(self.tries[body]) == ATTEMPTS

    def drain(self) -> None:
        """Everything that is not in quarantine is handled when nothing fails any more."""
        self.depth = DEPTH
        while self.working:
            self.end(self.working[0], is_failure=False)
        if not self.processes:
            self.start()
        while self.bodies():
            self.now += 1000.0
            self.lock(self.processes[0])
            while self.working:
                self.end(self.working[0], is_failure=False)
        handled = self.shop.look("SELECT state FROM orders")
        assert len(handled) == len(set(handled))

    # --- where others come between ---

    def begin(self, db: ReaderConnection) -> None:
        """`ReaderConnection.begin`, with steps of others before the lock is free."""
        if not db.in_transaction:
            self.others()
            db.execute("BEGIN IMMEDIATE")

    def others(self) -> None:
        """Steps of others while a worker waits for the write lock."""
        if self.depth < DEPTH:
            self.depth += 1
            for _ in range(self.data.draw(st.integers(0, 3))):
                self.step()
            self.depth -= 1


@contextmanager
def playing(data: st.DataObject) -> Iterator[Play]:
    with tempfile.TemporaryDirectory(dir=FAST_DIRECTORY if FAST_DIRECTORY.is_dir() else None) as directory:
        shop = Shop(Path(directory) / "shop.db")
        play = Play(data, shop)

        def begin(db: ReaderConnection) -> None:
            play.begin(db)

        clock = SimpleNamespace(time=lambda: play.now, monotonic=lambda: 0.0)
        with (
            structlog.testing.capture_logs(),
            mock.patch.object(reader_worker, "time", clock),
            mock.patch.object(ReaderConnection, "begin", begin),
            mock.patch.object(ReaderDatabase, "_poll_changes", return_value=None),  # no worker waits here for a commit
        ):
            try:
                yield play
            finally:
                for process in play.started:
                    process.close()
                shop.close()


@given(st.data())
@settings(max_examples=50, derandomize=True, phases=[Phase.generate])  # shrinking takes minutes
def test_pauses_hold_for_many_workers_of_processes_that_die(data: st.DataObject) -> None:
    with playing(data) as play:
        db = play.shop.connect(isolation_level=None)
        for name, group in GROUPS.items():
            dialog = play.shop.begin(db)
            play.shop.change(dialog, "conversation_group_id", group)
            play.shop.arrive(dialog, name + b"0", name + b"1")
        play.start()

        for _ in range(data.draw(st.integers(10, 40))):
            play.step()
            play.check()
        play.drain()
        play.check()
