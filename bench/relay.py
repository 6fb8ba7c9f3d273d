"""
A byte relay on uvloop that reads nothing: what moving the same bytes costs at the least.

    python bench/relay.py LISTEN TO
"""

import asyncio
import sys
from typing import cast

import uvloop


class Half(asyncio.Protocol):
    """One side of a relayed connection."""

    def __init__(self) -> None:
        self.other: asyncio.Transport | None = None
        self.waiting: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """Hand on the bytes that arrived."""
        if self.other is None:
            self.waiting.append(data)
        else:
            self.other.write(data)


class Front(Half):
    """The side that was connected to; connects on."""

    port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the other side."""
        self.task = asyncio.get_running_loop().create_task(self.connect(transport))

    async def connect(self, transport: asyncio.BaseTransport) -> None:
        """Connect on, and send the bytes that arrived before the connection was made."""
        other, half = await asyncio.get_running_loop().create_connection(Half, "127.0.0.1", self.port)
        half.other = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        for data in self.waiting:
            other.write(data)
        self.other = other


async def main() -> None:
    """Relay until killed."""
    listen, Front.port = int(sys.argv[1]), int(sys.argv[2])
    server = await asyncio.get_running_loop().create_server(Front, "127.0.0.1", listen, reuse_port=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
