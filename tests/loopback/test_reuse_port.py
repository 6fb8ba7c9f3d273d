"""Two daemons on one port: with `endpoint.reuse_port` in both each gets connections, else the second does not start."""

from __future__ import annotations

import contextlib
import socket

from examples.demo.topology import Daemon, Topology, free_port

SECONDS = 20.0
CONNECTIONS = 64  # the system picks a daemon for each by its hash, so one that gets none is out of the question


def connect(daemon: Daemon) -> socket.socket:
    """A connection to its port, on which the daemon that accepted it has begun its HELLO."""
    host, _, port = daemon.status()["listen"][0].rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=SECONDS)
    assert sock.recv(1)
    return sock


def gateways(net: Topology, *, reuse_port: tuple[bool, bool]) -> list[Daemon]:
    """Two that listen on one port; not started."""
    listen = [f"127.0.0.1:{free_port()}"]
    return [
        net.add(name, forwarding=True, settings={"endpoint": {"listen": listen, "reuse_port": reuse}})
        for name, reuse in zip(("one", "two"), reuse_port, strict=True)
    ]


def test_two_daemons_on_one_port_both_get_connections(net: Topology) -> None:
    one, two = gateways(net, reuse_port=(True, True))
    net.start()

    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(connect(one))
        got = [len(daemon.status()["connections"]) for daemon in (one, two)]

    assert CONNECTIONS == sum(got)
    assert all(got), got
