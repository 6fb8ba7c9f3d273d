"""
What a request that failed is told: RFC 9457 `application/problem+json`, and the one table of status codes.

Errors of the package know nothing of HTTP; this file looks up the first class of an error's ancestry that stands in the
table. `detail` is the error's own sentence, caret and all; what a program needs stands in fields of its own beside it.
A bug tells the caller nothing but that it was one; the log has the traceback.

Source: RFC 9457, "Problem Details for HTTP APIs".
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web

from broker.catalog.reload import ReloadRefusedError
from broker.config.values import ListenAddress
from broker.errors import (
    BadRequestError,
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
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
ERRORS_MAX = 1000  # of one configuration that are told one by one
_TYPE = "urn:broker:problem:"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """Shape: `slug` the end of the problem's `type`; `title` the same words for every problem of the kind."""

    status: HTTPStatus
    slug: str
    title: str


@dataclass
class BodyTooLargeError(RequestError):
    """The body of the request is above the bound."""

    limit_bytes: int

    def __str__(self) -> str:
        limit = f"{self.limit_bytes // 2**20} MiB"
        return f"a request has at most {limit}; name a larger script in the configuration, which takes any size"


@dataclass
class ForbiddenError(RequestError):
    """Who asks may not. Shape: `role` the one that would do, "" where no role would."""

    problem: str
    role: str = ""

    def __str__(self) -> str:
        return self.problem


@dataclass
class UnauthorizedError(RequestError):
    """Nobody knows who asks: nothing was shown, or something that counts for nothing."""

    problem: str

    def __str__(self) -> str:
        return f"{self.problem}; show a token in the header Authorization: Bearer, made by broker token new"


