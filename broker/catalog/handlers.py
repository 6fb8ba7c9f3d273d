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
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial, singledispatch
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from broker.advice import near_name, render_name
from broker.catalog.catalog import MSDB, ScriptMessages, stored_route
from broker.client.dialog import get_dialog, move_conversation
from broker.config.settings import Settings
from broker.conversation.message_types import CONTRACT_NAMES, MESSAGE_TYPE_NAMES, SentBy, Validation
from broker.ddl import statements as ddl
from broker.errors import ConversationError, DuplicateNameError, StatementError, UnknownNameError
from broker.protocol.layout import NAME_MAX_BYTES, show_guid
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
from broker.store.sqlite.metadata import Priority, QueueRow, Service, StoredRow

NOT_SUPPORTED = 50000  # the original's number for messages that have no separate number
BOUND = 3716  # the original's number for the DROP of what something else names
CHANGES_MAX = 10_000  # kept one by one; for more, reading all routes again costs less memory and about the same time
PRIORITY_LEVELS = (1, 10)
SERVICE_NAME_MAX = 256  # characters of a service elsewhere; the original's nvarchar(256)
BINDING = "remote service binding"
PRIORITY = "conversation priority"
_ADDRESS = 4  # its place in the row of a route


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


def holds(guard: ddl.ExistsGuard, statement: ddl.Statement, session: Session) -> bool:
    """Whether a statement under this guard is executed; if not, a message says so."""
    found = _FIND[guard.view](session.db, guard.name)
    is_there = found is not None
    if is_there is guard.is_negated:
        is_other = isinstance(statement, ddl.CreateRoute) and guard.view == "routes" and _is_other(statement, found)
        here = "it exists, with other properties" if is_other else "it exists"
        session.messages.add("statement about", guard.name, f"skipped: {here if is_there else 'it is not there'}")
    return is_there is not guard.is_negated


def _is_other(statement: ddl.CreateRoute, row: StoredRow | None) -> bool:
    """Whether this route is there and is not as the statement would make it, LIFETIME apart."""
    old = stored_route(row)
    with suppress(StatementError):
        new = create_route(statement.name, replace(statement.properties, lifetime=None))
        return old is not None and old.name == new.name and replace(old, lifetime=None) != new
    return False


@singledispatch
def carry_out(statement: ddl.Statement, _session: Session) -> None:
    """
    Do what a statement says.

    Raises:
        StatementError: it cannot be done; nothing was changed.
    """
    raise AssertionError(f"no handler for {type(statement).__name__}")


# --- objects ---


class _Kind(NamedTuple):
    """
    A kind of object.

    Attributes:
        of: Its words, its view and its statements.
        noun: Its name in errors.
        label: Its name in messages.
        find: The object of this name as stored; None where there is none.
        put: Stores what CREATE and ALTER say; called with the statement and what was found.
        drop: Removes what was found under a name.
        built_in: Names that no statement may change.
        taken: The original's number for a CREATE of what exists.
    """

    of: ddl.ObjectKind
    noun: str
    label: str
    find: Callable[[sqlite3.Connection, str], Any]
    put: Callable[[Any, Any, Session], None]
    drop: Callable[[str, Any, Session], None]
    built_in: frozenset[str] = frozenset()
    taken: int = 2714


def _create(kind: _Kind, statement: Any, session: Session) -> None:
    """Only a declared script may name what exists; it becomes what the script says."""
    name, db = statement.name, session.db
    if name in kind.built_in:
        raise DuplicateNameError(2714, f"cannot create the {kind.noun} {name!r}, because it is built in")
    old = kind.find(db, name)
    if old is not None and not session.is_declared:
        raise DuplicateNameError(kind.taken, f"there is already a {kind.noun} named {name!r} in the database")
    kind.put(statement, old, session)
    new = kind.find(db, name)
    verb = "created" if old is None else "unchanged" if new == old else "replaced"
    if verb == "replaced" and isinstance(statement, ddl.CreateRoute) and old[_ADDRESS] != new[_ADDRESS]:
        name = f"{name} ({old[_ADDRESS]} -> {new[_ADDRESS]})"
    session.messages.add(kind.label, name, verb)


