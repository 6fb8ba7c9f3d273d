"""
The description of the admin API, made from the table of operations and the types of its messages.

Source: OpenAPI Specification 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from broker.admin.events import MEDIA_TYPE as EVENTS_TYPE
from broker.admin.message import Problem
from broker.admin.operation import Operation
from broker.admin.problem import MEDIA_TYPE

_REF = "#/components/schemas/{name}"
# What any request may be told.
_ALWAYS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.INTERNAL_SERVER_ERROR,
)
_OF_BODIES = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "Made by broker token new."},
    "certificate": {"type": "mutualTLS", "description": "A client certificate that admin.trust leads to."},
}


def describe(operations: Iterable[Operation], *, version: str) -> dict[str, Any]:
    """The OpenAPI document. Shape: plain values, ready for JSON."""
    operations = list(operations)
    kinds = {kind for operation in operations for kind in (operation.request, operation.answer) if kind is not None}
    _, components = msgspec.json.schema_components(
        sorted(kinds | {Problem}, key=lambda kind: kind.__name__), ref_template=_REF
    )
    schemas = msgspec.json.decode(msgspec.json.encode(components))  # a default may be a tuple
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
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
