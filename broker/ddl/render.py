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
    AlterQueue,
    AlterRoute,
    AlterService,
    CreateQueue,
    CreateRoute,
    CreateService,
    DropQueue,
    DropRoute,
    DropService,
    EndConversation,
    QueueName,
    Statement,
    UseDatabase,
)

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


@_render.register
def _use_database(statement: UseDatabase) -> str:
    return f"USE {render_name(statement.name)}"


@_render.register
def _create_route(statement: CreateRoute) -> str:
    owner = _authorization(statement.owner)
    return f"CREATE ROUTE {render_name(statement.name)}{owner} WITH {_properties(statement.properties)}"


@_render.register
def _alter_route(statement: AlterRoute) -> str:
    return f"ALTER ROUTE {render_name(statement.name)} WITH {_properties(statement.properties)}"


@_render.register
def _drop_route(statement: DropRoute) -> str:
    return f"DROP ROUTE {render_name(statement.name)}"


@_render.register
def _create_queue(statement: CreateQueue) -> str:
    return f"CREATE QUEUE {_queue(statement.queue)}" + ("" if statement.status else " WITH STATUS = OFF")


@_render.register
def _alter_queue(statement: AlterQueue) -> str:
    return f"ALTER QUEUE {_queue(statement.queue)} WITH STATUS = {'ON' if statement.status else 'OFF'}"


@_render.register
def _drop_queue(statement: DropQueue) -> str:
    return f"DROP QUEUE {_queue(statement.queue)}"


@_render.register
def _create_service(statement: CreateService) -> str:
    owner = _authorization(statement.owner)
    contracts = ", ".join(map(render_name, statement.contracts))
    text = f"CREATE SERVICE {render_name(statement.name)}{owner} ON QUEUE {_queue(statement.queue)}"
    return f"{text} ({contracts})" if contracts else text


@_render.register
def _alter_service(statement: AlterService) -> str:
    text = f"ALTER SERVICE {render_name(statement.name)}"
    if statement.queue is not None:
        text += f" ON QUEUE {_queue(statement.queue)}"
    changes = [f"ADD CONTRACT {render_name(name)}" for name in statement.add_contracts]
    changes += [f"DROP CONTRACT {render_name(name)}" for name in statement.drop_contracts]
    return f"{text} ({', '.join(changes)})" if changes else text


@_render.register
def _drop_service(statement: DropService) -> str:
    return f"DROP SERVICE {render_name(statement.name)}"


@_render.register
def _end_conversation(statement: EndConversation) -> str:
    text = f"END CONVERSATION '{statement.conversation_handle}'"
    if statement.cleanup:
        return f"{text} WITH CLEANUP"
    if statement.error_code is None:
        return text
    return f"{text} WITH ERROR = {statement.error_code} DESCRIPTION = {render_text(statement.description or '')}"


def _authorization(owner: str | None) -> str:
    return "" if owner is None else f" AUTHORIZATION {render_name(owner)}"


def _queue(queue: QueueName) -> str:
    name = render_name(queue.name)
    return name if queue.schema is None else f"{render_name(queue.schema)}.{name}"


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
