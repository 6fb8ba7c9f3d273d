"""
Handlers: what each statement does to its database, inside the transaction of its script.

Scripts named in the configuration are *declared*: they run at every start, so there CREATE of something that exists
makes it what the script says, and DROP of something that is gone is done already. Only whether a queue is ON is left as
it is where the script does not say it: it is turned off while it is in use, and no start undoes that.

A contract that is not declared is not checked, so services and priorities may name one that no statement has made. What
is built in has no row and cannot be changed. SEND is about a service: in msdb about what neighbours may bring to this
instance, wherever the service is; in any other database about its own services and who may begin conversations with
them. CONNECT is about the one endpoint of the instance, so it is said in msdb.

Sources: the T-SQL documentation's page of each statement, "GRANT Service Broker Permissions", "GRANT Endpoint
Permissions".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from functools import singledispatch
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import astuple

from broker.catalog.catalog import MSDB, ScriptMessages, stored_route
from broker.client.dialog import get_dialog, move_conversation
from broker.config.settings import Settings
from broker.conversation.message_types import CONTRACT_NAMES, MESSAGE_TYPE_NAMES, SentBy, Validation
from broker.ddl import statements as ddl
from broker.errors import ConversationError, DuplicateNameError, StatementError, UnknownNameError
from broker.protocol.layout import NAME_MAX_BYTES
from broker.routing.route import PropertyError, Route, RouteRow, alter_route, create_route
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
from broker.security.principal import parse_principal
from broker.store.sqlite import metadata
from broker.store.sqlite.administration import CONTRACT_DROPPED, error_conversations
from broker.store.sqlite.dialog_rules import PRIORITY_DEFAULT
from broker.store.sqlite.metadata import Priority

NOT_SUPPORTED = 50000  # the original's number for messages that have no separate number
BOUND = 3716  # the original's number for the DROP of what something else names
CHANGES_MAX = 10_000  # kept one by one; for more, reading all routes again costs less memory and about the same time
PRIORITY_LEVELS = (1, 10)
SERVICE_NAME_MAX = 256  # characters of a service elsewhere; the original's nvarchar(256)
BINDING = "remote service binding"
PRIORITY = "conversation priority"

_T = TypeVar("_T")


class RouteChanges(Struct):
    """Changes to the routes of one database; with more than CHANGES_MAX, `are_many` is True and none is kept."""

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
    Context in which a statement runs.

    Attributes:
        db: In the transaction of the script.
        now: UTC; lifetimes count from it.
        is_declared: Whether the script is of the configuration.
        database: Name of the database.
        endpoint: Name of the endpoint of the instance.
    """

    db: sqlite3.Connection
    now: datetime
    is_declared: bool
    messages: ScriptMessages
    database: str = ""
    endpoint: str = ENDPOINT_NAME
    changes: RouteChanges = field(default_factory=RouteChanges)


_FINDERS: Mapping[str, Callable[[sqlite3.Connection, str], object]] = {
    "routes": metadata.find_route,
    "services": metadata.find_service,
    "service_queues": metadata.find_queue,
    "service_contracts": metadata.find_contract,
    "service_message_types": metadata.find_message_type,
    "conversation_priorities": metadata.find_priority,
    "remote_service_bindings": metadata.find_binding,
}


def holds(guard: ddl.ExistsGuard, session: Session) -> bool:
    """Whether a statement under this guard is executed; if not, a message says so."""
    is_there = _FINDERS[guard.view](session.db, guard.name) is not None
    if is_there is guard.is_negated:
        session.messages.add(
            "statement about", guard.name, "skipped: it exists" if is_there else "skipped: it is not there"
        )
    return is_there is not guard.is_negated


@singledispatch
def carry_out(statement: ddl.Statement, _session: Session) -> None:
    """
    Do what a statement says.

    Raises:
        StatementError: it cannot be done; nothing was changed.
    """
    raise AssertionError(f"no handler for {type(statement).__name__}")


# --- routes ---


