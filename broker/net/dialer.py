"""
Reaching an address: resolve, connect, and remember how that went.

A failed attempt, or a lost connection, suppresses the address for a while that doubles from `BACKOFF_FIRST` to
`BACKOFF_CAP`, and starts anew where nobody has tried for twice that long (the original: 15 s after a disconnect, 60 s
after a failed connect; ours starts low, because several routes to one service should take over from each other within a
second, and one that came back should be used soon). While an address is suppressed, a route with another one is
preferred.

Each wait is shorter by chance, by up to a half: all that lose a gateway lose it at one instant, and would else knock at
its door in step until it is back.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker.errors import TlsRefusedError
from broker.net.listener import Where
from broker.net.peer_table import BACKOFF_CAP, DialHistory, DialQueue
from broker.routing.address import NetworkAddress
from broker.routing.table import RouteTable
from broker.supervision import TaskGroup

if TYPE_CHECKING:
    from broker.net.handshake import Handshaker, Opening
    from broker.net.link import Link
    from broker.net.peer_table import Addresses


async def connect(address: NetworkAddress, *, timeout: float) -> tuple[socket.socket, Where]:  # noqa: ASYNC109 - one bound for resolving and connecting, told in the error
    """
    A connected, non-blocking socket and where it leads; every address a name resolves to is tried in turn.

    Args:
        address: Where to.
        timeout: Seconds for all of it; each of several addresses has an equal share, so that one that swallows
            everything does not hide the next.

    Raises:
        OSError: nobody could be reached; its text says why.
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


# --- dialling ---
# Whom to dial now: so many at one time, and nobody waits behind addresses that peers have made up.
#
# There are three queues with slots of their own: for addresses that mirrored pairs are asked at, for those that
# routes
# name, and for those that only a service name tells, by ADDRESS 'TRANSPORT'. An address that waits in one of them
# goes
# over to a better one when it is wanted there.
#
# An address that routes name and that has failed is dialled again though nobody has anything for it, as often as its
# back-off allows: else what is told of it would be an old failure, as long as nobody needs it. Loop-only.


# Connections coming about at one time, 64 in all: the other descriptors are for those who dial us.
DIALS_MAX = {DialQueue.INVENTED: 16, DialQueue.NAMED: 32, DialQueue.PROBED: 16}

AGAIN_MAX = 4  # addresses that nobody needs dialled at one look
ROUTES_MAX = 10_000  # of each table that are looked at for the addresses they name; as `broker_route_up` does

OnOpen = Callable[["Opening", NetworkAddress], None]
OnFailed = Callable[[NetworkAddress], None]


