"""
The admin API over HTTP: requests to values, values to answers, errors to problems. What is done is in `api`.

One application serves the Unix socket, a second one, guarded against web pages, the TCP port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

import msgspec
import structlog
from aiohttp import web

from broker.admin.api import Api
from broker.admin.guard import refusal
from broker.admin.openapi import describe
from broker.admin.operation import OPERATIONS, Operation
from broker.admin.problem import (
    BUG,
    BadRequestError,
    BodyTooLargeError,
    ForbiddenError,
    http_problem,
    kind_of,
    problem_of,
)

BODY_MAX_BYTES = 160 * 1024 * 1024  # a script of a million routes, with room for how JSON writes it
OPENAPI_PATH = "/v1/openapi.json"

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def admin_app(api: Api, executor: Executor, *, version: str, is_guarded: bool) -> web.Application:
    """
    The application.

    Args:
        api: What the operations do.
        executor: Where answers become JSON, which may take a while.
        version: Of the program, for the API's description.
        is_guarded: Whether requests of web pages are refused; for a TCP port.
    """
    middlewares = [tell_problems, _guard] if is_guarded else [tell_problems]
    app = web.Application(middlewares=middlewares, client_max_size=BODY_MAX_BYTES)
    description = msgspec.json.encode(describe(OPERATIONS, version=version))

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=description, content_type="application/json")

    app.router.add_get(OPENAPI_PATH, openapi)
    for operation in OPERATIONS:
        handler = _handler(operation, api, executor)
        if operation.method == "GET":
            app.router.add_get(operation.path, handler)
        else:
            app.router.add_post(operation.path, handler)
    return app


@web.middleware
async def tell_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure is an answer of its own kind; one that is a bug is logged with its traceback."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return http_problem(error, request.path)
    except Exception as error:
        if kind_of(error) is BUG:
            log.exception("request failed", method=request.method, path=request.path)
        return problem_of(error)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    problem = refusal(request.headers.get("Host"), request.headers.get("Origin"))
    if problem is not None:
        raise ForbiddenError(problem)
    return await handler(request)


def _handler(operation: Operation, api: Api, executor: Executor) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        argument = await _argument(operation, request)
        answer = await operation.call(api, argument)
        body = await asyncio.get_running_loop().run_in_executor(executor, msgspec.json.encode, answer)
        return web.Response(body=body, content_type="application/json")

    return handle


async def _argument(operation: Operation, request: web.Request) -> Any:
    """
    The request as a value.

    Raises:
        BadRequestError: what was sent is no such value.
        BodyTooLargeError: it is above the bound.
    """
    try:
        if operation.method == "GET":
            return msgspec.convert({**request.query, **request.match_info}, operation.request, strict=False)
        body = await request.read()
        return msgspec.json.decode(body or b"{}", type=operation.request)
    except web.HTTPRequestEntityTooLarge as error:
        raise BodyTooLargeError(BODY_MAX_BYTES) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the request is not understood: {error}") from error
