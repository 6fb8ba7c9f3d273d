"""
Carrying out statements: the one door for every change, from file, command line or HTTP.

A script is one change, whatever databases it names with USE: it is read and carried out statement by statement inside
one open transaction for each of them, by one thread that borrows their connections; the next route tables are made
there as well; then all are committed, and the loop swaps them in at once. A mistake anywhere rolls all of them back and
names the place. What cannot be excluded: when the machine dies, or the disk fills up, between two of those commits, the
script has happened in some files and not in others.

Scripts run one after another. While one runs, the writers of the databases it has named so far stand still, so nobody
waits for a second database with the first one in hand but the script itself. Memory does not grow with the script.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

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
from broker.catalog.handlers import RouteChanges, Session, carry_out, refuse_option
from broker.catalog.route_batch import BATCH_MAX, create_routes
from broker.ddl.statements import (
    AlterDatabase,
    AlterRoute,
    ChangePermission,
    CreateRoute,
    DatabaseOption,
    DropRoute,
    EndConversation,
    Statement,
    UseDatabase,
    blaming,
)
from broker.errors import DdlSyntaxError, ResourceError, StatementError, StoreUnavailableError, UnknownNameError
from broker.routing.table import RouteTable
from broker.store.sqlite.database import copy_of_catalog
from broker.store.sqlite.transaction import begin_within, commit, roll_back, sentence

_IN_MSDB = (AlterRoute, DropRoute, ChangePermission, EndConversation, AlterDatabase)
LOCK_SECONDS = 20.0  # that a script waits for a database which another program writes to


class ScriptStoppedError(ResourceError):
    """The script was told to end before its end."""

    def __str__(self) -> str:
        return "the script was stopped, because the instance stops or nobody waits for it; it has changed nothing"


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
        statements: In order, read by another thread while the script runs; mistakes stand in their places.
        database: Where it begins; USE changes it.
        is_declared: Whether this is a script of the configuration.
        progress: What tells how far it is.

    Returns:
        One message for each statement but USE; of a long script the first, and how many more.

    Raises:
        StatementError: with the place; nothing is changed.
        StoreUnavailableError: a file could not be read or written; nothing is changed, unless it says so.
    """
    progress = progress or ScriptProgress()
    async with _turn(catalog, progress):
        script = _Script(catalog, catalog.databases, progress, is_declared=is_declared)
        try:
            await _to_its_end(script, statements, database)
        finally:
            for name, (rows, table) in script.committed.items():
                catalog.databases[name].rows, catalog.databases[name].table = rows, table
            if script.committed:
                catalog.changed()
    told = script.messages.lines()
    if script.fails_over is not None:  # behind its turn, which the database needs to go
        statement, name = script.fails_over
        with blaming(statement):
            told.append(await catalog.fail_over.carry_out(name))
    return told


async def preview(
    catalog: Catalog,
    statements: Iterable[Statement | DdlSyntaxError],
    *,
    database: str,
    progress: ScriptProgress | None = None,
) -> Mapping[str, ScriptPreview]:
    """
    What a script would do: it is carried out as `execute` does, in its turn, on copies that are thrown away.

    Nobody else waits: neither the writers of the databases nor applications.

    Returns:
        What each database that it changes would hold.

    Raises:
        StatementError, StoreUnavailableError: as `execute`; nothing is changed in any case.
    """
    progress = progress or ScriptProgress()
    async with _turn(catalog, progress):
        copies = {name: replace(one, borrow=partial(_copied, one)) for name, one in catalog.databases.items()}
        script = _Script(catalog, copies, progress, is_declared=False, is_preview=True)
        await _to_its_end(script, statements, database)
    return script.outcomes


@contextmanager
def _copied(database: Database) -> Iterator[sqlite3.Connection]:
    """A database as a preview may change it."""
    if database.path is None:
        with database.borrow() as db:
            yield db
        return
    try:
        copy = copy_of_catalog(database.path)
    except sqlite3.Error as error:
        raise _unavailable(database, error) from error
    with closing(copy):
        yield copy


@asynccontextmanager
async def _turn(catalog: Catalog, progress: ScriptProgress) -> AsyncIterator[None]:
    """The turn of one script, behind those before it; until its end everybody sees how far it is."""
    catalog.scripts.append(progress)
    try:
        async with catalog.lock:
            yield
    finally:
        if progress in catalog.scripts:
            catalog.scripts.remove(progress)


