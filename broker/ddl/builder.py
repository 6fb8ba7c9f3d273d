"""
From the grammar's rules to statements: one method a rule, called while the parser reduces.

A method gets the values of its rule's parts in order (None for an optional part that is missing) and returns the
value of the whole. A statement's method returns `Built`: the constructor still without its origin, and the places of
the parts an error may be about. What the grammar cannot say (a property twice, a name too long) is refused here.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec import Struct

from broker.ddl.built import Built, Place, RefusedError, checked_name
from broker.ddl.security_rules import SecurityRules
from broker.ddl.statements import (
    ANY,
    NAME,
    AlterDatabase,
    AlterMessageType,
    AlterPriority,
    AlterQueue,
    AlterRoute,
    AlterService,
    BeginConversationTimer,
    ContractType,
    CreateContract,
    CreateMessageType,
    CreatePriority,
    CreateQueue,
    CreateRoute,
    CreateService,
    DatabaseOption,
    DropContract,
    DropMessageType,
    DropPriority,
    DropQueue,
    DropRoute,
    DropService,
    EndConversation,
    MoveConversation,
    PriorityProperties,
    QueueName,
    Statement,
    UseDatabase,
)
from broker.ddl.token import Token, place_of
from broker.routing.route import RouteProperties

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PRIORITY_LEVEL_DEFAULT = 5  # PRIORITY_LEVEL = DEFAULT, the original's

_GUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class _Queue(Struct, frozen=True):
    value: QueueName
    place: Place


def _once(pairs: Sequence[Sequence[Token]]) -> dict[str, Token]:
    """The values by the terminal of their key, none twice."""
    values: dict[str, Token] = {}
    for key, value in pairs:
        if key.type in values:
            raise RefusedError(102, f"{key.type} is given twice", key)
        values[key.type] = value
    return values


def _each_once(names: Sequence[Token], number: int, what: str) -> None:
    """Refuse a list with a name twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise RefusedError(number, f"the {what} {str(name)!r} is given twice; remove one", name)
        seen.add(name)


def _guid(token: Token, what: str) -> UUID:
    if re.fullmatch(_GUID, token, re.ASCII | re.IGNORECASE) is None:
        raise RefusedError(8169, f"{str(token)!r} is no {what}: write a GUID", token)
    return UUID(token)


def _plain(token: Token) -> str | int:
    return int(token) if token.type == "INTEGER" else str(token)


def _named(make: Callable[..., Statement], name: Token) -> Built:
    return Built(partial(make, str(name)), {NAME: place_of(name)})


