"""
What a database file holds already, for whoever only looks: its identity and what statements have made.

The file is opened for reading only and may be in use by a running instance.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from functools import singledispatch
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from msgspec import Struct, field

from broker.catalog.catalog import MSDB, stored_route
from broker.catalog.database_files import is_elsewhere
from broker.catalog.handlers import (
    BINDING,
    bound,
    next_binding,
    next_priority,
    refuse_built_in_contract,
    refuse_built_in_type,
    refuse_option,
    rules_of,
    same_criteria,
    unknown_service,
    unknown_type,
)
from broker.catalog.scripts import closed_scripts, is_pattern, no_script, script_files
from broker.config.toml import KeyPath, dotted
from broker.conversation.message_types import DEFAULT
from broker.ddl.lexer import decode_script
from broker.ddl.parser import read_script
from broker.ddl.route_play import play_route
from broker.ddl.statements import (
    AlterDatabase,
    AlterMessageType,
    AlterPriority,
    AlterRemoteServiceBinding,
    AlterRoute,
    AlterService,
    ChangePermission,
    CreateContract,
    CreateMessageType,
    CreatePriority,
    CreateQueue,
    CreateRemoteServiceBinding,
    CreateRoute,
    CreateService,
    DropContract,
    DropMessageType,
    DropPriority,
    DropQueue,
    DropRemoteServiceBinding,
    DropRoute,
    DropService,
    QueueName,
    RevokePermission,
    Statement,
    UseDatabase,
    blaming,
)
from broker.errors import DdlSyntaxError, SettingError, StatementError, UnknownNameError, caret
from broker.routing.decide import Hosted, hosted
from broker.routing.route import AUTO_CREATED_LOCAL, Route
from broker.security.grants import ENDPOINT_NAME, Permission, PermissionRule, RemoteServiceBinding
from broker.security.principal import Principal
from broker.store.sqlite import database, metadata, schema
from broker.store.sqlite import metadata as permission
from broker.store.sqlite.metadata import Priority

if TYPE_CHECKING:
    from broker.config.settings import Settings


class Contents(Struct, frozen=True):
    """
    Shape: `broker_instance` 16 bytes; `routes` expired ones included; `services` each with the name of its queue,
    `service_contracts` with its contracts; `contracts` each with its message types; priorities by name.
    """

    broker_instance: bytes
    routes: tuple[Route, ...]
    queues: frozenset[str]
    services: Mapping[str, str]
    service_contracts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    message_types: frozenset[str] = frozenset()
    contracts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    priorities: Mapping[str, Priority] = field(default_factory=dict)
    permissions: tuple[PermissionRule, ...] = ()
    bindings: Mapping[str, RemoteServiceBinding] = field(default_factory=dict)


def read_contents(path: Path) -> Contents | None:
    """What the file holds; None when there is no such file, when it cannot be read or is no database of the broker."""
    if not os.path.isfile(path):  # noqa: PTH113 - the other raises what the system refuses
        return None
    try:
        with closing(database.open_watch(path)) as db:
            if not schema.has_schema(db):
                return None
            queue_name = {queue.queue_id: name for name, queue in metadata.queues(db).items()}
            services = metadata.services(db)
            return Contents(
                database.broker_instance(db),
                tuple(route for route in map(stored_route, metadata.routes(db)) if route is not None),
                frozenset(queue_name.values()),
                {name: queue_name[service.queue_id] for name, service in services.items()},
                {name: service.contracts for name, service in services.items()},
                metadata.message_types(db),
                metadata.contracts(db),
                metadata.priorities(db),
                permission.permissions(db)[0],
                permission.bindings(db),
            )
    except sqlite3.Error:
        return None


# --- played ---
# One database of a configuration in memory, and what each statement of its scripts would make of it.
#
# The rules of routes are those of `broker.routing.route`, those of message types, contracts and priorities of
# `broker.catalog.handlers`; that a name must exist, or may be declared again, is as in `broker.catalog.handlers`.


_IN_MSDB = (CreateRoute, AlterRoute, DropRoute, ChangePermission)


class Played(Struct):
    """
    One database. Changed by `rehearse` alone.

    Shape: `broker_instance` 16 bytes, made up when `is_identified` is False; `services` each with its queue,
    `service_contracts` with its contracts; `message_types` and `contracts`, each with its types, as statements made
    them; `statements` what last made a route, `service_statements` what made a service, by name, and
    `permission_statements` what made a rule: those without one were in the file; `missed_drops` DROP ROUTE of a name
    that was not there; `endpoint` the name of that of the instance. `is_known` False when nothing tells which services
    it has.
    """

    name: str
    broker_instance: bytes
    is_identified: bool
    is_known: bool
    routes: dict[str, Route]
    queues: set[str]
    services: dict[str, str]
    service_contracts: dict[str, frozenset[str]] = field(default_factory=dict)
    message_types: set[str] = field(default_factory=set)
    contracts: dict[str, frozenset[str]] = field(default_factory=dict)
    priorities: dict[str, Priority] = field(default_factory=dict)
    statements: dict[str, CreateRoute | AlterRoute] = field(default_factory=dict)
    service_statements: dict[str, CreateService] = field(default_factory=dict)
    missed_drops: list[DropRoute] = field(default_factory=list)
    endpoint: str = ENDPOINT_NAME
    permissions: dict[tuple[Permission, str, Principal], PermissionRule] = field(default_factory=dict)
    permission_statements: dict[PermissionRule, ChangePermission] = field(default_factory=dict)
    bindings: dict[str, RemoteServiceBinding] = field(default_factory=dict)


def begin_to_play(
    name: str, path: Path, *, is_known: bool, is_elsewhere: bool = False, endpoint: str = ENDPOINT_NAME
) -> Played:
    """A database before its scripts; of one that another daemon has the file is not read."""
    stored = None if is_elsewhere else read_contents(path)
    if stored is None:
        made_up = Random(str(path)).randbytes(16)  # noqa: S311 - nothing to guess; `uuid5` loads all of OpenSSL
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
        service_contracts=dict(stored.service_contracts),
        message_types=set(stored.message_types),
        contracts=dict(stored.contracts),
        priorities=dict(stored.priorities),
        endpoint=endpoint,
        permissions={_subject(rule): rule for rule in stored.permissions},
        bindings=dict(stored.bindings),
    )


def play(database: Played, statement: Statement, now: datetime) -> None:
    """
    Do what a statement says.

    Raises:
        StatementError: it cannot be done, with the place.
    """
    with blaming(statement):
        if database.name == MSDB and not isinstance(statement, _IN_MSDB):
            raise StatementError(15151, "msdb holds routes and permissions only; name a database with USE")
        _apply(statement, database, now)


# --- one statement ------------------------------------------------------------------------------------------


@singledispatch
def _apply(_statement: Statement, _database: Played, _now: datetime) -> None:
    """Statements about other things than names and routes change nothing here."""


@_apply.register(CreateRoute)
def _(statement: CreateRoute, database: Played, now: datetime) -> None:
    play_route(database.routes, statement, now)
    database.statements[statement.name] = statement


@_apply.register(AlterRoute)
def _(statement: AlterRoute, database: Played, now: datetime) -> None:
    play_route(database.routes, statement, now)
    database.statements[statement.name] = statement


@_apply.register(DropRoute)
def _(statement: DropRoute, database: Played, now: datetime) -> None:
    if not play_route(database.routes, statement, now):
        database.missed_drops.append(statement)
    database.statements.pop(statement.name, None)


@_apply.register(CreateQueue)
def _(statement: CreateQueue, database: Played, _now: datetime) -> None:
    database.queues.add(statement.queue.name)


@_apply.register(DropQueue)
def _(statement: DropQueue, database: Played, _now: datetime) -> None:
    name = statement.queue.name
    used = next((service for service, queue in database.services.items() if queue == name), None)
    if used is not None:
        raise StatementError(3729, f"cannot drop the queue {name!r}: the service {used!r} uses it")
    database.queues.discard(name)


@_apply.register(CreateService)
def _(statement: CreateService, database: Played, _now: datetime) -> None:
    database.services[statement.name] = _queue(database, statement.queue)
    database.service_contracts[statement.name] = frozenset(statement.contracts)
    database.service_statements[statement.name] = statement


@_apply.register(AlterService)
def _(statement: AlterService, database: Played, _now: datetime) -> None:
    if statement.name not in database.services:
        raise UnknownNameError(15151, f"cannot alter the service {statement.name!r}, because it does not exist")
    if statement.queue is not None:
        database.services[statement.name] = _queue(database, statement.queue)
    left = database.service_contracts.get(statement.name, frozenset()) - set(statement.drop_contracts)
    database.service_contracts[statement.name] = left | set(statement.add_contracts)


@_apply.register(DropService)
def _(statement: DropService, database: Played, _now: datetime) -> None:
    _refuse_bound_to_priority("service", statement.name, database, lambda one: one.local_service_name)
    database.services.pop(statement.name, None)
    for rule in [rule for rule in database.permissions.values() if rule.securable == statement.name]:
        del database.permissions[_subject(rule)]
    database.service_contracts.pop(statement.name, None)
    database.service_statements.pop(statement.name, None)


# --- message types, contracts, priorities -------------------------------------------------------------------


@_apply.register(CreateMessageType)
def _(statement: CreateMessageType, database: Played, _now: datetime) -> None:
    refuse_built_in_type(statement.name, "create")
    database.message_types.add(statement.name)


@_apply.register(AlterMessageType)
def _(statement: AlterMessageType, database: Played, _now: datetime) -> None:
    refuse_built_in_type(statement.name, "alter")
    if statement.name not in database.message_types:
        raise UnknownNameError(15151, f"cannot alter the message type {statement.name!r}, because it does not exist")


@_apply.register(DropMessageType)
def _(statement: DropMessageType, database: Played, _now: datetime) -> None:
    refuse_built_in_type(statement.name, "drop")
    used = next((contract for contract, types in database.contracts.items() if statement.name in types), None)
    if used is not None:
        raise bound("message type", statement.name, "contract", used)
    database.message_types.discard(statement.name)


@_apply.register(CreateContract)
def _(statement: CreateContract, database: Played, _now: datetime) -> None:
    refuse_built_in_contract(statement.name, "create")
    listed = [one.message_type for one in statement.message_types]
    absent = next((name for name in listed if name != DEFAULT and name not in database.message_types), None)
    if absent is not None:
        raise unknown_type(absent)
    database.contracts[statement.name] = frozenset(listed)


@_apply.register(DropContract)
def _(statement: DropContract, database: Played, _now: datetime) -> None:
    refuse_built_in_contract(statement.name, "drop")
    used = next((one for one, contracts in database.service_contracts.items() if statement.name in contracts), None)
    if used is not None and statement.name in database.contracts:
        raise bound("contract", statement.name, "service", used)
    _refuse_bound_to_priority("contract", statement.name, database, lambda one: one.contract_name)
    database.contracts.pop(statement.name, None)


@_apply.register(CreatePriority)
def _(statement: CreatePriority, database: Played, _now: datetime) -> None:
    _put_priority(next_priority(statement.name, None, statement.properties), database)


@_apply.register(AlterPriority)
def _(statement: AlterPriority, database: Played, _now: datetime) -> None:
    old = database.priorities.get(statement.name)
    if old is None:
        problem = f"cannot alter the conversation priority {statement.name!r}, because it does not exist"
        raise UnknownNameError(15151, problem)
    _put_priority(next_priority(statement.name, old, statement.properties), database)


@_apply.register(DropPriority)
def _(statement: DropPriority, database: Played, _now: datetime) -> None:
    database.priorities.pop(statement.name, None)


@_apply.register(ChangePermission)
def _(statement: ChangePermission, database: Played, _now: datetime) -> None:
    name, endpoint, services = database.name, database.endpoint, database.services
    for rule in rules_of(statement, database=name, endpoint=endpoint, services=services):
        database.permissions.pop(_subject(rule), None)
        if not isinstance(statement, RevokePermission):
            database.permissions[_subject(rule)] = rule
            database.permission_statements[rule] = statement


@_apply.register(CreateRemoteServiceBinding)
def _(statement: CreateRemoteServiceBinding, database: Played, _now: datetime) -> None:
    database.bindings[statement.name] = next_binding(statement, None, database.bindings.values())


@_apply.register(AlterRemoteServiceBinding)
def _(statement: AlterRemoteServiceBinding, database: Played, _now: datetime) -> None:
    old = database.bindings.get(statement.name)
    if old is None:
        problem = f"cannot alter the {BINDING} {statement.name!r}, because it does not exist"
        raise UnknownNameError(15151, problem)
    database.bindings[statement.name] = next_binding(statement, old, database.bindings.values())


@_apply.register(DropRemoteServiceBinding)
def _(statement: DropRemoteServiceBinding, database: Played, _now: datetime) -> None:
    database.bindings.pop(statement.name, None)


def _subject(rule: PermissionRule) -> tuple[Permission, str, Principal]:
    """What a rule is about; there is one at most."""
    return rule.permission, rule.securable, rule.principal


def _put_priority(priority: Priority, database: Played) -> None:
    if priority.local_service_name is not None and priority.local_service_name not in database.services:
        raise unknown_service(priority.local_service_name)
    for other in database.priorities.values():
        if other.name != priority.name and other.criteria == priority.criteria:
            raise same_criteria(priority.name, other.name)
    database.priorities[priority.name] = priority


def _refuse_bound_to_priority(
    what: str, name: str, database: Played, criterion: Callable[[Priority], str | None]
) -> None:
    used = next((one.name for one in database.priorities.values() if criterion(one) == name), None)
    if used is not None:
        raise bound(what, name, "conversation priority", used)


def _queue(database: Played, queue: QueueName) -> str:
    if queue.name not in database.queues:
        raise UnknownNameError(208, f"the queue {queue.name!r} does not exist; CREATE QUEUE [{queue.name}] first")
    return queue.name


# --- quota ---
# The first of each kind of finding, and how many more there are.
#
# A script of a million routes can have the same thing wrong a million times; nobody reads that, and nothing should
# have
# to hold it. A kind is a code and the file in which it was found.


KEPT_MAX = 1000  # of one kind in a report: more than anybody corrects by hand, and a megabyte at most
SHOWN_MAX = 20  # of one kind in a table: two kinds still fit a screen that scrolls

Kind: TypeAlias = tuple[str, str | None]

_T = TypeVar("_T")


def first_of_each(found: Iterable[_T], kind_of: Callable[[_T], Kind], *, most: int) -> tuple[list[_T], dict[Kind, int]]:
    """
    Keep the first of each kind, in their order.

    Args:
        found: Looked at once; what is not kept is let go at once.
        kind_of: Code and file of one of them; no file is None.
        most: How many of one kind are kept.

    Returns:
        What is kept, and how many others there are of the kinds that have more.
    """
    seen: Counter[Kind] = Counter()
    kept = []
    for one in found:
        kind = kind_of(one)
        seen[kind] += 1
        if seen[kind] <= most:
            kept.append(one)
    return kept, {kind: count - most for kind, count in seen.items() if count > most}


# --- rehearsal ---
# What the scripts of a configuration make of its databases, without a database.
#
# The statements are run in the order of the daemon (msdb's scripts first, each database's in its place, USE obeyed)
# over
# what the files hold already, or over what a new database begins with; what each does is in `broker.catalog.dry_run`.
# Only
# names and routes are kept, which is what a check on meaning asks for; statements about other things pass.


COPY_PROBLEM = "error 9772: the file has the broker instance of another database here, so it is a copy of that one's"
COPY_HINT = "name another file; it is made when it is missing"


class Rehearsal(Struct, frozen=True):
    """
    What the scripts of one configuration come to.

    Shape: `databases` by name, msdb first; `errors` in the order in which they were met, and likewise `warnings` of
    patterns without a file; `now` the UTC instant at which it was played, which counts the lifetimes.
    """

    settings: Settings
    databases: dict[str, Played]
    errors: list[SettingError]
    now: datetime
    warnings: list[SettingError] = field(default_factory=list)

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
    endpoint = settings.instance.name
    databases = {MSDB: begin_to_play(MSDB, settings.instance.state_dir / "msdb.db", is_known=True, endpoint=endpoint)}
    for name, configured in settings.databases.items():
        away = is_elsewhere(settings, name)
        played = begin_to_play(
            name, configured.path, is_known=bool(configured.scripts), is_elsewhere=away, endpoint=endpoint
        )
        if configured.broker_instance is not None:
            played.broker_instance, played.is_identified = configured.broker_instance.bytes, True
        databases[name] = played
    rehearsal = Rehearsal(settings, databases, [], now)
    rehearsal.errors.extend(_copies(rehearsal))
    rehearsal.errors.extend(_scripts(rehearsal, MSDB, ("routes", "files"), settings.routes.files))
    for name, configured in settings.databases.items():
        rehearsal.errors.extend(_scripts(rehearsal, name, ("databases", name, "scripts"), configured.scripts))
    return rehearsal


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
        closed = closed_scripts(rehearsal.settings, (*key, number), pattern)
        if closed is not None:
            yield closed
        elif not files:
            error = no_script(rehearsal.settings, (*key, number), pattern)
            if is_pattern(pattern):
                rehearsal.warnings.append(error)
            else:
                yield error
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
        problem = f"error {error.number}: {error.problem}"
        yield SettingError(dotted(key), problem, error.span, "", _excerpt(error))
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
                current = _known_database(rehearsal, outcome, home=database)
            elif isinstance(outcome, AlterDatabase):
                with blaming(outcome):
                    _known_name(rehearsal, outcome.name or current or MSDB, home=database)
                    refuse_option(outcome, is_declared=True)
            elif current is not None:
                play(rehearsal.databases[current], outcome, rehearsal.now)
        except StatementError as error:
            mistakes += 1
            problem = f"error {error.number}: {error.problem}"
            yield SettingError(dotted(key), problem, error.span, "correct the statement", _excerpt(error))


def _excerpt(error: StatementError) -> str:
    """The line of the script with a caret; bounded, as a script may be one line of 100 MB."""
    return caret(error.text_line, error.span) if error.span is not None and error.text_line is not None else ""


def _known_database(rehearsal: Rehearsal, use: UseDatabase, *, home: str) -> str:
    with blaming(use):
        return _known_name(rehearsal, use.name, home=home)


def _known_name(rehearsal: Rehearsal, name: str, *, home: str) -> str:
    """A database that a script of `home` may name: not a mirrored one, which may not be here when the script runs."""
    named = rehearsal.settings.databases.get(name)
    if named is not None and named.mirroring != "off" and name != home:
        problem = f"the database {name!r} is mirrored, and may be elsewhere at the start: put this into its own scripts"
        raise StatementError(954, problem)
    if name not in rehearsal.databases:
        known = ", ".join(sorted(rehearsal.databases))
        raise UnknownNameError(911, f"the database {name!r} does not exist here; there are: {known}")
    return name
