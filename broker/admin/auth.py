"""
The caller of a request to the admin API, decided by the one thing that proves it, and what it may do.

A token that is shown decides alone, on any listener, so that a user can work with fewer permissions. Without one, on
the Unix socket, the user and the groups of the process at its other end, as the system reports them; over TLS the
certificate of the client; and on a port of loopback the role of all local users. A client that shows nothing elsewhere
is refused, and so is one that uses the port of loopback through a proxy: the client may then be another machine.

A SELECT takes the role viewer. Changes that can be undone take operator; those that destroy messages or conversations,
and those of trust and permissions, take admin. So does a statement that is not named here.

Source: socket(7) and unix(7) of Linux, SO_PEERCRED, SO_PEERGROUPS.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import socket
import ssl
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog
from aiohttp import web
from msgspec.structs import replace

from broker.admin.guard import FORWARDED
from broker.admin.problems import ForbiddenError, UnauthorizedError
from broker.config.admin_access import (
    AdminRole,
    AdminToken,
    Holders,
    TokenFileError,
    find_token,
    is_owner,
    read_tokens,
    role_of,
    user_name,
)
from broker.config.settings import AdminSettings
from broker.config.values import ListenAddress
from broker.ddl import statements as ddl
from broker.errors import DdlSyntaxError
from broker.files import mark_of
from broker.net.tls import NO_SECURITY, Identity, Security, identify_chain, verified_chain

log = structlog.get_logger(__name__)

ANONYMOUS = "anonymous"
_SCHEME = "bearer"
_SO_PEERGROUPS = 59  # Linux 4.13; the module `socket` does not name it
_CREDENTIALS = struct.Struct("3i")
_GROUPS_MAX_BYTES = 1024  # the largest answer that the module `socket` takes: 256 groups
STATEMENT_LEAST = AdminRole.OPERATOR  # no statement takes less, so a viewer's script is refused unread
_OF_OPERATOR = frozenset(
    {ddl.UseDatabase, ddl.CreateRoute, ddl.AlterRoute, ddl.DropRoute, ddl.CreateQueue, ddl.AlterQueue}
    | {ddl.CreateService, ddl.AlterService, ddl.CreateMessageType, ddl.AlterMessageType, ddl.DropMessageType}
    | {ddl.CreateContract, ddl.CreatePriority, ddl.AlterPriority, ddl.DropPriority}
    | {ddl.MoveConversation, ddl.BeginConversationTimer}
)
_OPTIONS_OF_OPERATOR = frozenset({ddl.DatabaseOption.ENABLE_BROKER, ddl.DatabaseOption.PARTNER_FAILOVER})


@dataclass(frozen=True, slots=True)
class Caller:
    """
    A client or process that asks.

    Attributes:
        who: Its name, as a key of `[admin.roles]`, or "anonymous".
        origin: The process or the address.
        role: Its permissions.
        way_to_role: How to get a role, whose name replaces `{role}`.
        request: Its request; None where there is no client that waits for the answer.
    """

    who: str
    origin: str
    role: AdminRole
    way_to_role: str = ""
    request: web.Request | None = None

    def is_there(self) -> bool:
        """Whether it still waits for the answer, for what takes long to work out; for any thread."""
        transport = None if self.request is None else self.request.transport
        return self.request is None or (transport is not None and not transport.is_closing())

    def expect(self, role: AdminRole, what: str) -> None:
        """
        Refuse what takes more than this caller has.

        Raises:
            ForbiddenError: it names the role that is needed, and how to get it.
        """
        if self.role < role:
            has = "no role" if self.role is AdminRole.NONE else f"the role {self.role.word}"
            way = self.way_to_role.replace("{role}", role.word)
            way = f"; {way}" if way else ""
            raise ForbiddenError(f"{what} takes the role {role.word}, and {self.who} has {has} here{way}", role.word)

    def permitted(
        self, statements: Iterable[ddl.Statement | DdlSyntaxError]
    ) -> Iterator[ddl.Statement | DdlSyntaxError]:
        """
        The same statements, up to the first that this caller may not execute.

        Raises:
            ForbiddenError: in place of the first that takes a higher role.
        """
        for statement in statements:
            if isinstance(statement, ddl.Statement):
                self.expect(role_for(statement), ddl.words_of(statement))
            yield statement


def role_for(statement: ddl.Statement) -> AdminRole:
    """The least role that may execute this."""
    match statement:
        case ddl.EndConversation():
            is_enough = not statement.cleanup
        case ddl.AlterDatabase():
            is_enough = statement.option in _OPTIONS_OF_OPERATOR
        case _:
            is_enough = type(statement) in _OF_OPERATOR
    return AdminRole.OPERATOR if is_enough else AdminRole.ADMIN


class Authenticator:
    """
    Identifies callers, for all listeners of an instance. Loop-only.

    Args:
        admin: The settings.
        holders: The roles that are given.
        executor: Where files are read.
        security: The TLS of the port; None when it speaks plain text.
    """

    def __init__(self, admin: AdminSettings, holders: Holders, executor: Executor, security: Security | None) -> None:
        self._executor = executor
        self.use(admin, holders, security)

    def use(self, admin: AdminSettings, holders: Holders, security: Security | None) -> None:
        """These hold from the next request on."""
        self._security = security or NO_SECURITY
        self._holders = holders
        self._tokens = TokenStore(admin.tokens, holders.tokens)
        is_open = admin.listen is not None and admin.listen.is_loopback
        self._of_everybody = role_of(admin.loopback_role) if is_open else AdminRole.NONE

    async def caller(self, request: web.Request) -> Caller:
        """
        Identify the caller of a request.

        Raises:
            UnauthorizedError: nothing in the request identifies the caller, or it is not valid.
        """
        peer, address, origin = origin_of(request)
        shown = request.headers.get("Authorization")
        if shown is not None:
            return await self._of_token(shown, address, origin)
        if peer is not None:
            return self._of_process(peer, origin)
        chain = _chain(request)
        if chain:
            return self._of_certificate(chain, origin)
        if self._of_everybody is AdminRole.NONE or any(name in request.headers for name in FORWARDED):
            raise UnauthorizedError("nothing in the request identifies the caller")
        way = 'show a token, or have admin.loopback_role = "{role}"'
        return Caller(ANONYMOUS, origin, self._of_everybody, way)

    async def _of_token(self, shown: str, address: str, origin: str) -> Caller:
        scheme, _, secret = shown.partition(" ")
        token = None
        if scheme.lower() == _SCHEME:
            loop, now = asyncio.get_running_loop(), datetime.now(UTC)
            token = await loop.run_in_executor(self._executor, lambda: self._tokens.find(secret.strip(), now=now))
        if token is None:
            log.warning("admin token refused", origin=address)  # without the port, so that repeats are counted
            raise UnauthorizedError("the token is not known here, was revoked or has expired")
        way = f'[admin.roles] "token:{token.name}" = "{{role}}" gives it, or a new token'
        return Caller(f"token:{token.name}", origin, token.role, way)

    def _of_process(self, peer: SocketPeer, origin: str) -> Caller:
        holders, name = self._holders, user_name(peer.uid)
        own = AdminRole.ADMIN if is_owner(peer.uid) else holders.users.get(peer.uid, AdminRole.NONE)
        roles = [own, *(role for group, role in holders.groups.items() if group in peer.groups)]
        way = f'[admin.roles] "user:{name}" = "{{role}}" in the configuration of the instance gives it'
        return Caller(f"user:{name}", origin, max(roles), way)

    def _of_certificate(self, chain: Sequence[bytes], origin: str) -> Caller:
        verified = _identified(chain)
        if not (self._security.is_authenticating and self._security.accepts(verified)):
            raise UnauthorizedError(self._security.refusal(verified))
        who = verified[0].who
        roles = [role for principal, role in self._holders.certificates if principal.covers(who)]
        way = f'[admin.roles] "certificate:{who.name}" = "{{role}}" in the configuration of the instance gives it'
        return Caller(f"certificate:{who.name}", origin, max(roles, default=AdminRole.NONE), way)


class TokenStore:
    """
    The tokens of a file, which is read again whenever it has changed. For any thread.

    Args:
        path: The file; there may be none.
        roles: By name of a token, the role that replaces its own.
    """

    def __init__(self, path: Path, roles: Mapping[str, AdminRole]) -> None:
        self._path = path
        self._roles = roles
        self._tokens: tuple[AdminToken, ...] = ()
        self._seen: tuple[int, ...] | None = None
        self._lock = threading.Lock()

    def find(self, secret: str, *, now: datetime) -> AdminToken | None:
        """The token that this is, with the role that it has now; None for one that has expired as well. Blocking."""
        with self._lock:
            self._refresh()
            tokens = self._tokens
        token = find_token(tokens, secret)
        if token is None or not token.is_valid_at(now):
            return None
        return replace(token, given=self._roles.get(token.name, token.role).word)

    def _refresh(self) -> None:
        """Read the file if it has changed; one that cannot be used counts as empty, and is logged once."""
        seen = mark_of(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._tokens = read_tokens(self._path)
        except TokenFileError as error:
            self._tokens = ()
            log.error("tokens unusable", path=error.path, problem=error.problem, hint=error.hint)  # noqa: TRY400 - no bug


@dataclass(frozen=True, slots=True)
class SocketPeer:
    """A process, as at the moment when it connected; all its groups, the first one included."""

    pid: int
    uid: int
    groups: frozenset[int]


def peer_of(descriptor: int) -> SocketPeer:
    """
    The process at the other end of a connected Unix socket.

    Raises:
        OSError: it is another kind of socket.
    """
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return SocketPeer(pid, uid, frozenset({gid, *_groups(sock, uid, gid)}))


def _groups(sock: socket.socket, uid: int, gid: int) -> Sequence[int]:
    """The supplementary groups; of a user with very many those that the machine's list of groups gives the user."""
    try:
        data = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_MAX_BYTES)
    except OSError as error:
        if error.errno == errno.ERANGE:
            return _listed(uid, gid)
        if error.errno == errno.ENOPROTOOPT:
            return ()
        raise
    return memoryview(data).cast("I")


def _listed(uid: int, gid: int) -> Sequence[int]:
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return ()


def origin_of(request: web.Request) -> tuple[SocketPeer | None, str, str]:
    """
    Where a request comes from.

    Returns:
        The process, on a Unix socket; its user there, or the IP address elsewhere; and both in words.
    """
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    sock = transport.get_extra_info("socket")
    if sock.family == socket.AF_UNIX:
        peer = peer_of(sock.fileno())
        return peer, f"user {peer.uid}", f"socket, process {peer.pid} of user {peer.uid}"
    host, port = transport.get_extra_info("peername")[:2]
    return None, host, str(ListenAddress(host, port))


def _identified(chain: Sequence[bytes]) -> tuple[Identity, ...]:
    """Read the certificates that TLS verified, as DER, the client's own first; raises UnauthorizedError."""
    try:
        return identify_chain(chain)
    except ValueError as error:
        raise UnauthorizedError(f"the certificate that was shown is not understood: {error}") from None


def _chain(request: web.Request) -> tuple[bytes, ...]:
    """The certificates of the client that TLS verified, its own first; empty when it showed none."""
    tls = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
    return verified_chain(tls) if isinstance(tls, ssl.SSLObject) else ()