class Dialer:
    """
    The addresses that are being dialled.

    Args:
        entrance: Makes connections.
        addresses: Keeps what came of it.
        seconds: For a connection to come about.
        on_open: A connection has come about.
        on_failed: None has, or none is needed any more.

    Shape: `is_invented` whether no route names an address, to be set by those who know.
    """

    def __init__(
        self, entrance: Handshaker, addresses: Addresses, seconds: float, on_open: OnOpen, on_failed: OnFailed
    ) -> None:
        self.is_invented: Callable[[NetworkAddress], bool] = lambda _: False
        self._entrance = entrance
        self._addresses = addresses
        self.seconds = seconds
        self._on_open = on_open
        self._on_failed = on_failed
        self._slots = {queue: asyncio.Semaphore(most) for queue, most in DIALS_MAX.items()}
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskGroup()
        self._tables: tuple[RouteTable, ...] = ()
        self._named: Mapping[NetworkAddress, None] | None = {}  # by routes; None when nobody has looked yet

    def want(self, address: NetworkAddress, *, is_probe: bool = False) -> None:
        """Dial an address when it may be tried again, unless that is under way; `is_probe` for a mirrored pair."""
        attempts = self._addresses.attempts.setdefault(address, DialHistory())
        is_served = self._addresses.servers.staying(address) is not None
        named = DialQueue.INVENTED if is_served or self.is_invented(address) else DialQueue.NAMED
        queue = DialQueue.PROBED if is_probe else named
        if attempts.is_under_way and (attempts.queue is None or queue <= attempts.queue):
            return
        attempts.is_under_way = True
        attempts.queue = queue
        self._tasks.spawn(self._dial(address, attempts, queue), f"dial {address}")

    def verify(self, addresses: Iterable[NetworkAddress]) -> None:
        """Dial those that routes name and that so far only an announcement serves, to see who answers there."""
        for address in addresses:
            if address in self.named and self._is_unverified(address):
                self.want(address)

    def on_routes(self, tables: Iterable[RouteTable]) -> None:
        """Routes are new, these of all databases."""
        self._tables, self._named = tuple(tables), None

    def lost(self, link: Link, dialled: NetworkAddress | None) -> None:
        """
        A link was lost: what it was dialled for has failed, and so has what routes name and nobody serves any more,
        whoever had opened the link. Where its peer had said that it leaves, it is nobody's failure.
        """
        known = self._addresses
        served = () if link.is_peer_draining else known.servers.addresses_of(link)
        failed = [one for one in served if one != dialled and one in self.named and known.servers.staying(one) is None]
        if dialled is not None:
            known.attempts[dialled].is_under_way = False
            failed.insert(0, dialled)
        for address in failed:
            if not known.attempts.setdefault(address, DialHistory()).is_under_way:
                known.suppress(address, link.reason)

    def look(self, now: float, own: Collection[NetworkAddress]) -> None:
        """
        Dial again what has failed and nobody wants now, those first that have rested longest; to be called each second.

        What no route names any more, and what leads to this very instance (`own`), is forgotten instead, once its
        back-off would begin anew. Cost: the addresses that were ever dialled.
        """
        known = self._addresses
        failed = [one for one in known.attempts.items() if one[1].problem and not one[1].is_under_way]
        resting: list[tuple[NetworkAddress, DialHistory]] = []
        for address, attempts in failed:
            if known.servers.staying(address) is not None:
                attempts.succeeded()  # by a link that its peer has opened
            elif now < attempts.suppressed_until or known.servers.serving(address) is not None:
                continue
            elif address not in own and address in self.named:
                resting.append((address, attempts))
            elif now > attempts.suppressed_until + 2 * BACKOFF_CAP:
                del known.attempts[address]
        for address, _ in heapq.nsmallest(AGAIN_MAX, resting, key=lambda one: one[1].suppressed_until):
            self.want(address)

    @property
    def named(self) -> Mapping[NetworkAddress, None]:
        """What routes name, in order; of each table the first `ROUTES_MAX` are looked at, once for each change."""
        if self._named is None:
            in_order = sorted(set(_addresses_of(self._tables)), key=lambda one: (one.host, one.port))
            self._named = dict.fromkeys(in_order)
        return self._named

    async def close(self) -> None:
        """Dial nobody any more."""
        await self._tasks.cancel()

    async def _dial(self, address: NetworkAddress, attempts: DialHistory, queue: DialQueue) -> None:
        wait = attempts.suppressed_until - self._loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        async with self._slots[queue]:
            if attempts.queue is not queue:
                return  # it has gone over to another one
            attempts.queue = None
            try:
                if self._addresses.servers.staying(address) is None or self._is_unverified(address):
                    opening = await self._entrance.dial(address, partial(connect, timeout=self.seconds))
                    self._on_open(opening, address)
                    return
            except (OSError, TlsRefusedError) as error:
                self._failed(address, attempts, getattr(error, "strerror", "") or str(error))
            except Exception:
                self._failed(address, attempts, "a fault of this program, which the log tells")
                raise
            else:
                attempts.is_under_way = False
                self._on_failed(address)

    def _is_unverified(self, address: NetworkAddress) -> bool:
        """Whether peers prove who they are, and none has done so at this address since it was dialled."""
        return self._entrance.security.is_authenticating and not self._addresses.answered_by(address)

    def _failed(self, address: NetworkAddress, attempts: DialHistory, problem: str) -> None:
        self._addresses.suppress(address, problem)
        attempts.is_under_way = False
        self._on_failed(address)


def _addresses_of(tables: Iterable[RouteTable]) -> Iterator[NetworkAddress]:
    """What routes name."""
    for table in tables:
        for route in islice(table, ROUTES_MAX):
            for address in (route.address, route.mirror_address):
                if isinstance(address, NetworkAddress):
                    yield address
