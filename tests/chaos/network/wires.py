"""Sockets between two hosts, for tests of what is between them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tests.chaos.network.host import Host
from tests.chaos.network.network import Network

SECONDS = 20.0
PORT = 4022


@contextmanager
def connection(net: Network, near: Host, far: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection from one host to another; nothing waits longer than SECONDS."""
    with far.inside():
        listener = socket.create_server((far.address, PORT))
    with closing(listener):
        host, _, port = net.address(near, far, PORT).rpartition(":")
        with near.inside():
            here = socket.create_connection((host, int(port)), SECONDS)
        with closing(here):
            there, _ = listener.accept()
            there.settimeout(SECONDS)
            with closing(there):
                here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield here, there


@contextmanager
def datagrams(near: Host, far: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A UDP socket on each host, connected to each other: a send is a packet."""
    with near.inside():
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with far.inside():
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with closing(here), closing(there):
        for end, own, other in ((here, near, far), (there, far, near)):
            end.bind((own.address, PORT))
            end.settimeout(SECONDS)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            end.connect((other.address, PORT))
        yield here, there


def receive(end: socket.socket, count: int) -> bytes:
    """So many bytes of a connection."""
    data = b""
    while len(data) < count:
        more = end.recv(count - len(data))
        assert more, f"ended after {len(data)} of {count} bytes"
        data += more
    return data


def numbers(end: socket.socket, count: int) -> list[int]:
    """What so many datagrams say."""
    return [int.from_bytes(end.recv(100), "big") for _ in range(count)]
