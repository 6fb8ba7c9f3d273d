"""
What each statement does to its database, inside the transaction of its script.

Scripts named in the configuration are *declared*: they run at every start, so there CREATE of something that exists
makes it what the script says, and DROP of something that is gone is done already. Only whether a queue is ON is left as
it is where the script does not say it, for that is no part of its making: it is turned off while it is in use.

CREATE ROUTE has a file of its own, `broker.catalog.route_batch`, because there may be a million of them; message types,
contracts and priorities are in `broker.catalog.handlers`, permissions in `broker.catalog.handlers`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import singledispatch
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from broker.catalog.catalog import ScriptMessages, stored_route
from broker.conversation.message_types import CONTRACT_NAMES, MESSAGE_TYPE_NAMES, SentBy, Validation
from broker.ddl.statements import (
    ANY,
    AlterDatabase,
    AlterMessageType,
    AlterPriority,
    AlterQueue,
    AlterRemoteServiceBinding,
    AlterRoute,
    AlterService,
    BeginConversationTimer,
    ChangePermission,
    CreateContract,
    CreateMessageType,
    CreatePriority,
    CreateQueue,
    CreateRemoteServiceBinding,
    CreateRoute,
    CreateService,
    DatabaseOption,
    DenyPermission,
    DropContract,
    DropMessageType,
    DropPriority,
    DropQueue,
    DropRemoteServiceBinding,
    DropRoute,
    DropService,
    EndConversation,
    MoveConversation,
    NameOrAny,
    PriorityProperties,
    QueueName,
    RevokePermission,
    Statement,
)
from broker.errors import ConversationError, DuplicateNameError, StatementError, UnknownNameError
from broker.protocol.layout import NAME_MAX_BYTES
from broker.routing.route import PropertyError, Route, alter_route, create_route, row_of
from broker.routing.table import RouteChange
from broker.security.grants import (
    ENDPOINT_NAME,
    Grants,
    Permission,
    PermissionRule,
    PermissionState,
    RemoteServiceBinding,
)
from broker.security.principal import ANY as ANYBODY
from broker.security.principal import PrincipalKind, parse_principal
from broker.store.sqlite import metadata
from broker.store.sqlite import metadata as permission
from broker.store.sqlite.administration import CONTRACT_DROPPED, error_conversations
from broker.store.sqlite.metadata import PRIORITY_DEFAULT, Priority, drop_permissions_on

if TYPE_CHECKING:
    from broker.config.settings import Settings


NOT_SUPPORTED = 50000  # what the original numbers a message with that has no number of its own
BOUND = 3716  # the original's number for the DROP of what something else names
CHANGES_MAX = 10_000  # kept one by one; for more, reading all routes anew costs less memory and about the same time

_T = TypeVar("_T")


class RouteChanges(Struct):
    """What became of the routes of one database. Shape: `are_many` when there were more than `CHANGES_MAX`."""

    kept: list[RouteChange] = field(default_factory=list)
    are_many: bool = False

    def add(self, old: Route | None, new: Route | None) -> None:
        """A route was made (no `old`), dropped (no `new`) or altered."""
        if self.are_many or len(self.kept) == CHANGES_MAX:
            self.are_many = True
            self.kept.clear()
        else:
            self.kept.append(RouteChange(old, new))


class Session(Struct):
    """
    Where a statement runs.

    Shape: `now` UTC; `is_declared` for scripts of the configuration; `database` its name; `endpoint` the name of that
    of the instance.
    """

    db: sqlite3.Connection
    now: datetime
    is_declared: bool
    messages: ScriptMessages
    database: str = ""
    endpoint: str = ENDPOINT_NAME
    changes: RouteChanges = field(default_factory=RouteChanges)


@singledispatch
def carry_out(statement: Statement, _session: Session) -> None:
    """
    Do what a statement says.

    Raises:
        StatementError: it cannot be done; nothing was changed.
    """
    raise AssertionError(f"no way to carry out {type(statement).__name__}")


@carry_out.register(CreateRoute)
def _(statement: CreateRoute, session: Session) -> None:
    row = metadata.find_route(session.db, statement.name)
    expect_absent("route", statement.name, session, exists=row is not None)
    route = create_route(statement.name, statement.properties, now=session.now)
    new = row_of(route)
    if new == row:
        session.messages.add("route", statement.name, "unchanged")
        return
    metadata.put_routes(session.db, [new])
    session.changes.add(stored_route(row), route)
    session.messages.add("route", statement.name, "created" if row is None else "replaced")


@carry_out.register(AlterRoute)
def _(statement: AlterRoute, session: Session) -> None:
    row = metadata.find_route(session.db, statement.name)
    if row is None:
        raise UnknownNameError(15151, f"cannot alter the route {statement.name!r}, because it does not exist")
    old = stored_route(row)
    if old is None:
        problem = f"another program has stored what is no route under the name {statement.name!r}; DROP it first"
        raise StatementError(9744, problem)
    new = alter_route(old, statement.properties, now=session.now)
    metadata.put_routes(session.db, [row_of(new)])
    session.changes.add(old, new)
    session.messages.add("route", statement.name, "altered")


@carry_out.register(DropRoute)
def _(statement: DropRoute, session: Session) -> None:
    row = metadata.find_route(session.db, statement.name)
    if may_drop("route", statement.name, session, exists=row is not None):
        metadata.drop_route(session.db, statement.name)
        session.changes.add(stored_route(row), None)
    session.messages.add("route", statement.name, "dropped")


@carry_out.register(CreateQueue)
def _(statement: CreateQueue, session: Session) -> None:
    old = metadata.find_queue(session.db, statement.queue.name)
    expect_absent("queue", statement.queue.name, session, exists=old is not None)
    # A poison message or an administrator may have turned it off: no start undoes that unless the script says so.
    as_it_is = True if old is None else old.is_receive_enabled
    metadata.put_queue(
        session.db,
        statement.queue.name,
        is_receive_enabled=as_it_is if statement.status is None else statement.status,
        is_poison_message_handling_enabled=statement.poison_message_handling,
    )
    session.messages.add("queue", statement.queue.name, "created" if old is None else "replaced")


@carry_out.register(AlterQueue)
def _(statement: AlterQueue, session: Session) -> None:
    old = expect_present("queue", statement.queue.name, metadata.find_queue(session.db, statement.queue.name))
    status, poison = statement.status, statement.poison_message_handling
    metadata.put_queue(
        session.db,
        statement.queue.name,
        is_receive_enabled=old.is_receive_enabled if status is None else status,
        is_poison_message_handling_enabled=old.is_poison_message_handling_enabled if poison is None else poison,
    )
    session.messages.add("queue", statement.queue.name, "altered")


@carry_out.register(DropQueue)
def _(statement: DropQueue, session: Session) -> None:
    name = statement.queue.name
    queue = metadata.find_queue(session.db, name)
    if may_drop("queue", name, session, exists=queue is not None) and queue is not None:
        used = metadata.find_service_of(session.db, queue.queue_id)
        if used is not None:
            raise StatementError(3729, f"cannot drop the queue {name!r}: the service {used!r} uses it")
        metadata.drop_queue(session.db, name)
    session.messages.add("queue", name, "dropped")


@carry_out.register(CreateService)
def _(statement: CreateService, session: Session) -> None:
    exists = metadata.find_service(session.db, statement.name) is not None
    expect_absent("service", statement.name, session, exists=exists)
    queue = _queue(session, statement.queue)
    metadata.put_service(session.db, statement.name, queue.queue_id, frozenset(statement.contracts))
    session.messages.add("service", statement.name, "replaced" if exists else "created")


@carry_out.register(AlterService)
def _(statement: AlterService, session: Session) -> None:
    service = expect_present("service", statement.name, metadata.find_service(session.db, statement.name))
    queue_id = _queue(session, statement.queue).queue_id if statement.queue else service.queue_id
    absent = set(statement.drop_contracts) - service.contracts
    if absent:
        raise UnknownNameError(15151, f"the service {statement.name!r} has no contract {min(absent)!r} to drop")
    contracts = (service.contracts - set(statement.drop_contracts)) | set(statement.add_contracts)
    metadata.put_service(session.db, statement.name, queue_id, frozenset(contracts))
    session.messages.add("service", statement.name, "altered")


@carry_out.register(DropService)
def _(statement: DropService, session: Session) -> None:
    exists = metadata.find_service(session.db, statement.name) is not None
    if may_drop("service", statement.name, session, exists=exists):
        priority = metadata.find_priority_for(session.db, statement.name)
        if priority is not None:
            raise bound("service", statement.name, "conversation priority", priority)
        metadata.drop_service(session.db, statement.name)
        drop_permissions_on(session.db, statement.name)
    session.messages.add("service", statement.name, "dropped")


# --- conversations and databases ----------------------------------------------------------------------------


@contextmanager
def _refusing() -> Iterator[None]:
    """What an application would be told is told about the statement."""
    try:
        yield
    except ConversationError as error:
        raise StatementError(error.number, error.problem) from error


@carry_out.register(EndConversation)
def _(statement: EndConversation, session: Session) -> None:
    from broker.client.dialog import end_with_cleanup, get_dialog  # noqa: PLC0415

    with _refusing():
        dialog = get_dialog(session.db, statement.conversation_handle)
        if statement.cleanup:
            end_with_cleanup(session.db, dialog)
        else:
            dialog.end(error=statement.error_code, description=statement.description or "")
    session.messages.add("conversation", statement.conversation_handle, "ended")


@carry_out.register(MoveConversation)
def _(statement: MoveConversation, session: Session) -> None:
    from broker.client.dialog import get_dialog, move_conversation  # noqa: PLC0415

    with _refusing():
        move_conversation(get_dialog(session.db, statement.conversation_handle), statement.conversation_group_id)
    session.messages.add("conversation", statement.conversation_handle, "moved")


@carry_out.register(BeginConversationTimer)
def _(statement: BeginConversationTimer, session: Session) -> None:
    from broker.client.dialog import get_dialog  # noqa: PLC0415

    with _refusing():
        get_dialog(session.db, statement.conversation_handle).set_timer(statement.timeout)
    session.messages.add("conversation timer", statement.conversation_handle, "set")


@carry_out.register(AlterDatabase)
def _(statement: AlterDatabase, session: Session) -> None:
    refuse_option(statement, is_declared=session.is_declared)
    if statement.option is DatabaseOption.ERROR_BROKER_CONVERSATIONS:
        text = "all conversations of the database were ended with an error by an administrator"
        count = error_conversations(session.db, session.now.timestamp(), text=text)
        session.messages.add("open conversations", count, "ended with error 9719")
    else:
        session.messages.add("database", session.database, "enabled")


def refuse_option(statement: AlterDatabase, *, is_declared: bool) -> None:
    """
    Refuse what cannot be set here.

    Raises:
        StatementError: what takes the daemon off the file, or what a script of the configuration must not repeat.
    """
    option, problem = statement.option, ""
    if option is DatabaseOption.NEW_BROKER:
        problem = "NEW_BROKER takes the file for itself: stop the daemon, then use broker database"
    elif option is DatabaseOption.DISABLE_BROKER:
        problem = "DISABLE_BROKER is not supported: take the database out of the configuration, or set its queues OFF"
    elif option is DatabaseOption.PARTNER_FAILOVER and is_declared:
        problem = "PARTNER FAILOVER would hand the database over at each start; give it to the running daemon"
    elif option is DatabaseOption.ERROR_BROKER_CONVERSATIONS and is_declared:
        problem = "ERROR_BROKER_CONVERSATIONS would end every conversation at each start; give it to the running daemon"
    if problem:
        raise PropertyError(NOT_SUPPORTED, problem, properties=("OPTION",))


# --- names --------------------------------------------------------------------------------------------------


def expect_present(what: str, name: str, found: _T | None) -> _T:
    """The object that an ALTER names."""
    if found is None:
        raise UnknownNameError(15151, f"cannot alter the {what} {name!r}, because it does not exist")
    return found


def _queue(session: Session, name: QueueName) -> metadata.QueueRow:
    queue = metadata.find_queue(session.db, name.name)
    if queue is None:
        raise UnknownNameError(208, f"the queue {name.name!r} does not exist; CREATE QUEUE [{name.name}] first")
    return queue


def expect_absent(what: str, name: str, session: Session, *, exists: bool) -> None:
    """Refuse a CREATE of what exists, unless the script is declared."""
    if exists and not session.is_declared:
        raise DuplicateNameError(2714, f"there is already a {what} named {name!r} in the database")


def may_drop(what: str, name: str, session: Session, *, exists: bool) -> bool:
    """Whether there is something to drop."""
    if not exists and not session.is_declared:
        raise UnknownNameError(15151, f"cannot drop the {what} {name!r}, because it does not exist")
    return exists


def bound(what: str, name: str, other: str, other_name: str) -> StatementError:
    """The error for the DROP of what something else names."""
    return StatementError(BOUND, f"the {what} {name!r} cannot be dropped because the {other} {other_name!r} names it")


# --- agreement ---
# What two sides of a conversation agree on, statement by statement: message types and contracts; and priorities.
#
# A contract that is not declared is not checked, so services and priorities may name one that no statement has made.
# What
# is built in has no row and cannot be changed. Importing this module adds its statements to `carry_out`.
#
# Source: Service Broker documentation, "CREATE MESSAGE TYPE", "CREATE CONTRACT", "CREATE BROKER PRIORITY" and their
# kin.


PRIORITY_LEVELS = (1, 10)
SERVICE_NAME_MAX = 256  # characters of a service elsewhere; the original's nvarchar(256)


# --- the rules, for whoever only looks ahead as well --------------------------------------------------------


def refuse_built_in_type(name: str, doing: str) -> None:
    """
    Refuse a statement about a message type that is built in.

    Raises:
        StatementError: 2714 for `create`, 15151 for `alter` and `drop`.
    """
    _refuse_built_in("message type", name, doing, is_built_in=name in MESSAGE_TYPE_NAMES)


def refuse_built_in_contract(name: str, doing: str) -> None:
    """Refuse a statement about a contract that is built in. Raises: see `refuse_built_in_type`."""
    _refuse_built_in("contract", name, doing, is_built_in=name in CONTRACT_NAMES)


def _refuse_built_in(what: str, name: str, doing: str, *, is_built_in: bool) -> None:
    if is_built_in:
        kind = DuplicateNameError if doing == "create" else UnknownNameError
        raise kind(2714 if doing == "create" else 15151, f"cannot {doing} the {what} {name!r}, because it is built in")


def unknown_type(name: str) -> StatementError:
    """The error for a contract that names a message type which does not exist; it points at that name."""
    return PropertyError(
        15151,
        f"the message type {name!r} does not exist; CREATE MESSAGE TYPE [{name}] first",
        properties=(f"TYPE {name}",),
    )


def unknown_service(name: str) -> StatementError:
    """The error for a priority of a service that is not in the database."""
    problem = f"the service {name!r} does not exist in this database; CREATE SERVICE [{name}] first"
    return PropertyError(15151, problem, properties=("LOCAL_SERVICE_NAME",))


def next_priority(name: str, old: Priority | None, properties: PriorityProperties) -> Priority:
    """
    The priority after CREATE (no `old`) or ALTER.

    Raises:
        StatementError: 33302 a level out of range; 33301 a remote service whose name does not fit.
    """
    old = old or Priority(name)
    level = old.priority_level if properties.priority_level is None else properties.priority_level
    low, high = PRIORITY_LEVELS
    if not low <= level <= high:
        problem = (
            f"the PRIORITY_LEVEL {level} of {name!r} is not between {low} and {high}; DEFAULT is {PRIORITY_DEFAULT}"
        )
        raise PropertyError(33302, problem, properties=("PRIORITY_LEVEL",))
    remote = properties.remote_service_name
    if isinstance(remote, str) and not _is_service_name(remote):
        problem = f"the REMOTE_SERVICE_NAME of {name!r} does not have 1 to {SERVICE_NAME_MAX} characters of text"
        raise PropertyError(33301, problem, properties=("REMOTE_SERVICE_NAME",))
    return Priority(
        name,
        _criterion(properties.contract_name, old.contract_name),
        _criterion(properties.local_service_name, old.local_service_name),
        _criterion(properties.remote_service_name, old.remote_service_name),
        level,
    )


def _is_service_name(name: str) -> bool:
    try:
        return 1 <= len(name) <= SERVICE_NAME_MAX and len(name.encode()) <= NAME_MAX_BYTES
    except UnicodeEncodeError:
        return False


def _criterion(written: NameOrAny, old: str | None) -> str | None:
    return old if written is None else None if written is ANY else written


def same_criteria(name: str, other: str) -> DuplicateNameError:
    """The error for two priorities that are about the same conversations."""
    return DuplicateNameError(
        33303, f"the priority {other!r} is about the same conversations as {name!r}; alter that one"
    )


# --- message types and contracts ----------------------------------------------------------------------------


@carry_out.register(CreateMessageType)
def _(statement: CreateMessageType, session: Session) -> None:
    refuse_built_in_type(statement.name, "create")
    exists = metadata.find_message_type(session.db, statement.name) is not None
    expect_absent("message type", statement.name, session, exists=exists)
    metadata.put_message_type(session.db, statement.name, Validation(statement.validation))
    session.messages.add("message type", statement.name, "replaced" if exists else "created")


@carry_out.register(AlterMessageType)
def _(statement: AlterMessageType, session: Session) -> None:
    refuse_built_in_type(statement.name, "alter")
    expect_present("message type", statement.name, metadata.find_message_type(session.db, statement.name))
    metadata.put_message_type(session.db, statement.name, Validation(statement.validation))
    session.messages.add("message type", statement.name, "altered")


@carry_out.register(DropMessageType)
def _(statement: DropMessageType, session: Session) -> None:
    name, db = statement.name, session.db
    refuse_built_in_type(name, "drop")
    if may_drop("message type", name, session, exists=metadata.find_message_type(db, name) is not None):
        contract = metadata.find_contract_of(db, name)
        if contract is not None:
            raise bound("message type", name, "contract", contract)
        metadata.drop_message_type(db, name)
    session.messages.add("message type", name, "dropped")


@carry_out.register(CreateContract)
def _(statement: CreateContract, session: Session) -> None:
    refuse_built_in_contract(statement.name, "create")
    exists = metadata.find_contract(session.db, statement.name) is not None
    expect_absent("contract", statement.name, session, exists=exists)
    for one in statement.message_types:
        if metadata.find_message_type(session.db, one.message_type) is None:
            raise unknown_type(one.message_type)
    listed = {one.message_type: SentBy(one.sent_by) for one in statement.message_types}
    metadata.put_contract(session.db, statement.name, listed)
    session.messages.add("contract", statement.name, "replaced" if exists else "created")


@carry_out.register(DropContract)
def _(statement: DropContract, session: Session) -> None:
    name, db = statement.name, session.db
    refuse_built_in_contract(name, "drop")
    if may_drop("contract", name, session, exists=metadata.find_contract(db, name) is not None):
        service = metadata.find_service_under(db, name)
        if service is not None:
            raise bound("contract", name, "service", service)
        priority = metadata.find_priority_under(db, name)
        if priority is not None:
            raise bound("contract", name, "conversation priority", priority)
        metadata.drop_contract(db, name)
        text = f"the contract {name!r} has been dropped"
        error_conversations(db, session.now.timestamp(), code=CONTRACT_DROPPED, text=text, contract=name)
    session.messages.add("contract", name, "dropped")


# --- priorities ---------------------------------------------------------------------------------------------


@carry_out.register(CreatePriority)
def _(statement: CreatePriority, session: Session) -> None:
    exists = metadata.find_priority(session.db, statement.name) is not None
    if exists and not session.is_declared:
        raise DuplicateNameError(33303, f"there is already a conversation priority named {statement.name!r}")
    _put_priority(next_priority(statement.name, None, statement.properties), session)
    session.messages.add("priority", statement.name, "replaced" if exists else "created")


@carry_out.register(AlterPriority)
def _(statement: AlterPriority, session: Session) -> None:
    old = expect_present("conversation priority", statement.name, metadata.find_priority(session.db, statement.name))
    _put_priority(next_priority(statement.name, old, statement.properties), session)
    session.messages.add("priority", statement.name, "altered")


@carry_out.register(DropPriority)
def _(statement: DropPriority, session: Session) -> None:
    exists = metadata.find_priority(session.db, statement.name) is not None
    if may_drop("conversation priority", statement.name, session, exists=exists):
        metadata.drop_priority(session.db, statement.name)
    session.messages.add("priority", statement.name, "dropped")


def _put_priority(priority: Priority, session: Session) -> None:
    service = priority.local_service_name
    if service is not None and metadata.find_service(session.db, service) is None:
        raise unknown_service(service)
    same = metadata.find_priority_about(session.db, *priority.criteria)
    if same is not None and same != priority.name:
        raise same_criteria(priority.name, same)
    metadata.put_priority(session.db, priority)


# --- permission ---
# Who may do what, statement by statement: GRANT, DENY and REVOKE; and remote service bindings.
#
# SEND is about a service: in msdb about what neighbours may bring to this instance, wherever the service is; in any
# other database about its own services and who may begin conversations with them. CONNECT is about the one endpoint
# of
# the instance, so it is said in msdb. Importing this module adds its statements to `carry_out`.
#
# Source: T-SQL documentation, "GRANT Service Broker Permissions", "GRANT Endpoint Permissions", "CREATE REMOTE
# SERVICE
# BINDING" and their kin.


MSDB = "msdb"
BINDING = "remote service binding"


def grants_of(settings: Settings, rules: Iterable[PermissionRule]) -> Grants:
    """What the rules of msdb mean for neighbours: where they prove who they are, what is not granted is denied."""
    is_authenticating = settings.endpoint.authentication == "certificate"
    return Grants(rules, is_default_deny=is_authenticating, endpoint=settings.instance.name)


# --- the rules, for whoever only looks ahead as well --------------------------------------------------------


def rules_of(
    statement: ChangePermission, *, database: str, endpoint: str, services: Collection[str]
) -> Iterator[PermissionRule]:
    """
    What a statement says, one rule for each of its principals; REVOKE takes away what they are about.

    Args:
        statement: As read.
        database: Where it is said.
        endpoint: The name of the endpoint.
        services: Those of the database.

    Raises:
        StatementError: 4621 CONNECT outside msdb; 15151 an endpoint or a service that does not exist.
    """
    if statement.permission is Permission.CONNECT:
        securable = _endpoint(statement.securable, database, endpoint)
    else:
        securable = statement.securable
        is_gone = isinstance(statement, RevokePermission)
        if database != MSDB and ANYBODY not in securable and securable not in services and not is_gone:
            raise _unknown_service(securable, services)
    state = PermissionState.DENY if isinstance(statement, DenyPermission) else PermissionState.GRANT
    for text in statement.principals:
        yield PermissionRule(statement.permission, securable, parse_principal(text), state)


def _endpoint(name: str, database: str, endpoint: str) -> str:
    if database != MSDB:
        problem = "CONNECT is about the endpoint of the whole instance: say it in msdb (USE msdb)"
        raise StatementError(4621, problem)
    if name != ANYBODY and name.casefold() != endpoint.casefold():
        problem = f"the endpoint {name!r} does not exist; it is called [{endpoint}] here, and [{ANYBODY}] anywhere"
        raise UnknownNameError(15151, problem)
    return ANYBODY


def _unknown_service(name: str, services: Collection[str]) -> UnknownNameError:
    from difflib import get_close_matches  # noqa: PLC0415 - for those who mistype; a slow import for all others

    near = get_close_matches(name, sorted(services), n=1)
    hint = f"did you mean [{near[0]}]?" if near else f"CREATE SERVICE [{name}] first"
    return UnknownNameError(15151, f"the service {name!r} does not exist in this database; {hint}")


def next_binding(
    statement: CreateRemoteServiceBinding | AlterRemoteServiceBinding,
    old: RemoteServiceBinding | None,
    others: Iterable[RemoteServiceBinding],
) -> RemoteServiceBinding:
    """
    The binding after CREATE, or ALTER of `old`.

    Raises:
        StatementError: 15151 a principal that stands for several; 2714 a service that has a binding already.
    """
    if isinstance(statement, CreateRemoteServiceBinding):
        service, user, is_anonymous_on = statement.remote_service_name, statement.user, statement.anonymous
    else:
        assert old is not None, "ALTER of nothing"
        service = old.remote_service_name
        user = old.remote_principal if statement.user is None else statement.user
        is_anonymous_on = old.is_anonymous_on if statement.anonymous is None else statement.anonymous
    principal = parse_principal(user)
    if principal.kind is PrincipalKind.PUBLIC or principal.is_pattern:
        problem = f"the principal {user!r} stands for several, and a conversation is sealed to one: write its name"
        raise PropertyError(15151, problem, properties=("USER",))
    for other in others:
        if other.name != statement.name and other.remote_service_name == service:
            raise same_service(other)
    return RemoteServiceBinding(statement.name, service, principal.text, is_anonymous_on)


def same_service(other: RemoteServiceBinding) -> DuplicateNameError:
    """The error for a second binding of one service."""
    problem = f"the service {other.remote_service_name!r} is bound already by [{other.name}]; alter or drop that one"
    return DuplicateNameError(2714, problem)


# --- carried out --------------------------------------------------------------------------------------------


@carry_out.register(ChangePermission)
def _(statement: ChangePermission, session: Session) -> None:
    is_there = metadata.find_service(session.db, statement.securable) is not None
    services = {statement.securable} if is_there else metadata.services(session.db).keys()  # all of them for a hint
    for rule in rules_of(statement, database=session.database, endpoint=session.endpoint, services=services):
        if isinstance(statement, RevokePermission):
            permission.drop_permission(session.db, rule)
            done = "revoked"
        else:
            old = permission.find_state(session.db, rule)
            permission.put_permission(session.db, rule)
            done = "unchanged" if old is rule.state else "granted" if rule.state is PermissionState.GRANT else "denied"
        securable = "the endpoint" if rule.permission is Permission.CONNECT else rule.securable
        session.messages.add(f"{rule.permission} on {securable} to", rule.principal.text, done)


@carry_out.register(CreateRemoteServiceBinding)
def _(statement: CreateRemoteServiceBinding, session: Session) -> None:
    exists = permission.find_binding(session.db, statement.name) is not None
    expect_absent(BINDING, statement.name, session, exists=exists)
    _put_binding(next_binding(statement, None, ()), session)
    session.messages.add(BINDING, statement.name, "replaced" if exists else "created")


@carry_out.register(AlterRemoteServiceBinding)
def _(statement: AlterRemoteServiceBinding, session: Session) -> None:
    old = expect_present(BINDING, statement.name, permission.find_binding(session.db, statement.name))
    _put_binding(next_binding(statement, old, ()), session)
    session.messages.add(BINDING, statement.name, "altered")


@carry_out.register(DropRemoteServiceBinding)
def _(statement: DropRemoteServiceBinding, session: Session) -> None:
    exists = permission.find_binding(session.db, statement.name) is not None
    if may_drop(BINDING, statement.name, session, exists=exists):
        permission.drop_binding(session.db, statement.name)
    session.messages.add(BINDING, statement.name, "dropped")


def _put_binding(binding: RemoteServiceBinding, session: Session) -> None:
    other = permission.find_binding_of(session.db, binding.remote_service_name)
    if other is not None and other.name != binding.name:
        raise same_service(other)
    permission.put_binding(session.db, binding)
