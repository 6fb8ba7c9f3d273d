"""
Crowds of bad peers at a real daemon: memory stays bounded, counters add up, and everybody else is served meanwhile.

The short form has 500 connections in a crowd; `BROKER_TEST_CONNECTIONS=10000` makes it ten thousand, where the system
allows so many descriptors. How long the good neighbours wait is printed and not judged: the machine may be busy.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import psutil
import pytest

from broker.protocol.frame import Fatal, Hello, Ping, Pong, encode_link
from broker.routing.address import NetworkAddress
from examples.demo.topology import Daemon, Topology
from tests.support.descriptors import allow_descriptors
from tests.support.loopback import Raw, message, raw, until

CONNECTIONS = int(os.environ.get("BROKER_TEST_CONNECTIONS", "500"))
MESSAGES = 300  # of the good neighbours
MIB = 1 << 20
CONNECTION_BYTES = 16 * 1024  # objects of one idle connection, generously
ALLOWANCE = 64 * MIB  # pool, unfinished frames, and what the allocator keeps
GOOD, STUCK = NetworkAddress("10.9.9.9"), NetworkAddress("10.9.9.8")
HEARTBEAT_MS = 3_600_000  # nobody is silent for too long
HELLO = encode_link(Hello(name="drip"))
SETTINGS: dict[str, dict[str, Any]] = {
    "endpoint": {"message_forward_size": "16MiB", "handshake_timeout": "10m", "heartbeat": "1h"},
    "limits": {"connections": 0, "connections_per_peer": 0},  # all of them come from one address
}
ROUTES = f"""
CREATE ROUTE good WITH SERVICE_NAME = '//good', ADDRESS = '{GOOD}';
CREATE ROUTE stuck WITH SERVICE_NAME = '//stuck', ADDRESS = '{STUCK}';
"""


class Crowd:
    """Who is there. Shape: `here` the daemon's address; `connections` how many the crowd has; `sent` frames so far."""

    def __init__(self, here: NetworkAddress, connections: int) -> None:
        self.here = here
        self.connections = connections
        self.sent = 0

    async def connect(self, stack: AsyncExitStack) -> list[Raw]:
        return [await stack.enter_async_context(raw(self.here)) for _ in range(self.connections)]


