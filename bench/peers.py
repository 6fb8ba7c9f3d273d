"""
What brokers cost that keep nothing either: nats-server and mosquitto (QoS 0), beside a byte relay.

One sender, one receiver, one subject, a flood with at most 1 MiB on its way; the broker on one core, both ends on the
other. They speak each protocol in prepared bytes: a message costs them next to nothing. Before that the gateway,
HAProxy and the same relay are measured as the benchmark `forwarding` does. A broker that this machine does not have is
left out. CPU microseconds of the hop for each message, user and system, median of rounds.
"""

import os
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figures import Row, cpu_seconds, pin, row_of, unpin
from bench.forwarding import (
    FLOOD,
    GENERATOR_CORE,
    HOP_CORE,
    RELAY,
    FramesLostError,
    Hop,
    Scenario,
    measure,
    relay,
    running,
)
from bench.haproxy import haproxy, program
from examples.demo.topology import free_port

PAYLOADS = (256, 1024)
ROUNDS = 5
SECONDS = 0.5  # of each round
ON_ITS_WAY = 1 << 20  # bytes at most
CHUNK = 256 * 1024
SILENCE_SECONDS = 10.0  # until what has not arrived is lost
HOST = "127.0.0.1"

_NATS_HELLO = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
_MQTT_CONNECT = b"\x00\x04MQTT\x04\x02\x00\x00"  # version 3.1.1, clean session, no keep-alive
_MOSQUITTO = "listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_queued_bytes 0\n"


@dataclass(frozen=True, slots=True)
class Line:
    """Two ends through a broker. Shape: `message` as it is sent; `arrival` bytes of one that is delivered."""

    sender: socket.socket
    receiver: socket.socket
    message: bytes
    arrival: int


def measure_peers(*, is_full: bool, tell: Callable[[str], None]) -> list[Row]:
    """Rows of CPU for a message by payload; the yardstick is the relay of `forwarding`."""
    del is_full
    rivals = [haproxy] if program() else []
    rows = [
        replace(row, bench="peers") for row in measure([Scenario(size) for size in PAYLOADS], rivals=rivals, tell=tell)
    ]
    with ExitStack() as stack:
        stack.callback(unpin, os.getpid())
        pin(os.getpid(), GENERATOR_CORE)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, make in (("the relay again", _relayed), ("nats-server", _nats), ("mosquitto, QoS 0", _mosquitto)):
            tell(name)
            for payload in PAYLOADS:
                with make(directory, payload) as made:
                    if made is not None:
                        key = ("peers", Scenario(payload).name, FLOOD, name)
                        rows.append(row_of(key, "cpu_us", _measured(*made), yardstick=RELAY))
    return rows


Made = Iterator[tuple[Hop, Line] | None]


@contextmanager
def _relayed(_: Path, payload: int) -> Made:
    with (
        relay() as hop,
        closing(socket.create_server((HOST, hop.ports[0]))) as listener,
        closing(socket.create_connection((HOST, hop.port))) as sender,
        closing(listener.accept()[0]) as receiver,
    ):
        yield hop, Line(sender, receiver, bytes(payload), payload)


@contextmanager
def _nats(_: Path, payload: int) -> Made:
    found = shutil.which("nats-server")
    if found is None:
        yield None
        return
    port = free_port()
    with running("nats-server", [found, "-a", HOST, "-p", str(port)], port, 0) as hop, _ends(port) as (here, there):
        for end, more in ((here, b""), (there, b"SUB b 1\r\n")):
            end.sendall(_NATS_HELLO + more + b"PING\r\n")
            _until(end, lambda told: told.endswith(b"PONG\r\n"))
        body = bytes(payload) + b"\r\n"
        message = b"PUB b %d\r\n" % payload + body
        yield hop, Line(here, there, message, len(b"MSG b 1 %d\r\n" % payload + body))


@contextmanager
def _mosquitto(directory: Path, payload: int) -> Made:
    found = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        yield None
        return
    port = free_port()
    config = directory / "mosquitto.conf"
    config.write_text(_MOSQUITTO.format(port=port), encoding="ascii")
    with running("mosquitto", [found, "-c", str(config)], port, 0) as hop, _ends(port) as (here, there):
        for end, name in ((here, b"a"), (there, b"b")):
            end.sendall(_mqtt(0x10, _MQTT_CONNECT + b"\x00\x01" + name))
            _until(end, lambda told: len(told) == len(b"\x20\x02\x00\x00"))
        there.sendall(_mqtt(0x82, b"\x00\x01" + b"\x00\x01b" + b"\x00"))
        _until(there, lambda told: len(told) == len(b"\x90\x03\x00\x01\x00"))
        message = _mqtt(0x30, b"\x00\x01b" + bytes(payload))
        yield hop, Line(here, there, message, len(message))


def _mqtt(kind: int, rest: bytes) -> bytes:
    """A control packet of MQTT: its first byte, the length of what follows, seven bits a byte."""
    length, count = bytearray(), len(rest)
    while True:
        count, digit = divmod(count, 128)
        length.append(digit | 128 * (count > 0))
        if not count:
            return bytes([kind]) + bytes(length) + rest


@contextmanager
def _ends(port: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        closing(socket.create_connection((HOST, port))) as here,
        closing(socket.create_connection((HOST, port))) as there,
    ):
        yield here, there


def _until(end: socket.socket, is_told: Callable[[bytes], bool]) -> None:
    """Read what a broker answers while nothing is sent."""
    end.settimeout(SILENCE_SECONDS)
    told = b""
    while not is_told(told):
        read = end.recv(4096)
        if not read:
            raise ConnectionError(f"the broker ended the connection after {told!r}")
        told += read


def _measured(hop: Hop, line: Line) -> list[dict[str, float]]:
    for pid in hop.pids:
        pin(pid, HOP_CORE)
    taken = []
    _flood(hop, line, SECONDS)
    for _ in range(ROUNDS):
        before = sum(map(cpu_seconds, hop.pids))
        messages = _flood(hop, line, SECONDS)
        taken.append({"cpu_us": (sum(map(cpu_seconds, hop.pids)) - before) / messages * 1e6})
    return taken


def _flood(hop: Hop, line: Line, seconds: float) -> int:
    """
    Messages for so long, and until the last has arrived; how many.

    Raises:
        FramesLostError: nothing arrives any more.
    """
    count = max(1, CHUNK // len(line.message))
    chunk, window = line.message * count, ON_ITS_WAY * line.arrival // len(line.message)
    line.sender.setblocking(False)
    line.receiver.setblocking(False)
    buffer = bytearray(ON_ITS_WAY)
    offset = sent = arrived = 0
    end = time.monotonic() + seconds
    while True:
        is_over = time.monotonic() >= end and offset == 0
        due = sent * line.arrival
        if is_over and arrived >= due:  # nats-server adds a PING of its own now and then
            return sent
        may_send = not is_over and due - arrived < window
        writers = [line.sender] if may_send else []
        readable, writable, _ = select.select([line.receiver], writers, [], SILENCE_SECONDS)
        if readable:
            arrived += line.receiver.recv_into(buffer)
        elif not writable:
            raise FramesLostError(f"{hop.name}: {due - arrived} bytes did not arrive")
        if writable:
            offset += line.sender.send(memoryview(chunk)[offset:])
            if offset == len(chunk):
                offset, sent = 0, sent + count
