"""
One database of a configuration in memory, and what each statement of its scripts would make of it.

The rules of routes are those of `broker.routing.route`, those of message types, contracts and priorities of
`broker.control.agreement`; that a name must exist, or may be declared again, is as in `broker.control.effect`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import singledispatch
from pathlib import Path
from random import Random

from msgspec import Struct, field

from broker.control.agreement import (
    next_priority,
    refuse_built_in_contract,
    refuse_built_in_type,
    same_criteria,
    unknown_service,
    unknown_type,
)
from broker.control.catalog import MSDB
from broker.control.contents import Contents, read_contents
from broker.control.effect import bound
from broker.control.permission import BINDING, next_binding, rules_of
from broker.conversation.message_types import DEFAULT
from broker.ddl.route_play import play_route
from broker.ddl.statements import (
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
    blaming,
)
from broker.errors import StatementError, UnknownNameError
from broker.routing.route import AUTO_CREATED_LOCAL, Route
from broker.security.binding import RemoteServiceBinding
from broker.security.grants import ENDPOINT_NAME, Permission, PermissionRule
from broker.security.principal import Principal
from broker.store.metadata import Priority

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
