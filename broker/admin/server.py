"""
The listeners of admin and observation: a Unix socket, a TCP port on loopback when asked for, and the port of metrics.

Started when the instance serves and stopped before it lets go of what they show. They share nothing with traffic but
the loop: what blocks has threads here, and a client that is slow keeps only itself waiting.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from aiohttp import web

from broker.admin.api import Api
from broker.admin.app import admin_app
from broker.admin.health import observe_app
from broker.admin.socket_file import SocketFile
from broker.admin.subject import Subject
from broker.control.listen import ListenAddress
from broker.net.listener import bind

THREADS = 4  # questions at once; a SELECT takes ten seconds at most
SHUTDOWN_SECONDS = 1.0  # for answers under way when the instance stops


class AdminServer:
    """
    The HTTP side of one instance.

    Shape: `admin_address`, `observe_address` as bound, None where the configuration turns them off.
    """

    def __init__(self, subject: Subject) -> None:
        self.admin_address: ListenAddress | None = None
        self.observe_address: ListenAddress | None = None
        self._subject = subject

    async def start(self, stack: AsyncExitStack) -> None:
        """
        Listen and answer; `stack` ends it.

        Raises:
            ListenFailedError: a port or the socket file is taken, or cannot be made.
        """
        subject, settings = self._subject, self._subject.settings
        admin_threads = _threads(THREADS, "admin", stack)
        # One thread: what a metric remembers from scrape to scrape is touched by it alone.
        observe_threads = _threads(1, "observe", stack)
        subject.lag.start(stack)
        api = Api(subject, admin_threads)
        file = SocketFile(settings.admin.socket)
        stack.callback(file.close)
        app = admin_app(api, admin_threads, version=subject.software, is_guarded=False)
        await _serve(app, file.sock, stack)
        if settings.admin.listen is not None:
            app = admin_app(api, admin_threads, version=subject.software, is_guarded=True)
            self.admin_address = await _serve_tcp(app, settings.admin.listen, stack)
        if settings.observe.listen is not None:
            app = observe_app(subject, observe_threads)
            self.observe_address = await _serve_tcp(app, settings.observe.listen, stack)


def _threads(count: int, name: str, stack: AsyncExitStack) -> ThreadPoolExecutor:
    executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def shut_down() -> None:
        # Not in the loop's own thread: work under way may still ask the loop something.
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)

    stack.push_async_callback(shut_down)
    return executor


async def _serve_tcp(app: web.Application, address: ListenAddress, stack: AsyncExitStack) -> ListenAddress:
    sock = bind(address.host, address.port)
    host, port = sock.getsockname()[:2]
    await _serve(app, sock, stack)
    return ListenAddress(host, port)


async def _serve(app: web.Application, sock: socket.socket, stack: AsyncExitStack) -> None:
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.SockSite(runner, sock).start()
