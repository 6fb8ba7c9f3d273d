"""
The listeners of admin and observation: a Unix socket, a TCP port on loopback when asked for, and the port of metrics.

Started when the instance serves, and stopped before it lets go of what they show. They share nothing with traffic but
the loop: what blocks has threads here, and a client that is slow keeps only itself waiting.

Each listener has its own bound on connections, so many clients on a TCP port do not block the Unix socket. A connection
counts from the moment it is accepted: aiohttp's own sites count none, and accept before a TLS handshake has ended. A
handshake, the head of a request and a client that acknowledges nothing of its answer have a time limit; a client that
is slow within these keeps its connection.

After a reload another listener may follow on the same address. It has a copy of the socket and accepts from the same
queue, so no client is refused between the two; the old one ends when its requests have had their time.

A user that may open the socket file may steer the instance, so its mode is set before a client could connect. A file
that a killed process has left is replaced; one on which a process answers is never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from broker.admin.api import SIGNAL, Api, Nothing, QuestionThreads, ReloadAudit
from broker.admin.app import Parts, admin_app
from broker.admin.audit import Audit
from broker.admin.auth import Authenticator
from broker.admin.events import Events
from broker.admin.guard import is_loopback
from broker.admin.health import observe_app
from broker.admin.problems import refused_unread, secure
from broker.catalog.check import check_ways_in
from broker.config.admin_access import Holders, holders_of, socket_group_of
from broker.config.settings import Settings
from broker.config.values import ListenAddress
from broker.errors import ListenFailedError
from broker.files import socket_problem
from broker.net.certificates import FileMarks, admin_security_of, marks_of
from broker.net.listener import bind
from broker.net.tls import Security
from broker.observe.instance import Running
from broker.observe.logs import tell_summaries
from broker.supervision import TaskGroup, Timer

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
_FULL_BODY = b'{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"too many connections"}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
) % (len(_FULL_BODY), _FULL_BODY)
MODE = 0o600
GROUP_MODE = 0o660
BACKLOG = 128
THREADS = 5  # questions at once; a SELECT takes ten seconds at most
EVENT_THREADS = 2  # what the status page and other streams of events read
END_SECONDS = 1.0  # that questions have when the instance stops
STEERING_THREADS = 2  # for what takes no time and waits for no question: tokens, the audit, answers as JSON
_left_running: list[Thread] = []  # alive as long as threads that had their time are at work
_SOCKET, _ADMIN, _OBSERVE = "socket", "admin", "observe"

log = structlog.get_logger(__name__)


class AdminServer:
    """The HTTP side of one instance."""

    def __init__(self, instance: Running) -> None:
        self._instance = instance
        self._retired = TaskGroup()
        self._in_use: AdminListeners
        self._parts: Parts
        self.events: Events
        self._observe_threads: ThreadPoolExecutor

    async def start(self, stack: AsyncExitStack) -> None:
        """
        Listen and answer; `stack` ends it.

        Raises:
            ListenFailedError: a port or the socket file is taken, or cannot be made.
            SettingError: a certificate, a user, a group or the file of tokens is not as `[admin]` says.
        """
        instance, settings = self._instance, self._instance.settings
        questions = _threads(THREADS, "question", stack)
        # What is to be written down is, also when the instance stops at once.
        admin_threads = _threads(STEERING_THREADS, "admin", stack, finishes=True)
        # One thread: what a metric remembers from scrape to scrape is touched by it alone.
        self._observe_threads = _threads(1, "observe", stack)
        instance.supervision.keep_within(stack, "loop lag", instance.lag.run)
        instance.supervision.keep_within(stack, "log summary", tell_summaries)
        stack.push_async_callback(self._retired.cancel)
        ways = await asyncio.get_running_loop().run_in_executor(admin_threads, _ways_in, settings)
        audit = Audit(settings.admin.audit, admin_threads)
        api = Api(instance, QuestionThreads(questions, THREADS), admin_threads, audit)
        door = Authenticator(settings.admin, ways.holders, admin_threads, ways.security)
        self.events = Events(instance, _threads(EVENT_THREADS, "events", stack), audit)
        self.events.start(stack)
        self._parts = Parts(api, door, audit, admin_threads, instance.software, self.events)
        self._in_use = AdminListeners(settings, ways, SocketFile(settings.admin.socket, group=ways.socket_group))
        stack.callback(lambda: self._in_use.file.close())  # noqa: PLW0108 - the one that is in use then
        for name in (_SOCKET, _ADMIN, _OBSERVE):
            stack.push_async_callback(self._end, name)
            stack.callback(self.events.close)  # before the listener waits for those who listen
            self._in_use.served[name] = await self._serve(name, self._in_use)

    async def prepare(self, settings: Settings, undo: AsyncExitStack) -> AdminListeners:
        """
        Make the listeners of these settings next to those in use; `carry_out` puts them in use.

        Args:
            settings: Those that shall hold.
            undo: Undoes the preparation, unless its owner lets go of it to carry the change out.

        Raises:
            ListenFailedError, SettingError: as `start`; what was there is as it was.
        """
        used, threads = self._in_use, self._parts.executor
        before = used.settings
        ways = await asyncio.get_running_loop().run_in_executor(threads, _ways_in, settings)
        change = AdminListeners(settings, ways, used.file, dict(used.served))
        if settings.admin.socket != before.admin.socket:
            change.file = SocketFile(settings.admin.socket, group=ways.socket_group)
            undo.callback(change.file.close)
            await self._follow(change, _SOCKET, undo)
        elif ways.socket_group != used.ways.socket_group:
            undo.callback(used.file.regroup, used.ways.socket_group)
            used.file.regroup(ways.socket_group)
        if settings.admin.listen != before.admin.listen or ways.marks != used.ways.marks:
            await self._follow(change, _ADMIN, undo)
        if settings.observe.listen != before.observe.listen:
            await self._follow(change, _OBSERVE, undo)
        return change

    def carry_out(self, change: AdminListeners) -> None:
        """Put prepared listeners in use; replaced ones end when their requests have had their time."""
        before, self._in_use = self._in_use, change
        self._parts.door.use(change.settings.admin, change.ways.holders, change.ways.security)
        self._parts.audit.path = change.settings.admin.audit
        for name, old in before.served.items():
            if old is not None and old is not change.served.get(name):
                self._retired.spawn(old.retire(), f"listener of {name}")
        if change.file is not before.file:
            before.file.close()

    async def state(self) -> dict[str, Any]:
        """What `GET /v1/status` answers."""
        state: dict[str, Any] = msgspec.to_builtins(await self._parts.api.status(Nothing(), SIGNAL))
        return state

    def signalled(self) -> ReloadAudit:
        """A reload that a signal has asked for, to be written down."""
        return ReloadAudit(self._parts.audit, SIGNAL, "SIGHUP")

    def _address(self, name: str) -> ListenAddress | None:
        served = self._in_use.served.get(name)
        return None if served is None else served.address

    @property
    def admin_address(self) -> ListenAddress | None:
        """Where the admin API listens, as bound; None where the configuration turns that off."""
        return self._address(_ADMIN)

    @property
    def observe_address(self) -> ListenAddress | None:
        """Where metrics are, as bound; None where the configuration turns them off."""
        return self._address(_OBSERVE)

    async def _follow(self, change: AdminListeners, name: str, undo: AsyncExitStack) -> None:
        """Begin what shall follow; on the same address with a copy of its socket."""
        old = self._in_use.served.get(name)
        is_same = name == _ADMIN and change.settings.admin.listen == self._in_use.settings.admin.listen
        served = await self._serve(name, change, old.sock.dup() if old is not None and is_same else None)
        change.served[name] = served
        if served is not None:
            undo.push_async_callback(served.close)

    async def _serve(self, name: str, chosen: AdminListeners, sock: socket.socket | None = None) -> ListeningApp | None:
        """An application; None where the settings turn it off."""
        settings, ways = chosen.settings, chosen.ways
        if name == _SOCKET:
            return await serve(admin_app(self._parts, answers_to=None), chosen.file.sock.dup())
        address = settings.admin.listen if name == _ADMIN else settings.observe.listen
        if address is None:
            return None
        sock = bind(address.host, address.port) if sock is None else sock
        if name == _OBSERVE:
            return await serve(observe_app(self._instance, self._observe_threads), sock)
        return await serve(admin_app(self._parts, answers_to=partial(_answers_to, ways.security)), sock, tls=ways.tls)

    async def _end(self, name: str) -> None:
        served = self._in_use.served.pop(name, None)
        if served is not None:
            await served.close()


@dataclass(frozen=True, slots=True)
class _Ways:
    """The access that `[admin]` gives on this machine; `marks` are of the files that TLS needs."""

    holders: Holders
    socket_group: int | None
    security: Security | None
    marks: FileMarks

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
    admin = settings.admin
    marks = marks_of((admin.certificate, admin.private_key), (*admin.trust, *admin.peers))
    return _Ways(holders_of(settings), socket_group_of(settings), admin_security_of(settings), marks)


@dataclass(slots=True)
class AdminListeners:
    """The listeners of some settings: the socket's file, and those by name, None where one is turned off."""

    settings: Settings
    ways: _Ways
    file: SocketFile
    served: dict[str, ListeningApp | None] = field(default_factory=dict)


