"""
The statements as values, one struct each.

A statement is a request, unchecked beyond its grammar: its execution decides whether a LIFETIME is in range or a queue
exists. Two statements are equal when they ask for the same, wherever they are in a script. `origin` has their place;
the places of errors are computed from it only when an error happens.

The fields have the words of the DDL. Names of services, contracts and routes keep their case: they are compared byte
for byte. The statements are structs of msgspec, because there are so many: to make as many dataclasses takes as long as
a whole command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, StrEnum
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from msgspec import Struct, field

from broker.errors import Span, StatementError
from broker.routing.route import PropertyError, RouteProperties
from broker.security.grants import Permission

NAME = "NAME"  # the key of `StatementOrigin.places` for the name of the object


class StatementOrigin(Struct, frozen=True):
    """
    The script that a statement was read from, and its place there.

    Attributes:
        text: The whole script, shared by its statements.
        line: The line of `start`, from 1.
        start: Offset into the text, as `end` and those in `places`.
        places: The places of its parts, by property name, or NAME.
    """

    source: str
    text: str
    line: int
    start: int
    end: int
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def span(self, start: int, end: int) -> Span:
        """The place of a part of the statement, clipped to its first line."""
        line = self.line + self.text.count("\n", self.start, start)
        column = start - self._line_start(start) + 1
        return Span(self.source, line, column, max(1, min(end, self._line_end(start)) - start))

    def text_line(self, at: int) -> str:
        """The line of the script around an offset, without its end."""
        return self.text[self._line_start(at) : self._line_end(at)]

    def blame(self, error: StatementError, *properties: str) -> None:
        """Set an error's place: the first of `properties` written, or the object's name, or the whole statement."""
        known = [self.places[name] for name in (*properties, NAME) if name in self.places]
        start, end = known[0] if known else (self.start, self.end)
        error.span = self.span(start, end)
        error.text_line = self.text_line(start)

    def _line_start(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1

    def _line_end(self, at: int) -> int:
        end = self.text.find("\n", at)
        end = len(self.text) if end < 0 else end
        return end - 1 if end > at and self.text[end - 1] == "\r" else end


class ExistsGuard(Struct, frozen=True):
    """`IF [NOT] EXISTS (SELECT ... FROM sys.view WHERE name = 'name')`: when the statement after it is executed."""

    view: str  # in small letters, without `sys.`
    name: str
    is_negated: bool = False


class Statement(Struct, frozen=True, eq=False, kw_only=True):
    """
    Base class of all statements.

    Attributes:
        origin: None for a statement that was made, not read.
        guard: Executed only where this holds.
    """

    origin: StatementOrigin | None = None
    guard: ExistsGuard | None = None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._asked() == other._asked()

    def __hash__(self) -> int:
        return hash((type(self), self._asked()))

    def __repr__(self) -> str:
        names = [name for name in self.__struct_fields__ if name != "origin" and (name != "guard" or self.guard)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def _asked(self) -> tuple[object, ...]:
        """Return the values of its fields, without its place."""
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name != "origin")


def blame(statement: Statement, error: StatementError, *properties: str) -> None:
    """
    Give an error the place in this statement that it is about; one that has a place keeps it.

    A PropertyError points at its property, any other at the first of `properties` or the name of the object.
    """
    if error.span is None and statement.origin is not None:
        statement.origin.blame(error, *(error.properties if isinstance(error, PropertyError) else properties))


@contextmanager
def blaming(statement: Statement) -> Iterator[None]:
    """Give every StatementError raised inside its place, as `blame` does."""
    try:
        yield
    except StatementError as error:
        blame(statement, error)
        raise


class QueueName(Struct, frozen=True):
    """A queue, with the schema when one was written; without one the original takes the caller's, mostly dbo."""

    name: str
    schema: str | None = None


class OfQueue(Statement, frozen=True):
    """Base class of the statements about a queue."""

    queue: QueueName

    @property
    def name(self) -> str:
        """The name of the queue, as statements about other objects have it."""
        return self.queue.name


class DropNamed(Statement, frozen=True):
    """Base class of the statements that drop an object by its name alone."""

    name: str