@dataclass
class MediaTypeError(RequestError):
    """The body of a request is not said to be JSON."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass
class TooManyStreamsError(ResourceError):
    """The caller has this many streams of events already, or the instance stops."""

    limit: int

    def __str__(self) -> str:
        return f"you have {self.limit} streams of events open, or the instance stops: close a page, or ask /v1/status"


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
    """How an error is told."""
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
    members = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    return _answer(status, members, headers)


def refused_unread(status: HTTPStatus, detail: str) -> web.Response:
    """The answer to what is no request that could be read at all."""
    return _answer(status, {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail})


def _finding(error: SettingError) -> dict[str, Any]:
    """One thing that is wrong with the configuration, as `/v1/check` tells it, and as a sentence."""
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


def _answer(status: HTTPStatus, members: Mapping[str, Any], headers: Mapping[str, str] = NO_HEADERS) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(members), content_type=MEDIA_TYPE, headers=headers)


# --- guard ---
# Refusing requests by how they are written: those of web pages, and those that two programs could read differently.
#
# A browser runs the scripts of strangers on the machine of somebody who may steer the instance. What it adds to their
# requests cannot be forged by them: `Host` must name this server, so that a name that somebody points at its address
# (DNS
# rebinding) is refused; `Origin` must be this very server, `Sec-Fetch-Site` must not speak of another site, and what
# a
# browser sends must be said to be JSON, which a form cannot say. A program may say nothing of its body, or what `curl
# -d`
# and urllib say unasked. No cookie is ever read.
#
# A path is what it says, character by character: nothing is decoded, joined or shortened, so that a proxy in front of
# the
# instance that forbids a path cannot be talked round. Nothing here reads a body, a clock or a file.
#
# Source: Fetch Standard ("Sec-Fetch-Site" header, CORS-safelisted request), RFC 9110, RFC 9112, RFC 3986.


TARGET_MAX = 4096  # characters of path and query; a name of a database takes 128
_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"  # pchar of RFC 3986
_PATH = re.compile(f"/(?:{_CHARACTER}+(?:/{_CHARACTER}+)*)?")
_QUERY = re.compile(f"(?:{_CHARACTER}|[/?])*")
# Escapes that stand for something a path is made of, or for no character of any name.
_AMBIGUOUS = re.compile(r"%(?:2[EeFf]|5[Cc]|25|[01][0-9A-Fa-f]|7[Ff])")
_DOTS = frozenset({".", ".."})
_ONCE = ("Host", "Origin", "Authorization", "Content-Type", "Content-Length", "Content-Encoding", "Sec-Fetch-Site")
FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")  # a proxy writes: somebody else asks
_SITES = frozenset({"same-origin", "none"})  # this server's own page, or a person who typed the address
_UNASKED = "application/x-www-form-urlencoded"  # what curl and urllib write where nobody told them anything
_BROWSERS = ("Origin", "Referer", "Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")  # they write
_LINK = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
_JSON = re.compile(r'application/json\s*(?:;\s*charset="?utf-8"?\s*)?', re.IGNORECASE)


class Headers(Protocol):
    """The header fields of a request, names in any case."""

    def __contains__(self, name: object, /) -> bool:
        """Whether there is such a field."""

    def getall(self, name: str, default: Sequence[str], /) -> Sequence[str]:
        """All values of a field."""


def check_target(target: str) -> None:
    """
    Refuse a request target that is not plainly one path.

    Raises:
        BadRequestError: it says what is wrong with it.
    """
    if len(target) > TARGET_MAX:
        raise BadRequestError(f"the path of a request and its query have at most {TARGET_MAX} characters")
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        raise BadRequestError("a request names a path of this server, like /v1/status, and nothing before it")
    if _PATH.fullmatch(path) is None or _QUERY.fullmatch(query) is None:
        raise BadRequestError("the path holds an empty part, or a character that a path is not written with")
    if _AMBIGUOUS.search(path) or any(part in _DOTS for part in path.split("/")):
        raise BadRequestError("the path holds a dot part, or an escaped dot, slash, percent or control character")


def check_fields(headers: Headers) -> None:
    """
    Refuse header fields that say one thing twice.

    Raises:
        BadRequestError: it names the field.
    """
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            raise BadRequestError(f"the header {name} stands there twice")


def check_site(
    headers: Headers, *, scheme: str, answers_to: Callable[[str], bool] | None, is_page: bool = False
) -> None:
    """
    Refuse what a page of another site has a browser send.

    Args:
        headers: Of the request, each of those looked at once at most.
        scheme: `http` or `https`.
        answers_to: Whether a host is this server; None where it may be called anything, on a Unix socket.
        is_page: Whether a file of the status page is asked for, which a person may come to by a link of another site.

    Raises:
        ForbiddenError: it says which header is not that of this server.
    """
    host = _first(headers, "Host")
    if answers_to is not None and not answers_to(host_name(host)):
        raise ForbiddenError(f"Host is {host!r}; only loopback addresses and names of this server are answered")
    origin, site = _first(headers, "Origin"), _first(headers, "Sec-Fetch-Site")
    if origin is not None and origin.lower() != f"{scheme}://{host}".lower():
        raise ForbiddenError(f"Origin is {origin!r}; pages of other sites may not use this interface")
    if site is not None and site.lower() not in _SITES and not (is_page and _is_link(headers)):
        raise ForbiddenError(f"Sec-Fetch-Site is {site!r}; pages of other sites may not use this interface")


def check_content(headers: Headers) -> None:
    """
    Refuse a body that is not said to be JSON, as it is, by a browser, or is said to be something else by whomever.

    Raises:
        MediaTypeError: it says what has to be said.
    """
    content = _first(headers, "Content-Type")
    is_unsaid = content is None or content.lower() == _UNASKED
    if not (is_unsaid or _JSON.fullmatch(content or "")) or (is_unsaid and any(name in headers for name in _BROWSERS)):
        raise MediaTypeError(f"Content-Type is {content!r}; a request here is application/json")
    encoding = _first(headers, "Content-Encoding")
    if encoding is not None and encoding.lower() != "identity":
        raise MediaTypeError(f"Content-Encoding is {encoding!r}; a request here is not compressed")


def is_loopback(host: str) -> bool:
    """Whether a host, without its port, is this machine whoever asks."""
    return bool(host) and ListenAddress(host, 0).is_loopback


def _is_link(headers: Headers) -> bool:
    """Whether a person follows a link into a window of its own: no script of the page that has it sees the answer."""
    return all((_first(headers, name) or "").lower() == value for name, value in _LINK.items())


def _first(headers: Headers, name: str) -> str | None:
    return next(iter(headers.getall(name, ())), None)


def host_name(host: str | None) -> str:
    """The host of a `Host` field, without port and brackets; empty when there is none."""
    if host is None or any(mark in host for mark in "/@?#\\"):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


# --- tell ---
# Part of `broker.admin.app`.


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


# --- sec ---
# Part of `broker.admin.server`.


_CSP = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


_SECURE = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def secure(headers: MutableMapping[str, str]) -> None:
    """Add the header fields of every answer: no cache, no page; an answer that has its own policy keeps it."""
    for name, value in _SECURE.items():
        headers.setdefault(name, value)
    headers.setdefault("Content-Security-Policy", _CSP)
    headers["Server"] = "broker"