@carry_out.register
def _create_route(statement: ddl.CreateRoute, session: Session) -> None:
    row = _expect_absent("route", statement.name, session, metadata.find_route(session.db, statement.name))
    route = create_route(statement.name, statement.properties, now=session.now)
    new = RouteRow.of(route)
    if astuple(new) != row:
        metadata.put_routes(session.db, [new])
        session.changes.add(stored_route(row), route)
    _made("route", statement.name, session, row, astuple(new))


@carry_out.register
def _alter_route(statement: ddl.AlterRoute, session: Session) -> None:
    row = _expect_present("route", statement.name, metadata.find_route(session.db, statement.name))
    old = stored_route(row)
    if old is None:
        problem = (
            f"another program has stored something that is not a route under the name {statement.name!r}; DROP it first"
        )
        raise StatementError(9744, problem)
    new = alter_route(old, statement.properties, now=session.now)
    metadata.put_routes(session.db, [RouteRow.of(new)])
    session.changes.add(old, new)
    session.messages.add("route", statement.name, "altered")


@carry_out.register
def _drop_route(statement: ddl.DropRoute, session: Session) -> None:
    row = _to_drop("route", statement.name, session, metadata.find_route(session.db, statement.name))
    if row is not None:
        metadata.drop(session.db, "route", statement.name)
        session.changes.add(stored_route(row), None)
    session.messages.add("route", statement.name, "dropped")


# --- queues and services ---


@carry_out.register
def _create_queue(statement: ddl.CreateQueue, session: Session) -> None:
    name, db = statement.queue.name, session.db
    old = _expect_absent("queue", name, session, metadata.find_queue(db, name))
    # A poison message or an administrator may have turned it off: no start undoes that unless the script says so.
    status = statement.status if statement.status is not None else old is None or old.is_receive_enabled
    poison = statement.poison_message_handling
    metadata.put_queue(db, name, is_receive_enabled=status, is_poison_message_handling_enabled=poison)
    _made("queue", name, session, old, metadata.find_queue(db, name))


@carry_out.register
def _alter_queue(statement: ddl.AlterQueue, session: Session) -> None:
    name, db = statement.queue.name, session.db
    old = _expect_present("queue", name, metadata.find_queue(db, name))
    status, poison = statement.status, statement.poison_message_handling
    metadata.put_queue(
        db,
        name,
        is_receive_enabled=old.is_receive_enabled if status is None else status,
        is_poison_message_handling_enabled=old.is_poison_message_handling_enabled if poison is None else poison,
    )
    session.messages.add("queue", name, "altered")


@carry_out.register
def _drop_queue(statement: ddl.DropQueue, session: Session) -> None:
    name, db = statement.queue.name, session.db
    queue = _to_drop("queue", name, session, metadata.find_queue(db, name))
    if queue is not None:
        used = metadata.find_service_of(db, queue.queue_id)
        if used is not None:
            raise StatementError(3729, f"cannot drop the queue {name!r}: the service {used!r} uses it")
        metadata.drop_queue(db, name)
    session.messages.add("queue", name, "dropped")


@carry_out.register
def _create_service(statement: ddl.CreateService, session: Session) -> None:
    name, db = statement.name, session.db
    old = _expect_absent("service", name, session, metadata.find_service(db, name))
    is_exclusive = statement.exclusive_target
    if is_exclusive is None:
        is_exclusive = old is not None and old.is_exclusive_target
    queue_id, contracts = _queue_id(session, statement.queue), frozenset(statement.contracts)
    metadata.put_service(db, name, queue_id, contracts, is_exclusive_target=is_exclusive)
    _made("service", name, session, old, metadata.find_service(db, name))


