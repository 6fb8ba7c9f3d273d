"""
From a connected socket to the transport of a link: plain, or by a TLS handshake.

Where encryption is disabled there is nothing to do. A TLS handshake is a task with a deadline; only it reads the socket
until it is over. With `supported`, the side that dials begins with TLS. It dials again in plain text once a peer has
answered in plain text, which is remembered for a while. The side that is dialled waits for the first byte, which
decides.

Unknown peers may begin as many handshakes as they like, but the number that run at one time is limited. A legitimate
peer completes its handshake within milliseconds. So before another handshake of a host that has its share begins, the
longest one of that host is ended. Otherwise, at the limit, the longest one of the host with the most is ended. Known
hosts have no share to keep to, and at the limit their handshakes are ended only when there are no others.

The certificates and settings of TLS may be replaced at any time. Handshakes that begin after that use the new ones. A
handshake that was under way is checked against the new ones as well when it is complete. Loop-only.

Source: docs/protocol.md, "Transport".
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from broker.errors import MAY_NOT_CONNECT, TLS_ONLY, TlsRefusedError
from broker.forwarding.pool import READ_BYTES
from broker.net.link import Link
from broker.net.listener import SocketAddress, render_endpoint
from broker.net.quotas import host_of, keep_latest
from broker.net.tls import ALPN, Encryption, Identity, Security, advice_for_hosts, identify_chain, verified_chain
from broker.net.transport import PlainTransport, TlsTransport, Transport, explain
from broker.protocol.frame import Fatal, encode_link
from broker.routing.address import NetworkAddress

HOST_SHARE = 4  # one host has at most one handshake in so many
HANDSHAKE_READ_BYTES = 16 * 1024
HANDSHAKE_MAX_BYTES = 256 * 1024  # from one peer: a chain of certificates is a few KiB
_ANSWERED_PLAIN = 'the peer speaks plain text: set endpoint.encryption there to "required"'
_OR_HERE = ', or here to "supported"'  # where certificates are not asked for
PLAIN_SECONDS = 60.0  # an address that answered in plain text is dialled so for this long
REFUSED_MAX = 10  # refusals that are remembered, the latest
PLAIN_ADDRESSES_MAX = 10_000  # remembered at one time
FIRST_OF_HELLO = 0x00  # a frame; a TLS record begins with 0x16

log = structlog.get_logger(__name__)

Connect = Callable[[NetworkAddress], Awaitable[tuple[socket.socket, SocketAddress]]]


@dataclass(frozen=True, slots=True)
class Opening:
    """The start of a link: `address` is text of the remote end, `begun_at` loop time of the connection."""

    transport: Transport
    address: str
    begun_at: float


class _PlainAnswerError(TlsRefusedError):
    """The peer has answered a TLS hello in plain text."""


class Handshaker:
    """
    Makes transports of sockets.

    Args:
        security: What this endpoint brings to TLS.
        timeout: Seconds for a handshake.
        protocol_errors: Counts refused connections, by the error's name.
        on_accepted: An accepted connection has become a transport.
        handshakes: Those under way with peers that dialled us.

    Attributes:
        refused: When a peer that dialled us was refused last, by its host and the reason; the latest are kept.
    """

    def __init__(
        self,
        security: Security,
        timeout: float,
        protocol_errors: Counter[str],
        on_accepted: Callable[[Opening], None],
        handshakes: Handshakes,
    ) -> None:
        self.security = security
        self.timeout = timeout
        self.handshakes = handshakes
        self.refused: dict[tuple[str, str], float] = {}
        self._protocol_errors = protocol_errors
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._signing = asyncio.Lock()  # a signature takes a millisecond: one in each iteration of the loop
        self._plain_until: dict[NetworkAddress, float] = {}
        self._scratch = bytearray(READ_BYTES)  # of every transport, also after a change of certificates

    # --- peers that dial us ---

    def accept(self, sock: socket.socket, address: str) -> None:
        """A peer has connected."""
        now = self._loop.time()
        if self.security.encryption is Encryption.DISABLED:
            self._on_accepted(Opening(PlainTransport(sock), address, now))
            return
        sock.setblocking(False)
        self.handshakes.begin(self._admit(sock, address, now), sock, address)

    async def _admit(self, sock: socket.socket, address: str, now: float) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                transport = await self._secure_accepted(sock)
        except (TlsRefusedError, OSError, TimeoutError) as error:
            sock.close()
            self._report(address, self._reason(error))
            if isinstance(error, TlsRefusedError):
                self.remember_refused(address, error.problem)
        except asyncio.CancelledError as error:
            sock.close()
            if error.args:
                self._report(address, str(error.args[0]))
            raise
        else:
            self._on_accepted(Opening(transport, address, now))

    async def _secure_accepted(self, sock: socket.socket) -> Transport:
        first = await _first_byte(sock)
        if first == FIRST_OF_HELLO and self.security.encryption is not Encryption.REQUIRED:
            return PlainTransport(sock)
        if first == FIRST_OF_HELLO:
            error = TlsRefusedError(f"the peer speaks plain text, and {TLS_ONLY} there")
            with contextlib.suppress(OSError):
                sock.recv(HANDSHAKE_READ_BYTES)  # otherwise the system would discard the frame
            _send_last(PlainTransport(sock), encode_link(Fatal(code=error.code, text=TLS_ONLY)))
            raise error
        return await self._handshake(sock, is_accept=True)

    # --- peers that we dial ---

    async def dial(self, address: NetworkAddress, connect: Connect) -> Opening:
        """
        Connect to an address.

        Raises:
            OSError, TlsRefusedError: no address could be reached, or TLS failed; the text says why.
        """
        if self._plain_until.get(address, 0.0) <= self._loop.time():
            self._plain_until.pop(address, None)
        if self.security.encryption is not Encryption.DISABLED and address not in self._plain_until:
            sock, where = await connect(address)
            now = self._loop.time()
            try:
                return Opening(await self._secure_dialled(sock, address), render_endpoint(where), now)
            except TlsRefusedError as error:
                if not isinstance(error, _PlainAnswerError) or self.security.encryption is Encryption.REQUIRED:
                    self._report(str(address), error.problem)
                    raise
            self._remember_plain(address)
        sock, where = await connect(address)
        return Opening(PlainTransport(sock), render_endpoint(where), self._loop.time())

    def _remember_plain(self, address: NetworkAddress) -> None:
        log.warning("peer has no TLS, dialling in plain text", address=str(address), seconds=PLAIN_SECONDS)
        if len(self._plain_until) >= PLAIN_ADDRESSES_MAX:
            self._plain_until.clear()
        self._plain_until[address] = self._loop.time() + PLAIN_SECONDS

    async def _secure_dialled(self, sock: socket.socket, address: NetworkAddress) -> Transport:
        try:
            async with asyncio.timeout(self.timeout):
                transport = await self._handshake(sock, is_accept=False)
            try:
                _check_host(transport.identity, address.host, self.security.pinned)
            except TlsRefusedError as error:
                _send_last(transport, encode_link(Fatal(code=error.code, text=error.problem)))
                raise
        except BaseException as error:
            sock.close()
            if isinstance(error, TlsRefusedError | OSError | TimeoutError) and not isinstance(error, _PlainAnswerError):
                raise TlsRefusedError(self._reason(error)) from None
            raise
        return transport

    # --- both ---

    def secure(self, security: Security, links: Iterable[Link]) -> None:
        """
        Use this for TLS from now on; links whose peers it does not accept are closed with the reason.

        Links stay whose peers saw the certificate that this instance showed before.
        """
        self.security = security
        self._plain_until.clear()
        self.refused.clear()  # by the certificates before
        for link in list(links):
            if security.accepts(link.transport.chain):
                continue
            if link.transport.cipher:
                identity = link.transport.identity
                shown = "" if identity is None else f" ({identity.label})"
                problem = f"your certificate is no longer trusted{shown}: have it added to peers, or its CA to trust"
                link.fail(TlsRefusedError(problem))
            elif security.encryption is Encryption.REQUIRED:
                link.fail(TlsRefusedError("this endpoint asks for a certificate from now on: set encryption"))

    async def _handshake(self, sock: socket.socket, *, is_accept: bool) -> TlsTransport:
        security = self.security
        context = security.server if is_accept else security.client
        if context is None:
            raise TlsRefusedError("encryption was disabled here since the connection was made: connect again")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=is_accept)
        received = 0
        while True:
            async with self._signing:
                problem = _step(tls, security)
                await asyncio.sleep(0)
            if outgoing.pending:
                await self._loop.sock_sendall(sock, outgoing.read())
            if problem is None:
                break
            if problem:
                raise TlsRefusedError(problem)
            data = await self._loop.sock_recv(sock, HANDSHAKE_READ_BYTES)
            if not data:
                raise TlsRefusedError("the peer closed the connection in the middle of the handshake: see its log")
            if not received and data[0] == FIRST_OF_HELLO and not is_accept:
                here = "" if security.is_authenticating else _OR_HERE
                raise _PlainAnswerError(f"{_ANSWERED_PLAIN}{here}, and reload")
            received += len(data)
            if received > HANDSHAKE_MAX_BYTES:
                raise TlsRefusedError(f"a handshake of more than {HANDSHAKE_MAX_BYTES} bytes")
            incoming.write(data)
        if tls.selected_alpn_protocol() != ALPN:
            raise TlsRefusedError(f"the peer does not name {ALPN} as its protocol (ALPN)")
        chain = _proved(tls, security)
        if not self.security.accepts(chain):  # less is trusted than the contexts know, or it was replaced
            raise TlsRefusedError(self.security.refusal(chain))
        return TlsTransport(sock, tls, incoming, outgoing, chain=chain, own=security.own, scratch=self._scratch)

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, TlsRefusedError):
            return error.problem
        if isinstance(error, TimeoutError):
            return f"the handshake was not complete within {self.timeout:g} s"
        return (error.strerror if isinstance(error, OSError) else None) or str(error)

    def remember_refused(self, address: str, reason: str) -> None:
        """A peer that dialled us was refused; of its host, the last refusal without a certificate counts."""
        host = host_of(address)
        for key in [key for key in self.refused if key[0] == host and (names_nobody(key[1]) or key[1] == reason)]:
            del self.refused[key]
        keep_latest(self.refused, (host, reason), self._loop.time(), REFUSED_MAX)

    def _report(self, address: str, reason: str) -> None:
        self._protocol_errors[TlsRefusedError.__name__] += 1
        log.warning("connection refused", peer=address, reason=reason)


def names_nobody(reason: str) -> bool:
    """Whether a refusal names no certificate: then it is about the last peer of that host."""
    return "the peer's certificate" not in reason and MAY_NOT_CONNECT not in reason


Task = asyncio.Task[None]


class Handshakes:
    """
    The handshakes under way with peers that dialled us.

    Args:
        most: At one time.
        is_known: Whether a host is that of a known peer.
    """

    def __init__(self, most: int, is_known: Callable[[str], bool]) -> None:
        self.most = most
        self._is_known = is_known
        self._sockets: dict[Task, socket.socket] = {}  # of every task that has not ended
        self._live: dict[str, dict[Task, None]] = {}  # those not ended, by host, the longest first
        self._hosts: dict[Task, str] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def begin(self, work: Coroutine[Any, Any, None], sock: socket.socket, address: str) -> None:
        """Begin one more; before that, end one where there are too many."""
        host = host_of(address)
        own = self._live.get(host, {})
        if len(own) >= max(1, self.most // HOST_SHARE) and not self._is_known(host):
            self._end(host, "too many TLS handshakes at one time from this address")
        elif len(self._hosts) >= self.most:
            hosts = [one for one in self._live if not self._is_known(one)] or list(self._live)
            self._end(max(hosts, key=lambda one: len(self._live[one])), "too many TLS handshakes at one time")
        task = asyncio.get_running_loop().create_task(work, name=f"handshake {address}")
        self._sockets[task] = sock
        self._hosts[task] = host
        self._live.setdefault(host, {})[task] = None
        task.add_done_callback(self._on_ended)

    async def close(self) -> None:
        """End every one."""
        tasks = list(self._sockets)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, host: str, reason: str) -> None:
        """End the longest of a host."""
        task = next(iter(self._live[host]))
        self._forget(task)
        task.cancel(reason)

    def _on_ended(self, task: Task) -> None:
        self._forget(task)
        sock = self._sockets.pop(task)
        if task.cancelled():  # also one that never began
            sock.close()
        elif task.exception() is not None:
            sock.close()
            log.error("task failed", task=task.get_name(), exc_info=task.exception())

    def _forget(self, task: Task) -> None:
        """Remove a task from the count of handshakes."""
        host = self._hosts.pop(task, None)
        if host is not None:
            del self._live[host][task]
            if not self._live[host]:
                del self._live[host]


def _proved(tls: ssl.SSLObject, security: Security) -> tuple[Identity, ...]:
    """Return the identities that a peer has proved, its own certificate first; empty where peers prove nothing."""
    if not security.is_authenticating:
        return ()
    try:
        return identify_chain(verified_chain(tls))
    except ValueError as error:
        raise TlsRefusedError(f"the certificate of the peer cannot be read ({error}): make it again") from None


def _check_host(identity: Identity | None, host: str, pinned: Collection[str]) -> None:
    """Raise when a peer has proved to be another one. A peer whose own certificate is trusted needs no name in it."""
    if identity is None or identity.fingerprint in pinned or identity.covers(host):
        return
    hint = f"correct the route, or {advice_for_hosts(identity, host)}"
    raise TlsRefusedError(f"{identity.for_hosts} and not for {host}: {hint}")


def _step(tls: ssl.SSLObject, security: Security) -> str | None:
    """Continue a handshake; return None when it is complete, "" when more has to arrive, or the error."""
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return ""
    except ssl.SSLError as error:
        chain: tuple[Identity, ...] = ()
        with contextlib.suppress(ValueError):  # a certificate that cannot be read has no label
            chain = identify_chain(verified_chain(tls))
        return explain(error, chain, security.own, security.peers)
    return None


async def _first_byte(sock: socket.socket) -> int:
    """The first byte that comes, which stays where it is."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        if not came.done():
            came.set_result(None)

    loop.add_reader(sock, on_readable)
    try:
        await came
    finally:
        loop.remove_reader(sock)
    first = sock.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionError("the peer closed the connection before it said anything")
    return first[0]


def _send_last(transport: Transport, frame: bytes) -> None:
    """Send a peer the reason for the close, which follows."""
    with contextlib.suppress(OSError):
        transport.send(frame)
        transport.shut()
