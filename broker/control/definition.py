"""
What a statement is about, and how that is defined at a moment: what a record of changes shows before and after it,
and the port to whoever keeps such a record.

A definition has the words of the DDL as its keys. It holds names, addresses and states, never a body or a key.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import singledispatch
from typing import Any, Protocol

from msgspec import Struct

from broker.control.stored import stored_route
from broker.ddl.statements import (
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
    DropContract,
    DropMessageType,
    DropPriority,
    DropQueue,
    DropRemoteServiceBinding,
    DropRoute,
    DropService,
    EndConversation,
    MoveConversation,
    Statement,
)
from broker.store import metadata
from broker.store.conversation import conversations_by_state, describe_conversation
from broker.store.permission import find_binding, states_on

Definition = Mapping[str, Any]

_WORD = r"[A-Z][a-z]+"  # one of a statement's class name


class Change(Struct, frozen=True):
    """What a statement did. Shape: `before` None when there was nothing, `after` when there is nothing any more."""

    database: str
    statement: Statement
    before: Definition | None
    after: Definition | None


class Auditing(Protocol):
    """Whoever writes down what a script changes; called in the thread of the script."""

    @property
    def room(self) -> int:
        """How many changes it still wants to see one by one."""

    def note(self, change: Change) -> None:
        """A statement was carried out; nothing is committed yet."""

    def seal(self, statements: int) -> None:
        """So many statements were carried out, and are to be committed; raises when that cannot be written down."""


@singledispatch
def target_of(statement: Statement) -> str:
    """The name of what a statement changes."""
    return str(getattr(statement, "name", None) or "")


@target_of.register(CreateQueue | AlterQueue | DropQueue)
def _queue_target(statement: CreateQueue | AlterQueue | DropQueue) -> str:
    return statement.queue.name


@target_of.register(EndConversation | MoveConversation | BeginConversationTimer)
def _conversation_target(statement: EndConversation | MoveConversation | BeginConversationTimer) -> str:
    return str(statement.conversation_handle)


@target_of.register(ChangePermission)
def _permission_target(statement: ChangePermission) -> str:
    return f"{statement.permission} ON {statement.securable}"


@singledispatch
def definition_of(_statement: Statement, _db: sqlite3.Connection) -> Definition | None:
    """
    What a statement is about, as it is now; None when it does not exist, or has no definition.

    Raises:
        sqlite3.Error: the database cannot be read.
    """
    return None


@definition_of.register(CreateRoute | AlterRoute | DropRoute)
def _route(statement: CreateRoute | AlterRoute | DropRoute, db: sqlite3.Connection) -> Definition | None:
    route = stored_route(metadata.find_route(db, statement.name))
    if route is None:
        return None
    return {
        "SERVICE_NAME": route.remote_service_name,
        "BROKER_INSTANCE": None if route.broker_instance is None else str(route.broker_instance),
        "LIFETIME": None if route.lifetime is None else route.lifetime.isoformat(),
        "ADDRESS": route.address_text,
        "MIRROR_ADDRESS": route.mirror_address_text,
        "WEIGHT": route.weight,
    }


@definition_of.register(CreateQueue | AlterQueue | DropQueue)
def _queue(statement: CreateQueue | AlterQueue | DropQueue, db: sqlite3.Connection) -> Definition | None:
    queue = metadata.find_queue(db, statement.queue.name)
    if queue is None:
        return None
    return {
        "STATUS": _on_off(queue.is_receive_enabled),
        "POISON_MESSAGE_HANDLING": _on_off(queue.is_poison_message_handling_enabled),
    }


@definition_of.register(CreateService | AlterService | DropService)
def _service(statement: CreateService | AlterService | DropService, db: sqlite3.Connection) -> Definition | None:
    service = metadata.find_service(db, statement.name)
    if service is None:
        return None
    return {"QUEUE": metadata.find_queue_name(db, service.queue_id), "CONTRACTS": sorted(service.contracts)}


@definition_of.register(CreateMessageType | AlterMessageType | DropMessageType)
def _message_type(
    statement: CreateMessageType | AlterMessageType | DropMessageType, db: sqlite3.Connection
) -> Definition | None:
    validation = metadata.find_message_type(db, statement.name)
    return None if validation is None else {"VALIDATION": str(validation)}


@definition_of.register(CreateContract | DropContract)
def _contract(statement: CreateContract | DropContract, db: sqlite3.Connection) -> Definition | None:
    contract = metadata.find_contract(db, statement.name)
    return None if contract is None else {name: str(sent_by) for name, sent_by in sorted(contract.items())}


@definition_of.register(CreatePriority | AlterPriority | DropPriority)
def _priority(statement: CreatePriority | AlterPriority | DropPriority, db: sqlite3.Connection) -> Definition | None:
    priority = metadata.find_priority(db, statement.name)
    if priority is None:
        return None
    return {
        "CONTRACT_NAME": priority.contract_name,
        "LOCAL_SERVICE_NAME": priority.local_service_name,
        "REMOTE_SERVICE_NAME": priority.remote_service_name,
        "PRIORITY_LEVEL": priority.priority_level,
    }


@definition_of.register(ChangePermission)
def _permission(statement: ChangePermission, db: sqlite3.Connection) -> Definition | None:
    """All that is said about the securable: a REVOKE may name a principal in another spelling."""
    return states_on(db, statement.permission, statement.securable) or None


@definition_of.register(CreateRemoteServiceBinding | AlterRemoteServiceBinding | DropRemoteServiceBinding)
def _binding(
    statement: CreateRemoteServiceBinding | AlterRemoteServiceBinding | DropRemoteServiceBinding,
    db: sqlite3.Connection,
) -> Definition | None:
    found = find_binding(db, statement.name)
    if found is None:
        return None
    return {
        "SERVICE": found.remote_service_name,
        "USER": found.remote_principal,
        "ANONYMOUS": _on_off(found.is_anonymous_on),
    }


@definition_of.register(EndConversation | MoveConversation | BeginConversationTimer)
def _conversation(
    statement: EndConversation | MoveConversation | BeginConversationTimer, db: sqlite3.Connection
) -> Definition | None:
    found = describe_conversation(db, statement.conversation_handle.bytes)
    if found is None:
        return None
    state, group, service, far_service, timer = found
    told = {"STATE": state, "CONVERSATION_GROUP": group, "SERVICE": service, "FAR_SERVICE": far_service}
    return told | {"TIMER": None if timer is None else datetime.fromtimestamp(timer, UTC).isoformat()}


@definition_of.register(AlterDatabase)
def _database(_statement: AlterDatabase, db: sqlite3.Connection) -> Definition | None:
    """How many conversations there are in each state."""
    return {"CONVERSATIONS": conversations_by_state(db)}


def _on_off(is_on: object) -> str:
    return "ON" if is_on else "OFF"


# --- in words ------------------------------------------------------------------------------------------------


def words_of(statement: Statement) -> str:
    """What a statement is called: its first words, in capitals."""
    match statement:
        case AlterDatabase():
            return f"ALTER DATABASE SET {statement.option}"
        case EndConversation():
            return "END CONVERSATION WITH CLEANUP" if statement.cleanup else "END CONVERSATION"
        case ChangePermission():
            return f"{re.findall(_WORD, type(statement).__name__)[0].upper()} {statement.permission}"
        case _:
            return " ".join(re.findall(_WORD, type(statement).__name__)).upper()
