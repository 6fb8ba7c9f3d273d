"""
What the status page costs the daemon: processor time of the process while 0, 1 and 10 clients listen to its events.

    python -m bench.status_page [ROUTES [SECONDS]]

The gateway has so many routes, to one next hop, and a peer that has sent a frame over each of them, so that all of them
are counted. With `waiting` as an argument each route has a next hop of its own where nobody is, and a frame waits
for each. Nothing moves while it is measured, so that what looking costs is seen beside little else.
The figure is user and system time of the process, as the system counts it, by second; other load does not change it
much. A client reads the stream as it comes and throws it away.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from bench.figures import cpu_seconds, load_averages, machine
from broker.protocol.frame import Header, Hello, encode_dialog, encode_link
from examples.demo.topology import Topology, free_port

CLIENTS = (0, 1, 10, 0)
WARM_SECONDS = 15.0
LIFETIME_MS = 3_600_000


async def main(routes: int, seconds: float, *, is_waiting: bool) -> None:
    """Print a line for each number of clients."""
    print(f"{machine()}; {time.strftime('%F %T')}, load {load_averages()}")
    with tempfile.TemporaryDirectory() as directory:
        net = Topology(Path(directory))
        gateway = net.add("gateway", forwarding=True, settings={"admin": {"listen": f"127.0.0.1:{free_port()}"}})
        sink = net.add("sink")
        net.script("sink", "msdb", "")
        net.script(
            "gateway",
            "msdb",
            "\n".join(
                f"CREATE ROUTE R{number} WITH SERVICE_NAME = '//bench/{number}',"
                f" ADDRESS = '{f'tcp://127.0.{number // 250}.{1 + number % 250}:1' if is_waiting else sink.address}';"
                for number in range(routes)
            ),
        )
        with net:
            sink.start()
            gateway.start()
            feeding = asyncio.create_task(_feed(gateway.port, routes))
            await asyncio.sleep(WARM_SECONDS)
            for clients in CLIENTS:
                listening = [asyncio.create_task(_listen(gateway.page)) for _ in range(clients)]
                await asyncio.sleep(2.0)
                before, began = cpu_seconds(gateway.pid), time.monotonic()
                await asyncio.sleep(seconds)
                used, took = cpu_seconds(gateway.pid) - before, time.monotonic() - began
                heard = [await _stop(task) for task in listening]
                size = f", {sum(heard) / max(1, len(heard)) / (took + 2):,.0f} bytes/s each" if heard else ""
                print(
                    f"{routes} routes, {clients:2} clients: {used / took:.2%} of a core over {took:.0f} s{size}",
                    flush=True,
                )
            feeding.cancel()


async def _listen(page: str) -> int:
    heard = 0
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{page}v1/events", timeout=aiohttp.ClientTimeout(None)) as answer,
        ):
            async for part in answer.content.iter_any():
                heard += len(part)
    except asyncio.CancelledError:
        pass
    return heard


async def _stop(task: "asyncio.Task[int]") -> int:
    task.cancel()
    return await task


async def _feed(port: int, routes: int) -> None:
    """A frame to each service, once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode_link(Hello(arbitration=os.urandom(16), name="feeder", heartbeat_ms=60_000)))
    for number in range(routes):
        header = Header(
            kind=0x10,
            flags=0,
            message_id=os.urandom(16),
            conversation_id=number.to_bytes(16, "big"),
            to_service=f"//bench/{number}",
            from_service="//bench/from",
            from_broker_instance=b"i" * 16,
            time_to_live=LIFETIME_MS,
        )
        writer.write(encode_dialog(header, b"x"))
    await writer.drain()
    while await reader.read(65_536):
        pass


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(
        main(
            int(arguments[0]) if arguments else 1000,
            float(arguments[1]) if len(arguments) > 1 else 60.0,
            is_waiting="waiting" in arguments,
        )
    )
