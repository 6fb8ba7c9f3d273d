"""
Running readers: as many workers as they ask for, until they are to stop.

A plain function runs in a thread of its own, a coroutine function in the loop, with a thread beside it for what touches
the file. To stop is to claim nothing new and to finish what is under way; what takes longer than the grace period is
cut off: a coroutine is cancelled and nobody is blamed, a thread cannot be, and its messages come again when the process
has ended.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import structlog

from broker.application.activation import Activation
from broker.application.argument import check_seconds
from broker.application.desk import ReaderDatabase
from broker.application.work import ReaderWorker
from broker.errors import ConversationError, StoreUnavailableError
from broker.store.database import open_watch
from broker.store.fault import sentence
from broker.store.metadata import find_queue

GRACE = (
    30.0  # seconds for what is under way: below the 90 s that systemd and the 30 s that Kubernetes give, with SIGKILL
)

log = structlog.get_logger(__name__)
_T = TypeVar("_T")

Databases: TypeAlias = Mapping[str, str | PathLike[str]] | str | PathLike[str]


async def run_until(
    readers: Sequence[Activation], databases: Databases, *, grace: float | None = None, stop: asyncio.Event
) -> bool:
    """
    Run readers in this loop until `stop` is set or the task is cancelled.

    Returns:
        Whether everything under way was finished.

    Raises:
        See `broker.run_readers`.
    """
    runner = Runner(readers, databases, grace=grace)
    try:
        return await runner.run(stop)
    finally:
        runner.close()


def run_until_signal(
    readers: Sequence[Activation],
    databases: Databases,
    *,
    grace: float | None = None,
    on_stop: Callable[[], None] = lambda: None,
) -> bool:
    """Run readers in a loop of their own until SIGTERM or SIGINT, when `on_stop` is called; see `run_until`."""

    async def run() -> bool:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            on_stop()
            stop.set()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, end)
        return await run_until(readers, databases, grace=grace, stop=stop)

    return asyncio.run(run())


class Runner:
    """Readers at work on their databases. Loop-only, but for the threads it starts."""

    def __init__(self, readers: Sequence[Activation], databases: Databases, *, grace: float | None = None) -> None:
        """Find the database of each reader, and open all. Raises: see `broker.run_readers`."""
        self._grace = GRACE if grace is None else check_seconds(grace, "grace", 148, may_be_zero=True)
        self._desks: list[ReaderDatabase] = []
        self._workers: list[ReaderWorker] = []
        self._tasks: dict[asyncio.Task[None], ReaderWorker] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._is_cut = False
        by_database = _place(readers, _paths(databases))
        try:
            for (name, path), placed in by_database.items():
                desk = ReaderDatabase(name, path, placed)
                self._desks.append(desk)
                for reader in placed:
                    self._workers += [self._open(desk, reader) for _ in range(reader.concurrency)]
        except BaseException:
            self.close()
            raise

    async def run(self, stop: asyncio.Event) -> bool:
        """Work until told to stop; True when everything under way was finished."""
        for desk in self._desks:
            for reader in desk.readers:
                log.info("reader started", database=desk.name, queue=reader.queue, reader=reader.name, slot=desk.slot)
        coroutines = sum(worker.reader.is_async for worker in self._workers)
        self._pool = ThreadPoolExecutor(coroutines, thread_name_prefix="reader") if coroutines else None
        self._tasks = {asyncio.create_task(self._serve(worker)): worker for worker in self._workers}
        waiting = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({waiting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            is_finished = await self._finish()
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()  # a bug: nothing else ends a worker
        return is_finished

    def close(self) -> None:
        """Give back what is not in use any more."""
        for desk in self._desks:
            desk.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=not self._is_cut, cancel_futures=True)
        if not self._is_cut:
            for worker in self._workers:
                worker.close()
            for desk in self._desks:
                desk.close()

    # --- parts ---

    def _open(self, desk: ReaderDatabase, reader: Activation) -> ReaderWorker:
        try:
            return ReaderWorker(desk, reader)
        except sqlite3.Error as error:
            raise StoreUnavailableError(str(desk.path), sentence(error)) from error

    async def _finish(self) -> bool:
        """Claim nothing new, wait for what is under way, then cut off what can be cut."""
        for desk in self._desks:
            desk.stop()
        pending = await _all_done(self._tasks, self._grace)
        if not pending:
            return True
        log.warning("readers cut off", workers=len(pending), grace_s=self._grace)
        self._is_cut = True
        coroutines = {task for task in pending if self._tasks[task].reader.is_async}
        for task in coroutines:
            task.cancel()
        self._is_cut = bool(await _all_done(coroutines, self._grace) or pending - coroutines)
        return not self._is_cut

    async def _serve(self, worker: ReaderWorker) -> None:
        if worker.reader.is_async:
            await self._serve_coroutine(worker)
        else:
            await _in_own_thread(lambda: _serve_in_thread(worker), name=f"reader {worker.reader.queue}")

    async def _serve_coroutine(self, worker: ReaderWorker) -> None:
        while (work := await self._in_thread(worker.next)) is not None:
            try:
                await worker.reader.function(work.db, work.argument())
            except asyncio.CancelledError as error:
                await self._in_thread(work.release if self._is_cut else partial(work.fail, error))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
                await self._in_thread(partial(work.fail, error))
            else:
                await self._in_thread(work.finish)

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        """Do what touches the file; not given up when the task is cancelled, for then nobody would know what it did."""
        assert self._pool is not None
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({future})
        return future.result()


def _serve_in_thread(worker: ReaderWorker) -> None:
    while (work := worker.next()) is not None:
        try:
            worker.reader.function(work.db, work.argument())
        except BaseException as error:  # noqa: BLE001 - also SystemExit: it is the message's failure, not the end
            work.fail(error)
        else:
            work.finish()


async def _in_own_thread(call: Callable[[], None], *, name: str) -> None:
    """Run something in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            call()
        except BaseException as caught:  # noqa: BLE001 - it is raised where it is waited for
            error = caught
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    await done


