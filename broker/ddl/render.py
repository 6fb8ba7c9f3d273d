"""
Statements to text: the inverse of the parser.

`parse_script(render_statement(s)) == [s]` for every statement the parser can give; a property test holds it. One
statement is one text that ends in `;`. Names are always written in brackets, so no name has to be compared with the
reserved words; a text that is not plain ASCII is written N'..'. Defaults are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch

from msgspec.structs import asdict

from broker.advice import render_name, render_text
from broker.ddl import statements as ddl
from broker.routing.route import RouteProperties
from broker.security.grants import Permission


def render_statement(statement: ddl.Statement) -> str:
    """
    A statement as text.

    Raises:
        TypeError: a kind of statement that has no rendering.
    """
    guard = "" if statement.guard is None else _guard(statement.guard)
    return f"{guard}{_render(statement)};"


def _guard(guard: ddl.ExistsGuard) -> str:
    word = "IF NOT EXISTS" if guard.is_negated else "IF EXISTS"
    return f"{word} (SELECT * FROM sys.{guard.view} WHERE name = {render_text(guard.name)}) "  # noqa: S608 - a script


@singledispatch
def _render(statement: ddl.Statement) -> str:
    raise TypeError(f"no rendering for {type(statement).__name__}")


@_render.register
def _use_database(statement: ddl.UseDatabase) -> str:
    return f"USE {render_name(statement.name)}"


@_render.register
def _create_route(statement: ddl.CreateRoute) -> str:
    owner = _authorization(statement.owner)
    return f"CREATE ROUTE {render_name(statement.name)}{owner} WITH {_properties(statement.properties)}"


@_render.register
def _alter_route(statement: ddl.AlterRoute) -> str:
    return f"ALTER ROUTE {render_name(statement.name)} WITH {_properties(statement.properties)}"


@_render.register
def _create_queue(statement: ddl.CreateQueue) -> str:
    options = _queue_options(statement.status, statement.poison_message_handling or None)
    return f"CREATE QUEUE {_queue(statement.queue)}" + (f" WITH {options}" if options else "")


@_render.register
def _alter_queue(statement: ddl.AlterQueue) -> str:
    options = _queue_options(statement.status, statement.poison_message_handling)
    return f"ALTER QUEUE {_queue(statement.queue)} WITH {options}"


@_render.register
def _drop(statement: ddl.DropNamed) -> str:
    words = ddl.words_of(statement).replace("PRIORITY", "BROKER PRIORITY")
    return f"{words} {render_name(statement.name)}"


@_render.register
def _drop_queue(statement: ddl.DropQueue) -> str:
    return f"DROP QUEUE {_queue(statement.queue)}"


@_render.register
def _create_service(statement: ddl.CreateService) -> str:
    owner = _authorization(statement.owner)
    contracts = ", ".join(map(render_name, statement.contracts))
    text = f"CREATE SERVICE {render_name(statement.name)}{owner} ON QUEUE {_queue(statement.queue)}"
    text += f" ({contracts})" if contracts else ""
    return text + _exclusive(statement.exclusive_target)


@_render.register
def _alter_service(statement: ddl.AlterService) -> str:
    text = f"ALTER SERVICE {render_name(statement.name)}"
    if statement.queue is not None:
        text += f" ON QUEUE {_queue(statement.queue)}"
    changes = [f"ADD CONTRACT {render_name(name)}" for name in statement.add_contracts]
    changes += [f"DROP CONTRACT {render_name(name)}" for name in statement.drop_contracts]
    text += f" ({', '.join(changes)})" if changes else ""
    return text + _exclusive(statement.exclusive_target)


def _exclusive(exclusive_target: bool | None) -> str:  # noqa: FBT001 - the one thing it is about
    return "" if exclusive_target is None else f" WITH (EXCLUSIVE_TARGET = {_on_off(exclusive_target)})"


@_render.register
def _end_conversation(statement: ddl.EndConversation) -> str:
    text = f"END CONVERSATION '{statement.conversation_handle}'"
    if statement.cleanup:
        return f"{text} WITH CLEANUP"
    if statement.error_code is None:
        return text
    return f"{text} WITH ERROR = {statement.error_code} DESCRIPTION = {render_text(statement.description or '')}"


@_render.register
def _move_conversation(statement: ddl.MoveConversation) -> str:
    return f"MOVE CONVERSATION '{statement.conversation_handle}' TO '{statement.conversation_group_id}'"


@_render.register
def _begin_timer(statement: ddl.BeginConversationTimer) -> str:
    return f"BEGIN CONVERSATION TIMER ('{statement.conversation_handle}') TIMEOUT = {statement.timeout}"


@_render.register
def _create_message_type(statement: ddl.CreateMessageType) -> str:
    owner = _authorization(statement.owner)
    validation = "" if statement.validation == "NONE" else f" VALIDATION = {statement.validation}"
    return f"CREATE MESSAGE TYPE {render_name(statement.name)}{owner}{validation}"


@_render.register
def _alter_message_type(statement: ddl.AlterMessageType) -> str:
    return f"ALTER MESSAGE TYPE {render_name(statement.name)} VALIDATION = {statement.validation}"


@_render.register
def _create_contract(statement: ddl.CreateContract) -> str:
    owner = _authorization(statement.owner)
    types = ", ".join(f"{render_name(one.message_type)} SENT BY {one.sent_by}" for one in statement.message_types)
    return f"CREATE CONTRACT {render_name(statement.name)}{owner} ({types})"


@_render.register
def _create_priority(statement: ddl.CreatePriority) -> str:
    properties = _priority_properties(statement.properties)
    text = f"CREATE BROKER PRIORITY {render_name(statement.name)} FOR CONVERSATION"
    return f"{text} SET ({properties})" if properties else text


@_render.register
def _alter_priority(statement: ddl.AlterPriority) -> str:
    properties = _priority_properties(statement.properties)
    return f"ALTER BROKER PRIORITY {render_name(statement.name)} FOR CONVERSATION SET ({properties})"


@_render.register
def _change_permission(statement: ddl.ChangePermission) -> str:
    kind = "SERVICE" if statement.permission is Permission.SEND else "ENDPOINT"
    to = "FROM" if isinstance(statement, ddl.RevokePermission) else "TO"
    principals = ", ".join(map(render_name, statement.principals))
    return f"{ddl.words_of(statement)} ON {kind}::{render_name(statement.securable)} {to} {principals}"


@_render.register
def _create_binding(statement: ddl.CreateRemoteServiceBinding) -> str:
    owner = _authorization(statement.owner)
    text = f"CREATE REMOTE SERVICE BINDING {render_name(statement.name)}{owner}"
    options = _binding_options(statement.user, statement.anonymous or None)
    return f"{text} TO SERVICE {render_text(statement.remote_service_name)} WITH {options}"


@_render.register
def _alter_binding(statement: ddl.AlterRemoteServiceBinding) -> str:
    options = _binding_options(statement.user, statement.anonymous)
    return f"ALTER REMOTE SERVICE BINDING {render_name(statement.name)} WITH {options}"


@_render.register
def _alter_database(statement: ddl.AlterDatabase) -> str:
    name = "CURRENT" if statement.name is None else render_name(statement.name)
    return f"ALTER DATABASE {name} SET {statement.option}"


def _authorization(owner: str | None) -> str:
    return "" if owner is None else f" AUTHORIZATION {render_name(owner)}"


def _queue(queue: ddl.QueueName) -> str:
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


def _priority_properties(properties: ddl.PriorityProperties) -> str:
    remote = properties.remote_service_name
    return _values(
        {
            "CONTRACT_NAME": _name_or_any(properties.contract_name),
            "LOCAL_SERVICE_NAME": _name_or_any(properties.local_service_name),
            "REMOTE_SERVICE_NAME": render_text(remote) if isinstance(remote, str) else _name_or_any(remote),
            "PRIORITY_LEVEL": properties.priority_level,
        }
    )


def _name_or_any(value: ddl.NameOrAny) -> str | None:
    return None if value is None else "ANY" if value is ddl.ANY else render_name(value)


def _properties(properties: RouteProperties) -> str:
    given = asdict(properties).items()
    return _values({key.upper(): render_text(value) if isinstance(value, str) else value for key, value in given})


def _values(values: Mapping[str, str | int | None]) -> str:
    """The properties that are given, in the documented order."""
    return ", ".join(f"{name} = {value}" for name, value in values.items() if value is not None)