@carry_out.register
def _alter_service(statement: ddl.AlterService, session: Session) -> None:
    name, db = statement.name, session.db
    service = _expect_present("service", name, metadata.find_service(db, name))
    queue_id = _queue_id(session, statement.queue) if statement.queue else service.queue_id
    absent = set(statement.drop_contracts) - service.contracts
    if absent:
        raise UnknownNameError(15151, f"the service {name!r} has no contract {min(absent)!r} to drop")
    contracts = (service.contracts - set(statement.drop_contracts)) | set(statement.add_contracts)
    is_exclusive = statement.exclusive_target
    is_exclusive = service.is_exclusive_target if is_exclusive is None else is_exclusive
    metadata.put_service(db, name, queue_id, frozenset(contracts), is_exclusive_target=is_exclusive)
    session.messages.add("service", name, "altered")


@carry_out.register
def _drop_service(statement: ddl.DropService, session: Session) -> None:
    name, db = statement.name, session.db
    if _to_drop("service", name, session, metadata.find_service(db, name)) is not None:
        _refuse_bound("service", name, PRIORITY, metadata.find_priority_for(db, name))
        metadata.drop(db, "service", name)
        metadata.drop_permissions_on(db, name)
    session.messages.add("service", name, "dropped")


def _queue_id(session: Session, queue: ddl.QueueName) -> int:
    found = metadata.find_queue(session.db, queue.name)
    if found is None:
        raise UnknownNameError(208, f"the queue {queue.name!r} does not exist; CREATE QUEUE [{queue.name}] first")
    return found.queue_id


# --- message types and contracts ---


@carry_out.register
def _create_message_type(statement: ddl.CreateMessageType, session: Session) -> None:
    name, db = statement.name, session.db
    _refuse_built_in("message type", name, "create")
    old = _expect_absent("message type", name, session, metadata.find_message_type(db, name))
    new = Validation(statement.validation)
    metadata.put_message_type(db, name, new)
    _made("message type", name, session, old, new)


@carry_out.register
def _alter_message_type(statement: ddl.AlterMessageType, session: Session) -> None:
    name, db = statement.name, session.db
    _refuse_built_in("message type", name, "alter")
    _expect_present("message type", name, metadata.find_message_type(db, name))
    metadata.put_message_type(db, name, Validation(statement.validation))
    session.messages.add("message type", name, "altered")


@carry_out.register
def _drop_message_type(statement: ddl.DropMessageType, session: Session) -> None:
    name, db = statement.name, session.db
    _refuse_built_in("message type", name, "drop")
    if _to_drop("message type", name, session, metadata.find_message_type(db, name)) is not None:
        _refuse_bound("message type", name, "contract", metadata.find_contract_of(db, name))
        metadata.drop(db, "message_type", name)
    session.messages.add("message type", name, "dropped")


@carry_out.register
def _create_contract(statement: ddl.CreateContract, session: Session) -> None:
    name, db = statement.name, session.db
    _refuse_built_in("contract", name, "create")
    old = _expect_absent("contract", name, session, metadata.find_contract(db, name))
    for one in (one.message_type for one in statement.message_types):
        if metadata.find_message_type(db, one) is None:
            problem = f"the message type {one!r} does not exist; CREATE MESSAGE TYPE [{one}] first"
            raise PropertyError(15151, problem, properties=(f"TYPE {one}",))
    new = {one.message_type: SentBy(one.sent_by) for one in statement.message_types}
    metadata.put_contract(db, name, new)
    _made("contract", name, session, old, new)


@carry_out.register
def _drop_contract(statement: ddl.DropContract, session: Session) -> None:
    name, db = statement.name, session.db
    _refuse_built_in("contract", name, "drop")
    if _to_drop("contract", name, session, metadata.find_contract(db, name)) is not None:
        _refuse_bound("contract", name, "service", metadata.find_service_under(db, name))
        _refuse_bound("contract", name, PRIORITY, metadata.find_priority_under(db, name))
        metadata.drop_contract(db, name)
        text = f"the contract {name!r} has been dropped"
        error_conversations(db, session.now.timestamp(), code=CONTRACT_DROPPED, text=text, contract=name)
    session.messages.add("contract", name, "dropped")


def _refuse_built_in(what: str, name: str, doing: str) -> None:
    if name in (CONTRACT_NAMES if what == "contract" else MESSAGE_TYPE_NAMES):
        problem = f"cannot {doing} the {what} {name!r}, because it is built in"
        raise DuplicateNameError(2714, problem) if doing == "create" else UnknownNameError(15151, problem)


