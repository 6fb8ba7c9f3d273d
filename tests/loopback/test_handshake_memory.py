"""
TLS handshakes, complete and aborted, leave nothing behind: a real daemon's memory before and after thousands of them.

The short form makes 200 of each on either loop; `BROKER_TEST_HANDSHAKES=2000` makes it two thousand. The bound is the
same for all of them, so what a single one leaves shows the more there are.
"""

import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.certificates import Pair, authority, endpoint_settings, make, stranger

HANDSHAKES = int(os.environ.get("BROKER_TEST_HANDSHAKES", "200"))
WARM_UP = 200  # until allocators and caches have what they keep
GROWTH_MAX = 5 * (1 << 20)
SECONDS = 30.0


class Client:
    """Who connects to a daemon by TLS. Shape: `trusted` and `unknown` contexts, by the CA of their certificates."""

    def __init__(self, directory: Path, ca: Pair, port: int) -> None:
        self.port = port
        self.trusted = stranger(make("client", "127.0.0.1", by=ca).store(directory, "client"))
        self.unknown = stranger(make("guest", by=authority("another CA")).store(directory, "guest"))
        self.old = stranger(most=ssl.TLSVersion.TLSv1_2)
        self.silent = stranger(alpn="")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def shake(self, context: ssl.SSLContext) -> None:
        """One whole handshake, after which this side hears the HELLO, or why not, and goes."""
        with contextlib.suppress(OSError), context.wrap_socket(self.connect()) as tls:
            tls.recv(1)

    def abort(self, number: int) -> None:
        """One that comes to nothing, in one of many ways."""
        ways: list[Callable[[], None]] = [
            lambda: self.say(b""),
            lambda: self.say(b"\x16"),
            lambda: self.say(self.hello()[:100]),
            lambda: self.say(self.hello(), is_reading=True),
            lambda: self.say(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(600), is_reading=True),
            lambda: self.say(b"\x00\x00\x00\x09\x01\x00\x00\x00\xc0", is_reading=True),
            lambda: self.shake(self.unknown),
            lambda: self.shake(self.old),
            lambda: self.shake(self.silent),
        ]
        ways[number % len(ways)]()

    def hello(self) -> bytes:
        """A ClientHello."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.trusted.wrap_bio(incoming, outgoing).do_handshake()
        return outgoing.read()

    def say(self, words: bytes, *, is_reading: bool = False) -> None:
        """Say this, hear what comes where that is wanted, and break off."""
        with self.connect() as sock:
            sock.sendall(words)
            if is_reading:
                with contextlib.suppress(OSError):
                    sock.recv(1 << 16)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def settled_memory(daemon: Daemon) -> int:
    """What the daemon has once nobody is connected any more."""

    def is_alone() -> bool:
        status = daemon.status()
        return not status["connections"] and not status["transport"]["handshakes"]

    wait_for(is_alone, seconds=SECONDS, what="the end of all connections")
    return int(psutil.Process(daemon.pid).memory_info().rss)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_thousands_of_handshakes_whole_and_aborted_leave_nothing(loop: str, tmp_path: Path) -> None:
    ca = authority()
    with Topology(tmp_path / "net") as net:
        endpoint = endpoint_settings(tmp_path, "gateway", make("gateway", "127.0.0.1", by=ca), ca)
        settings: dict[str, Any] = {"endpoint": endpoint, "observe": {"log_level": "error"}}
        daemon = net.add("gateway", forwarding=True, settings=settings)
        daemon.environ["BROKER_LOOP"] = loop
        net.start()
        client = Client(tmp_path, ca, daemon.port)
        for number in range(WARM_UP):
            client.shake(client.trusted)
            client.abort(number)
        before = settled_memory(daemon)

        for number in range(HANDSHAKES):
            client.shake(client.trusted)
            client.abort(number)
        grown = settled_memory(daemon) - before
        status = daemon.status()

    print(f"{loop}: {HANDSHAKES} whole and as many aborted, grew by {grown / (1 << 20):.2f} MiB")  # noqa: T201
    assert loop == status["loop"]
    assert grown <= GROWTH_MAX