class UseDatabase(Statement, frozen=True):
    """USE: the statements that follow are meant for this database."""

    name: str


class CreateRoute(Statement, frozen=True):
    """CREATE ROUTE; `owner` None = the caller."""

    name: str
    properties: RouteProperties
    owner: str | None = None


class AlterRoute(Statement, frozen=True):
    """ALTER ROUTE; a property that is None keeps its value."""

    name: str
    properties: RouteProperties


class DropRoute(DropNamed, frozen=True):
    """DROP ROUTE."""


class CreateQueue(OfQueue, frozen=True):
    """
    CREATE QUEUE; True = ON.

    `status` None: ON for a new queue, and as it is for one that exists already.
    """

    status: bool | None = None
    poison_message_handling: bool = False


class AlterQueue(OfQueue, frozen=True):
    """ALTER QUEUE WITH ...; None = unchanged, True = ON. The parser lets none through that changes nothing."""

    status: bool | None = None
    poison_message_handling: bool | None = None


class DropQueue(OfQueue, frozen=True):
    """DROP QUEUE."""


class CreateService(Statement, frozen=True):
    """CREATE SERVICE; without contracts the service is a target for dialogs under any contract."""

    name: str
    queue: QueueName
    contracts: tuple[str, ...] = ()
    owner: str | None = None
    exclusive_target: bool | None = None


class AlterService(Statement, frozen=True):
    """ALTER SERVICE; None = unchanged. The parser lets none through that changes nothing."""

    name: str
    queue: QueueName | None = None
    add_contracts: tuple[str, ...] = ()
    drop_contracts: tuple[str, ...] = ()
    exclusive_target: bool | None = None


class DropService(DropNamed, frozen=True):
    """DROP SERVICE."""


class EndConversation(Statement, frozen=True):
    """
    END CONVERSATION, plain, WITH CLEANUP or WITH ERROR; not both of the latter.

    `error_code` and `description` are both None or both given; the range of the code is not checked here.
    """

    conversation_handle: UUID
    cleanup: bool = False
    error_code: int | None = None
    description: str | None = None


class MoveConversation(Statement, frozen=True):
    """MOVE CONVERSATION TO another conversation group."""

    conversation_handle: UUID
    conversation_group_id: UUID


class BeginConversationTimer(Statement, frozen=True):
    """BEGIN CONVERSATION TIMER; `timeout` seconds, its range is not checked here."""

    conversation_handle: UUID
    timeout: int


class CreateMessageType(Statement, frozen=True):
    """CREATE MESSAGE TYPE; `validation` is one of the words of the grammar."""

    name: str
    validation: str = "NONE"
    owner: str | None = None


class AlterMessageType(Statement, frozen=True):
    """ALTER MESSAGE TYPE."""

    name: str
    validation: str


class DropMessageType(DropNamed, frozen=True):
    """DROP MESSAGE TYPE."""


class ContractType(Struct, frozen=True):
    """A message type in a contract; `sent_by` INITIATOR, TARGET or ANY."""

    message_type: str
    sent_by: str


class CreateContract(Statement, frozen=True):
    """CREATE CONTRACT; each message type once, at least one that the initiator may send."""

    name: str
    message_types: tuple[ContractType, ...]
    owner: str | None = None


class DropContract(DropNamed, frozen=True):
    """DROP CONTRACT."""


class _Any(Enum):
    ANY = "ANY"


ANY: Final = _Any.ANY
NameOrAny: TypeAlias = str | Literal[_Any.ANY] | None


class PriorityProperties(Struct, frozen=True):
    """The criteria and level of a priority, as written; None = not given. The range of the level is not checked."""

    contract_name: NameOrAny = None
    local_service_name: NameOrAny = None
    remote_service_name: NameOrAny = None
    priority_level: int | None = None


class CreatePriority(Statement, frozen=True):
    """CREATE BROKER PRIORITY; what is not given is ANY, or the default level."""

    name: str
    properties: PriorityProperties = PriorityProperties()


class AlterPriority(Statement, frozen=True):
    """ALTER BROKER PRIORITY; what is not given stays. The parser lets none through that changes nothing."""

    name: str
    properties: PriorityProperties


