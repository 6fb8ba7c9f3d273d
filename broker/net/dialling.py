"""
Whom to dial now: so many at one time, and nobody waits behind addresses that peers have made up.

There are three queues with slots of their own: for addresses that mirrored pairs are asked at, for those that routes
name, and for those that only a service name tells, by ADDRESS 'TRANSPORT'. An address that waits in one of them goes
over to a better one when it is wanted there. Loop-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.errors import TlsRefusedError
from broker.net.dialer import Attempts, DialQueue, connect
from broker.net.tasks import Tasks
from broker.routing.address import NetworkAddress

if TYPE_CHECKING:
    from broker.net.addresses import Addresses
    from broker.net.entrance import Entrance, Opening

# Connections coming about at one time, 64 in all: the other descriptors are for those who dial us.
DIALS_MAX = {DialQueue.INVENTED: 16, DialQueue.NAMED: 32, DialQueue.PROBED: 16}

OnOpen = Callable[["Opening", NetworkAddress], None]
OnFailed = Callable[[NetworkAddress], None]


class Dialling:
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
        self, entrance: Entrance, addresses: Addresses, seconds: float, on_open: OnOpen, on_failed: OnFailed
    ) -> None:
        self.is_invented: Callable[[NetworkAddress], bool] = lambda _: False
        self._entrance = entrance
        self._addresses = addresses
        self.seconds = seconds
        self._on_open = on_open
        self._on_failed = on_failed
        self._slots = {queue: asyncio.Semaphore(most) for queue, most in DIALS_MAX.items()}
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()

    def want(self, address: NetworkAddress, *, is_probe: bool = False) -> None:
        """Dial an address when it may be tried again, unless that is under way; `is_probe` for a mirrored pair."""
        attempts = self._addresses.attempts.setdefault(address, Attempts())
        named = DialQueue.INVENTED if self.is_invented(address) else DialQueue.NAMED
        queue = DialQueue.PROBED if is_probe else named
        if attempts.is_under_way and (attempts.queue is None or queue <= attempts.queue):
            return
        attempts.is_under_way = True
        attempts.queue = queue
        self._tasks.spawn(self._dial(address, attempts, queue), f"dial {address}")

    async def close(self) -> None:
        """Dial nobody any more."""
        await self._tasks.cancel()

    async def _dial(self, address: NetworkAddress, attempts: Attempts, queue: DialQueue) -> None:
        wait = attempts.suppressed_until - self._loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        async with self._slots[queue]:
            if attempts.queue is not queue:
                return  # it has gone over to another one
            attempts.queue = None
            try:
                if self._addresses.servers.staying(address) is None:
                    opening = await self._entrance.dial(address, partial(connect, timeout=self.seconds))
                    self._on_open(opening, address)
                    return
            except (OSError, TlsRefusedError) as error:
                self._addresses.suppress(address, getattr(error, "strerror", "") or str(error))
        attempts.is_under_way = False
        self._on_failed(address)
