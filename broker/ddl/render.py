"""
Statements to text: the inverse of the parser.

`parse_script(render_statement(s)) == [s]` for every statement the parser can give; a property test holds it. One
statement is one text that ends in `;`. Names always stand in brackets, so no name has to be compared with the reserved
words; a text that is not plain ASCII is written N'..'. What is the default is left out.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

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
    DenyPermission,
    DropContract,
    DropMessageType,
    DropPriority,
    DropQueue,
    DropRemoteServiceBinding,
    DropRoute,
    DropService,
    EndConversation,
    GrantPermission,
    MoveConversation,
    NameOrAny,
    PriorityProperties,
    QueueName,
    RevokePermission,
    Statement,
    UseDatabase,
)
from broker.security.grants import Permission

if TYPE_CHECKING:
    from broker.routing.route import RouteProperties


def render_statement(statement: Statement) -> str:
    """
    A statement as text.

    Raises:
        TypeError: a kind of statement that has no rendering.
    """
    return _render(statement) + ";"


def render_name(name: str) -> str:
    """A name in brackets."""
    return "[" + name.replace("]", "]]") + "]"


def render_text(text: str) -> str:
    """A text in quotes."""
    return ("'" if text.isascii() else "N'") + text.replace("'", "''") + "'"


@singledispatch
def _render(statement: Statement) -> str:
    raise TypeError(f"no rendering for {type(statement).__name__}")


@_render.register(UseDatabase)
def _use_database(statement: UseDatabase) -> str:
    return f"USE {render_name(statement.name)}"


@_render.register(CreateRoute)
def _create_route(statement: CreateRoute) -> str:
    owner = _authorization(statement.owner)
    return f"CREATE ROUTE {render_name(statement.name)}{owner} WITH {_properties(statement.properties)}"


@_render.register(AlterRoute)
def _alter_route(statement: AlterRoute) -> str:
    return f"ALTER ROUTE {render_name(statement.name)} WITH {_properties(statement.properties)}"


@_render.register(CreateQueue)
def _create_queue(statement: CreateQueue) -> str:
    options = _queue_options(statement.status, statement.poison_message_handling or None)
    return f"CREATE QUEUE {_queue(statement.queue)}" + (f" WITH {options}" if options else "")


@_render.register(AlterQueue)
def _alter_queue(statement: AlterQueue) -> str:
    options = _queue_options(statement.status, statement.poison_message_handling)
    return f"ALTER QUEUE {_queue(statement.queue)} WITH {options}"


_DROPPED: dict[type[Statement], str] = {
    DropRoute: "ROUTE",
    DropService: "SERVICE",
    DropMessageType: "MESSAGE TYPE",
    DropContract: "CONTRACT",
    DropPriority: "BROKER PRIORITY",
    DropRemoteServiceBinding: "REMOTE SERVICE BINDING",
}


@_render.register(DropRoute | DropService | DropMessageType | DropContract | DropPriority | DropRemoteServiceBinding)
def _drop(
    statement: DropRoute | DropService | DropMessageType | DropContract | DropPriority | DropRemoteServiceBinding,
) -> str:
    return f"DROP {_DROPPED[type(statement)]} {render_name(statement.name)}"


@_render.register(DropQueue)
def _drop_queue(statement: DropQueue) -> str:
    return f"DROP QUEUE {_queue(statement.queue)}"


@_render.register(CreateService)
def _create_service(statement: CreateService) -> str:
    owner = _authorization(statement.owner)
    contracts = ", ".join(map(render_name, statement.contracts))
    text = f"CREATE SERVICE {render_name(statement.name)}{owner} ON QUEUE {_queue(statement.queue)}"
    return f"{text} ({contracts})" if contracts else text


@_render.register(AlterService)
def _alter_service(statement: AlterService) -> str:
    text = f"ALTER SERVICE {render_name(statement.name)}"
    if statement.queue is not None:
        text += f" ON QUEUE {_queue(statement.queue)}"
    changes = [f"ADD CONTRACT {render_name(name)}" for name in statement.add_contracts]
    changes += [f"DROP CONTRACT {render_name(name)}" for name in statement.drop_contracts]
    return f"{text} ({', '.join(changes)})" if changes else text


@_render.register(EndConversation)
def _end_conversation(statement: EndConversation) -> str:
    text = f"END CONVERSATION '{statement.conversation_handle}'"
    if statement.cleanup:
        return f"{text} WITH CLEANUP"
    if statement.error_code is None:
        return text
    return f"{text} WITH ERROR = {statement.error_code} DESCRIPTION = {render_text(statement.description or '')}"


@_render.register(MoveConversation)
def _move_conversation(statement: MoveConversation) -> str:
    return f"MOVE CONVERSATION '{statement.conversation_handle}' TO '{statement.conversation_group_id}'"


@_render.register(BeginConversationTimer)
def _begin_timer(statement: BeginConversationTimer) -> str:
    return f"BEGIN CONVERSATION TIMER ('{statement.conversation_handle}') TIMEOUT = {statement.timeout}"


@_render.register(CreateMessageType)
def _create_message_type(statement: CreateMessageType) -> str:
    owner = _authorization(statement.owner)
    validation = "" if statement.validation == "NONE" else f" VALIDATION = {statement.validation}"
    return f"CREATE MESSAGE TYPE {render_name(statement.name)}{owner}{validation}"


@_render.register(AlterMessageType)
def _alter_message_type(statement: AlterMessageType) -> str:
    return f"ALTER MESSAGE TYPE {render_name(statement.name)} VALIDATION = {statement.validation}"


@_render.register(CreateContract)
def _create_contract(statement: CreateContract) -> str:
    owner = _authorization(statement.owner)
    types = ", ".join(f"{render_name(one.message_type)} SENT BY {one.sent_by}" for one in statement.message_types)
    return f"CREATE CONTRACT {render_name(statement.name)}{owner} ({types})"


@_render.register(CreatePriority)
def _create_priority(statement: CreatePriority) -> str:
    properties = _priority_properties(statement.properties)
    text = f"CREATE BROKER PRIORITY {render_name(statement.name)} FOR CONVERSATION"
    return f"{text} SET ({properties})" if properties else text


@_render.register(AlterPriority)
def _alter_priority(statement: AlterPriority) -> str:
    properties = _priority_properties(statement.properties)
    return f"ALTER BROKER PRIORITY {render_name(statement.name)} FOR CONVERSATION SET ({properties})"


_SECURABLES = {Permission.SEND: "SERVICE", Permission.CONNECT: "ENDPOINT"}
_CHANGED: dict[type[ChangePermission], tuple[str, str]] = {
    GrantPermission: ("GRANT", "TO"),
    DenyPermission: ("DENY", "TO"),
    RevokePermission: ("REVOKE", "FROM"),
}


@_render.register(ChangePermission)
def _change_permission(statement: ChangePermission) -> str:
    verb, to = _CHANGED[type(statement)]
    securable = f"{_SECURABLES[statement.permission]}::{render_name(statement.securable)}"
    principals = ", ".join(map(render_name, statement.principals))
    return f"{verb} {statement.permission} ON {securable} {to} {principals}"


@_render.register(CreateRemoteServiceBinding)
def _create_binding(statement: CreateRemoteServiceBinding) -> str:
    owner = _authorization(statement.owner)
    text = f"CREATE REMOTE SERVICE BINDING {render_name(statement.name)}{owner}"
    options = _binding_options(statement.user, statement.anonymous or None)
    return f"{text} TO SERVICE {render_text(statement.remote_service_name)} WITH {options}"


@_render.register(AlterRemoteServiceBinding)
def _alter_binding(statement: AlterRemoteServiceBinding) -> str:
    options = _binding_options(statement.user, statement.anonymous)
    return f"ALTER REMOTE SERVICE BINDING {render_name(statement.name)} WITH {options}"


@_render.register(AlterDatabase)
def _alter_database(statement: AlterDatabase) -> str:
    name = "CURRENT" if statement.name is None else render_name(statement.name)
    return f"ALTER DATABASE {name} SET {statement.option}"


def _authorization(owner: str | None) -> str:
    return "" if owner is None else f" AUTHORIZATION {render_name(owner)}"


def _queue(queue: QueueName) -> str:
    name = render_name(queue.name)
    return name if queue.schema is None else f"{render_name(queue.schema)}.{name}"


def _queue_options(status: bool | None, poison: bool | None) -> str:  # noqa: FBT001 - None = not given
    options = [] if status is None else [f"STATUS = {_on_off(status)}"]
    options += [] if poison is None else [f"POISON_MESSAGE_HANDLING (STATUS = {_on_off(poison)})"]
    return ", ".join(options)


def _binding_options(user: str | None, is_anonymous: bool | None) -> str:  # noqa: FBT001 - None = not given
    options = [] if user is None else [f"USER = {render_name(user)}"]
    options += [] if is_anonymous is None else [f"ANONYMOUS = {_on_off(is_anonymous)}"]
    return ", ".join(options)


def _on_off(is_on: bool) -> str:  # noqa: FBT001 - the one thing it is about
    return "ON" if is_on else "OFF"


def _priority_properties(properties: PriorityProperties) -> str:
    """The properties that are given, in the documented order."""
    remote = properties.remote_service_name
    values = {
        "CONTRACT_NAME": _name_or_any(properties.contract_name),
        "LOCAL_SERVICE_NAME": _name_or_any(properties.local_service_name),
        "REMOTE_SERVICE_NAME": render_text(remote) if isinstance(remote, str) else _name_or_any(remote),
        "PRIORITY_LEVEL": properties.priority_level,
    }
    return ", ".join(f"{name} = {value}" for name, value in values.items() if value is not None)


def _name_or_any(value: NameOrAny) -> str | None:
    return None if value is None else "ANY" if value is ANY else render_name(value)


def _properties(properties: RouteProperties) -> str:
    """The properties that are given, in the documented order."""
    values = {
        "SERVICE_NAME": _maybe_text(properties.service_name),
        "BROKER_INSTANCE": _maybe_text(properties.broker_instance),
        "LIFETIME": properties.lifetime,
        "ADDRESS": _maybe_text(properties.address),
        "MIRROR_ADDRESS": _maybe_text(properties.mirror_address),
        "WEIGHT": properties.weight,
    }
    return ", ".join(f"{name} = {value}" for name, value in values.items() if value is not None)


def _maybe_text(value: str | None) -> str | None:
    return None if value is None else render_text(value)
