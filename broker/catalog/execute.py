"""
Executing statements: the only way to change a catalog, whether they come from a file, the command line or HTTP.

A script is one change, no matter which databases it names with USE. It is read and executed statement by statement
inside one open transaction for each of them, by one thread that borrows their connections. The next route tables are
made there as well; then all are committed, and the loop swaps them in at once. A mistake anywhere rolls all of them
back and names the place. One fault cannot be excluded: when the machine dies, or the disk fills up, between two of
those commits, the script has happened in some files and not in others.

Scripts run one after another. While one runs, the writers of the databases it has named so far are blocked, so only a
script waits for a second database with the first one in hand. Memory does not grow with the script.

A statement has the same meaning wherever it is run: `preview` runs a script on copies of the databases, and
`broker.catalog.dry_run` the scripts of a configuration on a catalog in memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from broker.catalog.catalog import (
    MSDB,
    Catalog,
    CatalogRows,
    Database,
    ScriptMessages,
    ScriptProgress,
    ScriptStage,
    read_rows,
    read_table,
)
from broker.catalog.handlers import RouteChanges, Session, carry_out, holds, refuse_option
from broker.ddl import statements as ddl
from broker.ddl.statements import Statement, blame, blaming
from broker.errors import DdlSyntaxError, ResourceError, StatementError, StoreUnavailableError, UnknownNameError
from broker.routing.table import RouteTable
from broker.store.sqlite.database import copy_of_catalog
from broker.store.sqlite.transaction import begin_within, commit, roll_back, sentence

LOCK_SECONDS = 20.0  # that a script waits for a database which another program writes to

# Its only conversations are requests for routes, and an administrator may have to end one.
_IN_MSDB = (
    ddl.CreateRoute,
    ddl.AlterRoute,
    ddl.DropRoute,
    ddl.ChangePermission,
    ddl.EndConversation,
    ddl.AlterDatabase,
)
_OF_A_SERVER = frozenset({"master", "model", "tempdb"})  # databases of the original that scripts of tools name

_T = TypeVar("_T")


class ScriptStoppedError(ResourceError):
    """The script was stopped before its end."""

    says: ClassVar[str] = (
        "the script was stopped, because the instance is stopping or its caller has gone; it has changed nothing"
    )


class ScriptPreview(Struct, frozen=True):
    """The contents of one database after a script, and the changes that the script makes to its routes."""

    rows: CatalogRows
    table: RouteTable
    changes: RouteChanges


async def execute(
    catalog: Catalog,
    statements: Iterable[Statement | DdlSyntaxError],
    *,
    database: str,
    is_declared: bool = False,
    progress: ScriptProgress | None = None,
) -> list[str]:
    """
    Carry out a script, wholly or not at all.

    Args:
        catalog: Brought up to date before this returns, once it is loaded.
        statements: In order, read by another thread while the script runs; mistakes are among them, in their places.
        database: The current database at its beginning; USE changes it.
        is_declared: Whether this is a script of the configuration.
        progress: Follows how far it is, and may stop it.

    Returns:
        One message for each statement but USE; of a long script the first, and how many more.

    Raises:
        StatementError: with the place; nothing is changed.
        StoreUnavailableError: a file could not be read or written; nothing is changed, unless it says so.
    """
    progress = progress or ScriptProgress()
    async with _turn(catalog, progress):
        script = Script(catalog, database, is_declared=is_declared, progress=progress)
        try:
            await _in_thread(progress, partial(_finish, script, statements, Script.commit))
        finally:
            for name, state in script.committed.items():
                catalog.databases[name].rows, catalog.databases[name].table = state.rows, state.table
            if script.committed:
                catalog.changed()
    messages = script.messages.take()
    if script.fails_over is not None:  # once the lock is released: the database needs it to step down
        statement, name = script.fails_over
        with blaming(statement):
            messages.append(await catalog.fail_over.carry_out(name))
    return messages


async def preview(
    catalog: Catalog,
    statements: Iterable[Statement | DdlSyntaxError],
    *,
    database: str,
    progress: ScriptProgress | None = None,
) -> Mapping[str, ScriptPreview]:
    """
    Run a script as `execute` does, and in the same queue of scripts, but on copies that are discarded.

    Neither the writers of the databases nor applications wait for it.

    Returns:
        The contents that each database that the script changes would have.

    Raises:
        StatementError, StoreUnavailableError: as `execute`; nothing is changed in any case.
    """
    progress = progress or ScriptProgress()
    async with _turn(catalog, progress):
        copies = {name: replace(one, borrow=partial(_copied, one)) for name, one in catalog.databases.items()}
        script = Script(catalog, database, databases=copies, progress=progress)
        return await _in_thread(progress, partial(_finish, script, statements, Script.states))


class Script:
    """
    A script under way, in one thread. The owner closes it, which undoes what is not committed.

    Args:
        catalog: The databases, unless others are given; their mirrors and partners.
        database: The current database at its beginning.
        is_declared: Whether it is of the configuration.
        databases: Copies to carry it out on, for a preview.
        progress: Written to, and read for whether to stop.
        now: The UTC instant from which lifetimes count; the present one if None.

    Attributes:
        current: Name of the database that the next statement is for.
        committed: The contents of the databases that were committed, once the catalog is loaded.
        fails_over: The statement and the database that is to be handed over, when the script asks for just that.

    Raises:
        UnknownNameError: 911, no such database.
    """

    def __init__(
        self,
        catalog: Catalog,
        database: str,
        *,
        is_declared: bool = False,
        databases: Mapping[str, Database] | None = None,
        progress: ScriptProgress | None = None,
        now: datetime | None = None,
    ) -> None:
        self.progress = progress or ScriptProgress()
        self.messages = ScriptMessages()
        self.committed: dict[str, ScriptPreview] = {}
        self.fails_over: tuple[ddl.AlterDatabase, str] | None = None
        self._catalog = catalog
        self._databases = catalog.databases if databases is None else databases
        self._is_preview = databases is not None
        self._is_declared = is_declared
        self._now = now or datetime.now(UTC)
        self._sessions: dict[str, Session] = {}
        self._asked: tuple[ddl.ExistsGuard, bool] | None = None
        self._borrowed = ExitStack()
        self.current = database if database in catalog.mirrors else self._database(database).name

    def run(self, statements: Iterable[Statement | DdlSyntaxError]) -> None:
        """
        Carry out all of them.

        Raises:
            StatementError, StoreUnavailableError: as `execute`.
            ScriptStoppedError: it was stopped.
        """
        progress = self.progress
        self._end_if_stopped()
        progress.stage = ScriptStage.RUNNING
        for statement in statements:
            self._end_if_stopped()
            if isinstance(statement, DdlSyntaxError):
                raise statement
            self.carry_out(statement)
            if statement.origin is not None:
                progress.position = statement.origin.end
        progress.stage = ScriptStage.FINISHING

    def carry_out(self, statement: Statement) -> bool:
        """
        Carry out one statement, in the transaction of its database; False when its guard does not hold.

        Raises:
            StatementError: it cannot be done, with the place; this statement has changed nothing.
            StoreUnavailableError: as `execute`.
        """
        try:
            return self._carry_out(statement)
        except StatementError as error:
            blame(statement, error)
            raise

    def _carry_out(self, statement: Statement) -> bool:
        if self.fails_over is not None:
            raise StatementError(226, "SET PARTNER FAILOVER is the only statement of its script, but for USE")
        if isinstance(statement, ddl.UseDatabase):
            self.current = self._database(statement.name).name
            return True
        name = self.current
        if isinstance(statement, ddl.AlterDatabase):
            name = statement.name or name
            if statement.option is ddl.DatabaseOption.PARTNER_FAILOVER:
                self._fail_over(statement, name)
                return True
        session = self._sessions.get(name) or self._begin(name)
        if name == MSDB and not isinstance(statement, _IN_MSDB):
            raise StatementError(15151, "msdb holds routes and permissions only; name a database with USE")
        try:
            if (guard := statement.guard) is not None:
                if self._asked is None or self._asked[0] is not guard:  # once for all statements of a block
                    self._asked = guard, holds(guard, statement, session)
                if not self._asked[1]:
                    return False
            carry_out(statement, session)
        except sqlite3.Error as error:
            raise _unavailable(self._databases[name], error) from error
        self._audit(name, statement)
        self.progress.statements += 1
        return True

    def states(self) -> dict[str, ScriptPreview]:
        """Return the present contents of the databases that it has named."""
        states: dict[str, ScriptPreview] = {}
        for name, session in self._sessions.items():
            database, changes = self._databases[name], session.changes
            try:
                if changes.are_many:
                    table = read_table(session.db, database=name, now=session.now)
                else:
                    table = database.table.changed(changes.kept) if changes.kept else database.table
                states[name] = ScriptPreview(read_rows(session.db), table, changes)
            except sqlite3.Error as error:
                raise _unavailable(database, error) from error
        return states

    def commit(self) -> None:
        """All of it, when everything that can fail before has not failed."""
        states = self.states() if self._catalog.is_loaded else {}  # else loading reads it
        done: list[str] = []
        self._end_if_stopped()
        if self.progress.seen_by is not None:
            self.progress.seen_by.seal(self.progress.statements)
        for name, session in self._sessions.items():
            try:
                commit(session.db)
            except sqlite3.Error as error:
                raise _unavailable(self._databases[name], error, done) from error
            done.append(name)
            if name in states:
                self.committed[name] = states[name]

    def close(self) -> None:
        """Roll back what is not committed, and give the connections back."""
        self._borrowed.close()

    def _end_if_stopped(self) -> None:
        if self.progress.is_stopped:
            raise ScriptStoppedError

    def _begin(self, name: str) -> Session:
        """The database, borrowed and in a transaction from its first statement on."""
        database = self._database(name)
        db = self._borrowed.enter_context(database.borrow())
        self._borrowed.callback(roll_back, db)
        try:
            begin_within(db, LOCK_SECONDS)
        except sqlite3.Error as error:
            raise _unavailable(database, error) from error
        session = Session(db, self._now, self._is_declared, self.messages, name, self._catalog.endpoint)
        self._sessions[name] = session
        return session

    def _fail_over(self, statement: ddl.AlterDatabase, name: str) -> None:
        """Note the hand-over. It cannot be rolled back, so the script says nothing else."""
        refuse_option(statement, is_declared=self._is_declared)
        if name not in self._catalog.mirrors:
            self._database(name)
        self._catalog.fail_over.check(name)
        if self._sessions:
            raise StatementError(226, "SET PARTNER FAILOVER is the only statement of its script, but for USE")
        if self._is_preview:
            self.messages.add("database", name, "would be handed over")
        else:
            self.fails_over = statement, name
            self._audit(name, statement)

    def _audit(self, database: str, statement: Statement) -> None:
        if self.progress.seen_by is not None:
            self.progress.seen_by.note(database, statement)

    def _database(self, name: str) -> Database:
        found = self._databases.get(name)
        if found is None and name in self._catalog.mirrors:
            raise StatementError(954, f"the database {name!r} is a mirror here: say this to its principal")
        if found is None:
            known = ", ".join(sorted(self._databases))
            hint = "leave the statement that names it out" if name.lower() in _OF_A_SERVER else f"there are: {known}"
            raise UnknownNameError(911, f"the database {name!r} does not exist here; {hint}")
        return found


def _finish(script: Script, statements: Iterable[Statement | DdlSyntaxError], end: Callable[[Script], _T]) -> _T:
    with closing(script):
        script.run(statements)
        return end(script)


@contextmanager
def _copied(database: Database) -> Iterator[sqlite3.Connection]:
    """A database as a preview may change it."""
    assert database.path is not None, "a preview is of databases in files"
    try:
        copy = copy_of_catalog(database.path)
    except sqlite3.Error as error:
        raise _unavailable(database, error) from error
    with closing(copy):
        yield copy


@asynccontextmanager
async def _turn(catalog: Catalog, progress: ScriptProgress) -> AsyncIterator[None]:
    """The turn of one script, after those before it; until its end its progress can be followed."""
    catalog.scripts.append(progress)
    try:
        async with catalog.lock:
            yield
    finally:
        if progress in catalog.scripts:
            catalog.scripts.remove(progress)


async def _in_thread(progress: ScriptProgress, work: Callable[[], _T]) -> _T:
    """Run it in a thread; a cancelled caller waits until the thread has let go of the databases."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            progress.is_stopped = True
            cancelled = error
    if cancelled is not None:
        running.exception()  # retrieved, because no task awaits it
        raise cancelled
    return running.result()


def _unavailable(database: Database, error: sqlite3.Error, done: Iterable[str] = ()) -> StoreUnavailableError:
    where = ", ".join(done)
    already = f"; the script is already committed in: {where}" if where else ""
    return StoreUnavailableError(str(database.path), f"{sentence(error)}{already}")
