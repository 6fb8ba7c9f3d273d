"""
The admin API over HTTP: requests to values, values to answers, errors to problems. What is done is in `api`.

Before anything is done, and before a body is read, a request has passed the guard, which looks at how it is written,
and the door, which knows who asks. The Unix socket and the TCP port have an application each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import structlog
from aiohttp import hdrs, web

from broker.admin.api import Api
from broker.admin.audit import Audit
from broker.admin.body import Bodies
from broker.admin.caller import Caller
from broker.admin.connection import secure
from broker.admin.door import Door, origin_of
from broker.admin.events import Events
from broker.admin.guard import check_content, check_fields, check_site, check_target
from broker.admin.openapi import describe
from broker.admin.operation import OPERATIONS, Operation
from broker.admin.page import add_page, is_page
from broker.admin.problem import (
    BUG,
    BadRequestError,
    ForbiddenError,
    TooManyAttemptsError,
    UnauthorizedError,
    http_problem,
    kind_of,
    problem_of,
)
from broker.admin.room import source_of
from broker.admin.wanted import note_request
from broker.control.admin_role import AdminRole

SMALL_BYTES = 64 * 1024  # of a body that is read at once
OPENAPI_PATH = "/v1/openapi.json"
_CALLER = web.RequestKey("caller", Caller)
_BY_ROUTE: dict[tuple[str, str], Operation] = {(one.method, one.path): one for one in OPERATIONS}

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Parts:
    """
    What an application is made of.

    Shape: `executor` where long texts are read and answers become JSON, which may take a while; `version` of the
    program, for the description.
    """

    api: Api
    door: Door
    audit: Audit
    bodies: Bodies
    executor: Executor
    version: str
    events: Events


def admin_app(parts: Parts, *, answers_to: Callable[[str], bool] | None) -> web.Application:
    """
    The application.

    Args:
        parts: What it is made of.
        answers_to: Whether a host is this server, for a TCP port; None on the Unix socket.
    """
    app = web.Application(middlewares=[tell_problems, _admitting(parts, answers_to)])
    app.on_response_prepare.append(_secure)
    description = msgspec.json.encode(describe(OPERATIONS, version=parts.version))

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=description, content_type="application/json")

    app.router.add_get(OPENAPI_PATH, openapi)
    add_page(app)
    for operation in OPERATIONS:
        app.router.add_route(operation.method, operation.path, _handler(operation, parts))
        if operation.method == hdrs.METH_GET and not operation.is_stream:
            app.router.add_route(hdrs.METH_HEAD, operation.path, _handler(operation, parts))
    return app


@web.middleware
async def tell_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure is an answer of its own kind; one that is a bug is logged with its traceback."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return http_problem(error, request.path)
    except Exception as error:
        if request.transport is None and isinstance(error, ConnectionError):
            raise  # the client has gone: there is nobody to be answered, and nothing to be mended
        if kind_of(error) is BUG:
            log.exception("request failed", method=request.method, path=request.path)
        return problem_of(error)


async def _secure(_: web.BaseRequest, response: web.StreamResponse) -> None:
    secure(response.headers)


def _admitting(parts: Parts, answers_to: Callable[[str], bool] | None) -> Any:
    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_target(request.raw_path)
        check_fields(request.headers)
        if is_page(request):  # for everybody who may come at all: it tells nothing
            check_site(request.headers, scheme=request.scheme, answers_to=answers_to, is_page=True)
            return await handler(request)
        operation = _operation(request)
        caller = Caller("unknown", origin_of(request)[2], AdminRole.NONE)
        try:
            check_site(request.headers, scheme=request.scheme, answers_to=answers_to)
            caller = await parts.door.caller(request)
            role = AdminRole.VIEWER if operation is None else operation.role
            caller.expect(role, f"{request.method} {request.path}")
        except (ForbiddenError, UnauthorizedError, TooManyAttemptsError) as error:
            if operation is not None and operation.is_change:
                parts.audit.begin(caller, f"{operation.method} {operation.path}").end_badly(error)
            raise
        if request.method == hdrs.METH_POST:
            check_content(request.headers)
        request[_CALLER] = caller
        return await handler(request)

    return admit


def _operation(request: web.Request) -> Operation | None:
    """What is asked for; None when there is no such thing."""
    resource = request.match_info.route.resource
    method = hdrs.METH_GET if request.method == hdrs.METH_HEAD else request.method
    return None if resource is None else _BY_ROUTE.get((method, resource.canonical))


def _handler(operation: Operation, parts: Parts) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        note_request(request, request[_CALLER].role)
        async with _argument(operation, request, parts) as argument:
            if operation.is_stream:
                return await parts.events.serve(request, argument, _owner(request))
            if operation.is_change:
                answer = await operation.call(parts.api, argument, request[_CALLER])
            else:
                answer = await operation.call(parts.api, argument)
        body = await asyncio.get_running_loop().run_in_executor(parts.executor, msgspec.json.encode, answer)
        return web.Response(body=body, content_type="application/json")

    return handle


@asynccontextmanager
async def _argument(operation: Operation, request: web.Request, parts: Parts) -> AsyncIterator[Any]:
    """
    The request as a value.

    Raises:
        BadRequestError: what was sent is no such value.
        BodyTooLargeError, NoRoomError, BodyStalledError: as `Bodies.reading`.
    """
    if operation.method == hdrs.METH_GET:
        yield _value(lambda: msgspec.convert(_parameters(request), operation.request, strict=False))
        return
    async with parts.bodies.reading(request, operation.body_max) as body:
        read = partial(_value, lambda: msgspec.json.decode(body or b"{}", type=operation.request))
        if len(body) <= SMALL_BYTES:
            yield read()
        else:  # a script of 160 MiB takes half a second, in which traffic goes on
            yield await asyncio.get_running_loop().run_in_executor(parts.executor, read)


def _owner(request: web.Request) -> str:
    """Whose streams are counted together: somebody's from one place."""
    return f"{request[_CALLER].who} {source_of(origin_of(request)[1])}"


def _parameters(request: web.Request) -> dict[str, str]:
    """
    Path and query together.

    Raises:
        BadRequestError: one of them stands there twice.
    """
    pairs = [*request.query.items(), *request.match_info.items()]
    if len({name for name, _ in pairs}) < len(pairs):
        raise BadRequestError("a parameter stands there twice")
    return dict(pairs)


def _value(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the request is not understood: {error}") from error
