"""
A SQLite connection for asyncio, which works in its own thread.

Calls of one connection run one after another in its thread, so the loop never waits for a disk. Each call commits by
itself unless it is made inside `async with connection:`, which is one transaction, begun by the first call that writes
or receives. A transaction belongs to the task that opened it and to the tasks started inside it; the calls of other
tasks wait for its end. Whether a call that is cancelled while it runs has happened is not known: its transaction can
only roll back, and raises an error where it would commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from broker.client.arguments import kind_of
from broker.client.poison import forget_handed_out
from broker.client.receiving import Waiting
from broker.client.transaction import commit
from broker.client.waiting import Doorbell
from broker.errors import ConversationError, StoreUnavailableError
from broker.store.sqlite.transaction import path_of, sentence

_P = ParamSpec("_P")
_T = TypeVar("_T")

# The transactions that the running code is inside of; tasks that it starts inherit them.
_inside: ContextVar[frozenset[object]] = ContextVar("broker_transactions", default=frozenset())


class Connection:
    """
    A connection, made by `connect`, for one event loop.

    `async with connection:` is a transaction: committed at its end, rolled back by an exception.
    """

    def __init__(self, path: str, executor: ThreadPoolExecutor, db: sqlite3.Connection) -> None:
        self._path = path
        self._executor = executor
        self._db = db
        self._turn = asyncio.Lock()
        self._transaction: object | None = None
        self._doomed: object | None = None
        self._is_open = True
        self._paused: set[Doorbell | None] = set()  # calls that wait in the thread

    @property
    def row_factory(self) -> Any:
        """Row factory of `execute`, as that of a connection of `sqlite3`."""
        return self._db.row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self._db.row_factory = factory

    @property
    def is_in_transaction(self) -> bool:
        """Whether the caller is inside `async with` of this connection."""
        return self._transaction is not None and self._transaction in _inside.get()

    async def execute(self, statement: str, parameters: Iterable[Any] = ()) -> list[Any]:
        """Execute a statement on the application's own tables and return all rows. Raises sqlite3.Error."""
        return await self.run(lambda: self._db.execute(statement, tuple(parameters)).fetchall())

    async def executemany(self, statement: str, parameters: Iterable[Iterable[Any]]) -> int:
        """Execute a statement for each set of parameters; return the number of changed rows. Raises sqlite3.Error."""
        return await self.run(lambda: self._db.executemany(statement, map(tuple, parameters)).rowcount)

    async def run(self, call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """
        Run a call in the connection's thread.

        Cancelling ends the wait at once; a call that runs already is not stopped.
        """
        job = partial(call, *args, **kwargs)
        self._end_pauses()
        if self.is_in_transaction:
            return await self._submit(partial(self._in_mode, "IMMEDIATE", job), self._transaction)
        async with self._turn:
            return await self._submit(partial(self._in_mode, None, job), None)

    async def run_steps(self, begin: Callable[[sqlite3.Connection], Waiting[_T]]) -> _T:
        """
        Run something that waits, inside a transaction; between its steps the file is free, and so is the thread where
        another call needs it.

        Raises:
            ConversationError: 628 there is no transaction, so that what is received could get lost.
        """
        if not self.is_in_transaction:
            problem = "to receive needs a transaction: do it, and what follows from it, inside `async with db:`"
            raise ConversationError(628, problem)
        steps = begin(self._db)
        doorbell: Doorbell | None = None
        try:
            while True:
                job = partial(self._in_mode, "IMMEDIATE", partial(_step, steps))
                doorbell, result = await self._submit(job, self._transaction, self._is_only_a_pause)
                if doorbell is None:
                    assert result is not None
                    return result[0]
                self._paused.add(doorbell)
                await self._submit(doorbell.pause, None)
                self._paused.discard(doorbell)
        except BaseException:
            self._end_pauses()
            self._paused.discard(doorbell)
            with suppress(RuntimeError):  # the connection is closed
                self._executor.submit(steps.close)
            raise

    def _end_pauses(self) -> None:
        """Have the thread for another call."""
        for doorbell in self._paused:
            if doorbell is not None:
                doorbell.interrupt()

    def _is_only_a_pause(self, outcome: tuple[Doorbell | None, object]) -> bool:
        """Of a step that was cancelled; what it received was not seen, so that to receive it again is not a failure."""
        if outcome[0] is None:
            forget_handed_out(self._path)
        return outcome[0] is not None

    async def __aenter__(self) -> Self:
        if self.is_in_transaction:
            raise ConversationError(628, "this is inside a transaction of the same connection already")
        await self._turn.acquire()
        self._transaction = object()
        _inside.set(_inside.get() | {self._transaction})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            is_kept = await self._settle(partial(self._finish, is_committed=kind is None))
        finally:
            _inside.set(_inside.get() - {self._transaction})
            self._transaction = None
            self._turn.release()
        if kind is None and not is_kept:
            problem = "a call inside this transaction was cancelled while it ran: all of the transaction is undone"
            raise StoreUnavailableError(self._path, problem)

    async def close(self) -> None:
        """Close the connection and roll back an open transaction. Closing it again does nothing."""
        if self._is_open:
            self._is_open = False
            await self._settle(self._db.close)
            self._executor.shutdown()

    def _in_mode(self, isolation_level: Literal["IMMEDIATE"] | None, job: Callable[[], _T]) -> _T:
        """In the thread: inside a transaction a write begins it, outside each call commits."""
        if self._db.isolation_level != isolation_level:
            self._db.isolation_level = isolation_level
        result = job()
        if isolation_level is None and self._db.in_transaction:
            self._db.execute("ROLLBACK")
            raise ConversationError(628, "a transaction is begun with `async with db:`, not with BEGIN")
        return result

    def _finish(self, *, is_committed: bool) -> bool:
        """
        In the thread, after every call of the transaction; whether it may be committed.

        Raises:
            StoreUnavailableError: the file cannot be written, so that all of the transaction is undone.
        """
        is_doomed = self._doomed is self._transaction
        try:
            if is_committed and not is_doomed:
                commit(self._db)
        finally:
            if self._db.in_transaction:
                self._db.rollback()
        return not is_doomed

    async def _submit(
        self, job: Callable[[], _T], transaction: object | None, is_harmless: Callable[[_T], bool] | None = None
    ) -> _T:
        """Run a job; when it is cancelled while it runs, or before its result is seen, the transaction is doomed."""
        future = self._executor.submit(job)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if not future.cancel():
                future.add_done_callback(partial(self._doom, transaction, is_harmless))
            raise

    def _doom(self, transaction: object | None, is_harmless: Callable[[_T], bool] | None, future: Future[_T]) -> None:
        """In the thread, before its next job; or in the loop, when the job is done already."""
        if transaction is None:
            return
        if is_harmless is None or future.exception() is not None or not is_harmless(future.result()):
            self._doomed = transaction

    async def _settle(self, job: Callable[[], _T]) -> _T:
        """Run a job to its end; a cancellation is raised after it."""
        future = asyncio.wrap_future(self._executor.submit(job))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError as error:
                cancelled = error
            except Exception:  # noqa: BLE001, S110 - `result` raises it below
                pass
        if cancelled is not None:
            future.exception()
            raise cancelled
        return future.result()


def check_awaited(db: object) -> None:
    """
    Check that this is a connection of `connect`.

    Raises:
        TypeError: it is not.
    """
    if isinstance(db, Connection):
        return
    hint = ""
    if isinstance(db, sqlite3.Connection):
        hint = ": for that one the same calls are in `broker`, without await"
    elif isinstance(db, Connecting):
        hint = ": await it first"
    expected = "the connection has to be one of broker.aio, as `async with broker.aio.connect(PATH)` gives it"
    raise TypeError(f"{expected}, not {kind_of(db)}{hint}")


class Connecting:
    """What `connect` returns: `async with` it, or `await` it and close the connection yourself."""

    def __init__(self, path: str | PathLike[str], options: dict[str, Any]) -> None:
        self._path = str(path)
        self._options = options
        self._connection: Connection

    def __await__(self) -> Generator[Any, None, Connection]:
        return self._open().__await__()

    async def __aenter__(self) -> Connection:
        self._connection = await self._open()
        return self._connection

    async def __aexit__(self, *_error: object) -> None:
        await self._connection.close()

    async def _open(self) -> Connection:
        executor = ThreadPoolExecutor(1, thread_name_prefix="broker-aio")
        opening = executor.submit(self._open_in_thread)
        try:
            db, path = await asyncio.shield(asyncio.wrap_future(opening))
        except BaseException as error:
            opening.add_done_callback(_close_unseen)
            executor.shutdown(wait=False)
            if isinstance(error, sqlite3.Error):
                raise StoreUnavailableError(self._path, sentence(error)) from error
            raise
        return Connection(path, executor, db)

    def _open_in_thread(self) -> tuple[sqlite3.Connection, str]:
        """The connection, and its file as SQLite names it."""
        db = sqlite3.connect(self._path, isolation_level=None, **self._options)
        return db, path_of(db) or self._path


def _close_unseen(opening: Future[tuple[sqlite3.Connection, str]]) -> None:
    """Close a connection whose caller has stopped waiting for it; mostly called in the thread that opened it."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()


def _step(steps: Waiting[_T]) -> tuple[Doorbell | None, tuple[_T] | None]:
    """The doorbell to wait at, or the result."""
    try:
        return next(steps), None
    except StopIteration as end:
        return None, (end.value,)
