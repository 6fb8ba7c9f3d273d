"""
The listeners of admin and observation: a Unix socket, a TCP port on loopback when asked for, and the port of metrics.

Started when the instance serves and stopped before it lets go of what they show. They share nothing with traffic but
the loop: what blocks has threads here, and a client that is slow keeps only itself waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Any

import structlog

from broker.admin.api import Api
from broker.admin.app import Parts, admin_app
from broker.admin.audit import Audit
from broker.admin.door import Authenticator
from broker.admin.events import Events
from broker.admin.guard import is_loopback
from broker.admin.health import observe_app
from broker.admin.listening import ListeningApp, serve
from broker.admin.message import Nothing
from broker.admin.reloading import ReloadSeen, signalled
from broker.admin.socket_file import SocketFile
from broker.admin.turn import Turns
from broker.control.admin_check import check_ways_in
from broker.control.admin_consistency import loopback_told
from broker.control.admin_holders import Holders, holders_of, socket_group_of
from broker.control.admin_tls import admin_security_of
from broker.control.certificate_use import trusted_files
from broker.control.config import Settings
from broker.control.listen import ListenAddress
from broker.net.listener import bind
from broker.net.tasks import TaskGroup
from broker.net.tls import Security
from broker.observe.instance import Running
from broker.observe.log_summary import tell_summaries

log = structlog.get_logger(__name__)

THREADS = 5  # questions at once; a SELECT takes ten seconds at most
EVENT_THREADS = 2  # what the status page and other streams of events read
END_SECONDS = 1.0  # that questions have when the instance stops
STEERING_THREADS = 2  # for what takes no time and waits for no question: tokens, the audit, answers as JSON
_left_running: list[Thread] = []  # alive as long as threads that had their time are at work
_SOCKET, _ADMIN, _OBSERVE = "socket", "admin", "observe"


class AdminServer:
    """The HTTP side of one instance."""

    def __init__(self, instance: Running) -> None:
        self._instance = instance
        self._served: dict[str, ListeningApp] = {}
        self._retired = TaskGroup()
        self._file: SocketFile
        self._ways: _Ways
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
        # What is to be written down is, also by who stops at once.
        admin_threads = _threads(STEERING_THREADS, "admin", stack, finishes=True)
        # One thread: what a metric remembers from scrape to scrape is touched by it alone.
        self._observe_threads = _threads(1, "observe", stack)
        instance.lag.start(stack, instance.supervision)
        instance.supervision.keep_within(stack, "log summary", tell_summaries)
        stack.push_async_callback(self._retired.cancel)
        self._ways = ways = await asyncio.get_running_loop().run_in_executor(admin_threads, _ways_in, settings)
        told = loopback_told(settings.admin)
        if told:
            log.warning("admin port is open to every user", problem=told, hint="set admin.loopback_role")
        audit = Audit(settings.admin.audit, admin_threads)
        api = Api(instance, Turns(questions, THREADS), admin_threads, audit)
        door = Authenticator(settings.admin, ways.holders, admin_threads, security=ways.security)
        self.events = Events(instance, _threads(EVENT_THREADS, "events", stack), audit)
        self.events.start(stack)
        self._parts = Parts(api, door, audit, admin_threads, instance.software, self.events)
        self._file = SocketFile(settings.admin.socket, group=ways.socket_group)
        stack.callback(self._close_file)
        await self._begin(_SOCKET, settings, stack)
        await self._begin(_ADMIN, settings, stack)
        stack.callback(self.events.close)  # before the listeners wait for those who listen
        await self._begin(_OBSERVE, settings, stack)

    async def prepare(self, settings: Settings, undo: AsyncExitStack) -> PreparedListeners:
        """
        Listen where these settings say so, beside what listens now; what they say counts once it is carried out.

        Args:
            settings: Those that shall hold.
            undo: Takes back what was begun, unless its owner lets go of it to carry the change out.

        Raises:
            ListenFailedError, SettingError: as `start`; what was there is as it was.
        """
        before, threads = self._instance.settings, self._parts.executor
        ways = await asyncio.get_running_loop().run_in_executor(threads, _ways_in, settings)
        change = PreparedListeners(settings, ways, self._file)
        if settings.admin.socket != before.admin.socket:
            change.file = SocketFile(settings.admin.socket, group=ways.socket_group)
            undo.callback(change.file.close)
            await self._follow(change, _SOCKET, before, undo)
        elif ways.socket_group != self._ways.socket_group:
            undo.callback(self._file.regroup, self._ways.socket_group)
            self._file.regroup(ways.socket_group)
        if settings.admin.listen != before.admin.listen or ways.digest != self._ways.digest:
            await self._follow(change, _ADMIN, before, undo)
        if settings.observe.listen != before.observe.listen:
            await self._follow(change, _OBSERVE, before, undo)
        return change

    def carry_out(self, change: PreparedListeners) -> None:
        """What was prepared counts from now on; those who are followed go when their requests have had their time."""
        self._ways = change.ways
        self._parts.door.use(change.settings.admin, change.ways.holders, change.ways.security)
        self._parts.audit.path = change.settings.admin.audit
        for name, served in change.served.items():
            old = self._served.pop(name, None)
            if served is not None:
                self._served[name] = served
            if old is not None:
                self._retired.spawn(old.retire(), f"listener of {name}")
        if change.file is not self._file:
            self._file.close()
            self._file = change.file

    @property
    def audit(self) -> Audit:
        """Where changes are written down."""
        return self._parts.audit

    async def state(self) -> dict[str, Any]:
        """What `GET /v1/status` answers."""
        return await self._parts.api.status(Nothing())

    def signalled(self) -> ReloadSeen:
        """A reload that a signal has asked for, to be written down."""
        return signalled(self._parts.audit)

    def _address(self, name: str) -> ListenAddress | None:
        return self._served[name].address if name in self._served else None

    @property
    def admin_address(self) -> ListenAddress | None:
        """Where the admin API listens, as bound; None where the configuration turns that off."""
        return self._address(_ADMIN)

    @property
    def observe_address(self) -> ListenAddress | None:
        """Where metrics are, as bound; None where the configuration turns them off."""
        return self._address(_OBSERVE)

    async def _begin(self, name: str, settings: Settings, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self._end, name)
        served = await self._serve(name, settings, self._ways, self._file)
        if served is not None:
            self._served[name] = served

    async def _follow(self, change: PreparedListeners, name: str, before: Settings, undo: AsyncExitStack) -> None:
        """Begin what shall follow; on the same address with a copy of its socket."""
        old = self._served.get(name)
        is_same = name == _ADMIN and change.settings.admin.listen == before.admin.listen
        sock = old.sock.dup() if old is not None and is_same else None
        served = await self._serve(name, change.settings, change.ways, change.file, sock)
        change.served[name] = served
        if served is not None:
            undo.push_async_callback(served.close)

    async def _serve(
        self, name: str, settings: Settings, ways: _Ways, file: SocketFile, sock: socket.socket | None = None
    ) -> ListeningApp | None:
        """An application; None where the settings turn it off."""
        if name == _SOCKET:
            return await serve(admin_app(self._parts, answers_to=None), file.sock.dup())
        address = settings.admin.listen if name == _ADMIN else settings.observe.listen
        if address is None:
            return None
        sock = bind(address.host, address.port) if sock is None else sock
        if name == _OBSERVE:
            return await serve(observe_app(self._instance, self._observe_threads), sock)
        return await serve(admin_app(self._parts, answers_to=partial(_answers_to, ways.security)), sock, tls=ways.tls)

    async def _end(self, name: str) -> None:
        served = self._served.pop(name, None)
        if served is not None:
            await served.close()

    def _close_file(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class _Ways:
    """What the settings of the admin API come to on this machine. Shape: `digest` of the files that TLS needs."""

    holders: Holders
    socket_group: int | None
    security: Security | None
    digest: bytes

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
    digest = _digest(settings)
    return _Ways(holders_of(settings), socket_group_of(settings), admin_security_of(settings), digest)


def _digest(settings: Settings) -> bytes:
    """What changes with the files of the port's certificate; one that cannot be read is told by whoever loads it."""
    admin = settings.admin
    digest = hashlib.blake2b()
    if admin.listen is not None and admin.certificate is not None and admin.private_key is not None:
        for path in (admin.certificate, admin.private_key, *trusted_files((*admin.trust, *admin.peers))):
            with contextlib.suppress(OSError):
                digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.digest()


@dataclass(slots=True)
class PreparedListeners:
    """
    What was prepared for other settings.

    Shape: `file` of the socket; `served` what shall follow, by name, None where nothing shall.
    """

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
    End the process at once if a question is still under way; else do nothing.

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
