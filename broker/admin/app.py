"""
The admin API over HTTP: requests to values, values to answers, errors to problems. The operations are in `api`.

Before anything is done, and before a body is read, a request has passed the guard, which checks how it is written, and
the authenticator, which identifies the caller. The Unix socket and the TCP port have an application each.

The status page is public: it holds no data of the instance, and requests them from the API as its reader.

Source: Content Security Policy Level 3, Trusted Types.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from broker.admin.api import Api, SqlAnswer
from broker.admin.audit import Audit, AuditEntry
from broker.admin.auth import Authenticator, Caller, origin_of
from broker.admin.events import Events
from broker.admin.guard import check_content, check_fields, check_site, check_target
from broker.admin.operations import BODY_MAX_BYTES, OPERATIONS, Operation, describe
from broker.admin.problems import BodyTooLargeError, ForbiddenError, Handler, UnauthorizedError, answer_problems, secure
from broker.config.admin_access import AdminRole
from broker.errors import BadRequestError

SMALL_BYTES = 64 * 1024  # of a body that is parsed at once
LARGE_BODIES = 2  # requests of one listener with more than BODY_MAX_BYTES, or of unknown length, at one time
BODY_SECONDS = 120.0  # for a whole body; of 160 MiB that is 11 Mbit/s
OPENAPI_PATH = "/v1/openapi.json"
PAGE_PATH, FILES_PATH = "/", "/page"
STATIC = Path(__file__).parent / "static"
# The page may run its own scripts and ask its own server, and nothing else; texts never become markup.
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}
_CALLER = web.RequestKey("caller", Caller)
_BY_ROUTE: dict[tuple[str, str], Operation] = {(one.method, one.path): one for one in OPERATIONS}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """
    The parts of an application.

    Attributes:
        executor: Where long texts are read and answers become JSON, which may take a while.
        version: Of the program, for the description.
    """

    api: Api
    door: Authenticator
    audit: Audit
    executor: Executor
    version: str
    events: Events


def admin_app(parts: Parts, *, answers_to: Callable[[str], bool] | None) -> web.Application:
    """
    The application.

    Args:
        parts: Its parts.
        answers_to: Whether a host is this server, for a TCP port; None on the Unix socket.
    """
    app = web.Application(middlewares=[answer_problems, _admitting(parts, answers_to)])
    app.on_response_prepare.append(_secure)
    description = msgspec.json.encode(describe(version=parts.version))
    large = asyncio.Semaphore(LARGE_BODIES)

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=description, content_type="application/json")

    async def page(_: web.Request) -> web.FileResponse:
        return web.FileResponse(STATIC / "index.html")

    app.router.add_get(OPENAPI_PATH, openapi)
    app.router.add_get(PAGE_PATH, page)
    app.router.add_static(FILES_PATH, STATIC)
    for operation in OPERATIONS:
        handler = _handler(operation, parts, large)
        app.router.add_route(operation.method, operation.path, handler)
        if operation.method == hdrs.METH_GET and not operation.is_stream:
            app.router.add_route(hdrs.METH_HEAD, operation.path, handler)
    return app


async def _secure(request: web.BaseRequest, response: web.StreamResponse) -> None:
    if isinstance(request, web.Request) and is_page(request) and response.status < HTTPStatus.BAD_REQUEST:
        response.headers.update(_PAGE_HEADERS)
    secure(response.headers)


def is_page(request: web.Request) -> bool:
    """Whether the status page or one of its files is asked for, by one of its methods."""
    resource = request.match_info.route.resource
    if resource is None or request.method not in {hdrs.METH_GET, hdrs.METH_HEAD}:
        return False
    return resource.canonical in {PAGE_PATH, FILES_PATH}


def _admitting(parts: Parts, answers_to: Callable[[str], bool] | None) -> Any:
    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_target(request.raw_path)
        check_fields(request.headers)
        if is_page(request):  # for every client of this site: it reveals nothing
            check_site(request.headers, scheme=request.scheme, answers_to=answers_to, is_page=True)
            return await handler(request)
        operation = _operation(request)
        caller: Caller | None = None
        try:
            check_site(request.headers, scheme=request.scheme, answers_to=answers_to)
            caller = await parts.door.caller(request)
            role = AdminRole.VIEWER if operation is None else operation.role
            caller.expect(role, f"{request.method} {request.path}")
        except (ForbiddenError, UnauthorizedError) as error:
            if operation is not None and operation.is_change:
                caller = caller or Caller("unknown", origin_of(request)[2], AdminRole.NONE)
                AuditEntry(parts.audit, caller, f"{operation.method} {operation.path}").end_badly(error)
            raise
        if request.method == hdrs.METH_POST:
            check_content(request.headers)
        request[_CALLER] = replace(caller, request=request)
        return await handler(request)

    return admit


def _operation(request: web.Request) -> Operation | None:
    """The requested operation; None when there is none."""
    resource = request.match_info.route.resource
    method = hdrs.METH_GET if request.method == hdrs.METH_HEAD else request.method
    return None if resource is None else _BY_ROUTE.get((method, resource.canonical))


def _handler(operation: Operation, parts: Parts, large: asyncio.Semaphore) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        async with _argument(operation, request, parts, large) as argument:
            if operation.is_stream:
                return await parts.events.serve(request, argument, request[_CALLER].who)
            answer = await operation.call(parts.api, argument, request[_CALLER])
        if isinstance(answer, SqlAnswer) and not answer.rows:  # of a change: a thread costs more than to encode it
            body = msgspec.json.encode(answer)
        else:
            body = await asyncio.get_running_loop().run_in_executor(parts.executor, msgspec.json.encode, answer)
        return web.Response(body=body, content_type="application/json")

    return handle


@asynccontextmanager
async def _argument(
    operation: Operation, request: web.Request, parts: Parts, large: asyncio.Semaphore
) -> AsyncIterator[Any]:
    """
    The request as a value.

    Raises:
        BadRequestError: the request is not such a value.
        BodyTooLargeError, HTTPRequestTimeout: as `_body`.
    """
    if operation.method == hdrs.METH_GET:
        yield _value(lambda: msgspec.convert(_parameters(request), operation.request, strict=False))
        return
    length, limit = request.content_length, operation.body_max
    if length is not None and length > limit:
        raise BodyTooLargeError(limit)
    is_small = length is not None and length <= BODY_MAX_BYTES
    async with contextlib.nullcontext() if is_small else large:
        body = await _body(request, limit)
        read = partial(_value, lambda: msgspec.json.decode(body or b"{}", type=operation.request))
        if len(body) <= SMALL_BYTES:
            yield read()
        else:  # a script of 160 MiB takes half a second, in which traffic goes on
            yield await asyncio.get_running_loop().run_in_executor(parts.executor, read)


async def _body(request: web.Request, limit: int) -> bytes:
    """
    The body of a request.

    Raises:
        BodyTooLargeError: it is above `limit` bytes.
        HTTPRequestTimeout: it does not arrive in time.
        BadRequestError: it ends before its end.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.clone(client_max_size=limit + 1).read()
    except web.HTTPRequestEntityTooLarge:
        raise BodyTooLargeError(limit) from None
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    except (web.RequestPayloadError, HttpProcessingError, ConnectionError) as error:
        raise BadRequestError("the body of the request ends before its end, or is cut wrongly") from error


def _parameters(request: web.Request) -> dict[str, str]:
    """
    Path and query together.

    Raises:
        BadRequestError: one of them is given twice.
    """
    pairs = [*request.query.items(), *request.match_info.items()]
    if len({name for name, _ in pairs}) < len(pairs):
        raise BadRequestError("a parameter is given twice")
    return dict(pairs)


def _value(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the request is not understood: {error}") from error