# --- priorities ---


@carry_out.register
def _create_priority(statement: ddl.CreatePriority, session: Session) -> None:
    old = metadata.find_priority(session.db, statement.name)
    if old is not None and not session.is_declared:
        raise DuplicateNameError(33303, f"there is already a {PRIORITY} named {statement.name!r}")
    _put_priority(Priority(statement.name), statement.properties, session)
    _made("priority", statement.name, session, old, metadata.find_priority(session.db, statement.name))


@carry_out.register
def _alter_priority(statement: ddl.AlterPriority, session: Session) -> None:
    old = _expect_present(PRIORITY, statement.name, metadata.find_priority(session.db, statement.name))
    _put_priority(old, statement.properties, session)
    session.messages.add("priority", statement.name, "altered")


@carry_out.register
def _drop_priority(statement: ddl.DropPriority, session: Session) -> None:
    if _to_drop(PRIORITY, statement.name, session, metadata.find_priority(session.db, statement.name)) is not None:
        metadata.drop(session.db, "priority", statement.name)
    session.messages.add("priority", statement.name, "dropped")


def _put_priority(old: Priority, properties: ddl.PriorityProperties, session: Session) -> None:
    """Store a priority with these properties, and for the others those of the old one."""
    name = old.name
    level = old.priority_level if properties.priority_level is None else properties.priority_level
    low, high = PRIORITY_LEVELS
    if not low <= level <= high:
        problem = f"the PRIORITY_LEVEL {level} of {name!r} is not between {low} and {high}"
        raise PropertyError(33302, f"{problem}; DEFAULT is {PRIORITY_DEFAULT}", properties=("PRIORITY_LEVEL",))
    remote = properties.remote_service_name
    if isinstance(remote, str) and not _is_service_name(remote):
        problem = f"the REMOTE_SERVICE_NAME of {name!r} does not have 1 to {SERVICE_NAME_MAX} characters of text"
        raise PropertyError(33301, problem, properties=("REMOTE_SERVICE_NAME",))
    service = _criterion(properties.local_service_name, old.local_service_name)
    contract = _criterion(properties.contract_name, old.contract_name)
    new = Priority(name, contract, service, _criterion(remote, old.remote_service_name), level)
    if service is not None and metadata.find_service(session.db, service) is None:
        problem = f"the service {service!r} does not exist in this database; CREATE SERVICE [{service}] first"
        raise PropertyError(15151, problem, properties=("LOCAL_SERVICE_NAME",))
    same = metadata.find_priority_about(session.db, new)
    if same is not None and same != name:
        problem = f"the priority {same!r} is about the same conversations as {name!r}; alter that one"
        raise DuplicateNameError(33303, problem)
    metadata.put_priority(session.db, new)


def _is_service_name(name: str) -> bool:
    try:
        return 1 <= len(name) <= SERVICE_NAME_MAX and len(name.encode()) <= NAME_MAX_BYTES
    except UnicodeEncodeError:
        return False


def _criterion(written: ddl.NameOrAny, old: str | None) -> str | None:
    return old if written is None else None if written is ddl.ANY else written


# --- permissions and remote service bindings ---


def grants_of(settings: Settings, rules: Iterable[PermissionRule]) -> Grants:
    """Return the rules of msdb as grants to peers: where peers authenticate, everything not granted is denied."""
    is_authenticating = settings.endpoint.authentication == "certificate"
    return Grants(rules, is_default_deny=is_authenticating, endpoint=settings.instance.name)


def rules_of(statement: ddl.ChangePermission) -> list[PermissionRule]:
    """Return the rules of a statement, one for each principal; REVOKE takes away what these rules are about."""
    securable = ANYBODY if statement.permission is Permission.CONNECT else statement.securable
    state = PermissionState.DENY if isinstance(statement, ddl.DenyPermission) else PermissionState.GRANT
    principals = map(parse_principal, statement.principals)
    return [PermissionRule(statement.permission, securable, principal, state) for principal in principals]


