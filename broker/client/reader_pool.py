"""
Readers: functions that receive the messages of a queue, the original's activated procedures; how they are made and run.

A plain function runs in its own thread. A coroutine function runs in the loop, with a thread for access to the file. To
stop, the pool claims no further groups and waits for calls under way, for the grace period at most. After it a
coroutine is cancelled, which does not count as a failure. A thread cannot be cancelled; its messages are received again
when the process has ended. There is no global list of readers: `broker run` and `run_readers` are given a module, a
`Readers` or the readers. The workers are in `broker.client.reader_worker`.

Source: Service Broker documentation, "Service Broker Activation".
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import structlog

from broker.client.arguments import check_count, check_seconds
from broker.client.reader_worker import TOP, Activation, Function, ReaderDatabase, ReaderWorker
from broker.errors import ConversationError
from broker.store.sqlite.failure import ATTEMPTS, REST_FIRST
from broker.store.sqlite.metadata import find_queue
from broker.store.sqlite.transaction import open_watch, translated

CONCURRENCY_MAX = 1024  # groups at a time of one reader: each has a connection and, if not async, a thread
GRACE = 30.0  # seconds: below the 90 s that systemd and the 30 s that Kubernetes wait before SIGKILL

Databases: TypeAlias = Mapping[str, str | PathLike[str]] | str | PathLike[str]
"""The file of each database by name, or the one file."""
_T = TypeVar("_T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Reader(Activation):
    """A function that reads a queue, made by `reader`. Calling it calls the function, for tests."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function itself, for tests of it."""
        return self.function(*arguments, **keywords)

    def run(self, database: Any, *, grace: float | None = None) -> None:
        """Run this reader alone in this thread until SIGTERM or SIGINT, as `run_readers` does in a loop."""
        run_until_signal([self], database, grace=grace)


def reader(
    queue: str,
    *,
    concurrency: int = 1,
    top: int = TOP,
    attempts: int = ATTEMPTS,
    retry_delay: float = REST_FIRST,
    database: str | None = None,
    single: bool = False,
    end_dialogs: bool = True,
) -> Callable[[Function], Reader]:
    """
    Make a function the reader of a queue: `@broker.reader("BillingQueue")` above `def handle(db, messages)`.

    It may be a coroutine function. It is passed a connection to the database and messages of one conversation group, in
    order. Its writes, sends and ends are committed together with the receipt of the messages when it returns, and
    rolled back when it raises.

    Args:
        queue: Name of the queue.
        concurrency: Conversation groups handled at a time in one process, 1 to 1024.
        top: Maximum number of messages in one call, at least 1.
        attempts: Failures of a message until its dialog is put in quarantine, at least 1.
        retry_delay: Seconds until the second attempt, doubled for each further one; at least 0.
        database: Name of the database; None finds the one that has a queue of this name.
        single: Whether the function is called with one message: `def handle(db, message)`; `top` is then 1.
        end_dialogs: Whether to end this side of dialogs that the far side has ended, or that failed, once the function
            has handled their last message.

    Raises:
        ValueError: an argument is out of range.
        TypeError: an argument has the wrong type, or the function cannot be called with a connection and messages.
    """
    if not isinstance(queue, str):
        raise TypeError("a reader needs the name of its queue: @broker.reader('BillingQueue')")
    try:
        concurrency = check_count(concurrency, "concurrency", 0, least=1, most=CONCURRENCY_MAX)
        top = check_count(top, "top", 0, least=1)
        attempts = check_count(attempts, "attempts", 0, least=1)
        retry_delay = check_seconds(retry_delay, "retry_delay", 0, may_be_zero=True)
    except ConversationError as error:
        raise ValueError(error.problem) from None
    if single and top not in (1, TOP):
        raise ValueError(f"single gives one message at a time: leave out top={top}")

    def make(function: Function) -> Reader:
        _check_function(function, single=single)
        most = 1 if single else top
        return Reader(function, queue, concurrency, most, attempts, retry_delay, database, single, end_dialogs)

    return make


def _check_function(function: object, *, single: bool) -> None:
    """Check that it can be called as readers are. Raises TypeError."""
    if not callable(function):
        raise TypeError(f"a reader is a function, not {type(function).__name__}")
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a decorator may pass more
    except (TypeError, ValueError):
        return  # written in C, without a signature
    try:
        signature.bind(None, None)
    except TypeError:
        given = "message" if single else "messages"
        expected = f"a reader is called with the connection and the {given}: def handle(db, {given})"
        shown = f"{getattr(function, '__name__', type(function).__name__)}{signature}"
        raise TypeError(f"{expected}, not {shown!r}") from None


@dataclass(slots=True)
class Readers:
    """A collection of the readers of an application: `app = broker.Readers()`, then `@app.reader("BillingQueue")`."""

    readers: list[Reader] = field(default_factory=list)

    def reader(self, queue: str, **options: Any) -> Callable[[Function], Reader]:
        """Make a reader as `broker.reader` does, with the same arguments, and collect it."""
        make = reader(queue, **options)

        def collect(function: Function) -> Reader:
            self.readers.append(make(function))
            return self.readers[-1]

        return collect

    def __iter__(self) -> Iterator[Reader]:
        return iter(self.readers)


