"""
What two sides of a conversation agree on, statement by statement: message types and contracts; and priorities.

A contract that is not declared is not checked, so services and priorities may name one that no statement has made. What
is built in has no row and cannot be changed. Importing this module adds its statements to `carry_out`.

Source: Service Broker documentation, "CREATE MESSAGE TYPE", "CREATE CONTRACT", "CREATE BROKER PRIORITY" and their kin.
"""

from __future__ import annotations

from broker.control.effect import Session, bound, carry_out, expect_absent, expect_present, may_drop
from broker.conversation.message_types import CONTRACT_NAMES, MESSAGE_TYPE_NAMES, SentBy, Validation
from broker.ddl.statements import (
    ANY,
    AlterMessageType,
    AlterPriority,
    CreateContract,
    CreateMessageType,
    CreatePriority,
    DropContract,
    DropMessageType,
    DropPriority,
    NameOrAny,
    PriorityProperties,
)
from broker.errors import DuplicateNameError, StatementError, UnknownNameError
from broker.protocol.layout import NAME_MAX_BYTES
from broker.routing.route import PropertyError
from broker.store import metadata
from broker.store.identity import CONTRACT_DROPPED, error_conversations
from broker.store.metadata import PRIORITY_DEFAULT, Priority

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