@carry_out.register
def _change_permission(statement: ddl.ChangePermission, session: Session) -> None:
    is_revoked = isinstance(statement, ddl.RevokePermission)
    if statement.permission is Permission.CONNECT:
        _expect_endpoint(statement.securable, session)
    elif session.database != MSDB and ANYBODY not in statement.securable and not is_revoked:
        _expect_service(statement.securable, session)
    for rule in rules_of(statement):
        if is_revoked:
            metadata.drop_permission(session.db, rule)
            done = "revoked"
        else:
            old = metadata.find_state(session.db, rule)
            metadata.put_permission(session.db, rule)
            done = "unchanged" if old is rule.state else "granted" if rule.state is PermissionState.GRANT else "denied"
        securable = "the endpoint" if rule.permission is Permission.CONNECT else rule.securable
        session.messages.add(f"{rule.permission} on {securable} to", rule.principal.text, done)


@carry_out.register
def _create_binding(statement: ddl.CreateRemoteServiceBinding, session: Session) -> None:
    name = statement.name
    old = _expect_absent(BINDING, name, session, metadata.find_binding(session.db, name))
    _put_binding(name, statement.remote_service_name, statement.user, session, is_anonymous=statement.anonymous)
    _made(BINDING, name, session, old, metadata.find_binding(session.db, name))


@carry_out.register
def _alter_binding(statement: ddl.AlterRemoteServiceBinding, session: Session) -> None:
    name = statement.name
    old = _expect_present(BINDING, name, metadata.find_binding(session.db, name))
    user = old.remote_principal if statement.user is None else statement.user
    is_anonymous = old.is_anonymous_on if statement.anonymous is None else statement.anonymous
    _put_binding(name, old.remote_service_name, user, session, is_anonymous=is_anonymous)
    session.messages.add(BINDING, name, "altered")


@carry_out.register
def _drop_binding(statement: ddl.DropRemoteServiceBinding, session: Session) -> None:
    if _to_drop(BINDING, statement.name, session, metadata.find_binding(session.db, statement.name)) is not None:
        metadata.drop(session.db, "remote_service_binding", statement.name)
    session.messages.add(BINDING, statement.name, "dropped")


def _expect_endpoint(name: str, session: Session) -> None:
    if session.database != MSDB:
        problem = "CONNECT is about the endpoint of the whole instance: say it in msdb (USE msdb)"
        raise StatementError(4621, problem)
    endpoint = session.endpoint
    if name != ANYBODY and name.casefold() != endpoint.casefold():
        problem = f"the endpoint {name!r} does not exist; it is called [{endpoint}] here, and [{ANYBODY}] anywhere"
        raise UnknownNameError(15151, problem)


def _expect_service(name: str, session: Session) -> None:
    if metadata.find_service(session.db, name) is None:
        near = get_close_matches(name, sorted(metadata.services(session.db)), n=1)
        hint = f"did you mean [{near[0]}]?" if near else f"CREATE SERVICE [{name}] first"
        raise UnknownNameError(15151, f"the service {name!r} does not exist in this database; {hint}")


def _put_binding(name: str, service: str, user: str, session: Session, *, is_anonymous: bool) -> None:
    principal = parse_principal(user)
    if principal.is_pattern:
        problem = f"the principal {user!r} means several, and a conversation is sealed to one: write its name"
        raise PropertyError(15151, problem, properties=("USER",))
    other = metadata.find_binding_of(session.db, service)
    if other is not None and other.name != name:
        problem = f"the service {service!r} is bound already by [{other.name}]; alter or drop that one"
        raise DuplicateNameError(2714, problem)
    metadata.put_binding(session.db, RemoteServiceBinding(name, service, principal.text, is_anonymous))


# --- conversations and databases ---


@carry_out.register
def _end_conversation(statement: ddl.EndConversation, session: Session) -> None:
    with _refusing():
        dialog = get_dialog(session.db, statement.conversation_handle)
        dialog.end(error=statement.error_code, description=statement.description or "", cleanup=statement.cleanup)
    session.messages.add("conversation", statement.conversation_handle, "ended")


