"""
One connection of an HTTP client: what is no HTTP is answered in the form of all refusals, and there are not too many.

A client has so long for the head of its next request and is cut off then, so that those who say nothing, or one letter
now and then, keep their places for a while only. Each listener counts its own connections: a storm on the TCP port
leaves the Unix socket as it is.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from broker.admin.problem import refused_unread

if TYPE_CHECKING:
    import asyncio

CONNECTIONS_MAX = 128  # of one listener
HEAD_SECONDS = 20.0  # for the head of the next request
LINGER_SECONDS = 2.0  # for what still comes of a request that was refused: a client reads the answer behind it
LINE_MAX_BYTES = 8190  # a request line, or one header field
FIELDS_MAX = 64
_CSP = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_SECURE = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
)
_FULL_BODY = b'{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"too many connections"}'
_OPTIONS = {
    "access_log": None,
    "keepalive_timeout": HEAD_SECONDS,
    "lingering_time": LINGER_SECONDS,
    "max_line_size": LINE_MAX_BYTES,
    "max_field_size": LINE_MAX_BYTES,
    "max_headers": FIELDS_MAX,
    "auto_decompress": False,
}

log = structlog.get_logger(__name__)


def secure(headers: MutableMapping[str, str]) -> None:
    """Say in an answer that it is for nobody but who asked, and no page; an answer that has its own policy keeps it."""
    for name, value in _SECURE.items():
        headers.setdefault(name, value)
    headers.setdefault("Content-Security-Policy", _CSP)
    headers["Server"] = "broker"


class Connections:
    """Makes the connections of one listener; what `asyncio` calls for each of them. Shape: `count` those open now."""

    def __init__(self, server: web.Server, *, most: int = CONNECTIONS_MAX) -> None:
        self.server = server
        self.most = most
        self.count = 0

    def __call__(self) -> web.RequestHandler:
        """The protocol of one more."""
        return _Connection(self)


class _Connection(web.RequestHandler):
    __slots__ = ("_all", "_is_counted")

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections.server, loop=connections.server._loop, **_OPTIONS)  # type: ignore[arg-type]  # noqa: SLF001 - as `web.Server` makes them
        self._all = connections
        self._is_counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve it, or tell that there are too many."""
        if self._all.count >= self._all.most:
            transport.write(_FULL % (len(_FULL_BODY), _FULL_BODY))  # type: ignore[attr-defined]
            transport.close()
            return
        self._all.count += 1
        self._is_counted = True
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give its place to another."""
        if self._is_counted:
            self._all.count -= 1
            self._is_counted = False
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Nothing is read where there was no place."""
        if self._is_counted:
            super().data_received(data)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what could not be read; nothing of it is repeated."""
        del message
        if request.writer.output_size > 0:
            raise ConnectionError("part of an answer is sent already")
        if status == HTTPStatus.BAD_REQUEST:
            response = _unread(exc)
        else:
            log.error("request failed", exc_info=exc)
            response = refused_unread(HTTPStatus(status), "see the log of the instance")
        secure(response.headers)
        response.force_close()
        return response


def _unread(error: BaseException | None) -> web.Response:
    if isinstance(error, LineTooLong):
        detail = f"a request line or a header has at most {LINE_MAX_BYTES} bytes, and a request {FIELDS_MAX} headers"
        return refused_unread(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
    return refused_unread(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request, or one that could be read in two ways")
