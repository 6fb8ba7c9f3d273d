"""
What the scripts of a configuration make of its databases, without a database.

The statements are run in the order of the daemon (msdb's scripts first, each database's in its place, USE obeyed) over
what the files hold already, or over what a new database begins with. Only names and routes are kept, which is what a
check on meaning asks for; statements about other things pass. The rules of a route are those of `broker.routing.route`;
that a name must exist, or may be declared again, is as in `broker.control.execute`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from broker.control.catalog import MSDB
from broker.control.contents import Contents, read_contents
from broker.control.place import KeyPath, dotted
from broker.control.quota import KEPT_MAX
from broker.control.script import script_files
from broker.ddl.parser import read_script
from broker.ddl.statements import (
    AlterRoute,
    AlterService,
    CreateQueue,
    CreateRoute,
    CreateService,
    DropQueue,
    DropRoute,
    DropService,
    QueueName,
    Statement,
    UseDatabase,
    blaming,
)
from broker.ddl.text import decode_script
from broker.errors import DdlSyntaxError, SettingError, StatementError, UnknownNameError
from broker.routing.facts import Hosted, hosted
from broker.routing.route import AUTO_CREATED_LOCAL, Route, alter_route, create_route

if TYPE_CHECKING:
    from broker.control.config import Settings

COPY_PROBLEM = "error 9772: the file has the broker instance of another database here, so it is a copy of that one's"
COPY_HINT = "name another file; it is made when it is missing"


@dataclass(slots=True)
class Played:
    """
    One database. Changed by `rehearse` alone.

    Shape: `broker_instance` 16 bytes, made up when `is_identified` is False; `services` each with its queue;
    `statements` what last made a route, and `service_statements` what made a service, by name: those without one were
    in the file; `missed_drops` DROP ROUTE of a name that was not there. `is_known` False when nothing tells which
    services it has.
    """

    name: str
    broker_instance: bytes
    is_identified: bool
    is_known: bool
    routes: dict[str, Route]
    queues: set[str]
    services: dict[str, str]
    statements: dict[str, CreateRoute | AlterRoute] = field(default_factory=dict)
    service_statements: dict[str, CreateService] = field(default_factory=dict)
    missed_drops: list[DropRoute] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """
    What the scripts of one configuration come to.

    Shape: `databases` by name, msdb first; `errors` in the order in which they were met; `now` the UTC instant at which
    it was played, which counts the lifetimes.
    """

    settings: Settings
    databases: dict[str, Played]
    errors: list[SettingError]
    now: datetime

    @property
    def msdb(self) -> Played:
        """The database whose routes hold for what arrives."""
        return self.databases[MSDB]

    @property
    def users(self) -> list[Played]:
        """The databases that hold services."""
        return [played for name, played in self.databases.items() if name != MSDB]

    def hosted(self) -> Hosted:
        """The services that are here."""
        return hosted({played.broker_instance: played.services for played in self.users})


def rehearse(settings: Settings, *, now: datetime) -> Rehearsal:
    """
    Run the scripts, reporting every mistake and going on behind it.

    Args:
        settings: As `load_settings` gives them, with absolute paths.
        now: The UTC instant from which lifetimes count.
    """
    databases = {MSDB: _played(MSDB, settings.instance.state_dir / "msdb.db", is_known=True)}
    for name, database in settings.databases.items():
        played = _played(name, database.path, is_known=bool(database.scripts))
        if database.broker_instance is not None:
            played.broker_instance, played.is_identified = database.broker_instance.bytes, True
        databases[name] = played
    rehearsal = Rehearsal(settings, databases, [], now)
    rehearsal.errors.extend(_copies(rehearsal))
    rehearsal.errors.extend(_scripts(rehearsal, MSDB, ("routes", "files"), settings.routes.files))
    for name, database in settings.databases.items():
        rehearsal.errors.extend(_scripts(rehearsal, name, ("databases", name, "scripts"), database.scripts))
    return rehearsal


def _played(name: str, path: Path, *, is_known: bool) -> Played:
    """A database before its scripts."""
    stored = read_contents(path)
    if stored is None:
        made_up = uuid5(NAMESPACE_URL, str(path)).bytes
        stored = Contents(made_up, (AUTO_CREATED_LOCAL,), frozenset(), {})
        is_identified = False
    else:
        is_identified = is_known = True
    return Played(
        name,
        stored.broker_instance,
        is_identified=is_identified,
        is_known=is_known,
        routes={route.name: route for route in stored.routes},
        queues=set(stored.queues),
        services=dict(stored.services),
    )


def _copies(rehearsal: Rehearsal) -> Iterator[SettingError]:
    """Databases that have the identity of one before them; where the configuration says so, it is told already."""
    settings = rehearsal.settings
    given = {name: database.broker_instance for name, database in settings.databases.items()}
    owners: dict[bytes, str] = {}
    for name, played in rehearsal.databases.items():
        owner = owners.setdefault(played.broker_instance, name) if played.is_identified else name
        if owner != name and (given[name] is None or given[name] != given.get(owner)):
            yield settings.error(("databases", name, "path"), COPY_PROBLEM, COPY_HINT)


def _scripts(rehearsal: Rehearsal, database: str, key: KeyPath, patterns: tuple[str, ...]) -> Iterator[SettingError]:
    """Patterns without a file, and everything that is wrong in the files."""
    for number, pattern in enumerate(patterns):
        files = script_files([pattern])
        if not files:
            hint = "correct the path; it is relative to the configuration file's directory"
            yield rehearsal.settings.error((*key, number), f'"{pattern}" matches no file', hint)
        for path in files:
            yield from _script(rehearsal, database, (*key, number), path)


def _script(rehearsal: Rehearsal, database: str, key: KeyPath, path: Path) -> Iterator[SettingError]:
    """The first `KEPT_MAX` mistakes in one script, each at its place in the script."""
    try:
        text = decode_script(path.read_bytes(), source=str(path))
    except OSError as error:
        hint = "make it readable for the instance"
        yield rehearsal.settings.error(key, f'"{path}" cannot be read: {error.strerror}', hint)
        return
    except DdlSyntaxError as error:
        yield SettingError(dotted(key), f"error {error.number}: {error.problem}", error.span)
        return
    current: str | None = database
    mistakes = 0
    for outcome in read_script(text, source=str(path)):
        if mistakes == KEPT_MAX:
            problem = f'"{path}" has {KEPT_MAX:,} mistakes, and what comes after them is not read'
            yield rehearsal.settings.error(
                key, problem, "correct these, then check again; is this a script of statements?"
            )
            return
        try:
            if isinstance(outcome, StatementError):
                raise outcome
            if isinstance(outcome, UseDatabase):
                current = None  # what follows a USE that fails belongs nowhere
                current = _known_database(rehearsal, outcome)
            elif current is not None:
                _play(rehearsal.databases[current], outcome, rehearsal.now)
        except StatementError as error:
            mistakes += 1
            problem = f"error {error.number}: {error.problem}"
            yield SettingError(dotted(key), problem, error.span, "correct the statement")


def _known_database(rehearsal: Rehearsal, use: UseDatabase) -> str:
    with blaming(use):
        if use.name not in rehearsal.databases:
            known = ", ".join(sorted(rehearsal.databases))
            raise UnknownNameError(911, f"the database {use.name!r} does not exist here; there are: {known}")
    return use.name


def _play(database: Played, statement: Statement, now: datetime) -> None:
    with blaming(statement):
        if database.name == MSDB and not isinstance(statement, CreateRoute | AlterRoute | DropRoute):
            raise StatementError(15151, "msdb holds routes only; name a database with USE")
        _apply(statement, database, now)


# --- one statement ------------------------------------------------------------------------------------------


@singledispatch
def _apply(_statement: Statement, _database: Played, _now: datetime) -> None:
    """Statements about other things than names and routes change nothing here."""


@_apply.register
def _(statement: CreateRoute, database: Played, now: datetime) -> None:
    database.routes[statement.name] = create_route(statement.name, statement.properties, now=now)
    database.statements[statement.name] = statement


@_apply.register
def _(statement: AlterRoute, database: Played, now: datetime) -> None:
    route = database.routes.get(statement.name)
    if route is None:
        raise UnknownNameError(15151, f"cannot alter the route {statement.name!r}, because it does not exist")
    database.routes[statement.name] = alter_route(route, statement.properties, now=now)
    database.statements[statement.name] = statement


@_apply.register
def _(statement: DropRoute, database: Played, _now: datetime) -> None:
    if database.routes.pop(statement.name, None) is None:
        database.missed_drops.append(statement)
    database.statements.pop(statement.name, None)


@_apply.register
def _(statement: CreateQueue, database: Played, _now: datetime) -> None:
    database.queues.add(statement.queue.name)


@_apply.register
def _(statement: DropQueue, database: Played, _now: datetime) -> None:
    name = statement.queue.name
    used = next((service for service, queue in database.services.items() if queue == name), None)
    if used is not None:
        raise StatementError(3729, f"cannot drop the queue {name!r}: the service {used!r} uses it")
    database.queues.discard(name)


@_apply.register
def _(statement: CreateService, database: Played, _now: datetime) -> None:
    database.services[statement.name] = _queue(database, statement.queue)
    database.service_statements[statement.name] = statement


@_apply.register
def _(statement: AlterService, database: Played, _now: datetime) -> None:
    if statement.name not in database.services:
        raise UnknownNameError(15151, f"cannot alter the service {statement.name!r}, because it does not exist")
    if statement.queue is not None:
        database.services[statement.name] = _queue(database, statement.queue)


@_apply.register
def _(statement: DropService, database: Played, _now: datetime) -> None:
    database.services.pop(statement.name, None)
    database.service_statements.pop(statement.name, None)


def _queue(database: Played, queue: QueueName) -> str:
    if queue.name not in database.queues:
        raise UnknownNameError(208, f"the queue {queue.name!r} does not exist; CREATE QUEUE [{queue.name}] first")
    return queue.name
