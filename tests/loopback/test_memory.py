"""
`links x (end of a cut frame + link frames) + unfinished frames + pool + slab` is all the memory that messages take.

A daemon with many links, each of which takes nothing any more, is brought to every bound at once. The short form has
200 links; `BROKER_TEST_LINKS=1000` makes it a thousand.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from broker.forwarding.pool import READ_BYTES, UNFINISHED_MAX_BYTES
from broker.net.link import CONTROL_MAX_BYTES
from broker.protocol.frame import Hello, Ping, Pong, encode_link
from broker.routing.address import NetworkAddress
from examples.demo.topology import Daemon, Topology
from tests.support.descriptors import allow_descriptors
from tests.support.loopback import message, raw

LINKS = int(os.environ.get("BROKER_TEST_LINKS", "200"))
MIB = 1 << 20
MAX_FRAME = 64 * 1024
POOL_BYTES = 16 * MIB
BODY = bytes(60_000)
FRAMES_EACH = 80  # more than a connection takes whose other end does not read
ALLOWANCE = 16 * MIB  # for what is no message: objects, and what the allocator keeps
HEARTBEAT_MS = 3_600_000  # nobody is silent for too long
PINGS = encode_link(Ping(b"12345678")) * (2 * CONTROL_MAX_BYTES // len(encode_link(Ping(b"12345678"))))

SETTINGS: dict[str, dict[str, Any]] = {
    "endpoint": {"message_forward_size": "16MiB", "max_frame": "64KiB", "heartbeat": "1h", "backpressure": "50ms"},
    "dialog": {"fragment_size": "16KiB"},
    "limits": {"connections": 0, "connections_per_peer": 0},  # all of them come from one address
}


def address_of(number: int) -> str:
    return f"tcp://10.1.{number // 250}.{number % 250}:4022"


async def bring_to_every_bound(hop: Daemon, links: int) -> tuple[int, dict[str, Any]]:
    """By how many bytes the daemon grew, and what it tells of itself then."""
    here = NetworkAddress("127.0.0.1", hop.port)
    unfinished = message("//hop0", 0, BODY)[: min(30_000, UNFINISHED_MAX_BYTES * 9 // 10 // links)]
    async with AsyncExitStack() as stack:
        stalled = []
        for number in range(links):
            hello = raw(here, is_reading_little=True, addresses=(address_of(number),), heartbeat_ms=HEARTBEAT_MS)
            peer = await stack.enter_async_context(hello)
            await peer.hear(Hello)
            stalled.append(peer)
        sender, good = [
            await stack.enter_async_context(raw(here, name=name, heartbeat_ms=HEARTBEAT_MS))
            for name in ("sender", "good")
        ]
        await sender.say(Ping(b"sender  "))
        await sender.hear(Pong)
        process = psutil.Process(hop.pid)
        before = process.memory_info().rss

        for number in range(FRAMES_EACH):
            for link in range(links):
                await sender.say(message(f"//hop{link}", number, BODY))
            # A sender that never read what it is advised of would stand still: TCP drops what comes behind a full
            # window, and the acknowledgements in it.
            await sender.say(Ping(b"%8d" % number))
            await sender.hear(Pong)
        for peer in stalled:
            await peer.say(PINGS, unfinished)
        await sender.say(Ping(b"all came"))
        await sender.hear(Pong)
        await good.say(Ping(b"and good"))
        await good.hear(Pong)
        return process.memory_info().rss - before, await asyncio.to_thread(hop.status)


@pytest.mark.timeout(600)
@pytest.mark.promise("Memory is bounded", "forwarding 13")
def test_links_that_take_nothing_cost_no_more_than_the_formula_says(tmp_path: Path) -> None:
    links = allow_descriptors(LINKS)
    with Topology(tmp_path) as net:
        hop = net.add("gateway", forwarding=True, settings=SETTINGS)
        routes = (
            f"CREATE ROUTE r{n} WITH SERVICE_NAME = '//hop{n}', ADDRESS = '{address_of(n)}';" for n in range(links)
        )
        net.script("gateway", "msdb", "\n".join(routes))
        net.start()

        grown, status = asyncio.run(bring_to_every_bound(hop, links))
        hop.kill()  # what it holds can go nowhere

    forwarding = status["forwarding"]
    formula = links * (MAX_FRAME + CONTROL_MAX_BYTES) + UNFINISHED_MAX_BYTES + POOL_BYTES + MAX_FRAME + READ_BYTES
    print(f"{links} links: grew by {grown / MIB:.0f} MiB, formula {formula / MIB:.0f} MiB")  # noqa: T201
    assert (links + 2, 0) == (len(status["connections"]), forwarding["unaccounted"])
    assert POOL_BYTES - MAX_FRAME < forwarding["pool_bytes"] <= POOL_BYTES
    assert links * FRAMES_EACH == forwarding["received"]["message"]
    assert forwarding["dropped"]["pool limit exceeded"] > 0
    assert grown <= formula + ALLOWANCE
