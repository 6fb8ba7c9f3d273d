"""
The answer to a request that failed, RFC 9457 `application/problem+json`, and the one table of status codes.

Errors of the package know nothing of HTTP: the first class of an error's ancestry that is in the table decides.
`detail` is the error's own sentence, caret and all; what a program needs is in separate fields. Of a bug the answer
says only that it was one; the log has the traceback.

Source: RFC 9457, "Problem Details for HTTP APIs".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

import msgspec
import structlog
from aiohttp import web

from broker.catalog.reload import ReloadRefusedError
from broker.errors import (
    DdlSyntaxError,
    DuplicateNameError,
    RequestError,
    ResourceError,
    SettingError,
    SettingsError,
    StatementError,
    StoreUnavailableError,
    UnknownNameError,
    caret,
)

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MEDIA_TYPE = "application/problem+json"
ERRORS_MAX = 1000  # of one configuration that are listed
_TYPE = "urn:broker:problem:"
# The header fields of every answer: no cache, no page.
_SECURE = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """How errors of a kind are answered; `slug` is the end of the problem's `type`."""

    status: HTTPStatus
    slug: str
    title: str


class BodyTooLargeError(RequestError):
    """The body of the request is above the bound."""

    limit_bytes: int

    def __str__(self) -> str:
        limit = f"{self.limit_bytes // 2**20} MiB"
        return f"a request has at most {limit}; name a larger script in the configuration, which takes any size"


class ForbiddenError(RequestError):
    """The caller may not do this; `role` would be enough, "" where none would."""

    problem: str
    role: str = ""
    says: ClassVar[str] = "{problem}"


class UnauthorizedError(RequestError):
    """The caller is unknown: nothing was shown, or something that is not valid."""

    problem: str
    says: ClassVar[str] = "{problem}; show a token in the header Authorization: Bearer, made by broker token create"


class MediaTypeError(RequestError):
    """The body of a request is not said to be JSON."""

    problem: str
    says: ClassVar[str] = "{problem}"


class TooManyStreamsError(ResourceError):
    """The caller has this many streams of events already, or the instance stops."""

    limit: int
    says: ClassVar[str] = (
        "you have {limit} streams of events open, or the instance stops: close a page, or ask /v1/status"
    )


KINDS: dict[type[BaseException], ProblemKind] = {
    UnknownNameError: ProblemKind(HTTPStatus.NOT_FOUND, "unknown-name", "There is no such thing"),
    DuplicateNameError: ProblemKind(HTTPStatus.CONFLICT, "duplicate-name", "The name is taken"),
    DdlSyntaxError: ProblemKind(HTTPStatus.BAD_REQUEST, "syntax", "The statement is not understood"),
    StatementError: ProblemKind(HTTPStatus.BAD_REQUEST, "statement", "The statement was refused"),
    ForbiddenError: ProblemKind(HTTPStatus.FORBIDDEN, "forbidden", "You may not do this here"),
    UnauthorizedError: ProblemKind(HTTPStatus.UNAUTHORIZED, "unauthorized", "Say who you are"),
    MediaTypeError: ProblemKind(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "media-type", "A request is JSON"),
    BodyTooLargeError: ProblemKind(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", "The request is too large"),
    ReloadRefusedError: ProblemKind(HTTPStatus.CONFLICT, "reload", "The configuration is not read again now"),
    SettingsError: ProblemKind(
        HTTPStatus.UNPROCESSABLE_ENTITY, "configuration", "The configuration cannot be used, and nothing has changed"
    ),
    RequestError: ProblemKind(HTTPStatus.BAD_REQUEST, "request", "The request was refused"),
    StoreUnavailableError: ProblemKind(HTTPStatus.SERVICE_UNAVAILABLE, "store", "A database is not available"),
    ResourceError: ProblemKind(HTTPStatus.SERVICE_UNAVAILABLE, "resource", "The machine is short of something"),
}
BUG = ProblemKind(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "The request met a fault of the program")


def kind_of(error: BaseException) -> ProblemKind:
    """How an error is answered."""
    return next((KINDS[kind] for kind in type(error).__mro__ if kind in KINDS), BUG)


def problem_of(error: BaseException) -> web.Response:
    """The answer to a request that ended in this error."""
    kind = kind_of(error)
    members: dict[str, Any] = {"type": _TYPE + kind.slug, "title": kind.title, "status": int(kind.status)}
    members["detail"] = "see the log of the instance" if kind is BUG else str(error)
    headers: dict[str, str] = {}
    if isinstance(error, StatementError):
        members |= _place(error)
    elif isinstance(error, SettingsError):
        members["errors"] = [_finding(one) for one in error.errors[:ERRORS_MAX]]
        members["more_errors"] = max(0, len(error.errors) - ERRORS_MAX)
    elif isinstance(error, ForbiddenError) and error.role:
        members["role"] = error.role
    elif isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = 'Bearer realm="broker"'
    elif isinstance(error, TooManyStreamsError):
        headers["Retry-After"] = "5"
    return _answer(kind.status, members, headers)


def http_problem(error: web.HTTPException, path: str) -> web.Response:
    """The same for what the server itself refuses: an unknown path, a wrong method, a body that is too large."""
    status = HTTPStatus(error.status)
    detail = f"there is nothing at {path}" if status is HTTPStatus.NOT_FOUND else status.description
    headers = {}
    if isinstance(error, web.HTTPMethodNotAllowed):
        headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        detail = f"{path} is asked with {headers['Allow']}"
    return refused_unread(status, detail, headers)


def refused_unread(status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """The answer to a request that no operation has read, or to bytes that cannot be read as one."""
    members = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    return _answer(status, members, headers)


def _finding(error: SettingError) -> dict[str, Any]:
    """One error of the configuration, as in `/v1/check`, and as a sentence."""
    found: dict[str, Any] = {"key": error.key, "problem": error.problem, "hint": error.hint, "text": error.shown}
    if error.span is not None:
        found |= {"file": error.span.source, "line": error.span.line, "column": error.span.column}
    return found


def _place(error: StatementError) -> dict[str, Any]:
    """Our members: the original's message number, and where in the text."""
    members: dict[str, Any] = {"number": error.number, "problem": error.problem}
    if error.span is not None:
        members |= {"line": error.span.line, "column": error.span.column}
        if error.text_line is not None:
            members["caret"] = caret(error.text_line, error.span)
    return members


def _answer(status: HTTPStatus, members: Mapping[str, Any], headers: Mapping[str, str] | None) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(members), content_type=MEDIA_TYPE, headers=headers)


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every failure by its kind; a bug is logged with its traceback."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return http_problem(error, request.path)
    except Exception as error:
        if request.transport is None and isinstance(error, ConnectionError):
            raise  # the client has gone: no answer can be sent, and nothing is wrong here
        if kind_of(error) is BUG:
            log.exception("request failed", method=request.method, path=request.path)
        return problem_of(error)


def secure(headers: MutableMapping[str, str]) -> None:
    """Add the header fields of every answer: no cache, no page; an answer that has its own policy keeps it."""
    for name, value in _SECURE.items():
        headers.setdefault(name, value)
    headers["Server"] = "broker"
