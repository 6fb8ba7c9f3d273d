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
import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from broker.routing.address import NetworkAddress

Where = tuple[str, int] | tuple[str, int, int, int]

BACKOFF_FIRST = 0.2  # seconds
BACKOFF_CAP = 10.0  # seconds; R6.3 has mirrored pairs asked that often
SPREAD = 0.5  # of a wait, at most, is taken off by chance


class DialQueue(IntEnum):
    """Where an address waits to be dialled, the better the higher."""

    INVENTED = 0  # no route names it, or a link serves it already
    NAMED = 1
    PROBED = 2  # a mirrored pair is asked there for its principal


@dataclass(slots=True)
class DialHistory:
    """
    What is remembered of one address; changed by `Peers` only.

    Shape: `failures` in a row; `suppressed_until` monotonic seconds; `problem` of the last failure, empty when none;
    `is_under_way` from when it is wanted until there is a link or a failure; `queue` it waits in meanwhile, then None;
    `principal` of the peer that answered there last, empty while none has or where peers do not prove who they are.
    """

    failures: int = 0
    suppressed_until: float = 0.0
    problem: str = ""
    is_under_way: bool = False
    queue: DialQueue | None = None
    principal: str = ""
    _doublings: int = 0

    def failed(self, problem: str, now: float, jitter: Callable[[], float] = random.random) -> float:
        """Note a failure; returns the seconds to wait before the next attempt. Shape: `jitter` gives 0 .. 1."""
        if now > self.suppressed_until + 2 * BACKOFF_CAP:  # an attempt itself may take some time
            self._doublings = 0
        wait = min(BACKOFF_CAP, BACKOFF_FIRST * 2.0**self._doublings) * (1.0 - SPREAD * jitter())
        self._doublings = min(self._doublings + 1, 16)
        self.failures += 1
        self.problem = problem
        self.suppressed_until = now + wait
        return wait

    def succeeded(self) -> None:
        """The address answered: nothing is held against it."""
        self.failures = self._doublings = 0
        self.suppressed_until = 0.0
        self.problem = ""


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
