"""
The listeners of admin and observation: a Unix socket, a TCP port on loopback when asked for, and the port of metrics.

Started when the instance serves and stopped before it lets go of what they show. They share nothing with traffic but
the loop: what blocks has threads here, and a client that is slow keeps only itself waiting.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from broker.admin.api import Api
from broker.admin.app import Parts, admin_app
from broker.admin.audit import Audit
from broker.admin.audit_file import AuditFile
from broker.admin.body import Bodies
from broker.admin.connection import Connections
from broker.admin.door import Door
from broker.admin.guard import is_loopback
from broker.admin.health import observe_app
from broker.admin.socket_file import BACKLOG, SocketFile
from broker.admin.subject import Subject
from broker.control.administration import Holders, admin_security_of, check_ways_in, holders_of, socket_group_of
from broker.control.config import Settings
from broker.control.listen import ListenAddress
from broker.net.listener import bind
from broker.net.tls import Security

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
            SettingError: a certificate, a user, a group or the file of tokens is not as `[admin]` says.
        """
        subject, settings = self._subject, self._subject.settings
        admin_threads = _threads(THREADS, "admin", stack)
        # One thread: what a metric remembers from scrape to scrape is touched by it alone.
        observe_threads = _threads(1, "observe", stack)
        subject.lag.start(stack)
        ways = await asyncio.get_running_loop().run_in_executor(admin_threads, _ways_in, settings)
        audit = Audit(
            AuditFile(settings.admin.audit, settings.admin.audit_size, settings.admin.audit_keep), admin_threads
        )
        api = Api(subject, admin_threads, audit)
        door = Door(settings.admin, ways.holders, admin_threads)
        parts = Parts(api, door, audit, Bodies(), admin_threads, subject.software)
        file = SocketFile(settings.admin.socket, group=ways.socket_group)
        stack.callback(file.close)
        await _serve(admin_app(parts, answers_to=None), file.sock, stack)
        if settings.admin.listen is not None:
            app = admin_app(parts, answers_to=partial(_answers_to, ways.security))
            self.admin_address = await _serve_tcp(app, settings.admin.listen, stack, tls=ways.tls)
        if settings.observe.listen is not None:
            app = observe_app(subject, observe_threads)
            self.observe_address = await _serve_tcp(app, settings.observe.listen, stack)


@dataclass(frozen=True, slots=True)
class _Ways:
    """What the settings of the admin API come to on this machine."""

    holders: Holders
    socket_group: int | None
    security: Security | None

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For the port; None when it speaks plain text. A client may leave its certificate away and show a token."""
        if self.security is None or self.security.server is None:
            return None
        context = self.security.server
        context.set_alpn_protocols(["http/1.1"])
        if context.verify_mode is ssl.CERT_REQUIRED:
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def _ways_in(settings: Settings) -> _Ways:
    """Blocking; raises SettingError."""
    check_ways_in(settings)
    return _Ways(holders_of(settings), socket_group_of(settings), admin_security_of(settings))


def _answers_to(security: Security | None, host: str) -> bool:
    """Whether a host is this server: loopback, or what its certificate covers."""
    own = None if security is None else security.own
    return is_loopback(host) or (own is not None and own.covers(host))


def _threads(count: int, name: str, stack: AsyncExitStack) -> ThreadPoolExecutor:
    executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def shut_down() -> None:
        # Not in the loop's own thread: work under way may still ask the loop something.
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)

    stack.push_async_callback(shut_down)
    return executor


async def _serve_tcp(
    app: web.Application, address: ListenAddress, stack: AsyncExitStack, *, tls: ssl.SSLContext | None = None
) -> ListenAddress:
    sock = bind(address.host, address.port)
    host, port = sock.getsockname()[:2]
    await _serve(app, sock, stack, tls=tls)
    return ListenAddress(host, port)


async def _serve(
    app: web.Application, sock: socket.socket, stack: AsyncExitStack, *, tls: ssl.SSLContext | None = None
) -> None:
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None, "it is set up"
    connections = Connections(runner.server)
    loop = asyncio.get_running_loop()
    if sock.family == socket.AF_UNIX:
        listener = await loop.create_unix_server(connections, sock=sock)
    else:
        listener = await loop.create_server(connections, sock=sock, ssl=tls, backlog=BACKLOG)
    stack.callback(listener.close)