async def _to_its_end(script: _Script, statements: Iterable[Statement | DdlSyntaxError], database: str) -> None:
    """Run it in a thread; whoever cancels this waits until the thread has let go of the databases."""
    running = asyncio.get_running_loop().run_in_executor(None, script.run, statements, database)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            script.progress.is_stopped = True
            cancelled = error
    if cancelled is not None:
        running.exception()  # nobody waits for it
        raise cancelled
    running.result()


@dataclass(frozen=True, slots=True)
class ScriptPreview:
    """What one database would hold after a script, and what the script does to its routes."""

    rows: CatalogRows
    table: RouteTable
    changes: RouteChanges


class _Part:
    """One database of a script, borrowed, in its transaction."""

    def __init__(self, database: Database, session: Session) -> None:
        self.database = database
        self.session = session

    def next_state(self) -> tuple[CatalogRows, RouteTable]:
        """What it holds now."""
        database, session = self.database, self.session
        if session.changes.are_many:
            table = read_table(session.db, database=database.name, now=session.now)
        else:
            table = database.table.changed(session.changes.kept) if session.changes.kept else database.table
        return read_rows(session.db), table


class _Script:
    """
    A script in its thread.

    Shape: `committed` what the databases that were committed hold, by name, once the catalog is loaded; `outcomes` of a
    preview, which commits nothing; `fails_over` the statement and the database that is to be handed over,
    when the script says just that.
    """

    def __init__(
        self,
        catalog: Catalog,
        databases: Mapping[str, Database],
        progress: ScriptProgress,
        *,
        is_declared: bool,
        is_preview: bool = False,
    ) -> None:
        self.progress = progress
        self.messages = ScriptMessages()
        self.committed: dict[str, tuple[CatalogRows, RouteTable]] = {}
        self.outcomes: dict[str, ScriptPreview] = {}
        self.fails_over: tuple[AlterDatabase, str] | None = None
        self._catalog = catalog
        self._databases = databases
        self._is_preview = is_preview
        self._is_declared = is_declared
        self._is_loaded = is_preview or catalog.is_loaded
        self._parts: dict[str, _Part] = {}
        self._batch: list[CreateRoute] = []
        self._now = datetime.now(UTC)

    def run(self, statements: Iterable[Statement | DdlSyntaxError], database: str) -> None:
        """
        Everything, up to the commits.

        Raises:
            StatementError, StoreUnavailableError: as `execute`.
            ScriptStoppedError: it was told to stop; nothing is changed.
        """
        if self.progress.is_stopped:
            raise ScriptStoppedError
        self.progress.stage = ScriptStage.RUNNING
        self._now = datetime.now(UTC)
        with ExitStack() as borrowed:
            try:
                self._carry_out(statements, database, borrowed)
                self.progress.stage = ScriptStage.FINISHING
                states = self._next_states()
                if self._is_preview:
                    changes = {name: part.session.changes for name, part in self._parts.items()}
                    self.outcomes = {name: ScriptPreview(*state, changes[name]) for name, state in states.items()}
                else:
                    self._commit(states)
            finally:
                for part in self._parts.values():
                    roll_back(part.session.db)

    def _carry_out(self, statements: Iterable[Statement | DdlSyntaxError], database: str, borrowed: ExitStack) -> None:
        """Statement by statement; CREATE ROUTE collects until something else comes."""
        progress, batch = self.progress, self._batch
        current = database
        for statement in statements:
            if isinstance(statement, CreateRoute):
                batch.append(statement)
                if len(batch) < BATCH_MAX:
                    continue
            self._create_routes(current, borrowed)
            if progress.is_stopped:
                raise ScriptStoppedError
            if isinstance(statement, DdlSyntaxError):
                raise statement
            self._refuse_beside_fail_over(statement)
            if isinstance(statement, UseDatabase):
                with blaming(statement):
                    current = self._database(statement.name).name
            elif isinstance(statement, AlterDatabase) and statement.option is DatabaseOption.PARTNER_FAILOVER:
                with blaming(statement):
                    self._fail_over(statement, statement.name or current)
            elif isinstance(statement, AlterDatabase) and statement.name is not None:
                with blaming(statement):
                    named = self._part(statement.name, borrowed)
                self._carry_out_one(statement, named)
            elif not isinstance(statement, CreateRoute):
                self._carry_out_one(statement, self._part(current, borrowed))
            self._note(statement)
        self._create_routes(current, borrowed)

    def _fail_over(self, statement: AlterDatabase, name: str) -> None:
        """It is no change of any file that could be rolled back: the script says nothing else."""
        refuse_option(statement, is_declared=self._is_declared)
        if name not in self._catalog.mirrors:
            self._database(name)
        self._catalog.fail_over.check(name)
        if self._parts:
            raise StatementError(226, "SET PARTNER FAILOVER is the only statement of its script, but for USE")
        if self._is_preview:
            self.messages.add("database", name, "would be handed over")
        else:
            self.fails_over = statement, name
            self._audit(name, statement)

    def _refuse_beside_fail_over(self, statement: Statement) -> None:
        if self.fails_over is not None:
            with blaming(statement):
                raise StatementError(226, "SET PARTNER FAILOVER is the only statement of its script, but for USE")

    def _carry_out_one(self, statement: Statement, part: _Part) -> None:
        with blaming(statement):
            # Its only conversations are requests for routes, and an administrator may have to end one.
            if part.database.name == MSDB and not isinstance(statement, _IN_MSDB):
                raise StatementError(15151, "msdb holds routes and permissions only; name a database with USE")
            try:
                carry_out(statement, part.session)
            except sqlite3.Error as error:
                raise _unavailable(part.database, error) from error
        self._audit(part.database.name, statement)
        self.progress.statements += 1

    def _create_routes(self, database: str, borrowed: ExitStack) -> None:
        if not self._batch:
            return
        part = self._part(database, borrowed)
        try:
            create_routes(self._batch, part.session)
        except sqlite3.Error as error:
            raise _unavailable(part.database, error) from error
        self._audit(database, *self._batch)
        self.progress.statements += len(self._batch)
        self._batch.clear()

    def _audit(self, database: str, *statements: Statement) -> None:
        if self.progress.seen_by is not None:
            for statement in statements:
                self.progress.seen_by.note(database, statement)

    def _note(self, statement: Statement) -> None:
        if statement.origin is not None:
            self.progress.position = statement.origin.end

    def _part(self, name: str, borrowed: ExitStack) -> _Part:
        """The database, borrowed and in a transaction from its first statement on."""
        part = self._parts.get(name)
        if part is None:
            database = self._database(name)
            db = borrowed.enter_context(database.borrow())
            try:
                begin_within(db, LOCK_SECONDS)
            except (sqlite3.Error, StoreUnavailableError) as error:
                roll_back(db)
                raise error if isinstance(error, StoreUnavailableError) else _unavailable(database, error) from error
            endpoint = self._catalog.endpoint
            part = self._parts[name] = _Part(
                database, Session(db, self._now, self._is_declared, self.messages, name, endpoint)
            )
        return part

    def _database(self, name: str) -> Database:
        found = self._databases.get(name)
        if found is None and name in self._catalog.mirrors:
            raise StatementError(954, f"the database {name!r} is a mirror here: say this to its principal")
        if found is None:
            known = ", ".join(sorted(self._databases))
            raise UnknownNameError(911, f"the database {name!r} does not exist here; there are: {known}")
        return found

    def _next_states(self) -> dict[str, tuple[CatalogRows, RouteTable]]:
        """What the databases would hold; none before the catalog is loaded, which then reads them all."""
        states: dict[str, tuple[CatalogRows, RouteTable]] = {}
        for name, part in self._parts.items() if self._is_loaded else ():
            try:
                states[name] = part.next_state()
            except sqlite3.Error as error:
                raise _unavailable(part.database, error) from error
        return states

    def _commit(self, states: Mapping[str, tuple[CatalogRows, RouteTable]]) -> None:
        """All of it, when everything that can fail before has not failed."""
        done: list[str] = []
        if self.progress.is_stopped:
            raise ScriptStoppedError
        if self.progress.seen_by is not None:
            self.progress.seen_by.seal(self.progress.statements)
        for name, part in self._parts.items():
            try:
                commit(part.session.db)
            except sqlite3.Error as error:
                raise _unavailable(part.database, error, done) from error
            done.append(name)
            if self._is_loaded:
                self.committed[name] = states[name]


def _unavailable(database: Database, error: sqlite3.Error, done: Iterable[str] = ()) -> StoreUnavailableError:
    where = ", ".join(done)
    already = f"; the script is already carried out in: {where}" if where else ""
    return StoreUnavailableError(str(database.path), f"{sentence(error)}{already}")