def _alter(kind: _Kind, statement: Any, session: Session) -> None:
    kind.put(statement, _found(kind, statement.name, session, "alter"), session)
    session.messages.add(kind.label, statement.name, "altered")


def _drop(kind: _Kind, statement: Any, session: Session) -> None:
    old = _found(kind, statement.name, session, "drop")
    if old is not None:
        kind.drop(statement.name, old, session)
    session.messages.add(kind.label, statement.name, "dropped")


def _found(kind: _Kind, name: str, session: Session, doing: str) -> Any:
    """The object that ALTER or DROP names; only a declared script may DROP what is gone."""
    found = None if name in kind.built_in else kind.find(session.db, name)
    if found is None and (name in kind.built_in or doing == "alter" or not session.is_declared):
        why = "it is built in" if name in kind.built_in else "it does not exist"
        raise UnknownNameError(15151, f"cannot {doing} the {kind.noun} {name!r}, because {why}")
    return found


def _refuse_bound(what: str, name: str, other: str, other_name: str | None) -> None:
    """Refuse the DROP of what something else names."""
    if other_name is not None:
        problem = f"the {what} {name!r} cannot be dropped because the {other} {other_name!r} names it"
        raise StatementError(BOUND, problem)


def _put_route(statement: ddl.CreateRoute | ddl.AlterRoute, row: StoredRow | None, session: Session) -> None:
    if isinstance(statement, ddl.CreateRoute):
        new = create_route(statement.name, statement.properties, now=session.now)
    elif (old := stored_route(row)) is not None:
        new = alter_route(old, statement.properties, now=session.now)
    else:
        problem = "another program has stored something that is not a route under the name"
        raise StatementError(9744, f"{problem} {statement.name!r}; DROP it first")
    stored = RouteRow.of(new)
    if astuple(stored) != row:
        metadata.put_routes(session.db, [stored])
        session.changes.add(stored_route(row), new)


def _drop_route(name: str, row: StoredRow, session: Session) -> None:
    metadata.drop(session.db, "route", name)
    session.changes.add(stored_route(row), None)


def _put_queue(statement: ddl.CreateQueue | ddl.AlterQueue, old: QueueRow | None, session: Session) -> None:
    # A poison message or an administrator may have turned it off: no start undoes that unless the script says so.
    before = old or QueueRow(0, statement.name, is_receive_enabled=True)
    status, poison = statement.status, statement.poison_message_handling
    metadata.put_queue(
        session.db,
        statement.name,
        is_receive_enabled=before.is_receive_enabled if status is None else status,
        is_poison_message_handling_enabled=before.is_poison_message_handling_enabled if poison is None else poison,
    )


def _drop_queue(name: str, _queue: QueueRow, session: Session) -> None:
    used = metadata.find_user(session.db, "queue", name, by="service")
    if used is not None:
        raise StatementError(3729, f"cannot drop the queue {name!r}: the service {used!r} uses it")
    metadata.drop_queue(session.db, name)


def _put_service(statement: ddl.CreateService | ddl.AlterService, old: Service | None, session: Session) -> None:
    name = statement.name
    queue_id = None if statement.queue is None else _queue_id(session, statement, statement.queue)
    before = old or Service(0, name, 0, frozenset())
    if isinstance(statement, ddl.CreateService):
        contracts = frozenset(statement.contracts)
    else:
        absent = set(statement.drop_contracts) - before.contracts
        if absent:
            raise UnknownNameError(15151, f"the service {name!r} has no contract {min(absent)!r} to drop")
        contracts = before.contracts.difference(statement.drop_contracts).union(statement.add_contracts)
    is_exclusive = statement.exclusive_target
    metadata.put_service(
        session.db,
        name,
        before.queue_id if queue_id is None else queue_id,
        contracts,
        is_exclusive_target=before.is_exclusive_target if is_exclusive is None else is_exclusive,
    )


def _drop_service(name: str, _service: Service, session: Session) -> None:
    _refuse_bound("service", name, PRIORITY, metadata.find_user(session.db, "service", name, by="priority"))
    metadata.drop(session.db, "service", name)
    metadata.drop_permissions_on(session.db, name)


