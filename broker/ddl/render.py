"""
Statements to text: the inverse of the parser.

`parse_script(render_statement(s)) == [s]` for every statement the parser can give; a property test holds it. One
statement is one text that ends in `;`. Names are always written in brackets, so no name has to be compared with the
reserved words; a text that is not plain ASCII is written N'..'. Defaults are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from msgspec.structs import asdict

from broker.advice import render_name, render_text
from broker.ddl import statements as ddl
from broker.protocol.layout import show_guid
from broker.security.grants import Permission


def render_statement(statement: ddl.Statement) -> str:
    """
    A statement as text.

    Raises:
        TypeError: a kind of statement that has no rendering.
    """
    text, guard = f"{_render(statement)};", statement.guard
    if guard is None:
        return text
    word = "IF NOT EXISTS" if guard.is_negated else "IF EXISTS"
    return f"{word} (SELECT * FROM sys.{guard.view} WHERE name = {render_text(guard.name)}) {text}"  # noqa: S608 - a script


@singledispatch
def _render(statement: ddl.Statement) -> str:
    raise TypeError(f"no rendering for {type(statement).__name__}")


@_render.register
def _use_database(statement: ddl.UseDatabase) -> str:
    return f"USE {render_name(statement.name)}"


@_render.register
def _route(statement: ddl.CreateRoute | ddl.AlterRoute) -> str:
    given = asdict(statement.properties).items()
    properties = {key.upper(): render_text(value) if isinstance(value, str) else value for key, value in given}
    return f"{_head(statement)} WITH {_values(properties)}"


@_render.register
def _queue(statement: ddl.CreateQueue | ddl.AlterQueue) -> str:
    status, poison = statement.status, statement.poison_message_handling
    options = [] if status is None else [f"STATUS = {_on_off(status)}"]
    if poison or (poison is False and isinstance(statement, ddl.AlterQueue)):
        options.append(f"POISON_MESSAGE_HANDLING (STATUS = {_on_off(poison)})")
    return _head(statement) + (f" WITH {', '.join(options)}" if options else "")


@_render.register
def _drop(statement: ddl.DropNamed | ddl.DropQueue) -> str:
    return _head(statement)


@_render.register
def _service(statement: ddl.CreateService | ddl.AlterService) -> str:
    text, is_exclusive = _head(statement), statement.exclusive_target
    if statement.queue is not None:
        text += f" ON QUEUE {_queue_name(statement.queue)}"
    if isinstance(statement, ddl.CreateService):
        listed = [render_name(name) for name in statement.contracts]
    else:
        listed = [f"ADD CONTRACT {render_name(name)}" for name in statement.add_contracts]
        listed += [f"DROP CONTRACT {render_name(name)}" for name in statement.drop_contracts]
    text += f" ({', '.join(listed)})" if listed else ""
    return text if is_exclusive is None else f"{text} WITH (EXCLUSIVE_TARGET = {_on_off(is_exclusive)})"


@_render.register
def _end_conversation(statement: ddl.EndConversation) -> str:
    text = f"END CONVERSATION '{show_guid(statement.conversation_handle)}'"
    if statement.cleanup:
        return f"{text} WITH CLEANUP"
    if statement.error_code is None:
        return text
    return f"{text} WITH ERROR = {statement.error_code} DESCRIPTION = {render_text(statement.description or '')}"


@_render.register
def _move_conversation(statement: ddl.MoveConversation) -> str:
    group = show_guid(statement.conversation_group_id)
    return f"MOVE CONVERSATION '{show_guid(statement.conversation_handle)}' TO '{group}'"


@_render.register
def _begin_timer(statement: ddl.BeginConversationTimer) -> str:
    return f"BEGIN CONVERSATION TIMER ('{show_guid(statement.conversation_handle)}') TIMEOUT = {statement.timeout}"


@_render.register
def _message_type(statement: ddl.CreateMessageType | ddl.AlterMessageType) -> str:
    is_default = isinstance(statement, ddl.CreateMessageType) and statement.validation == "NONE"
    return _head(statement) + ("" if is_default else f" VALIDATION = {statement.validation}")


@_render.register
def _contract(statement: ddl.CreateContract) -> str:
    types = ", ".join(f"{render_name(one.message_type)} SENT BY {one.sent_by}" for one in statement.message_types)
    return f"{_head(statement)} ({types})"


@_render.register
def _priority(statement: ddl.CreatePriority | ddl.AlterPriority) -> str:
    given, remote = statement.properties, statement.properties.remote_service_name
    properties = _values(
        {
            "CONTRACT_NAME": _name_or_any(given.contract_name),
            "LOCAL_SERVICE_NAME": _name_or_any(given.local_service_name),
            "REMOTE_SERVICE_NAME": render_text(remote) if isinstance(remote, str) else _name_or_any(remote),
            "PRIORITY_LEVEL": given.priority_level,
        }
    )
    return f"{_head(statement)} FOR CONVERSATION" + (f" SET ({properties})" if properties else "")


@_render.register
def _change_permission(statement: ddl.ChangePermission) -> str:
    kind = "SERVICE" if statement.permission is Permission.SEND else "ENDPOINT"
    to = "FROM" if isinstance(statement, ddl.RevokePermission) else "TO"
    principals = ", ".join(map(render_name, statement.principals))
    return f"{ddl.words_of(statement)} ON {kind}::{render_name(statement.securable)} {to} {principals}"


@_render.register
def _binding(statement: ddl.CreateRemoteServiceBinding | ddl.AlterRemoteServiceBinding) -> str:
    to, user, is_anonymous = "", statement.user, statement.anonymous
    if isinstance(statement, ddl.CreateRemoteServiceBinding):
        to, is_anonymous = f" TO SERVICE {render_text(statement.remote_service_name)}", is_anonymous or None
    options = {
        "USER": None if user is None else render_name(user),
        "ANONYMOUS": None if is_anonymous is None else _on_off(is_anonymous),
    }
    return f"{_head(statement)}{to} WITH {_values(options)}"


@_render.register
def _alter_database(statement: ddl.AlterDatabase) -> str:
    name = "CURRENT" if statement.name is None else render_name(statement.name)
    return f"ALTER DATABASE {name} SET {statement.option}"


def _head(statement: Any) -> str:
    """The words of a statement about an object, its name, and its owner."""
    words = ddl.words_of(statement).replace("PRIORITY", "BROKER PRIORITY")
    name = _queue_name(statement.queue) if isinstance(statement, ddl.OfQueue) else render_name(statement.name)
    owner = getattr(statement, "owner", None)
    return f"{words} {name}" + ("" if owner is None else f" AUTHORIZATION {render_name(owner)}")


def _queue_name(queue: ddl.QueueName) -> str:
    name = render_name(queue.name)
    return name if queue.schema is None else f"{render_name(queue.schema)}.{name}"


def _on_off(is_on: bool) -> str:  # noqa: FBT001 - the one thing it is about
    return "ON" if is_on else "OFF"


def _name_or_any(value: ddl.NameOrAny) -> str | None:
    return None if value is None else "ANY" if value is ddl.ANY else render_name(value)


def _values(values: Mapping[str, str | int | None]) -> str:
    """The properties that are given, in the documented order."""
    return ", ".join(f"{name} = {value}" for name, value in values.items() if value is not None)
