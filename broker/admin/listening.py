"""
One application of the admin side on one listening socket, which another one may follow on the same address.

The next one has a copy of the socket and accepts from the same queue, so no client that connects meanwhile is refused.
The one before accepts no more, and ends when its requests have had their time.

Each listener has its own bound on connections, so a crowd on a TCP port leaves the Unix socket as it is. A connection
counts from the moment it is accepted. A TLS handshake, the head of a request and a client that acknowledges nothing of
its answer have a time limit; a client that is slow within these keeps its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, MutableMapping
from functools import partial
from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from broker.admin.problem import refused_unread
from broker.control.listen import ListenAddress

CONNECTIONS_MAX = 128  # of one listener
HANDSHAKE_SECONDS = 10.0  # for TLS
HEAD_SECONDS = 20.0  # for the head of the next request
UNREAD_MS = 20_000  # for which a client on TCP may acknowledge nothing of what it is sent
LINGER_SECONDS = 2.0  # for what still arrives of a request that was refused: a client reads the answer after it
LINE_MAX_BYTES = 8190  # a request line, or one header field
FIELDS_MAX = 64
_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
SHORTAGE_SECONDS = 0.1  # without accepting when descriptors or memory ran out
SHUTDOWN_SECONDS = 0.5  # for answers under way when the instance stops; aiohttp waits for them twice as long
RETIRE_SECONDS = 12.0  # for those of a listener that another one has followed; a SELECT takes ten at most
_CSP = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_SECURE = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_FULL_BODY = b'{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"too many connections"}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
) % (len(_FULL_BODY), _FULL_BODY)

log = structlog.get_logger(__name__)


def secure(headers: MutableMapping[str, str]) -> None:
    """Add the header fields of every answer: no cache, no page; an answer that has its own policy keeps it."""
    for name, value in _SECURE.items():
        headers.setdefault(name, value)
    headers.setdefault("Content-Security-Policy", _CSP)
    headers["Server"] = "broker"


class Connection(web.RequestHandler):
    """One client; `on_made` is called when it is up. What is not HTTP is answered in the form of all refusals."""

    def __init__(self, server: web.Server, on_made: Callable[[], object]) -> None:
        self._on_made = on_made
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=HEAD_SECONDS,
            lingering_time=LINGER_SECONDS,
            max_line_size=LINE_MAX_BYTES,
            max_field_size=LINE_MAX_BYTES,
            max_headers=FIELDS_MAX,
            auto_decompress=False,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """From now on it counts as a connection of the server."""
        self._on_made()
        super().connection_made(transport)

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


class ListeningApp:
    """
    An application that is served. Loop-only. Made by `serve`.

    Args:
        runner: Of the application, set up.
        sock: Listens, and belongs to this.
        tls: For the connections; None for plain text.
    """

    def __init__(self, runner: web.AppRunner, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        assert runner.server is not None, "it is set up"
        self.sock = sock
        sock.setblocking(False)
        self._runner = runner
        self._server = runner.server
        self._tls = tls
        self._beginning: set[asyncio.Task[None]] = set()  # accepted, and not yet connections of the server
        self._pause: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._accept)

    @property
    def address(self) -> ListenAddress:
        """Where a TCP socket is bound."""
        host, port = self.sock.getsockname()[:2]
        return ListenAddress(host, port)

    async def close(self) -> None:
        """Accept no more, and end what is under way."""
        self._stop_accepting()
        await self._end()

    async def retire(self) -> None:
        """Accept no more, and end what is under way when it has had its time."""
        self._stop_accepting()
        try:
            await asyncio.sleep(RETIRE_SECONDS)
        finally:
            await self._end()

    def _stop_accepting(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self.sock.fileno() >= 0:
            self._loop.remove_reader(self.sock)
            self.sock.close()

    async def _end(self) -> None:
        await asyncio.sleep(0)  # each task has begun then, and its socket is closed with it
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)
        await self._runner.cleanup()

    def _accept(self) -> None:
        """Accept one client: a crowd that connects does not hold up the loop."""
        try:
            sock, _ = self.sock.accept()
        except OSError as error:
            if error.errno in _SHORTAGE:  # any other is about this client, which is gone again
                log.warning("admin accepting paused", reason=error.strerror or str(error))
                self._loop.remove_reader(self.sock)
                self._pause = self._loop.call_later(SHORTAGE_SECONDS, self._loop.add_reader, self.sock, self._accept)
            return
        sock.setblocking(False)
        if len(self._beginning) + len(self._server.connections) >= CONNECTIONS_MAX:
            self._refuse(sock)
            return
        self._beginning.add(self._loop.create_task(self._begin(sock), name="admin connection"))

    async def _begin(self, sock: socket.socket) -> None:
        has_begun = partial(self._beginning.discard, asyncio.current_task())
        seconds = None if self._tls is None else HANDSHAKE_SECONDS
        try:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
            make = partial(Connection, self._server, has_begun)
            await self._loop.connect_accepted_socket(make, sock, ssl=self._tls, ssl_handshake_timeout=seconds)
        except OSError:
            pass  # no TLS, not in time, or gone again
        finally:
            has_begun()

    def _refuse(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            if self._tls is None:  # a handshake for a refusal would cost more than it says
                sock.send(_FULL)
                sock.shutdown(socket.SHUT_WR)


async def serve(app: web.Application, sock: socket.socket, *, tls: ssl.SSLContext | None = None) -> ListeningApp:
    """Serve an application; the socket, which listens, belongs to what is returned, and on failure to nobody."""
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    try:
        await runner.setup()
    except BaseException:
        sock.close()
        raise
    return ListeningApp(runner, sock, tls)
