"""
The place of one worker: a process is started in it, watched, and replaced when it dies.

A process that dies is replaced after a pause, which doubles while they die young; one that answers no more is ended,
and so dies. What the dead one had counted at the last look stays with the place, so that counters never go down; what
it held then is counted as lost with it. What it counted after that look nobody knows; for how long that was is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from typing import Any

import structlog

from broker.net.farewell import Left
from broker.supervision import Supervision
from broker.workers.channel import Asker, WorkerFailedError
from broker.workers.message import (
    Abandon,
    Adopt,
    Begin,
    Leave,
    Load,
    Passed,
    Prepare,
    Question,
    Remains,
    Report,
    Rows,
    WorkerReport,
)
from broker.workers.tally import Retired

BEGIN_SECONDS = 120.0  # for a worker to read a million routes on a machine that is busy with as many workers
LOAD_SECONDS = 120.0
ANSWER_SECONDS = 5.0  # for the rows of a full pool; a worker that answers nothing at all is found out earlier
LOOK_SECONDS = 0.5  # after which a question that is not answered makes us look whether the worker answers anything
SILENT_SECONDS = 1.5  # without an answer to a look after which nobody waits any more; a busy one is late by less
WATCH_SECONDS = 0.25  # between two looks at a worker; what it counts in it may die with it
LOOK_SHARE = 50  # times as long as a look has taken we rest after it: a thousand connections take milliseconds to tell
DEAF_LOOKS = 6  # without an answer, one after the other, after which a worker is replaced: looks and not seconds, so
# that a supervisor which was itself stopped for a while ends nobody
UNHEARD_SECONDS = 5.0  # since the last answer after which a worker is not called well, whatever became of the looks
PAUSE_FIRST, PAUSE_MAX = 0.1, 10.0  # seconds before a dead worker is replaced
YOUNG_SECONDS = 60.0  # who dies earlier makes the pause before the next one longer

log = structlog.get_logger(__name__)


class Slot:
    """
    The place of one worker. Loop-only.

    Shape: `number` from 1; `restarts` how often the process was replaced; `pid` None while there is none; `started_at`
    UTC seconds of the process; `is_ready` while it serves; `report` the last one; `retired` what the dead ones counted;
    `is_silent` while it does not answer.
    """

    def __init__(self, number: int, begin: Begin, supervision: Supervision | None = None) -> None:
        self.number = number
        self.restarts = 0
        self.pid: int | None = None
        self.started_at = 0.0
        self.is_ready = False
        self.is_silent = False
        self.report: WorkerReport | None = None
        self.retired = Retired()
        self._heard_at = 0.0  # when the last report came, or it began to serve; monotonic seconds
        self._is_stale = False  # routes have changed since the process was told to begin
        self._begin = begin
        self._supervision = supervision or Supervision()
        self._asker = Asker(number)
        self._process: asyncio.subprocess.Process | None = None
        self._settled = asyncio.Lock()  # held while a process comes up and while it loads
        self._stopping = asyncio.Event()

    async def run(self, first: asyncio.Future[None]) -> None:
        """
        Keep a worker here until `stop`.

        Args:
            first: Told whether the first process serves; when it does not, nothing is tried again.
        """
        young = 0
        while not self._stopping.is_set():
            born = time.monotonic()
            problem = await self._outlive(first)
            if self._stopping.is_set() or not first.done() or first.exception() is not None:
                return
            young = young + 1 if time.monotonic() - born < YOUNG_SECONDS else 0
            pause = min(PAUSE_MAX, PAUSE_FIRST * 2 ** min(young, 10))
            log.error("worker died", worker=self.number, reason=problem, restart_in_s=pause)
            self.restarts += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    @property
    def problem(self) -> str:
        """Why this place does not serve now; empty when it does."""
        if not self.is_ready:
            return "does not serve at the moment"
        if not self.is_silent and time.monotonic() - self._heard_at < UNHEARD_SECONDS:
            return ""
        silent_s, deaf_s = time.monotonic() - self._heard_at, DEAF_LOOKS * (SILENT_SECONDS + WATCH_SECONDS)
        return f"has not answered for {silent_s:.1f} s; it is replaced after some {deaf_s:.0f} s"

    async def ask(self, question: Question, answer: Any, *, seconds: float | None = None) -> Any:
        """
        The answer of the process that is here, within `ANSWER_SECONDS` or so many.

        Raises:
            WorkerFailedError: it refuses, ends, does not answer in time, or answers nothing at all for two seconds.
        """
        asked = self._asker.ask(question, answer, seconds=seconds or ANSWER_SECONDS)
        asking = asyncio.get_running_loop().create_task(asked)
        try:
            while not (await asyncio.wait({asking}, timeout=LOOK_SECONDS))[0]:
                if self.is_ready:
                    await self._look()
            return await asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def load(self) -> None:
        """
        See that the worker decides by the routes as they are now; one that cannot is replaced.

        A process that comes up is waited for as long as for one that does not answer. If that is too short it reads
        them anew before it counts as ready.
        """
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                await self._settled.acquire()
        except TimeoutError:
            self._is_stale = True
            if self._settled.locked():
                return
            await self._settled.acquire()
        try:
            if self.is_ready:
                await self.ask(Load(), None, seconds=LOAD_SECONDS)
        except WorkerFailedError as error:
            log.warning("worker has old routes", worker=self.number, reason=error.problem)
            self.is_ready = False
            self._send(signal.SIGKILL)
        finally:
            self._settled.release()

    async def tell(self) -> None:
        """Bring `report` up to date; one that does not answer keeps its old one."""
        if self.is_ready and not self.is_silent:
            with contextlib.suppress(WorkerFailedError):
                await self._look()

    async def rows(self, view: str) -> list[tuple[Any, ...]]:
        """The rows of a view; raises WorkerFailedError."""
        found: list[tuple[Any, ...]] = await self.ask(Rows(view), list[tuple[Any, ...]])
        return found

    async def passed(self, kind: Any) -> Any:
        """What passed through lately, as a list of this kind; raises WorkerFailedError."""
        return await self.ask(Passed(), kind)

    async def prepare(self, begin: Begin) -> None:
        """
        Have the worker make ready for other settings; one that comes up at the moment is given them when it is up.

        Raises:
            WorkerFailedError: it refuses, or does not answer; it is as it was.
        """
        if self.is_ready:
            await self.ask(Prepare(begin.settings), None, seconds=LOAD_SECONDS)

    async def abandon(self) -> None:
        """What was prepared will not hold."""
        if self.is_ready:
            with contextlib.suppress(WorkerFailedError):  # then it is replaced by one that never heard of it
                await self.ask(Abandon(), None)

    async def adopt(self, begin: Begin) -> None:
        """Live by what was prepared; a worker that fails to is replaced by one that begins with it."""
        self._begin = begin
        if not self.is_ready:
            return
        try:
            await self.ask(Adopt(), None)
        except WorkerFailedError as error:
            log.warning("worker has old settings, and is replaced", worker=self.number, reason=error.problem)
            self.is_ready = False
            self._send(signal.SIGKILL)

    async def leave(self, seconds: float) -> None:
        """Let the worker begin to leave, within so many seconds; it is not replaced any more."""
        if not self.is_ready:
            self.stop()
            return
        self._stopping.set()
        with contextlib.suppress(WorkerFailedError):  # it has died, or is deaf; what it does then is seen by `left`
            await self.ask(Leave(seconds), None)

    async def left(self) -> Left:
        """What the worker has left to do; nothing when there is none."""
        if not self.is_ready:
            return Left()
        try:
            left: Left = await self._asker.ask(Remains(), Left, seconds=SILENT_SECONDS)
        except WorkerFailedError:
            return Left() if self.pid is None else Left(busy=(f"worker {self.number}",))
        return left

    def stop(self) -> None:
        """Let the worker drain and end; it is not replaced any more."""
        self._stopping.set()
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the worker at once; it is not replaced any more."""
        self._stopping.set()
        self._send(signal.SIGKILL)

    # --- the inside ---

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _outlive(self, first: asyncio.Future[None]) -> str:
        """The same; a bug here ends this process and not the place."""
        try:
            return await self._live(first)
        except Exception as error:
            name, problem = f"worker {self.number}", repr(error)
            self._supervision.note(name)
            log.exception("task failed", task=name, reason=problem)
            self._fail(first, problem)
            return problem

    async def _live(self, first: asyncio.Future[None]) -> str:
        """The life of one process; why it ended."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = process = await _spawn(self.number, theirs)
        except OSError as error:
            ours.close()
            self._fail(first, problem := f"cannot be started: {error.strerror or error}")
            return problem
        except BaseException:
            ours.close()
            raise
        self.pid, self.started_at = process.pid, time.time()
        if self._stopping.is_set():
            self._send(signal.SIGTERM)
        self.is_silent = self._is_stale = False
        await self._asker.connect(ours)
        answers = asyncio.get_running_loop().create_task(self._asker.run(), name=f"answers of worker {self.number}")
        problem = ""
        try:
            problem = await self._come_up(first)
            watching = self._supervision.keep(f"watch of worker {self.number}", self._watch)
            try:
                code = await process.wait()
            finally:
                await watching.stop()
        finally:
            if process.returncode is None:
                self._send(signal.SIGKILL)
            self._process = self.pid = None
            self.is_ready = False
            await asyncio.gather(answers, return_exceptions=True)
            self._retire()
        return problem or (f"signal {-code}" if code < 0 else f"exit code {code}")

    async def _come_up(self, first: asyncio.Future[None]) -> str:
        """Have it serve; why it does not, and then it is ended."""
        async with self._settled:
            try:
                begin = self._begin
                await self._asker.ask(begin, None, seconds=BEGIN_SECONDS)
                while self._is_stale or self._begin is not begin:
                    if self._begin is not begin:
                        begin = self._begin
                        await self._asker.ask(Prepare(begin.settings), None, seconds=LOAD_SECONDS)
                        await self._asker.ask(Adopt(), None, seconds=LOAD_SECONDS)
                    self._is_stale = False
                    await self._asker.ask(Load(), None, seconds=LOAD_SECONDS)
            except WorkerFailedError as error:
                self._fail(first, error.problem)
                self._send(signal.SIGKILL)
                return error.problem
            self.is_ready, self._heard_at = True, time.monotonic()
            log.info("worker ready", worker=self.number, pid=self.pid)
        if not first.done():
            first.set_result(None)
        return ""

    async def _watch(self) -> None:
        """Keep `report` young, and end a worker that has gone deaf: it still has connections, and serves nobody."""
        pause, unanswered = WATCH_SECONDS, 0
        while True:
            await asyncio.sleep(pause)
            if not self.is_ready:
                continue
            began = time.monotonic()
            try:
                await self._look()
            except WorkerFailedError:
                pause, unanswered = WATCH_SECONDS, unanswered + 1
            else:
                pause = min(max(WATCH_SECONDS, LOOK_SHARE * (time.monotonic() - began)), SILENT_SECONDS)
                unanswered = 0
            if unanswered == DEAF_LOOKS:
                log.error("worker is deaf", worker=self.number, pid=self.pid, reason=self.problem)
                self._send(signal.SIGKILL)

    async def _look(self) -> None:
        """Bring `report` up to date, and find out whether the process answers; raises WorkerFailedError if not."""
        process = self._process
        try:
            report = await self._asker.ask(Report(), WorkerReport, seconds=SILENT_SECONDS)
        except WorkerFailedError as error:
            if self.is_ready and not self.is_silent and self._process is process:
                self.is_silent = True
                log.warning("worker does not answer", worker=self.number, pid=self.pid, reason=error.problem)
            raise
        if self.is_ready and self._process is process:  # else it has died meanwhile, and is retired already
            if self.is_silent:
                log.info("worker answers again", worker=self.number, pid=self.pid)
            self.report, self.is_silent, self._heard_at = report, False, time.monotonic()

    def _retire(self) -> None:
        """The process has ended: what it told last is what it leaves."""
        if not self._heard_at:
            return
        uncounted_s = time.monotonic() - self._heard_at
        lost = self.retired.add(self.report, uncounted_s=uncounted_s)
        self.report, self._heard_at = None, 0.0
        log.info("worker retired", worker=self.number, lost_messages=lost, uncounted_s=round(uncounted_s, 3))

    def _fail(self, first: asyncio.Future[None], problem: str) -> None:
        if not first.done():
            first.set_exception(WorkerFailedError(self.number, problem))


async def _spawn(number: int, sock: socket.socket) -> asyncio.subprocess.Process:
    """A process of this program, which finds its modules where this one does and is told nothing but its socket."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "broker.workers.worker",
        str(number),
        str(sock.fileno()),
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=[sock.fileno()],
        start_new_session=True,  # what a terminal sends is for the supervisor
        env={**os.environ, "PYTHONPATH": path},
    )