def _answers_to(security: Security | None, host: str) -> bool:
    """Whether a host is this server: loopback, or what its certificate covers."""
    own = None if security is None else security.own
    return is_loopback(host) or (own is not None and own.covers(host))


def leave(code: int) -> None:
    """
    End the process at once if a query is still under way; do nothing otherwise.

    The interpreter waits for every thread before it ends.
    """
    if any(ending.is_alive() for ending in _left_running):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _threads(count: int, name: str, stack: AsyncExitStack, *, finishes: bool = False) -> ThreadPoolExecutor:
    """
    Threads until `stack` ends.

    Args:
        count: How many.
        name: Their name.
        stack: Ends them.
        finishes: Whether queued work is done first, however long it takes. Otherwise it is dropped, and work under way
            has `END_SECONDS`; a thread that takes longer is left running (`leave`).
    """
    executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def end() -> None:
        ending = Thread(
            target=partial(executor.shutdown, cancel_futures=not finishes), name=f"end of {name}", daemon=True
        )
        ending.start()
        # Not in the loop's own thread: work under way may still ask the loop something.
        await asyncio.to_thread(ending.join, None if finishes else END_SECONDS)
        if ending.is_alive():
            _left_running.append(ending)
            log.warning("questions left running", threads=name, problem="they end with the process")

    stack.push_async_callback(end)
    return executor


