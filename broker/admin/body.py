"""
Reading the bodies of requests within bounds: of size, of time, and of what all of them together take.

A body is read only for somebody who may ask, so strangers take no memory. Its length is believed only where it is above
the bound already. The beginning of each has room whatever others take, so a statement of a person is always read: those
who fill the room with long scripts, or with what looks like one, keep others from long scripts only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from broker.admin.problem import BadRequestError, BodyStalledError, BodyTooLargeError, NoRoomError

STALL_SECONDS = 20.0  # for the next part of a body
PART_BYTES = 1024 * 1024  # that part, or what is left: fifty KiB a second
FREE_BYTES = 256 * 1024  # of each body that always has room; bounded by how many connections there are
TOGETHER_MAX_BYTES = 400 * 1024 * 1024  # two of the largest, and many small ones; beside what always has room


class Bodies:
    """
    The bodies that are in memory now. Loop-only.

    Shape: `used_bytes` 0 .. `limit_bytes`, without the first `free_bytes` of each.
    """

    def __init__(
        self,
        limit_bytes: int = TOGETHER_MAX_BYTES,
        *,
        free_bytes: int = FREE_BYTES,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._free_bytes = free_bytes
        self.used_bytes = 0
        self._stall_seconds = stall_seconds

    @asynccontextmanager
    async def reading(self, request: web.Request, limit_bytes: int) -> AsyncIterator[bytearray]:
        """
        The body of a request; it counts until the end of the block.

        Raises:
            BodyTooLargeError: it is above `limit_bytes`.
            NoRoomError: others take the room.
            BodyStalledError: it does not come.
            BadRequestError: it ends before its end.
        """
        if (request.content_length or 0) > limit_bytes:
            raise BodyTooLargeError(limit_bytes)
        data, counted = bytearray(), 0
        try:
            async for part in self._parts(request):
                if len(data) + len(part) > limit_bytes:
                    raise BodyTooLargeError(limit_bytes)
                more = max(0, len(data) + len(part) - self._free_bytes) - counted
                if self.used_bytes + more > self.limit_bytes:
                    raise NoRoomError(self.limit_bytes)
                self.used_bytes += more
                counted += more
                data += part
            yield data
        finally:
            self.used_bytes -= counted

    async def _parts(self, request: web.Request) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        missing, deadline = PART_BYTES, loop.time() + self._stall_seconds
        try:
            while True:
                async with asyncio.timeout_at(deadline):
                    part = await request.content.readany()
                if not part:
                    return
                yield part
                missing -= len(part)
                if missing <= 0:
                    missing, deadline = PART_BYTES, loop.time() + self._stall_seconds
        except TimeoutError:
            raise BodyStalledError(self._stall_seconds) from None
        except (web.RequestPayloadError, HttpProcessingError, ConnectionError) as error:
            raise BadRequestError("the body of the request ends before its end, or is cut wrongly") from error
