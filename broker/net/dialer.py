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
import socket
from typing import Any

from broker.net.where import Where
from broker.routing.address import NetworkAddress

BACKOFF_FIRST = 0.2  # seconds
BACKOFF_CAP = 10.0  # seconds; R6.3 has mirrored pairs asked that often
SPREAD = 0.5  # of a wait, at most, is taken off by chance


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