def _queue_id(session: Session, statement: ddl.CreateService | ddl.AlterService, queue: ddl.QueueName) -> int:
    found = metadata.find_queue(session.db, queue.name)
    if found is None:
        hint = _made_or_meant("QUEUE", queue.name, metadata.queues(session.db))
        error = UnknownNameError(208, f"the queue {queue.name!r} does not exist; {hint}")
        ddl.blame(statement, error, "QUEUE")
        raise error
    return found.queue_id


def _put_message_type(
    statement: ddl.CreateMessageType | ddl.AlterMessageType, _old: Validation | None, session: Session
) -> None:
    metadata.put_message_type(session.db, statement.name, Validation(statement.validation))


def _drop_message_type(name: str, _old: Validation, session: Session) -> None:
    _refuse_bound("message type", name, "contract", metadata.find_user(session.db, "message type", name, by="contract"))
    metadata.drop(session.db, "message_type", name)


def _put_contract(statement: ddl.CreateContract, _old: Mapping[str, SentBy] | None, session: Session) -> None:
    for one in (one.message_type for one in statement.message_types):
        if metadata.find_message_type(session.db, one) is None:
            problem = f"the message type {one!r} does not exist; CREATE MESSAGE TYPE [{one}] first"
            raise PropertyError(15151, problem, properties=(f"TYPE {one}",))
    new = {one.message_type: SentBy(one.sent_by) for one in statement.message_types}
    metadata.put_contract(session.db, statement.name, new)


def _drop_contract(name: str, _old: Mapping[str, SentBy], session: Session) -> None:
    db = session.db
    _refuse_bound("contract", name, "service", metadata.find_user(db, "contract", name, by="service"))
    _refuse_bound("contract", name, PRIORITY, metadata.find_user(db, "contract", name, by="priority"))
    metadata.drop_contract(db, name)
    text = f"the contract {name!r} has been dropped"
    error_conversations(db, session.now.timestamp(), code=CONTRACT_DROPPED, text=text, contract=name)


def _put_priority(statement: ddl.CreatePriority | ddl.AlterPriority, old: Priority | None, session: Session) -> None:
    """ALTER keeps the values that it does not name; in a CREATE these are ANY, or the default level."""
    name, properties = statement.name, statement.properties
    before = old if old is not None and isinstance(statement, ddl.AlterPriority) else Priority(name)
    level = before.priority_level if properties.priority_level is None else properties.priority_level
    low, high = PRIORITY_LEVELS
    if not low <= level <= high:
        problem = f"the PRIORITY_LEVEL {level} of {name!r} is not between {low} and {high}"
        raise PropertyError(33302, f"{problem}; DEFAULT is {PRIORITY_DEFAULT}", properties=("PRIORITY_LEVEL",))
    remote = properties.remote_service_name
    if isinstance(remote, str) and not _is_service_name(remote):
        problem = f"the REMOTE_SERVICE_NAME of {name!r} does not have 1 to {SERVICE_NAME_MAX} characters of text"
        raise PropertyError(33301, problem, properties=("REMOTE_SERVICE_NAME",))
    service = _criterion(properties.local_service_name, before.local_service_name)
    contract = _criterion(properties.contract_name, before.contract_name)
    new = Priority(name, contract, service, _criterion(remote, before.remote_service_name), level)
    if service is not None and metadata.find_service(session.db, service) is None:
        hint = _made_or_meant("SERVICE", service, metadata.services(session.db))
        problem = f"the service {service!r} does not exist in this database; {hint}"
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


def _put_binding(
    statement: ddl.CreateRemoteServiceBinding | ddl.AlterRemoteServiceBinding,
    old: RemoteServiceBinding | None,
    session: Session,
) -> None:
    name, is_anonymous = statement.name, statement.anonymous
    if isinstance(statement, ddl.CreateRemoteServiceBinding):
        service, user = statement.remote_service_name, statement.user
    else:
        assert old is not None
        service, user = old.remote_service_name, statement.user or old.remote_principal
        is_anonymous = old.is_anonymous_on if is_anonymous is None else is_anonymous
    principal = parse_principal(user)
    if principal.is_pattern:
        problem = f"the principal {user!r} means several, and a conversation is sealed to one: write its name"
        raise PropertyError(15151, problem, properties=("USER",))
    other = metadata.find_binding_of(session.db, service)
    if other is not None and other.name != name:
        problem = f"the service {service!r} is bound already by [{other.name}]; alter or drop that one"
        raise DuplicateNameError(2714, problem)
    metadata.put_binding(session.db, RemoteServiceBinding(name, service, principal.text, bool(is_anonymous)))