@asynccontextmanager
async def busy(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Work goes on again and again, at least once, until the end."""
    is_over = asyncio.Event()

    async def run() -> None:
        await work()
        while not is_over.is_set():
            await work()

    async with asyncio.TaskGroup() as group:
        group.create_task(run())
        try:
            yield
        finally:
            is_over.set()


@asynccontextmanager
async def silent(crowd: Crowd) -> AsyncIterator[None]:
    """Connections that say nothing."""
    async with AsyncExitStack() as stack:
        await crowd.connect(stack)
        yield


@asynccontextmanager
async def dripping(crowd: Crowd) -> AsyncIterator[None]:
    """Connections that send one byte a second."""
    async with AsyncExitStack() as stack:
        peers = await crowd.connect(stack)
        position = 0

        async def drip() -> None:
            nonlocal position
            for peer in peers:
                await peer.say(HELLO[position : position + 1])
            position += 1
            await asyncio.sleep(1.0)

        async with busy(drip):
            yield


@asynccontextmanager
async def malformed(crowd: Crowd) -> AsyncIterator[None]:
    """One connection after the other that greets and then sends what is no frame."""

    async def break_the_rules() -> None:
        async with raw(crowd.here, name="malformed") as peer:
            await peer.say(b"\xff" * 1000)
            await peer.hear(Fatal)

    async with busy(break_the_rules):
        yield


@asynccontextmanager
async def undeliverable(crowd: Crowd) -> AsyncIterator[None]:
    """Well-formed frames of which none can go anywhere."""
    kinds = [message("//nobody"), message("//good", hop_count=16), message("//good", time_to_live=0)]
    flood = b"".join([*kinds, message("//good").replace(b"//good", b"//\xffood")]) * 250
    async with raw(crowd.here, name="flood", heartbeat_ms=HEARTBEAT_MS) as peer:

        async def send() -> None:
            crowd.sent += 1000
            await peer.say(flood, Ping(b"12345678"))
            await peer.hear(Pong)
            peer.frames.clear()

        async with busy(send):
            yield


@asynccontextmanager
async def stuck(crowd: Crowd) -> AsyncIterator[None]:
    """A next hop that never reads, and somebody who floods it."""
    async with (
        raw(crowd.here, is_reading_little=True, addresses=[str(STUCK)], heartbeat_ms=HEARTBEAT_MS) as next_hop,
        raw(crowd.here, name="flood", heartbeat_ms=HEARTBEAT_MS) as peer,
    ):
        await next_hop.hear(Hello)

        async def send() -> None:
            first = crowd.sent
            crowd.sent += 100
            await peer.say(*(message("//stuck", first + n, bytes(2000)) for n in range(100)), Ping(b"12345678"))
            await peer.hear(Pong)
            peer.frames.clear()

        async with busy(send):
            yield


async def be_served(here: NetworkAddress) -> list[float]:
    """Good neighbours send one message after the other through the daemon; seconds that each took."""
    async with (
        raw(here, name="sender", heartbeat_ms=HEARTBEAT_MS) as sender,
        raw(here, addresses=[str(GOOD)], heartbeat_ms=HEARTBEAT_MS) as receiver,
    ):
        await receiver.hear(Hello)
        waits = []
        for number in range(MESSAGES):
            begin = time.perf_counter()
            await sender.say(message("//good", number))
            await receiver.dialog_frames(1)
            waits.append(time.perf_counter() - begin)
            receiver.frames.clear()
        return sorted(waits)


async def meet(
    crowd_of: Callable[[Crowd], AbstractAsyncContextManager[None]], hop: Daemon, connections: int
) -> tuple[int, int, list[float], dict[str, Any]]:
    """Bytes by which the daemon grew, frames the crowd sent, waits of the good ones, and what the daemon tells then."""
    crowd = Crowd(NetworkAddress("127.0.0.1", hop.port), connections)
    process = psutil.Process(hop.pid)
    before = process.memory_info().rss
    async with crowd_of(crowd):
        waits = await be_served(crowd.here)
        grown = process.memory_info().rss - before
    status: dict[str, Any] = {}

    def is_over() -> bool:
        status.update(hop.status())
        return not status["connections"]

    await until(is_over)
    return grown, crowd.sent, waits, status


@pytest.mark.timeout(600)
@pytest.mark.parametrize("crowd_of", [silent, dripping, malformed, undeliverable, stuck])
def test_others_are_served_whatever_a_crowd_does(
    crowd_of: Callable[[Crowd], AbstractAsyncContextManager[None]], net: Topology
) -> None:
    connections = allow_descriptors(CONNECTIONS)
    hop = net.add("gateway", forwarding=True, settings=SETTINGS)
    net.script("gateway", "msdb", ROUTES)
    net.start()

    grown, sent, waits, status = asyncio.run(meet(crowd_of, hop, connections))
    hop.kill()

    median, late = (1000 * waits[len(waits) * part // 100] for part in (50, 99))
    print(f"{crowd_of.__name__}: p50 {median:.1f} ms, p99 {late:.1f} ms, grew by {grown / MIB:.0f} MiB")  # noqa: T201
    forwarding = status["forwarding"]
    assert (MESSAGES + sent, 0) == (sum(forwarding["received"].values()), forwarding["unaccounted"])
    ended = forwarding["forwarded"] + sum(forwarding["dropped"].values()) + forwarding["held"]
    assert MESSAGES + sent == ended
    assert grown <= connections * CONNECTION_BYTES + ALLOWANCE


# --- a storm of strangers ---

KNOWN = "127.0.0.2"  # a host that a route names; strangers come from another one
DESCRIPTORS = 200  # that the daemon may have: few, so that few strangers are a crowd
STORM = 300  # connections at a time


@asynccontextmanager
async def neighbour(daemon: Daemon) -> AsyncIterator[Raw]:
    """Who comes from the host that a route names, and has been greeted."""
    here = NetworkAddress("127.0.0.1", daemon.port)
    async with raw(here, host=KNOWN, name="neighbour", heartbeat_ms=HEARTBEAT_MS) as peer:
        await peer.hear(Hello)
        yield peer


@asynccontextmanager
async def storm(daemon: Daemon) -> AsyncIterator[list[int]]:
    """Strangers that connect, say nothing, and connect again when they are closed; yields how many were."""
    ended = [0]
    is_over = asyncio.Event()

    async def come() -> None:
        while not is_over.is_set():  # a cancellation may get lost in `asyncio.wait_for`, where something has just come
            with contextlib.suppress(OSError):
                async with raw(NetworkAddress("127.0.0.1", daemon.port)) as peer:
                    await peer.end_of_bytes()
            ended[0] += 1
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(come()) for _ in range(STORM)]
    try:
        yield ended
    finally:
        is_over.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="the daemon is to have few descriptors")
def test_storm_of_strangers_locks_out_neither_a_known_peer_nor_the_admin(net: Topology) -> None:
    settings: dict[str, Any] = {"limits": {"reserved_connections": 20}, "endpoint": {"handshake_timeout": "5m"}}
    daemon = net.add("gateway", forwarding=True, settings=settings)
    net.script("gateway", "msdb", f"CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://{KNOWN}:9';\n")
    daemon.prefix = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
    daemon.start()

    async def weather_it() -> dict[str, Any]:
        async with neighbour(daemon) as early, storm(daemon) as ended:
            await until(lambda: ended[0] > STORM, seconds=60)
            for _ in range(10):
                async with neighbour(daemon) as late:
                    await late.say(Ping(b"12345678"))
                    await late.hear(Pong)
                status = await asyncio.to_thread(daemon.status)
            await early.say(Ping(b"and good"))
            await early.hear(Pong)
        return status

    status = asyncio.run(weather_it())

    assert len(status["connections"]) <= status["transport"]["connections_max"] + 70
    assert status["transport"]["connections_max"] == DESCRIPTORS - 2 * (DESCRIPTORS // 4)
    assert status["transport"]["refused"]["connections"] > STORM
    assert "accepting paused" not in daemon.log.read_text()
