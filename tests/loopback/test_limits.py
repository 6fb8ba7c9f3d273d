"""A real daemon and those who take too much of it: everybody else is served, and the admin API answers."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.protocol.frame import Hello, Ping, Pong
from broker.routing.address import NetworkAddress
from examples.demo.topology import Daemon, Topology
from tests.support.loopback import Raw, raw, until

KNOWN = "127.0.0.2"  # a host that a route names; strangers come from another one
DESCRIPTORS = 200  # that the daemon may have: few, so that few strangers are a crowd
STORM = 300  # connections at a time
LONG = {"heartbeat_ms": 3_600_000}  # nobody is silent for too long


@asynccontextmanager
async def neighbour(daemon: Daemon) -> AsyncIterator[Raw]:
    """Who comes from the host that a route names, and has been greeted."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((KNOWN, 0))
    try:
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", daemon.port)), 30)
        peer = Raw(sock)
        await peer.greet(name="neighbour", **LONG)
        await peer.hear(Hello)
        yield peer
    finally:
        sock.close()


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
