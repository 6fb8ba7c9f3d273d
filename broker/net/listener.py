"""
Listener: accepts connections, hands each on as a socket, and counts the file descriptors that this takes.

Each peer that connects takes a descriptor, and the number of unknown peers has no limit. So no connection is accepted
while fewer than a reserve are free. Thus next hops can always be dialled and files opened, and the admin interface
always answers. The system gives out the lowest number that is free, so the number of a new descriptor is the least
number of descriptors in use. A shortage pauses accepting for a moment instead of spinning or dying; connected peers are
still served. Loop-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable, Iterable
from ipaddress import ip_address

import structlog

from broker.config.values import ListenAddress
from broker.errors import ListenFailedError
from broker.routing.address import NetworkAddress
from broker.supervision import Timer

RESERVED = 256  # kept free: 64 connections coming about, those that have, admin and scrapers, files of databases
RESERVED_SHARE = 4  # at most one in so many, where there are few
OWN = 64  # that an instance has open for itself: the loop, listeners, logs, a few databases
UNLIMITED = 1 << 31
BACKLOG = 1024
SHORTAGE_PAUSE = 0.1  # seconds without accepting when descriptors or memory ran out
_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_REMEDIES = {
    errno.EADDRINUSE: "stop what listens there (see ss -ltnp), or choose another address",
    errno.EADDRNOTAVAIL: "choose an address of this machine (see ip address)",
    errno.EACCES: "choose a port above 1023, or give the program CAP_NET_BIND_SERVICE",
}

log = structlog.get_logger(__name__)

Accept = Callable[[socket.socket, str], None]
SocketAddress = tuple[str, int] | tuple[str, int, int, int]


class Listener:
    """
    One listening socket.

    Attributes:
        host, port: As bound, with the port that the system gave for 0.
        configured: The address in the settings.
    """

    def __init__(self, sock: socket.socket, accept: Accept, configured: ListenAddress) -> None:
        self.host, self.port = sock.getsockname()[:2]
        self.configured = configured
        self._sock = sock
        self._accept = accept
        self._loop = asyncio.get_running_loop()
        self._pause = Timer()
        self._is_short = False  # of descriptors, or of memory for another connection

    def start(self) -> None:
        """Begin to accept: one connection in each iteration of the loop, so that a flood delays nothing else."""
        self._loop.add_reader(self._sock, self._accept_one)

    def finish(self) -> None:
        """Accept the connections made so far, then stop accepting, and free the port."""
        for _ in range(BACKLOG):
            if self._is_short or self._sock.fileno() < 0 or not self._accept_one():
                break
        self.release()

    def release(self) -> None:
        """Stop accepting and free the port."""
        self._pause.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _accept_one(self) -> bool:
        """Accept one connection; whether one was there."""
        try:
            sock, where = self._sock.accept()
        except OSError as error:
            # Anything else concerns the one connection only, which has gone again: the next call waits for another.
            if error.errno in _SHORTAGE:
                self._pause_accepting(error.strerror or str(error))
            return False
        is_last = is_reserved(sock.fileno())
        self._accept(sock, render_endpoint(where))
        if is_last:
            self._pause_accepting("the file descriptors left are for peers that this instance dials")
        return True

    def _pause_accepting(self, reason: str) -> None:
        """Accept nothing for a moment, and then check again."""
        if not self._is_short:
            self._is_short = True
            log.warning("accepting paused", port=self.port, reason=reason)
        self._loop.remove_reader(self._sock)
        self._pause.after(SHORTAGE_PAUSE, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if are_short(self._sock.fileno()):
            self._pause.after(SHORTAGE_PAUSE, self._resume_accepting)
            return
        self._is_short = False
        log.info("accepting again", port=self.port)
        self.start()


# --- addresses and sockets ---


def own_addresses(host: str, port: int) -> set[NetworkAddress]:
    """The addresses that certainly lead to a port bound on this IP address."""
    address = ip_address(host)
    hosts = {host}
    if address.is_unspecified:
        hosts = {"127.0.0.1", "localhost", os.uname().nodename.lower()} | ({"::1"} if address.version == 6 else set())
    elif address.is_loopback:
        hosts |= {"localhost"}
    return {NetworkAddress(name, port) for name in hosts}


def addresses_of(listeners: Iterable[Listener]) -> set[NetworkAddress]:
    """The addresses that certainly lead to one of these."""
    return {address for one in listeners for address in own_addresses(one.host, one.port)}


def named_addresses(listeners: Iterable[Listener]) -> list[NetworkAddress]:
    """Those of them that are bound to one address, and not to all there are."""
    named = [one for one in listeners if not ip_address(one.host).is_unspecified]
    return [NetworkAddress(one.host, one.port) for one in named]


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """
    A listening socket.

    Args:
        host: A name or an address.
        port: 0 for any free one.
        reuse_port: Whether other processes of the same user may listen there too, if they also set this (SO_REUSEPORT).
            The system gives each new connection to one of them.

    Raises:
        ListenFailedError: the address is taken, not ours, or not an address.
    """
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise _explained(host, port, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setblocking(False)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _explained(host, port, error) from error
    return sock


def _explained(host: str, port: int, error: OSError) -> ListenFailedError:
    """The system's error with what to do about it."""
    is_name = isinstance(error, socket.gaierror)
    remedy = "correct the name, or write an address" if is_name else _REMEDIES.get(error.errno or 0, "")
    problem = error.strerror or str(error)
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ListenFailedError(shown, f"{problem}; {remedy}" if remedy else problem)


def render_endpoint(where: SocketAddress) -> str:
    """A socket's end as `tcp://host:port`."""
    host, port = where[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


# --- descriptors ---


def raise_limit() -> int:
    """Allow this process all that it may allow itself; how many descriptors that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems promise more than they give
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


def _limit() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit


def is_reserved(descriptor: int) -> bool:
    """Whether a descriptor that was just given out is in the reserve."""
    limit = _limit()
    return descriptor >= limit - min(RESERVED, limit // RESERVED_SHARE)


def room_for_connections(besides: int) -> int:
    """How many connections there may be along with so many others, outside the reserve; one at least."""
    limit = _limit()
    kept = min(RESERVED, limit // RESERVED_SHARE) + min(OWN, limit // RESERVED_SHARE)
    return max(1, limit - kept - besides)


def are_short(descriptor: int) -> bool:
    """True if too few descriptors are free to accept another connection; `descriptor` is any that is open."""
    try:
        probe = os.dup(descriptor)
    except OSError:
        return True
    os.close(probe)
    return is_reserved(probe)
