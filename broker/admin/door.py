"""
Deciding who a request comes from, by the one thing that proves it.

A token that is shown decides alone, wherever it is shown, so that a person can do with less than they may. Else, on the
Unix socket, the user and the groups of the process at its other end; over TLS the client's certificate; and on a port
of loopback the role that is for everybody there. Who shows nothing elsewhere is refused, and so is who comes to the
port of loopback through a proxy, for then it is somebody else who asks.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime

import structlog
from aiohttp import web

from broker.admin.caller import Caller
from broker.admin.guard import FORWARDED
from broker.admin.peer import SocketPeer, peer_of
from broker.admin.problem import UnauthorizedError
from broker.admin.token_store import TokenStore
from broker.control.admin_holders import Holders, is_owner, user_name
from broker.control.admin_role import AdminRole, role_of
from broker.control.administration import AdminSettings
from broker.net.certificate import Identity, identify, identify_issuer
from broker.net.tls import NO_SECURITY, Security, verified_chain

ANONYMOUS = "anonymous"
_SCHEME = "bearer"

log = structlog.get_logger(__name__)


class Authenticator:
    """
    Who asks, for all listeners of an instance. Loop-only.

    Args:
        admin: The settings.
        holders: Who has which role.
        executor: Where files are read.
        security: What the port brings to TLS; None when it speaks plain text.
    """

    def __init__(
        self,
        admin: AdminSettings,
        holders: Holders,
        executor: Executor,
        *,
        security: Security | None = None,
    ) -> None:
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
        Who this comes from.

        Raises:
            UnauthorizedError: nothing was shown that tells, or something that counts for nothing.
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
            raise UnauthorizedError("nothing in the request tells who asks")
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
        roles = [role for group, role in holders.groups.items() if group in peer.groups]
        roles += [
            holders.users.get(peer.uid, AdminRole.NONE),
            AdminRole.ADMIN if is_owner(peer.uid) else AdminRole.NONE,
        ]
        way = f'[admin.roles] "user:{name}" = "{{role}}" in the configuration of the instance gives it'
        return Caller(f"user:{name}", origin, max(roles), way)

    def _of_certificate(self, chain: Sequence[bytes], origin: str) -> Caller:
        verified = identify_chain(chain)
        if not (self._security.is_authenticating and self._security.accepts(verified)):
            raise UnauthorizedError(self._security.refusal(verified))
        who = verified[0].who
        roles = [role for holder, role in self._holders.certificates if holder.shows(who)]
        way = f'[admin.roles] "certificate:{who.name}" = "{{role}}" in the configuration of the instance gives it'
        return Caller(f"certificate:{who.name}", origin, max(roles, default=AdminRole.NONE), way)


def origin_of(request: web.Request) -> tuple[SocketPeer | None, str, str]:
    """
    Where a request comes from: the process, on a Unix socket; the user or the address; and both in words.

    Shape: the second is the user's number on a Unix socket, else the IP address.
    """
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    sock = transport.get_extra_info("socket")
    if sock.family == socket.AF_UNIX:
        peer = peer_of(sock.fileno())
        return peer, f"user {peer.uid}", f"socket, process {peer.pid} of user {peer.uid}"
    host, port = transport.get_extra_info("peername")[:2]
    return None, host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def identify_chain(chain: Sequence[bytes]) -> tuple[Identity, ...]:
    """Read the certificates that TLS verified, as DER, the client's own first; raises UnauthorizedError."""
    try:
        return identify(chain[0]), *map(identify_issuer, chain[1:])
    except ValueError as error:
        raise UnauthorizedError(f"the certificate that was shown is not understood: {error}") from None


def _chain(request: web.Request) -> tuple[bytes, ...]:
    """The certificates of the client that TLS verified, its own first; empty when it showed none."""
    tls = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
    return verified_chain(tls) if isinstance(tls, ssl.SSLObject) else ()