async def _all_done(tasks: Iterable[asyncio.Task[Any]], seconds: float) -> set[asyncio.Task[Any]]:
    """Wait for tasks, also while this task is cancelled; gives those that are not done in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pending = {task for task in tasks if not task.done()}
    while pending and (left := deadline - loop.time()) > 0:
        with suppress(asyncio.CancelledError):
            _, pending = await asyncio.wait(pending, timeout=left)
    return pending


def _paths(databases: Databases) -> dict[str, Path]:
    if isinstance(databases, Mapping):
        return {name: Path(path) for name, path in databases.items()}
    path = Path(databases)
    return {path.stem: path}


def _place(readers: Sequence[Activation], paths: dict[str, Path]) -> dict[tuple[str, Path], list[Activation]]:
    """The readers of each database. Raises ConversationError 911, 208."""
    placed: dict[tuple[str, Path], list[Activation]] = {}
    for reader in readers:
        name = reader.database or (next(iter(paths)) if len(paths) == 1 else _find(reader, paths))
        if name not in paths:
            raise ConversationError(911, f"{reader.name}: database {name!r} is not given; there is {sorted(paths)}")
        placed.setdefault((name, paths[name]), []).append(reader)
    return placed


def _find(reader: Activation, paths: dict[str, Path]) -> str:
    """The one database that has a queue of this name."""
    found = [name for name, path in paths.items() if path.is_file() and _has_queue(path, reader.queue)]
    if len(found) == 1:
        return found[0]
    what = f"several databases have it: {found}; say database=" if found else f"none of {sorted(paths)} has it"
    raise ConversationError(208, f"{reader.name}: the queue {reader.queue!r} is not clear: {what}")


def _has_queue(path: Path, queue: str) -> bool:
    try:
        with closing(open_watch(path)) as db:
            return find_queue(db, queue) is not None
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), sentence(error)) from error
