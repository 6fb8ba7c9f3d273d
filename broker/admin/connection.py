"""
One connection of an HTTP client: what is no HTTP is answered in the form of all refusals, and there are not too many.

A client has so long for the head of its next request and is cut off then, so that those who say nothing, or one letter
now and then, keep their places for a while only; and so is one who does not take what it is answered, or next to
nothing of it. Each listener counts its own connections: a storm on the TCP port leaves the Unix socket as it is; and
when all places are taken, those who are waited for give way (`broker.admin.room`).
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from broker.admin.problem import refused_unread
from broker.admin.room import gives_way, has_share

CONNECTIONS_MAX = 128  # of one listener
HEAD_SECONDS = 20.0  # for the head of the next request
STUCK_SECONDS = 20.0  # in which a client takes some of its answer
TAKEN_BYTES = 64 * 1024  # that is some of it: three KiB a second, slower than any modem
LOOK_SECONDS = 1.0  # between two looks at what clients take
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
_FULL_BODY = b'{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"too many connections"}'
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
) % (len(_FULL_BODY), _FULL_BODY)
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
    """
    Those of one listener. Loop-only.

    Args:
        server: What answers them.
        most: How many there are at one time.
    """

    def __init__(self, server: web.Server, *, most: int = CONNECTIONS_MAX) -> None:
        self.server = server
        self.most = most
        self._loop = asyncio.get_running_loop()
        self._taken: set[Connection] = set()
        self._look: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """How many places are taken now."""
        return len(self._taken)

    def take(self, source: str) -> Connection | None:
        """A place for somebody who has just connected; None when there is none."""
        if has_share(self._taken, source, most=self.most):
            return None
        if len(self._taken) >= self.most:
            other = gives_way(self._taken, source, now=self._loop.time())
            if other is None:
                return None
            other.give_way()
        connection = Connection(self, source)
        self._taken.add(connection)
        if self._look is None:
            self._look = self._loop.call_later(LOOK_SECONDS, self._look_at_all)
        return connection

    def leave(self, connection: Connection) -> None:
        """Its place is another's from now on."""
        self._taken.discard(connection)

    def _look_at_all(self) -> None:
        now = self._loop.time()
        for connection in self._taken.copy():
            connection.look(now)
        self._look = self._loop.call_later(LOOK_SECONDS, self._look_at_all) if self._taken else None


class Connection(web.RequestHandler):
    """
    One client.

    Shape: `source` whom it is counted by; `beginning` its handshake while that lasts.
    """

    __slots__ = ("_all", "_moved_at", "_rested_at", "_unsent", "_wire", "beginning", "source")

    def __init__(self, connections: Connections, source: str) -> None:
        super().__init__(connections.server, loop=connections._loop, **_OPTIONS)  # type: ignore[arg-type]  # noqa: SLF001 - as `web.Server` makes them
        self._all = connections
        self.source = source
        self.beginning: asyncio.Task[None] | None = None
        self._wire: asyncio.Transport | None = None
        self._rested_at = self._moved_at = self._loop.time()
        self._unsent = 0

    @property
    def idle_since(self) -> float | None:
        """Since when it is waited for: it says nothing, or takes nothing; None while it is served."""
        if self._unsent:
            return self._moved_at
        is_served = self._wire is not None and (self._waiter is None or self._waiter.done())
        return None if is_served else max(self._rested_at, self._next_keepalive_close_time - self._keepalive_timeout)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve it."""
        self._wire = cast("asyncio.Transport", transport)
        super().connection_made(transport)

    def has_come_about(self) -> None:
        """It has, or will not: then its place is given back."""
        if self._wire is None:
            self._all.leave(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give its place to another."""
        self._all.leave(self)
        super().connection_lost(exc)

    def give_way(self) -> None:
        """End at once: its place is another's."""
        self._all.leave(self)
        if self._wire is not None:
            self._wire.abort()
        elif self.beginning is not None:
            self.beginning.cancel()

    def resume_writing(self) -> None:
        """It has taken most of what was for it."""
        self._moved_at = self._loop.time()
        super().resume_writing()

    def look(self, now: float) -> None:
        """Cut it off when it takes nothing; also one that was closed, and waits for that to end what it was sent."""
        unsent = 0 if self._wire is None else self._wire.get_write_buffer_size()
        if not unsent or not self._unsent or unsent <= self._unsent - TAKEN_BYTES:
            self._unsent, self._moved_at = unsent, now
        elif now - self._moved_at >= STUCK_SECONDS:
            log.info("connection cut off", source=self.source, reason="its client does not read the answer")
            self.give_way()
        else:
            self._unsent = max(self._unsent, unsent)

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