@carry_out.register
def _move_conversation(statement: ddl.MoveConversation, session: Session) -> None:
    with _refusing():
        move_conversation(get_dialog(session.db, statement.conversation_handle), statement.conversation_group_id)
    session.messages.add("conversation", statement.conversation_handle, "moved")


@carry_out.register
def _begin_timer(statement: ddl.BeginConversationTimer, session: Session) -> None:
    with _refusing():
        get_dialog(session.db, statement.conversation_handle).set_timer(statement.timeout)
    session.messages.add("conversation timer", statement.conversation_handle, "set")


@contextmanager
def _refusing() -> Iterator[None]:
    """Give the error that an application would get as one of the statement."""
    try:
        yield
    except ConversationError as error:
        raise StatementError(error.number, error.problem) from error


@carry_out.register
def _alter_database(statement: ddl.AlterDatabase, session: Session) -> None:
    refuse_option(statement, is_declared=session.is_declared)
    if statement.option is ddl.DatabaseOption.ERROR_BROKER_CONVERSATIONS:
        text = "all conversations of the database were ended with an error by an administrator"
        count = error_conversations(session.db, session.now.timestamp(), text=text)
        session.messages.add("open conversations", count, "ended with error 9719")
    else:
        session.messages.add("database", session.database, "enabled")


def refuse_option(statement: ddl.AlterDatabase, *, is_declared: bool) -> None:
    """
    Refuse what cannot be set here.

    Raises:
        StatementError: what takes the daemon off the file, or what a script of the configuration must not repeat.
    """
    problem = _REFUSED.get(statement.option) or (is_declared and _REFUSED_IF_DECLARED.get(statement.option))
    if problem:
        raise PropertyError(NOT_SUPPORTED, problem, properties=("OPTION",))


_REFUSED = {
    ddl.DatabaseOption.NEW_BROKER: (
        "NEW_BROKER takes the file for itself: stop the daemon, then broker database reset-identity"
    ),
    ddl.DatabaseOption.DISABLE_BROKER: (
        "DISABLE_BROKER is not supported: take the database out of the configuration, or set its queues OFF"
    ),
}
_REFUSED_IF_DECLARED = {
    ddl.DatabaseOption.PARTNER_FAILOVER: (
        "PARTNER FAILOVER would hand the database over at each start; give it to the running daemon"
    ),
    ddl.DatabaseOption.ERROR_BROKER_CONVERSATIONS: (
        "ERROR_BROKER_CONVERSATIONS would end every conversation at each start; give it to the running daemon"
    ),
}


# --- names ---


def _expect_present(what: str, name: str, found: _T | None) -> _T:
    """The object that an ALTER names."""
    if found is None:
        raise UnknownNameError(15151, f"cannot alter the {what} {name!r}, because it does not exist")
    return found


def _expect_absent(what: str, name: str, session: Session, found: _T | None) -> _T | None:
    """The object that a CREATE replaces; only a declared script may name one that exists."""
    if found is not None and not session.is_declared:
        raise DuplicateNameError(2714, f"there is already a {what} named {name!r} in the database")
    return found


def _to_drop(what: str, name: str, session: Session, found: _T | None) -> _T | None:
    """The object that a DROP names; only a declared script may name one that is gone."""
    if found is None and not session.is_declared:
        raise UnknownNameError(15151, f"cannot drop the {what} {name!r}, because it does not exist")
    return found


def _refuse_bound(what: str, name: str, other: str, other_name: str | None) -> None:
    """Refuse the DROP of what something else names."""
    if other_name is not None:
        problem = f"the {what} {name!r} cannot be dropped because the {other} {other_name!r} names it"
        raise StatementError(BOUND, problem)


def _made(what: str, name: str, session: Session, old: object, new: object) -> None:
    session.messages.add(what, name, "created" if old is None else "unchanged" if old == new else "replaced")
