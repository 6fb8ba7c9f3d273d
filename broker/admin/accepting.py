"""
Accepting those who connect to a listener, one in a turn of the loop, each on a place that it has from the beginning.

The place counts before TLS does, and the handshake has its time: who connects and says nothing takes no more than a
place. Who finds none is told so, in plain text only: a handshake for a refusal would cost more than it tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from functools import partial

import structlog

from broker.admin.connection import FULL, Connection, Connections
from broker.admin.peer import peer_of
from broker.admin.room import source_of

HANDSHAKE_SECONDS = 10.0
SHORTAGE_SECONDS = 0.1  # without accepting when descriptors or memory ran out
_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger(__name__)


class Acceptor:
    """
    Accepts on one listening socket, which belongs to it. Loop-only.

    Args:
        sock: Listens, and does not block.
        connections: Serve those who are accepted.
        tls: With which they come about; None for plain text.
    """

    def __init__(self, sock: socket.socket, connections: Connections, *, tls: ssl.SSLContext | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._connections = connections
        self._tls = tls
        self._beginning: dict[asyncio.Task[None], socket.socket | None] = {}  # the socket until its task has begun
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._take)

    def close(self) -> None:
        """Accept nobody any more."""
        if self._pause is not None:
            self._pause.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()

    async def finish(self) -> None:
        """Accept nobody any more, and end those that have not come about."""
        self.close()
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _take(self) -> None:
        try:
            sock, where = self._sock.accept()
        except OSError as error:
            # Anything else concerns the one connection only, which has gone again.
            if error.errno in _SHORTAGE:
                self._rest(error.strerror or str(error))
            return
        sock.setblocking(False)
        try:
            source = source_of(where[0]) if where else f"user {peer_of(sock.fileno()).uid}"
        except OSError:  # gone again, or no descriptor to look
            sock.close()
            return
        connection = self._connections.take(source)
        if connection is None:
            self._refuse(sock)
            return
        task = self._loop.create_task(self._begin(sock, connection), name="admin connection")
        self._beginning[task] = sock
        connection.beginning = task
        task.add_done_callback(partial(self._begun, connection))

    async def _begin(self, sock: socket.socket, connection: Connection) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._beginning[task] = None  # it is closed by the loop's transport from now on
        seconds = None if self._tls is None else HANDSHAKE_SECONDS
        with contextlib.suppress(OSError):  # no TLS, not in time, or gone again
            await self._loop.connect_accepted_socket(
                lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=seconds
            )

    def _begun(self, connection: Connection, task: asyncio.Task[None]) -> None:
        """It has come about or not; one that had to give way, or the end, may have come before anything was done."""
        sock = self._beginning.pop(task)
        if sock is not None:
            sock.close()
        connection.beginning = None
        connection.has_come_about()

    def _refuse(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is None:
                sock.send(FULL)
                sock.shutdown(socket.SHUT_WR)
        sock.close()

    def _rest(self, reason: str) -> None:
        """Accept nobody for a moment."""
        log.warning("admin accepting paused", reason=reason)
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(SHORTAGE_SECONDS, self._loop.add_reader, self._sock, self._take)
