"""
One application of the admin side on one listening socket, which another one may follow on the same address.

Who follows has a copy of the socket and accepts from the same queue, so nobody who connects meanwhile is refused. Who
is followed accepts nobody any more, and goes when its requests have had their time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass

from aiohttp import web

from broker.admin.accepting import Acceptor
from broker.admin.connection import Connections
from broker.control.listen import ListenAddress

SHUTDOWN_SECONDS = 0.5  # for answers under way when the instance stops; aiohttp waits for them twice as long
RETIRE_SECONDS = 12.0  # for those of a listener that another one has followed; a SELECT takes ten at most


@dataclass(frozen=True, slots=True)
class Served:
    """An application that is served. Shape: `sock` the socket, of which its server has a copy."""

    sock: socket.socket
    runner: web.AppRunner
    acceptor: Acceptor

    @property
    def address(self) -> ListenAddress:
        """Where a TCP socket is bound."""
        host, port = self.sock.getsockname()[:2]
        return ListenAddress(host, port)

    async def close(self) -> None:
        """Accept nobody any more, and end what is under way."""
        self.sock.close()
        await self.acceptor.finish()
        await self.runner.cleanup()

    async def retire(self) -> None:
        """Accept nobody any more, and end what is under way when it has had its time."""
        self.acceptor.close()
        self.sock.close()
        try:
            await asyncio.sleep(RETIRE_SECONDS)
        finally:
            await self.acceptor.finish()
            await self.runner.cleanup()


async def serve(app: web.Application, sock: socket.socket, *, tls: ssl.SSLContext | None = None) -> Served:
    """
    Serve an application; the socket, which listens, belongs to what is returned, and on failure to nobody.

    Raises:
        OSError: there is no descriptor for a copy of the socket.
    """
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    async with contextlib.AsyncExitStack() as undo:
        undo.callback(sock.close)
        copy = sock.dup()
        undo.callback(copy.close)
        await runner.setup()
        undo.push_async_callback(runner.cleanup)
        assert runner.server is not None, "it is set up"
        acceptor = Acceptor(copy, Connections(runner.server), tls=tls)
        undo.pop_all()
    return Served(sock, runner, acceptor)