def _drop_row(table: str, name: str, _old: object, session: Session) -> None:
    """Of what nothing else names."""
    metadata.drop(session.db, table, name)


_KINDS = (
    _Kind(ddl.ROUTE, "route", "route", metadata.find_route, _put_route, _drop_route),
    _Kind(ddl.QUEUE, "queue", "queue", metadata.find_queue, _put_queue, _drop_queue),
    _Kind(ddl.SERVICE, "service", "service", metadata.find_service, _put_service, _drop_service),
    _Kind(
        *(ddl.MESSAGE_TYPE, "message type", "message type"),
        *(metadata.find_message_type, _put_message_type, _drop_message_type),
        MESSAGE_TYPE_NAMES,
    ),
    _Kind(
        *(ddl.CONTRACT, "contract", "contract"),
        *(metadata.find_contract, _put_contract, _drop_contract),
        CONTRACT_NAMES,
    ),
    _Kind(
        *(ddl.PRIORITY, PRIORITY, "priority"),
        *(metadata.find_priority, _put_priority, partial(_drop_row, "priority")),
        taken=33303,
    ),
    _Kind(
        *(ddl.BINDING, BINDING, BINDING),
        *(metadata.find_binding, _put_binding, partial(_drop_row, "remote_service_binding")),
    ),
)
_FIND = {kind.of.view: kind.find for kind in _KINDS}
for _kind in _KINDS:
    for _statement, _do in ((_kind.of.create, _create), (_kind.of.alter, _alter), (_kind.of.drop, _drop)):
        if _statement is not None:
            carry_out.register(_statement, partial(_do, _kind))


# --- permissions ---


def grants_of(settings: Settings, rules: Iterable[PermissionRule], database: str = MSDB) -> Grants:
    """Return the rules of a database as grants: where senders may prove who they are, what is not granted is denied."""
    is_proving = settings.endpoint.authentication == "certificate"
    if database != MSDB:
        is_proving = settings.databases[database].certificate is not None
    return Grants(rules, is_default_deny=is_proving, endpoint=settings.instance.name)


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
        old = metadata.find_state(session.db, rule)
        if is_revoked:
            metadata.drop_permission(session.db, rule)
            done = "unchanged" if old is None else "revoked"
        else:
            metadata.put_permission(session.db, rule)
            done = "unchanged" if old is rule.state else "granted" if rule.state is PermissionState.GRANT else "denied"
        securable = "the endpoint" if rule.permission is Permission.CONNECT else rule.securable
        session.messages.add(f"{rule.permission} on {securable} to", rule.principal.text, done)


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
        hint = _made_or_meant("SERVICE", name, metadata.services(session.db))
        raise UnknownNameError(15151, f"the service {name!r} does not exist in this database; {hint}")


def _made_or_meant(kind: str, name: str, known: Iterable[str]) -> str:
    """What to do where an object of this name is missing."""
    near, make = near_name(name, known), f"CREATE {kind} {render_name(name)} first"
    return f"did you mean {render_name(near)}? If not, {make}" if near else make


# --- conversations and databases ---


@carry_out.register
def _end_conversation(statement: ddl.EndConversation, session: Session) -> None:
    with _refusing():
        dialog = get_dialog(session.db, statement.conversation_handle)
        dialog.end(error=statement.error_code, description=statement.description or "", cleanup=statement.cleanup)
    session.messages.add("conversation", show_guid(statement.conversation_handle), "ended")


@carry_out.register
def _move_conversation(statement: ddl.MoveConversation, session: Session) -> None:
    with _refusing():
        move_conversation(get_dialog(session.db, statement.conversation_handle), statement.conversation_group_id)
    session.messages.add("conversation", show_guid(statement.conversation_handle), "moved")


@carry_out.register
def _begin_timer(statement: ddl.BeginConversationTimer, session: Session) -> None:
    with _refusing():
        get_dialog(session.db, statement.conversation_handle).set_timer(statement.timeout)
    session.messages.add("conversation timer", show_guid(statement.conversation_handle), "set")


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
        count = error_conversations(session.db, session.now.timestamp())
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