# --- one listener ---


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
    return refused_unread(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP/1.1, or could be read in two ways")


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
        self._pause = Timer()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._accept)

    @property
    def address(self) -> ListenAddress:
        """Where a TCP socket is bound."""
        host, port = self.sock.getsockname()[:2]
        return ListenAddress(host, port)

    async def close(self) -> None:
        """Stop accepting, and end requests under way."""
        self._stop_accepting()
        await self._end()

    async def retire(self) -> None:
        """Stop accepting, and end requests under way when they have had their time."""
        self._stop_accepting()
        try:
            await asyncio.sleep(RETIRE_SECONDS)
        finally:
            await self._end()

    def _stop_accepting(self) -> None:
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
        """Accept one client, so that many that connect do not hold up the loop."""
        try:
            sock, _ = self.sock.accept()
        except OSError as error:
            if error.errno in _SHORTAGE:  # any other is about this client, which is gone again
                log.warning("admin accepting paused", reason=error.strerror or str(error))
                self._loop.remove_reader(self.sock)
                self._pause.after(SHORTAGE_SECONDS, self._loop.add_reader, self.sock, self._accept)
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
    """Serve an application; the socket, which listens, belongs to what is returned, and is closed on failure."""
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    try:
        await runner.setup()
    except BaseException:
        sock.close()
        raise
    return ListeningApp(runner, sock, tls)


# --- the socket file ---


class SocketFile:
    """
    A listening Unix socket, `sock`, and its file.

    Args:
        path: The file.
        group: Number of the group that may open it as well; None for none.

    Raises:
        ListenFailedError: a process answers there, it is something else than a socket, or it cannot be made.
    """

    def __init__(self, path: Path, *, group: int | None = None) -> None:
        self._path = path
        try:
            problem = socket_problem(path)
            if problem is not None:
                raise ListenFailedError(str(path), problem)
            with ExitStack() as failed:
                self.sock = failed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                path.unlink(missing_ok=True)  # of a process that has ended
                os.fchmod(self.sock.fileno(), MODE)  # Linux makes the file with this mode: it is never open to others
                self.sock.bind(str(path))
                if group is not None:
                    _permit(path, group)
                self.sock.setblocking(False)
                self.sock.listen(BACKLOG)
                self._status = path.lstat()
                failed.pop_all()
        except OSError as error:
            raise ListenFailedError(str(path), error.strerror or str(error)) from error

    def regroup(self, group: int | None) -> None:
        """
        Another group may open the file from now on, or none.

        Raises:
            ListenFailedError: it cannot be given to that group; the old permissions may be lost.
        """
        try:
            _permit(self._path, group)
        except OSError as error:
            raise ListenFailedError(str(self._path), error.strerror or str(error)) from error

    def close(self) -> None:
        """Stop listening; remove the file if it is still this one."""
        with contextlib.suppress(OSError):  # it was removed by another process
            if os.path.samestat(self._path.lstat(), self._status):
                self._path.unlink()
        self.sock.close()


def _permit(path: Path, group: int | None) -> None:
    path.chmod(MODE)  # first, so that no other group gets in
    os.chown(path, -1, os.getegid() if group is None else group)
    path.chmod(MODE if group is None else GROUP_MODE)
