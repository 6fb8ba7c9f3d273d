"""
A process that stands still in the middle of a turn of its writer, in virtual time.

A turn is done at once and in the loop's own thread (`tests.support.virtual_time`). One that is to be stopped is done in
a thread of its own, which runs only while the loop waits for it: until it comes to the step at which its process stands
still, and again when that goes on. So nothing is left to chance, and meanwhile the loop plays everybody else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

from broker.security.session import DialogCredentials
from broker.store.port import WriteBatch, WriteResult
from broker.store.sqlite.database import FileWatch
from broker.store.sqlite.transaction import DaemonConnection
from tests.simulation.machine import OWNER, MachineLoop, Process
from tests.simulation.watched_store import WatchedStore

PATIENCE = 60.0  # real seconds for a step, behind which a story hangs


class Stall:
    """
    One stop. `run` and `go_on` are for the loop's thread, the others for that of the turn.

    Args:
        process: Which is to stand still in its next turn that stores something.
        steps: Of that turn, behind which it does: statements, and looks whether the file is still there.
        on_standing: Called at the instant at which it stands still: from then on others wait for its file.
        may_stand_in_commit: Else it goes on to the step behind a COMMIT.
    """

    def __init__(
        self, process: Process, steps: int, *, on_standing: Callable[[], None], may_stand_in_commit: bool = False
    ) -> None:
        self.process = process
        self._on_standing = on_standing
        self.has_begun = self.has_stood = self.is_over = False
        self._steps = steps
        self._may_stand_in_commit = may_stand_in_commit
        self._came = threading.Semaphore(0)
        self._go = threading.Event()
        self._thread: threading.Thread | None = None
        self._give: Callable[[], None] = lambda: None

    @property
    def is_standing(self) -> bool:
        """Whether it has been stopped, and has not ended its turn since."""
        return self.has_stood and not self.is_over

    def run(self, work: Callable[[], None], give: Callable[[], None]) -> None:
        """Work until it is done, which `give` tells, or has to stand still."""
        self.has_begun, self._give = True, give

        def do() -> None:
            try:
                work()
            finally:
                self.is_over = True
                self._came.release()

        self._thread = threading.Thread(target=copy_context().run, args=(do,), daemon=True)
        self._thread.start()
        self._wait()
        self.process.is_frozen = self.is_standing
        if self.is_standing:
            self._on_standing()

    def go_on(self) -> None:
        """The rest of it."""
        if self.is_standing:
            self._go.set()
            self._wait()

    def _wait(self) -> None:
        assert self._came.acquire(timeout=PATIENCE), "a turn that was stopped hangs"
        if self.is_over:
            self._give()

    def on_statement(self, statement: str) -> None:
        """The turn is about to do this."""
        if statement != "COMMIT":
            self.on_step()
        elif self._may_stand_in_commit:
            self._steps = 0
            self.on_step()

    def on_step(self) -> None:
        """The turn is between two steps."""
        self._steps -= 1
        if self._steps < 0 and not self.has_stood and threading.current_thread() is self._thread:
            self.has_stood = True
            self._came.release()
            self._go.wait()


class StallingLoop(MachineLoop):
    """Virtual time for processes that stand still also within a turn. Shape: `stall` what is to come, or lasts."""

    stall: Stall | None = None

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do it now; or a part of it, if its process is to stand still meanwhile."""
        stall = self.stall
        is_turn = args and isinstance(args[0], WriteBatch) and args[0].frames
        if stall is None or stall.has_begun or not is_turn or OWNER.get() is not stall.process:
            return super().run_in_executor(executor, func, *args)
        future: asyncio.Future[Any] = self.create_future()
        found: list[tuple[Callable[[Any], None], Any]] = []

        def work() -> None:
            try:
                found.append((future.set_result, func(*args)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
                found.append((future.set_exception, error))

        def give() -> None:
            ((how, what),) = found
            self.call_later(self.executor_delay(), lambda: future.done() or how(what), context=stall.process.context)

        stall.run(work, give)
        return future


class StallingStore(WatchedStore):
    """
    As `WatchedStore`, and may stand still between any two steps of a turn.

    Shape: `loop` of the story; `on_stored` is told behind a COMMIT of frames, before anything else.
    """

    loop: StallingLoop

    def __init__(
        self,
        path: Path,
        connection: DaemonConnection,
        *,
        fragment_size: int,
        credentials: DialogCredentials | None = None,
    ) -> None:
        super().__init__(path, connection, fragment_size=fragment_size, credentials=credentials)
        self.on_stored: Callable[[], None] = lambda: None
        self._file_watch = _Looks(self._file_watch, self)  # type: ignore[assignment]
        self._looks = 0
        self._has_frames = False

    def write_in_writer(self, batch: WriteBatch) -> WriteResult:
        """As `WatchedStore`. Raises: likewise."""
        self._looks, self._has_frames = 0, bool(batch.frames)
        stall = self.loop.stall
        if stall is not None:
            self.connection.set_trace_callback(stall.on_statement)
        try:
            return super().write_in_writer(batch)
        finally:
            self.connection.set_trace_callback(None)

    def look(self) -> None:
        """It has looked whether its file is there: before the transaction, and behind it."""
        self._looks += 1
        if self._looks == 2 and self._has_frames:
            self.on_stored()
        if self.loop.stall is not None:
            self.loop.stall.on_step()


class _Looks:
    """The looks of a store, which it is told of before they are taken."""

    def __init__(self, presence: FileWatch, store: StallingStore) -> None:
        self._file_watch = presence
        self._store = store

    def check(self) -> None:
        """As `Presence`. Raises: likewise."""
        self._store.look()
        self._file_watch.check()