class DropPriority(DropNamed, frozen=True):
    """DROP BROKER PRIORITY."""


class ChangePermission(Statement, frozen=True):
    """
    Base class of GRANT, DENY and REVOKE.

    `securable` is the name of a service, or of the endpoint; `principals` are as written, each once. CASCADE is read
    and not kept: permissions are not passed on here.
    """

    permission: Permission
    securable: str
    principals: tuple[str, ...]


class GrantPermission(ChangePermission, frozen=True):
    """GRANT."""


class DenyPermission(ChangePermission, frozen=True):
    """DENY."""


class RevokePermission(ChangePermission, frozen=True):
    """REVOKE: takes away what was granted or denied."""


class CreateRemoteServiceBinding(Statement, frozen=True):
    """CREATE REMOTE SERVICE BINDING; `user` a principal as written, True = ON."""

    name: str
    remote_service_name: str
    user: str
    anonymous: bool = False
    owner: str | None = None


class AlterRemoteServiceBinding(Statement, frozen=True):
    """ALTER REMOTE SERVICE BINDING; None = unchanged. The parser lets none through that changes nothing."""

    name: str
    user: str | None = None
    anonymous: bool | None = None


class DropRemoteServiceBinding(DropNamed, frozen=True):
    """DROP REMOTE SERVICE BINDING."""


class DatabaseOption(StrEnum):
    """The options that ALTER DATABASE sets."""

    ENABLE_BROKER = "ENABLE_BROKER"
    DISABLE_BROKER = "DISABLE_BROKER"
    NEW_BROKER = "NEW_BROKER"
    ERROR_BROKER_CONVERSATIONS = "ERROR_BROKER_CONVERSATIONS"
    PARTNER_FAILOVER = "PARTNER FAILOVER"


class AlterDatabase(Statement, frozen=True):
    """
    ALTER DATABASE SET; `name` None = the current one.

    WITH ROLLBACK IMMEDIATE, ROLLBACK AFTER and NO_WAIT are read and not kept: they are about sessions of the original.
    """

    name: str | None
    option: DatabaseOption


class ObjectKind(NamedTuple):
    """A kind of object: the words that name it in statements, the view that shows it, and CREATE, ALTER and DROP."""

    words: str
    view: str
    create: type[Statement]
    alter: type[Statement] | None
    drop: type[DropNamed | DropQueue]


ROUTE = ObjectKind("ROUTE", "routes", CreateRoute, AlterRoute, DropRoute)
QUEUE = ObjectKind("QUEUE", "service_queues", CreateQueue, AlterQueue, DropQueue)
SERVICE = ObjectKind("SERVICE", "services", CreateService, AlterService, DropService)
CONTRACT = ObjectKind("CONTRACT", "service_contracts", CreateContract, None, DropContract)
MESSAGE_TYPE = ObjectKind("MESSAGE TYPE", "service_message_types", CreateMessageType, AlterMessageType, DropMessageType)
PRIORITY = ObjectKind("BROKER PRIORITY", "conversation_priorities", CreatePriority, AlterPriority, DropPriority)
BINDING = ObjectKind(
    "REMOTE SERVICE BINDING",
    "remote_service_bindings",
    CreateRemoteServiceBinding,
    AlterRemoteServiceBinding,
    DropRemoteServiceBinding,
)
KINDS = (ROUTE, SERVICE, QUEUE, CONTRACT, MESSAGE_TYPE, PRIORITY, BINDING)


def words_of(statement: Statement) -> str:
    """The first words of a statement, in capitals."""
    match statement:
        case AlterDatabase():
            return f"ALTER DATABASE SET {statement.option}"
        case EndConversation():
            return "END CONVERSATION WITH CLEANUP" if statement.cleanup else "END CONVERSATION"
        case ChangePermission():
            return f"{_words(type(statement)).split()[0]} {statement.permission}"
        case _:
            return _words(type(statement))


@cache
def _words(kind: type[Statement]) -> str:
    return " ".join(re.findall(r"[A-Z][a-z]+", kind.__name__)).upper()
