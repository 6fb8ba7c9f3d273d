"""
Peers that are connected and say nothing: as many as are wanted, held by one process that answers their PINGs.

    python -m bench.scenarios.idle PORT

Obeys lines on standard input, each answered with one line of JSON:

    open COUNT      so many more connections to PORT, from several addresses of loopback, HELLO said and heard
    watch SECONDS   what comes in so long: PINGs, and the most of them within a tenth of a second

Between lines it goes on answering. It ends when its standard input does.
"""

import json
import os
import resource
import select
import socket
import sys
import time
from collections import Counter
from struct import Struct

from bench.generator import hello
from broker.errors import BrokerError
from broker.protocol.frame import Pong, encode_link
from broker.protocol.layout import PRELUDE_BYTES, FrameKind

SOURCES = 20  # addresses of loopback, so that no single one needs all ports
AT_ONCE = 100  # connections whose HELLO is awaited together
SPARE = 64  # descriptors for anything else
READ_BYTES = 64 * 1024
STALLED_SECONDS = 30.0
BIN_SECONDS = 0.1
_HEAD = Struct(">IB")  # length and kind


class TooFewDescriptorsError(BrokerError):
    """The system does not allow so many connections."""


def allow_descriptors(wanted: int) -> None:
    """
    Raise the soft limit, as far as is needed for so many connections.

    Raises:
        TooFewDescriptorsError: the hard limit is below it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise TooFewDescriptorsError(
            f"{wanted:,} connections need {needed:,} file descriptors and {hard:,} are allowed: raise the hard limit"
            " (ulimit -Hn, LimitNOFILE= of systemd), or ask for fewer"
        )
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Crowd:
    """The connections. Shape: `pings` answered so far, by tenth of a second of the monotonic clock."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._rests: dict[int, bytes] = {}  # of frames that have begun
        self._greeted = 0
        self.pings: Counter[int] = Counter()

    def open(self, count: int) -> dict[str, float]:
        """So many more connections."""
        allow_descriptors(len(self._sockets) + count)
        begun = time.monotonic()
        wanted = self._greeted + count
        for number in range(count):
            self._connect(f"127.0.0.{1 + number % SOURCES}")
            if number % AT_ONCE == AT_ONCE - 1 or number == count - 1:
                self._await(wanted - count + number + 1)
        return {"connections": len(self._sockets), "seconds": time.monotonic() - begun}

    def turn(self, seconds: float) -> bool:
        """Read and answer what has come; whether standard input is among it."""
        ready = self._poll.poll(seconds)
        for descriptor, _ in ready:
            if descriptor in self._sockets:
                self._read(descriptor)
        return any(descriptor not in self._sockets for descriptor, _ in ready)

    def watch_input(self, descriptor: int) -> None:
        """`turn` tells when it can be read."""
        self._poll.register(descriptor, select.EPOLLIN)

    def _connect(self, source: str) -> None:
        sock = socket.create_connection(("127.0.0.1", self._port), STALLED_SECONDS, (source, 0))
        sock.sendall(hello())
        sock.setblocking(False)
        self._sockets[sock.fileno()] = sock
        self._poll.register(sock.fileno(), select.EPOLLIN)

    def _await(self, greeted: int) -> None:
        deadline = time.monotonic() + STALLED_SECONDS
        while self._greeted < greeted:
            if time.monotonic() > deadline:
                sys.exit(f"idle connections: {self._greeted:,} of {greeted:,} were greeted and nothing more comes")
            self.turn(1.0)

    def _read(self, descriptor: int) -> None:
        sock = self._sockets[descriptor]
        data = self._rests.pop(descriptor, b"") + sock.recv(READ_BYTES)
        if not data:
            sys.exit("idle connections: the gateway closed one; its log says why")
        answers = b""
        while len(data) >= PRELUDE_BYTES:
            length, kind = _HEAD.unpack_from(data)
            if len(data) < length:
                break
            if kind == FrameKind.PING:
                answers += encode_link(Pong(data[PRELUDE_BYTES:length]))
                self.pings[int(time.monotonic() / BIN_SECONDS)] += 1
            self._greeted += kind == FrameKind.HELLO
            data = data[length:]
        if data:
            self._rests[descriptor] = data
        if answers:
            sock.sendall(answers)

    def watch(self, seconds: float) -> dict[str, float]:
        """What comes in so long."""
        self.pings.clear()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.turn(min(left, 1.0))
        told = {"pings": sum(self.pings.values()), "most": max(self.pings.values(), default=0)}
        self.pings.clear()
        return {"connections": len(self._sockets), **told}


def main() -> None:
    """Obey lines until there are none."""
    crowd = Crowd(int(sys.argv[1]))
    crowd.watch_input(sys.stdin.fileno())
    pending = b""
    while True:
        if not crowd.turn(60.0):
            continue
        piece = os.read(sys.stdin.fileno(), READ_BYTES)
        if not piece:
            return
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            word, value = line.decode().split()
            told = crowd.open(int(value)) if word == "open" else crowd.watch(float(value))
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokerError as error:
        sys.exit(str(error))
