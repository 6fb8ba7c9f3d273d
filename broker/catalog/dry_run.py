"""
Dry run: what the scripts of a configuration make of its databases, without touching them.

The statements are executed by `broker.catalog.execute` on a catalog in memory: copies of what the files define
already, read-only and without their messages, and new databases where there is no file. They run in the order of the
daemon: msdb's scripts first, each database's in its place, USE obeyed. Three things differ from a start. Every mistake
is reported, and the dry run goes on after it. A statement about a conversation is not judged, because conversations are
not copied. A database that another daemon has is taken for new, because its file must not be opened.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random

from msgspec import Struct, field

from broker.catalog.catalog import MSDB, Catalog, CatalogRows, Database, stored_route
from broker.catalog.database_files import is_elsewhere, path_of
from broker.catalog.execute import Script
from broker.catalog.handlers import rules_of
from broker.catalog.scripts import script_files, scripts_problem, scripts_setting
from broker.config.settings import Settings
from broker.config.toml import KeyPath, dotted
from broker.ddl import statements as ddl
from broker.ddl.lexer import decode_script
from broker.ddl.parser import read_script
from broker.ddl.statements import blaming
from broker.errors import DdlSyntaxError, SettingError, StatementError, caret
from broker.routing.decide import Hosted, hosted
from broker.routing.route import Route
from broker.security.grants import PermissionRule
from broker.store.sqlite import metadata
from broker.store.sqlite.database import broker_instance, copy_of_catalog, open_store

MISTAKES_MAX = 1000  # of one script, which is not read any further: more than people correct by hand
COPY_PROBLEM = "error 9772: the file has the broker instance of another database here, so it is a copy of that one's"
COPY_HINT = "name another file; it is made when it is missing"

_ABOUT_CONVERSATIONS = (ddl.EndConversation, ddl.MoveConversation, ddl.BeginConversationTimer)


class DryDatabase(Struct):
    """
    One database after its scripts. Filled in by `dry_run` alone.

    Attributes:
        settings: Those of the instance.
        broker_instance: 16 bytes, made up when `is_identified` is False.
        is_known: Whether its services are known, from its file or from scripts.
        routes: By name, expired ones included.
        contracts: Those that are declared.
        statements: The statement that last made or altered a route, by its name; a route without one was in the file.
        service_statements: The statement that made a service, by its name.
        permission_statements: The statement that made a rule.
        missed_drops: DROP ROUTE of a name that was not there.
        is_scripted: Whether any statement is about it.
        mentioned: Kind, as in `words_of`, and name of what a statement makes or alters, whether its guard held or not;
            of routes only where it did not hold.
        messages: Those of its scripts, as `execute` returns them.
    """

    name: str
    settings: Settings
    broker_instance: bytes
    is_identified: bool
    is_known: bool
    routes: Mapping[str, Route] = field(default_factory=dict)
    rows: CatalogRows = field(default_factory=CatalogRows)
    contracts: frozenset[str] = frozenset()
    statements: dict[str, ddl.CreateRoute | ddl.AlterRoute] = field(default_factory=dict)
    service_statements: dict[str, ddl.CreateService] = field(default_factory=dict)
    permission_statements: dict[PermissionRule, ddl.ChangePermission] = field(default_factory=dict)
    missed_drops: list[ddl.DropRoute] = field(default_factory=list)
    is_scripted: bool = False
    mentioned: set[tuple[str, str]] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)


class DryRun(Struct, frozen=True):
    """
    Result of running the scripts of one configuration dry.

    Attributes:
        databases: By name, msdb first.
        errors: In the order in which they were met.
        now: The UTC instant from which lifetimes count.
        warnings: Patterns without a file.
    """

    settings: Settings
    databases: dict[str, DryDatabase]
    errors: list[SettingError]
    now: datetime
    warnings: list[SettingError] = field(default_factory=list)

    @property
    def msdb(self) -> DryDatabase:
        """The database whose routes hold for arriving messages."""
        return self.databases[MSDB]

    @property
    def users(self) -> list[DryDatabase]:
        """The databases that hold services."""
        return [database for name, database in self.databases.items() if name != MSDB]

    def hosted(self) -> Hosted:
        """The services that are here."""
        return hosted({database.broker_instance: database.rows.services for database in self.users})


def dry_run(settings: Settings, *, now: datetime) -> DryRun:
    """
    Run the scripts, reporting every mistake and going on after it. Blocking.

    Args:
        settings: As `load_settings` gives them, with absolute paths.
        now: The UTC instant from which lifetimes count.
    """
    run = DryRun(settings, {}, [], now)
    with ExitStack() as opened:
        stores: dict[str, sqlite3.Connection] = {}
        for name in (MSDB, *settings.databases):
            stores[name], run.databases[name] = _open(settings, name)
            opened.enter_context(closing(stores[name]))
        run.errors.extend(_copies(run))
        databases = {
            name: Database(name, one.broker_instance, None, partial(_lent, stores[name]))
            for name, one in run.databases.items()
        }
        script = Script(Catalog(databases, lambda: None, settings.instance.name), MSDB, is_declared=True, now=now)
        opened.enter_context(closing(script))
        runner = _ScriptRunner(run, script, stores)
        for name, one in run.databases.items():
            run.errors.extend(runner.scripts(name, *scripts_setting(settings, name)))
            one.messages = script.messages.take()
        for name, one in run.databases.items():
            one.routes = _routes(stores[name], one.statements)
            one.rows = _rows(stores[name])
            one.contracts = frozenset(metadata.contracts(stores[name]))
    return run


def stored(settings: Settings, name: str) -> frozenset[str | PermissionRule] | None:
    """The names of routes, and the rules, that the file of a database has now; None where there is none. Blocking."""
    copy = None if is_elsewhere(settings, name) else _copy(path_of(settings, name))
    if copy is None:
        return None
    with closing(copy):
        return frozenset((*_routes(copy, ()), *_rows(copy).permissions))


def _open(settings: Settings, name: str) -> tuple[sqlite3.Connection, DryDatabase]:
    """A database in memory as its file defines it, or a new one."""
    path = path_of(settings, name)
    configured = None if name == MSDB else settings.databases[name]
    copy = None if is_elsewhere(settings, name) else _copy(path)
    if copy is not None:
        known = DryDatabase(name, settings, broker_instance(copy), is_identified=True, is_known=True)
    else:
        made_up = Random(f"{settings.instance.name} {path}").randbytes(16)  # noqa: S311 - nothing to guess, and the same each time
        copy = open_store(":memory:", broker_instance=uuid.UUID(bytes=made_up))
        is_known = configured is None or bool(configured.scripts)
        known = DryDatabase(name, settings, made_up, is_identified=False, is_known=is_known)
    if configured is not None and configured.broker_instance is not None:
        known.broker_instance, known.is_identified = configured.broker_instance.bytes, True
    return copy, known


def _copy(path: Path) -> sqlite3.Connection | None:
    """Copy what a file defines; None if it cannot be read or is not a database of the broker, which a check reports."""
    if not os.path.isfile(path):  # noqa: PTH113 - the other raises what the system refuses
        return None
    try:
        return copy_of_catalog(path, is_with_conversations=False)
    except sqlite3.Error:
        return None


def _routes(db: sqlite3.Connection, statements: Iterable[str]) -> dict[str, Route]:
    """The routes by name, those of the file first, then those of the statements in their order."""
    order = {name: number for number, name in enumerate(statements)}
    found = [route for route in map(stored_route, metadata.routes(db)) if route is not None]
    return {route.name: route for route in sorted(found, key=lambda route: order.get(route.name, -1))}


def _rows(db: sqlite3.Connection) -> CatalogRows:
    rules, _ = metadata.permissions(db)
    return CatalogRows(metadata.queues(db), metadata.services(db), rules, metadata.bindings(db))


def _lent(db: sqlite3.Connection) -> AbstractContextManager[sqlite3.Connection]:
    return nullcontext(db)


def _copies(run: DryRun) -> Iterator[SettingError]:
    """Databases that have the identity of one before them; where the configuration says so, it is reported already."""
    given = {name: database.broker_instance for name, database in run.settings.databases.items()}
    owners: dict[bytes, str] = {}
    for name, database in run.databases.items():
        owner = owners.setdefault(database.broker_instance, name) if database.is_identified else name
        if owner != name and (given[name] is None or given[name] != given.get(owner)):
            yield run.settings.error(("databases", name, "path"), COPY_PROBLEM, COPY_HINT)


class _ScriptRunner(Struct):
    """The scripts of a dry run, one file after the other."""

    run: DryRun
    script: Script
    stores: Mapping[str, sqlite3.Connection]
    missing: set[tuple[str, str]] = field(default_factory=set)  # databases, and names of what a refused CREATE made

    def scripts(self, database: str, key: KeyPath, patterns: tuple[str, ...]) -> Iterator[SettingError]:
        """Patterns without a file, and everything that is wrong in the files."""
        settings = self.run.settings
        for number, pattern in enumerate(patterns):
            error, is_severe = scripts_problem(settings, (*key, number), pattern) or (None, False)
            if error is not None and is_severe:
                yield error
            elif error is not None:
                self.run.warnings.append(error)
            for path in script_files([pattern]):
                yield from self._file(database, (*key, number), path)

    def _file(self, home: str, key: KeyPath, path: Path) -> Iterator[SettingError]:
        """The first `MISTAKES_MAX` mistakes in one script of this database, each at its place in the script."""
        settings = self.run.settings
        try:
            text = decode_script(path.read_bytes(), source=str(path))
        except OSError as error:
            hint = "make it readable for the instance"
            yield settings.error(key, f'"{path}" cannot be read: {error.strerror}', hint)
            return
        except DdlSyntaxError as error:
            yield SettingError(dotted(key), f"error {error.number}: {error.problem}", error.span, "", _excerpt(error))
            return
        self.script.current, is_lost, mistakes = home, False, 0
        for outcome in read_script(text, source=str(path)):
            if mistakes == MISTAKES_MAX:
                problem = f'"{path}" has {MISTAKES_MAX:,} mistakes, and the rest of it is not read'
                yield settings.error(key, problem, "correct these, then check again; is this a script of statements?")
                return
            try:
                if isinstance(outcome, StatementError):
                    raise outcome
                if isinstance(outcome, ddl.UseDatabase):
                    is_lost = True  # what follows a USE that fails belongs nowhere
                if isinstance(outcome, ddl.UseDatabase | ddl.AlterDatabase) or not is_lost:
                    self._carry_out(outcome, home)
                if isinstance(outcome, ddl.UseDatabase):
                    is_lost = False
            except StatementError as error:
                is_first = self._is_first(error)
                self.missing.update((self.script.current, name) for name in _created(outcome))
                if not is_first:
                    continue
                mistakes += 1
                problem = f"error {error.number}: {error.problem}"
                yield SettingError(dotted(key), problem, error.span, "", _excerpt(error))

    def _is_first(self, error: StatementError) -> bool:
        """False if a statement names what does not exist because its CREATE was refused."""
        names = (name for database, name in self.missing if database == self.script.current)
        return "does not exist" not in error.problem or not any(repr(name) in error.problem for name in names)

    def _carry_out(self, statement: ddl.Statement, home: str) -> None:
        if isinstance(statement, _ABOUT_CONVERSATIONS):
            return
        if isinstance(statement, ddl.UseDatabase | ddl.AlterDatabase) and statement.name not in {None, home}:
            self._refuse_mirrored(statement)
        database = self.run.databases[self.script.current]
        if (
            isinstance(statement, ddl.DropRoute)
            and statement.guard is None
            and not metadata.find_route(self.stores[database.name], statement.name)
        ):
            database.missed_drops.append(statement)
        is_done = self.script.carry_out(statement)
        database.is_scripted = database.is_scripted or not isinstance(statement, ddl.UseDatabase)
        verb, _, kind = ddl.words_of(statement).partition(" ")
        if verb in {"CREATE", "ALTER"} and not (is_done and kind == "ROUTE"):  # of those `statements` has the names
            database.mentioned.add((kind, getattr(statement, "name", "")))
        match statement:
            case ddl.ChangePermission():
                database.permission_statements |= dict.fromkeys(rules_of(statement), statement)
            case _ if not is_done:
                pass
            case ddl.CreateRoute() | ddl.AlterRoute():
                database.statements[statement.name] = statement
            case ddl.DropRoute():
                database.statements.pop(statement.name, None)
            case ddl.CreateService():
                database.service_statements[statement.name] = statement
            case ddl.DropService():
                database.service_statements.pop(statement.name, None)

    def _refuse_mirrored(self, statement: ddl.UseDatabase | ddl.AlterDatabase) -> None:
        """Refuse to name a mirrored database of the configuration in the scripts of another one."""
        named = self.run.settings.databases.get(statement.name or "")
        if named is not None and named.mirroring != "off":
            where = "is mirrored, and may be elsewhere at the start: put this into its own scripts"
            with blaming(statement):
                raise StatementError(954, f"the database {statement.name!r} {where}")


def _created(outcome: ddl.Statement | DdlSyntaxError) -> list[str]:
    """The name of the object that a refused CREATE would have made, if others can name it."""
    match outcome:
        case DdlSyntaxError():
            return [outcome.created] if outcome.created else []
        case (
            ddl.CreateQueue() | ddl.CreateService() | ddl.CreateRoute() | ddl.CreateContract() | ddl.CreateMessageType()
        ):
            return [outcome.name]
    return []


def _excerpt(error: StatementError) -> str:
    """The line of the script with a caret; bounded, as a script may be one line of 100 MB."""
    return caret(error.text_line, error.span) if error.span is not None and error.text_line is not None else ""
