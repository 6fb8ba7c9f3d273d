"""
The table of the operations of the admin API. The server's routes and `/v1/openapi.json` are both made from it.

GET never changes anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, Literal, get_type_hints

import msgspec

from broker.admin.api import Api, Problem
from broker.admin.events import MEDIA_TYPE as EVENTS_TYPE
from broker.admin.events import Events
from broker.admin.problems import MEDIA_TYPE
from broker.config.admin_access import AdminRole
from broker.observe.status import Status

SCRIPT_MAX_BYTES = 160 * 1024 * 1024  # a script of a million routes, with room for how JSON writes it
BODY_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Operation:
    """
    One method of one path.

    Attributes:
        method: GET never changes anything.
        path: With the names of parameters in braces.
        summary: One sentence for the description.
        call: A method of `Api`, called with the request and its caller; of `Events` when `is_stream`.
        refusals: The statuses special to it.
        role: The least that may ask.
        is_change: Whether it may change something; a refusal is then written to the audit.
        body_max: Bytes.
        is_stream: Whether it answers with events.
    """

    method: Literal["GET", "POST"]
    path: str
    summary: str
    call: Callable[..., Awaitable[Any]]
    refusals: tuple[HTTPStatus, ...] = ()
    role: AdminRole = AdminRole.VIEWER
    is_change: bool = False
    body_max: int = BODY_MAX_BYTES
    is_stream: bool = False

    @property
    def request(self) -> type[msgspec.Struct]:
        """The type of what it is asked with: made of the path and the query for GET, of the body for POST."""
        return types_of(self.call)[0]

    @property
    def answer(self) -> type[msgspec.Struct] | None:
        """The type of its result; None for an object that is described elsewhere."""
        return types_of(self.call)[1]


@cache
def types_of(call: Callable[..., object]) -> tuple[type[msgspec.Struct], type[msgspec.Struct] | None]:
    """The types of request and answer, as the method says."""
    hints = get_type_hints(call)
    answer = hints.pop("return")
    is_described = issubclass(answer, msgspec.Struct) and answer is not Status
    return next(one for one in hints.values() if issubclass(one, msgspec.Struct)), answer if is_described else None


OPERATIONS = (
    Operation(
        "POST",
        "/v1/sql",
        "Execute a SELECT over the system views, or a script of statements, which takes the role operator or admin",
        Api.sql,
        refusals=(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE),
        is_change=True,
        body_max=SCRIPT_MAX_BYTES,
    ),
    Operation(
        "GET",
        "/v1/views/{name}",
        "Read a system view, page by page",
        Api.view,
        refusals=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
    Operation(
        "POST",
        "/v1/explain",
        "Where a message would go, and why; nothing is sent",
        Api.explain,
        refusals=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        "POST",
        "/v1/plan",
        "The effects that a script would have on routes and on conversations under way; nothing is changed",
        Api.plan,
        refusals=(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE),
        body_max=SCRIPT_MAX_BYTES,
    ),
    Operation(
        "GET",
        "/v1/why/{id}",
        "Where a conversation or a message is, why, and what to do, as far as this instance knows",
        Api.why,
    ),
    Operation(
        "GET",
        "/v1/census",
        "The contents of the databases, and how old they are",
        Api.census,
        refusals=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
    Operation(
        "POST",
        "/v1/drain",
        "Have the instance leave in good order, as SIGTERM does",
        Api.drain,
        refusals=(HTTPStatus.SERVICE_UNAVAILABLE,),
        role=AdminRole.OPERATOR,
        is_change=True,
    ),
    Operation(
        "GET",
        "/v1/drain",
        "The messages and peers that have not left yet",
        Api.draining,
    ),
    Operation(
        "POST",
        "/v1/retry",
        "Send what is not acknowledged again now, of one dialog or of all, without waiting for the next attempt",
        Api.retry,
        refusals=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
        role=AdminRole.OPERATOR,
        is_change=True,
    ),
    Operation(
        "POST",
        "/v1/reload",
        "Read the configuration again and apply it, or with dry_run only report the changes",
        Api.reload,
        refusals=(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE),
        role=AdminRole.OPERATOR,
        is_change=True,
    ),
    Operation("GET", "/v1/status", "The state of the instance at a glance", Api.status),
    Operation(
        "GET",
        "/v1/config",
        "Every setting in force, with its value and where that came from",
        Api.config,
    ),
    Operation(
        "GET",
        "/v1/events",
        "The activity of the instance as server-sent events: the last ten minutes, then a snapshot every second",
        Events.serve,
        refusals=(HTTPStatus.SERVICE_UNAVAILABLE,),
        is_stream=True,
    ),
    Operation(
        "POST",
        "/v1/check",
        "Whether the instance could start again with its configuration",
        Api.check,
    ),
)


# --- openapi ---
# The description of the admin API, made from the table of operations and the types of its messages.
#
# Source: OpenAPI Specification 3.1.


_REF = "#/components/schemas/{name}"
# The failures of any request.
_ALWAYS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.INTERNAL_SERVER_ERROR,
)
_OF_BODIES = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "Made by broker token create."},
    "certificate": {"type": "mutualTLS", "description": "A client certificate that admin.trust leads to."},
}


def describe(*, version: str) -> dict[str, Any]:
    """The OpenAPI document, as plain values."""
    kinds = {kind for operation in OPERATIONS for kind in (operation.request, operation.answer) if kind is not None}
    _, components = msgspec.json.schema_components(
        sorted(kinds | {Problem}, key=lambda kind: kind.__name__), ref_template=_REF
    )
    schemas = msgspec.json.decode(msgspec.json.encode(components))  # a default may be a tuple
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "broker admin API", "version": version},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SCHEMES},
    }


def _describe(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    request = schemas[operation.request.__name__]
    described: dict[str, Any] = {"summary": operation.summary, "operationId": operation.call.__name__}
    role = operation.role.word
    # The empty one: on the Unix socket, and as far as admin.loopback_role goes, nothing is shown.
    described |= {"x-role": role, "security": [{}, *({scheme: [role]} for scheme in _SCHEMES)]}
    if operation.method == "GET":
        described["parameters"] = [
            {
                "name": name,
                "in": "path" if f"{{{name}}}" in operation.path else "query",
                "required": name in request.get("required", ()),
                "schema": schema,
            }
            for name, schema in request["properties"].items()
        ]
    elif request["properties"]:
        described["requestBody"] = {"required": True, "content": _json(_reference(operation.request))}
    answer = {"type": "object"} if operation.answer is None else _reference(operation.answer)
    content = {EVENTS_TYPE: {"schema": {"type": "string"}}} if operation.is_stream else _json(answer)
    described["responses"] = {"200": {"description": "Done.", "content": content}} | {
        str(int(status)): {"description": status.phrase, "content": {MEDIA_TYPE: {"schema": _reference(Problem)}}}
        for status in sorted({*_ALWAYS, *operation.refusals, *(_OF_BODIES if operation.method == "POST" else ())})
    }
    return described


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