async def run_readers(
    readers: object, databases: Databases, *, grace: float | None = None, stop: asyncio.Event | None = None
) -> bool:
    """
    Run readers in this event loop until `stop` is set or the task is cancelled.

    Args:
        readers: A reader, a list of readers, a `Readers`, or a module with readers.
        databases: File of each database by name, or one file.
        grace: Seconds that running functions get to finish at the end; None is 30.
        stop: Event that ends the readers when it is set.

    Returns:
        Whether all running functions finished in time.

    Raises:
        TypeError: there is no reader.
        ConversationError: 148 `grace` is not a time; 911 no such database; 208 no such queue.
        StoreUnavailableError: a file cannot be used.
    """
    pool = ReaderPool(find_readers(readers), databases, grace=grace)
    try:
        return await pool.run(stop or asyncio.Event())
    finally:
        pool.close()


def run_until_signal(
    readers: object, databases: Databases, *, grace: float | None = None, on_stop: Callable[[], None] | None = None
) -> bool:
    """Run readers in a new event loop until SIGTERM or SIGINT, when `on_stop` is called; see `run_readers`."""

    async def run() -> bool:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)

        def end() -> None:
            for number in signals:
                loop.remove_signal_handler(number)
            if on_stop is not None:
                on_stop()
            stop.set()

        if threading.current_thread() is threading.main_thread():
            for number in signals:
                loop.add_signal_handler(number, end)
        return await run_readers(readers, databases, grace=grace, stop=stop)

    return asyncio.run(run())


def find_readers(target: object) -> list[Reader]:
    """
    The readers that something holds: a reader, a `Readers` or another iterable of readers, a module.

    Raises:
        TypeError: it holds none.
    """
    if isinstance(target, Reader):
        return [target]
    members: Iterable[object] = ()
    if isinstance(target, ModuleType):
        members = vars(target).values()
        collected = [one for member in members if isinstance(member, Readers) for one in member]
        members = [*members, *collected]
    elif isinstance(target, Iterable):
        members = target
    found = {id(member): member for member in members if isinstance(member, Reader)}  # a name may be bound twice
    if not found:
        what = f"module {target.__name__!r}" if isinstance(target, ModuleType) else repr(target)
        raise TypeError(f"there is no reader in {what}: put @broker.reader('QUEUE') above a function")
    return list(found.values())


class ReaderPool:
    """Readers at work on their databases. Loop-only, except the threads that it starts."""

    def __init__(self, readers: Sequence[Activation], databases: Databases, *, grace: float | None = None) -> None:
        """Find the database of each reader, and open all. Raises: see `run_readers`."""
        self._grace = GRACE if grace is None else check_seconds(grace, "grace", 148, may_be_zero=True)
        self._databases: list[ReaderDatabase] = []
        self._workers: list[ReaderWorker] = []
        self._tasks: dict[asyncio.Task[None], ReaderWorker] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._is_cut = False
        by_database = _place(readers, _paths(databases))
        try:
            for (name, path), placed in by_database.items():
                database = ReaderDatabase(name, path, placed)
                self._databases.append(database)
                for reader in placed:
                    for _ in range(reader.concurrency):
                        with translated(path):
                            self._workers.append(ReaderWorker(database, reader))
        except BaseException:
            self.close()
            raise

    async def run(self, stop: asyncio.Event) -> bool:
        """Work until `stop` is set; returns whether everything under way was finished."""
        for database in self._databases:
            for reader in database.readers:
                about = {"database": database.name, "queue": reader.queue, "reader": reader.name}
                log.info("reader started", **about, slot=database.slot)
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
        """Stop the databases and the threads; close workers and databases, unless threads had to be left running."""
        for database in self._databases:
            database.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=not self._is_cut, cancel_futures=True)
        if not self._is_cut:
            for worker in self._workers:
                worker.close()
            for database in self._databases:
                database.close()

    async def _finish(self) -> bool:
        """Claim nothing new, wait for what is under way, then cut off what can be cut."""
        for database in self._databases:
            database.stop()
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
        """Do what touches the file, to its end also when the task is cancelled: else its outcome would not be known."""
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
        except BaseException as error:  # noqa: BLE001 - it is the failure of a message
            work.fail(error)
        else:
            work.finish()


async def _in_own_thread(call: Callable[[], None], *, name: str) -> None:
    """Run something in a thread that does not keep the process from ending."""
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    await asyncio.wrap_future(done)


async def _all_done(tasks: Iterable[asyncio.Task[Any]], seconds: float) -> set[asyncio.Task[Any]]:
    """Wait for tasks, also while this task is cancelled; returns those that are not done in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pending = {task for task in tasks if not task.done()}
    while pending and (remaining := deadline - loop.time()) > 0:
        with suppress(asyncio.CancelledError):
            _, pending = await asyncio.wait(pending, timeout=remaining)
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
    with translated(path), closing(open_watch(path)) as db:
        return find_queue(db, queue) is not None