class Builder(SecurityRules):
    """The methods by rule; holds no state, so one serves every parse."""

    # --- parts ---

    def word(self, parts: Sequence[Token]) -> Token:
        """A name, or a word that may serve as one."""
        return parts[0]

    def name(self, parts: Sequence[Token]) -> Token:
        """A name of 1 .. 128 characters."""
        return checked_name(parts[0])

    def authorization(self, parts: Sequence[Token]) -> str:
        """The owner."""
        return str(parts[0])

    def queue(self, parts: Sequence[Token | None]) -> _Queue:
        """`queue` or `schema.queue`."""
        first, second = parts
        assert first is not None  # the grammar
        if second is None:
            return _Queue(QueueName(str(first)), place_of(first))
        return _Queue(QueueName(str(second), str(first)), (place_of(first)[0], place_of(second)[1]))

    def status(self, parts: Sequence[Token]) -> bool:
        """ON or OFF."""
        return parts[0].type == "ON"

    # --- routes ---

    def use_database(self, parts: Sequence[Token]) -> Built:
        """USE name."""
        return _named(UseDatabase, parts[0])

    def route_property(self, parts: Sequence[Token]) -> Sequence[Token]:
        """A property and its value."""
        return parts

    def route_properties(self, parts: Sequence[Sequence[Token]]) -> dict[str, Token]:
        """The properties by name, none twice."""
        return _once(parts)

    def create_route(self, parts: Sequence[Any]) -> Built:
        """CREATE ROUTE name [AUTHORIZATION owner] WITH ..."""
        name, owner, values = parts
        if "ADDRESS" not in values:
            raise RefusedError(102, "CREATE ROUTE needs ADDRESS", name)
        return self._route(partial(CreateRoute, owner=owner), name, values)

    def alter_route(self, parts: Sequence[Any]) -> Built:
        """ALTER ROUTE name WITH ..."""
        name, values = parts
        return self._route(AlterRoute, name, values)

    def drop_route(self, parts: Sequence[Token]) -> Built:
        """DROP ROUTE name."""
        return _named(DropRoute, parts[0])

    def _route(self, make: Callable[..., Statement], name: Token, values: dict[str, Token]) -> Built:
        properties: dict[str, Any] = {key.lower(): _plain(value) for key, value in values.items()}
        places = {key: place_of(value) for key, value in values.items()}
        places[NAME] = place_of(name)
        return Built(partial(make, str(name), RouteProperties(**properties)), places)

    # --- queues ---

    def queue_option(self, parts: Sequence[Any]) -> Sequence[Any]:
        """An option and whether it is ON."""
        return parts

    def queue_options(self, parts: Sequence[Any]) -> dict[str, Any]:
        """The options by the names of the fields."""
        return {key.lower(): value for key, value in _once(parts).items()}

    def create_queue(self, parts: Sequence[Any]) -> Built:
        """CREATE QUEUE queue [WITH ...]."""
        queue, options = parts
        return Built(partial(CreateQueue, queue.value, **(options or {})), {NAME: queue.place})

    def alter_queue(self, parts: Sequence[Any]) -> Built:
        """ALTER QUEUE queue WITH ..."""
        queue, options = parts
        return Built(partial(AlterQueue, queue.value, **options), {NAME: queue.place})

    def drop_queue(self, parts: Sequence[_Queue]) -> Built:
        """DROP QUEUE queue."""
        return Built(partial(DropQueue, parts[0].value), {NAME: parts[0].place})

    # --- services ---

    def create_service(self, parts: Sequence[Any]) -> Built:
        """CREATE SERVICE name [AUTHORIZATION owner] ON QUEUE queue [(contracts)]."""
        name, owner, queue, contracts = parts
        make = partial(CreateService, str(name), queue.value, contracts or (), owner=owner)
        return Built(make, {NAME: place_of(name), "QUEUE": queue.place})

    def alter_service(self, parts: Sequence[Any]) -> Built:
        """ALTER SERVICE name ON QUEUE queue [(changes)]."""
        name, queue, changes = parts
        added, dropped = changes or ((), ())
        make = partial(AlterService, str(name), queue.value, added, dropped)
        return Built(make, {NAME: place_of(name), "QUEUE": queue.place})

    def alter_contracts(self, parts: Sequence[Any]) -> Built:
        """ALTER SERVICE name (changes)."""
        name, (added, dropped) = parts
        return Built(partial(AlterService, str(name), None, added, dropped), {NAME: place_of(name)})

    def drop_service(self, parts: Sequence[Token]) -> Built:
        """DROP SERVICE name."""
        return _named(DropService, parts[0])

    def on_queue(self, parts: Sequence[_Queue]) -> _Queue:
        """ON QUEUE queue."""
        return parts[0]

    def contracts(self, parts: Sequence[Token]) -> tuple[str, ...]:
        """The contracts of a new service, none twice."""
        _each_once(parts, 8404, "contract")
        return tuple(str(name) for name in parts)

    def contract_change(self, parts: Sequence[Token]) -> tuple[bool, str]:
        """ADD (True) or DROP a contract."""
        word, name = parts
        return (word.type == "ADD", str(name))

    def contract_changes(self, parts: Sequence[tuple[bool, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is added and what is dropped."""
        added = tuple(name for is_added, name in parts if is_added)
        return added, tuple(name for is_added, name in parts if not is_added)

    # --- message types, contracts, priorities ---

    def validation(self, parts: Sequence[Token]) -> str:
        """The word for it."""
        return parts[0].type

    def create_message_type(self, parts: Sequence[Any]) -> Built:
        """CREATE MESSAGE TYPE name [AUTHORIZATION owner] [VALIDATION = ...]."""
        name, owner, validation = parts
        make = partial(CreateMessageType, str(name), validation or "NONE", owner)
        return Built(make, {NAME: place_of(name)})

    def alter_message_type(self, parts: Sequence[Any]) -> Built:
        """ALTER MESSAGE TYPE name VALIDATION = ..."""
        name, validation = parts
        return Built(partial(AlterMessageType, str(name), validation), {NAME: place_of(name)})

    def drop_message_type(self, parts: Sequence[Token]) -> Built:
        """DROP MESSAGE TYPE name."""
        return _named(DropMessageType, parts[0])

    def contract_type(self, parts: Sequence[Token]) -> tuple[Token, str]:
        """A message type and who sends it."""
        name, sent_by = parts
        return name, sent_by.type

    def create_contract(self, parts: Sequence[Any]) -> Built:
        """CREATE CONTRACT name [AUTHORIZATION owner] (types)."""
        name, owner, *message_types = parts
        _each_once([message_type for message_type, _ in message_types], 8403, "message type")
        if all(sent_by == "TARGET" for _, sent_by in message_types):
            problem = f"the contract {str(name)!r} must have at least one message type SENT BY INITIATOR or ANY"
            raise RefusedError(8492, problem, name)
        listed = tuple(ContractType(str(message_type), sent_by) for message_type, sent_by in message_types)
        places = {f"TYPE {message_type}": place_of(message_type) for message_type, _ in message_types}
        return Built(partial(CreateContract, str(name), listed, owner), {**places, NAME: place_of(name)})

    def drop_contract(self, parts: Sequence[Token]) -> Built:
        """DROP CONTRACT name."""
        return _named(DropContract, parts[0])

    def priority_property(self, parts: Sequence[Token]) -> Sequence[Token]:
        """A property and its value."""
        return parts

    def priority_properties(self, parts: Sequence[Sequence[Token]]) -> dict[str, Token]:
        """The properties by name, none twice."""
        return _once(parts)

    def create_priority(self, parts: Sequence[Any]) -> Built:
        """CREATE BROKER PRIORITY name FOR CONVERSATION [SET (...)]."""
        name, values = parts
        return self._priority(CreatePriority, name, values or {})

    def alter_priority(self, parts: Sequence[Any]) -> Built:
        """ALTER BROKER PRIORITY name FOR CONVERSATION SET (...)."""
        name, values = parts
        return self._priority(AlterPriority, name, values)

    def drop_priority(self, parts: Sequence[Token]) -> Built:
        """DROP BROKER PRIORITY name."""
        return _named(DropPriority, parts[0])

    def _priority(self, make: Callable[..., Statement], name: Token, values: dict[str, Token]) -> Built:
        properties: dict[str, Any] = {
            key.lower(): ANY
            if value.type == "ANY"
            else PRIORITY_LEVEL_DEFAULT
            if value.type == "DEFAULT"
            else _plain(value)
            for key, value in values.items()
        }
        places = {key: place_of(value) for key, value in values.items()}
        places[NAME] = place_of(name)
        return Built(partial(make, str(name), PriorityProperties(**properties)), places)

    # --- conversations ---

    def cleanup(self, parts: Sequence[Token]) -> dict[str, Any]:
        """WITH CLEANUP."""
        del parts
        return {"cleanup": True}

    def error(self, parts: Sequence[Token]) -> dict[str, Any]:
        """WITH ERROR = code DESCRIPTION = 'text'."""
        code, description = parts
        return {"error_code": int(code), "description": str(description)}

    def end_conversation(self, parts: Sequence[Any]) -> Built:
        """END CONVERSATION 'handle' [WITH ...]."""
        handle, ending = parts
        make = partial(EndConversation, _guid(handle, "conversation handle"), **(ending or {}))
        return Built(make, {NAME: place_of(handle)})

    def move_conversation(self, parts: Sequence[Token]) -> Built:
        """MOVE CONVERSATION 'handle' TO 'group'."""
        handle, group = parts
        make = partial(MoveConversation, _guid(handle, "conversation handle"), _guid(group, "conversation group"))
        return Built(make, {NAME: place_of(handle), "TO": place_of(group)})

    def begin_timer(self, parts: Sequence[Token]) -> Built:
        """BEGIN CONVERSATION TIMER ('handle') TIMEOUT = seconds."""
        handle, timeout = parts
        make = partial(BeginConversationTimer, _guid(handle, "conversation handle"), int(timeout))
        return Built(make, {NAME: place_of(handle), "TIMEOUT": place_of(timeout)})

    # --- databases ---

    def database_option(self, parts: Sequence[Token]) -> Token:
        """What is set; PARTNER FAILOVER is two words."""
        return parts[0]

    def termination(self, parts: Sequence[Token]) -> None:
        """What would become of the sessions of others."""
        del parts

    def alter_database(self, parts: Sequence[Any]) -> Built:
        """ALTER DATABASE name SET option [WITH ...]."""
        name, option, _ = parts
        kind = DatabaseOption.PARTNER_FAILOVER if option.type == "PARTNER" else DatabaseOption(option.type)
        make = partial(AlterDatabase, None if name.type == "CURRENT" else str(name), kind)
        return Built(make, {NAME: place_of(name), "OPTION": place_of(option)})
