"""
Reaching addresses: resolve, connect, and remember how that went.

A failed attempt, or a lost connection, suppresses the address for a time that doubles from `BACKOFF_FIRST` to
`BACKOFF_CAP`. It starts low again when twice `BACKOFF_CAP` has passed since the suppression ended. The original waits
15 s after a disconnect and 60 s after a failed connect. Ours starts low, because several routes to one service should
take over from each other within a second. While an address is suppressed, a route with another one is preferred. Each
wait is shortened by chance, by up to a half: all that lose a gateway lose it at one instant, and would dial it in step.

Only so many are dialled at one time. Three queues have their own slots: addresses that mirrored pairs are asked at,
those that routes name, and those that only a service name contains (ADDRESS 'TRANSPORT'), which peers may invent. An
address that waits in one of them goes over to a better one when it is requested there.

An address that routes name and that has failed is dialled again though no frames wait for it, as often as its back-off
allows: otherwise status would show an old failure for as long as there is no traffic. Loop-only.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from broker.errors import TlsRefusedError
from broker.net.handshake import Handshaker, Opening
from broker.net.link import Link
from broker.net.listener import SocketAddress
from broker.net.peer_table import BACKOFF_CAP, DialHistory, DialQueue, PeerTable
from broker.routing.address import NetworkAddress
from broker.routing.table import RouteTable
from broker.supervision import TaskGroup

# Connections coming about at one time, 64 in all: the other descriptors are for peers that dial us.
DIALS_MAX = {DialQueue.INVENTED: 16, DialQueue.NAMED: 32, DialQueue.PROBED: 16}
IDLE_DIALS_MAX = 4  # addresses without traffic that are dialled in one tick
ROUTES_MAX = 10_000  # of each table that are read for the addresses they name; as `broker_route_up` does


class Dialer:
    """
    The addresses that are being dialled.

    Args:
        handshaker: Makes connections.
        table: Keeps the results.
        seconds: The time limit for a connection to be established.
        is_invented: Whether no route names an address.
        on_open: Called when a connection is established.
        on_unreached: Called when no connection was established, or none is needed any longer.
    """

    def __init__(
        self,
        handshaker: Handshaker,
        table: PeerTable,
        seconds: float,
        *,
        is_invented: Callable[[NetworkAddress], bool],
        on_open: Callable[[Opening, NetworkAddress], None],
        on_unreached: Callable[[NetworkAddress], None],
    ) -> None:
        self.seconds = seconds
        self._handshaker = handshaker
        self._table = table
        self._is_invented = is_invented
        self._on_open = on_open
        self._on_unreached = on_unreached
        self._slots = {queue: asyncio.Semaphore(most) for queue, most in DIALS_MAX.items()}
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskGroup()
        self._hurry = asyncio.Event()  # set, and replaced, when back-offs end early
        self._is_finished = False
        self._tables: tuple[RouteTable, ...] = ()
        self._named: Mapping[NetworkAddress, None] | None = {}  # None until it is asked for after a change of routes

    def request(self, address: NetworkAddress, *, is_probe: bool = False) -> None:
        """Dial an address when it may be tried again, unless that is under way; `is_probe` for a mirrored pair."""
        if self._is_finished:
            return
        history = self._table.histories.setdefault(address, DialHistory())
        is_served = self._table.lasting_link_for(address) is not None
        by_name = DialQueue.INVENTED if is_served or self._is_invented(address) else DialQueue.NAMED
        queue = DialQueue.PROBED if is_probe else by_name
        if history.is_dialling and (history.queue is None or queue <= history.queue):
            return
        history.is_dialling = True
        history.queue = queue
        self._tasks.spawn(self._dial(address, history, queue), f"dial {address}")

    def retry_now(self, is_meant: Callable[[str], bool] = bool) -> None:
        """
        End the back-off of every address that has failed; those that frames wait for are dialled at once.

        Args:
            is_meant: Whether an address with this problem is; by default any is.
        """
        now = self._loop.time()
        for history in self._table.histories.values():
            if is_meant(history.problem):
                history.suppressed_until = min(history.suppressed_until, now)
        self._hurry.set()
        self._hurry = asyncio.Event()

    def verify(self, addresses: Iterable[NetworkAddress]) -> None:
        """Dial those that routes name and that so far only an announcement serves, to see who answers there."""
        for address in addresses:
            if address in self.named and self._is_unverified(address):
                self.request(address)

    def on_routes(self, tables: Iterable[RouteTable]) -> None:
        """Routes have changed; these are the tables of all databases."""
        self._tables, self._named = tuple(tables), None

    def on_link_lost(self, link: Link, dialled: NetworkAddress | None) -> None:
        """
        Suppress the address for which a link was dialled, and the addresses that routes name and no link serves any
        longer, whichever side had opened the link. If its peer had announced its departure, that is not a failure.
        """
        table = self._table
        served = () if link.is_peer_draining else table.addresses_of(link)
        failed = [one for one in served if one != dialled and one in self.named and not table.lasting_link_for(one)]
        if dialled is not None:
            table.histories[dialled].is_dialling = False
            failed.insert(0, dialled)
        for address in failed:
            if not table.histories.setdefault(address, DialHistory()).is_dialling:
                table.suppress(address, link.reason)

    def dial_due(self, now: float, own: Collection[NetworkAddress]) -> None:
        """
        Dial failed addresses without traffic again, the earliest end of suppression first; to be called each second.

        Addresses that no route names any longer, and addresses that lead to this instance itself (`own`), are forgotten
        instead, once their back-off would begin low again. Cost: the addresses that were ever dialled.
        """
        table = self._table
        failed = [one for one in table.histories.items() if one[1].problem and not one[1].is_dialling]
        due: list[tuple[NetworkAddress, DialHistory]] = []
        for address, history in failed:
            if table.lasting_link_for(address) is not None:
                history.record_success()  # by a link that its peer has opened
            elif now < history.suppressed_until or table.link_for(address) is not None:
                continue
            elif address not in own and address in self.named:
                due.append((address, history))
            elif now > history.suppressed_until + 2 * BACKOFF_CAP:
                del table.histories[address]
        for address, _ in heapq.nsmallest(IDLE_DIALS_MAX, due, key=lambda one: one[1].suppressed_until):
            self.request(address)

    @property
    def named(self) -> Mapping[NetworkAddress, None]:
        """The addresses that routes name, in order: the first `ROUTES_MAX` of each table, read once for each change."""
        if self._named is None:
            named = {address for table in self._tables for address in table.addresses(ROUTES_MAX)}
            in_order = sorted(named, key=lambda one: (one.host, one.port))
            self._named = dict.fromkeys(in_order)
        return self._named

    def finish(self) -> None:
        """Dial nothing new; what is under way goes on."""
        self._is_finished = True

    async def close(self) -> None:
        """Stop dialling."""
        self.finish()
        await self._tasks.cancel()

    async def _dial(self, address: NetworkAddress, history: DialHistory, queue: DialQueue) -> None:
        while (wait := history.suppressed_until - self._loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._hurry.wait()
        async with self._slots[queue]:
            if history.queue is not queue:
                return  # it has gone over to another one
            history.queue = None
            try:
                if self._table.lasting_link_for(address) is None or self._is_unverified(address):
                    opening = await self._handshaker.dial(address, partial(connect, timeout=self.seconds))
                    self._on_open(opening, address)
                    return
            except (OSError, TlsRefusedError) as error:
                self._fail(address, history, getattr(error, "strerror", "") or str(error))
            except Exception:
                self._fail(address, history, "a fault of this program: see the log")
                raise
            else:
                history.is_dialling = False
                self._on_unreached(address)

    def _is_unverified(self, address: NetworkAddress) -> bool:
        """Whether peers prove who they are, and none has done so at this address since it was dialled."""
        return self._handshaker.security.is_authenticating and not self._table.principal_at(address)

    def _fail(self, address: NetworkAddress, history: DialHistory, problem: str) -> None:
        self._table.suppress(address, problem)
        history.is_dialling = False
        self._on_unreached(address)


def _refuse_itself(sock: socket.socket, where: SocketAddress) -> None:
    """Where nothing listens, the system may connect a socket to itself, if its own port happens to be that one."""
    if sock.getsockname() == where:
        raise OSError(errno.ECONNREFUSED, "")


async def connect(address: NetworkAddress, *, timeout: float) -> tuple[socket.socket, SocketAddress]:  # noqa: ASYNC109 - one bound for resolving and connecting, named in the error
    """
    A connected, non-blocking socket and where it leads; every address a name resolves to is tried in order.

    Args:
        address: Where to.
        timeout: Seconds for all of it; each of several addresses has an equal share, so that one that swallows
            everything does not hide the next.

    Raises:
        OSError: no address could be reached; its text says why.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            found: list[tuple[Any, ...]] = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            problem = OSError(f"{address.host} resolves to nothing")
            for family, kind, proto, _, where in found:
                sock = socket.socket(family, kind, proto)
                sock.setblocking(False)
                try:
                    async with asyncio.timeout(timeout / len(found)):
                        await loop.sock_connect(sock, where)
                    _refuse_itself(sock, where)
                except OSError as error:
                    sock.close()
                    # asyncio's own sentence says where and not why.
                    problem = error if error.errno is None else OSError(error.errno, os.strerror(error.errno))
                except BaseException:
                    sock.close()
                    raise
                else:
                    return sock, where
            raise problem
    except TimeoutError:
        raise OSError(f"no connection within {timeout:g} s") from None
