"""
The load generator in Python, for machines without a C compiler; the same arguments and lines as `generator.c`.

Simpler than the program in C, and much slower: it reads every frame, and sends a frame at a time where it takes time.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from broker.wire.decoder import Decoder
from broker.wire.layout import FIRST_DIALOG_KIND

WINDOW_BYTES = 1024 * 1024
MAX_FRAME = 16 * 1024 * 1024
READ_BYTES = 1024 * 1024
STALLED_SECONDS = 20.0
QUIET_SECONDS = 0.02
TURN_SECONDS = 0.001
STRAGGLER_SECONDS = 0.2  # so long nothing more came: nothing will
DRINK_BYTES = 65536
NUMBERS_AT = ((24, 32), (48, 56))  # the second half of message_id, and sequence_number
STAMP_BYTES = 8


class Twin:
    """The generator's connections and what has arrived. Shape: `latencies` nanoseconds, of the current line."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.frame_bytes: int = options.s
        self.stamp_at: int = options.t
        self.frames = bytearray(Path(options.f).read_bytes())
        self.frame_count = len(self.frames) // self.frame_bytes
        self.next_frame = 0
        self.received = 0
        self.latencies: list[int] = []
        self.slow_latencies: list[int] = []
        self.fast_latencies: list[int] = []
        self.taken_ever = self.arrived_ever = 0
        self._turn_seconds = TURN_SECONDS if options.w else 0.0
        self._slow_port: int = options.listen[-1]
        self._drink_bytes_s = 0
        self._drink_at = self._drink_left = 0.0
        self._drinkers: list[tuple[socket.socket, Decoder]] = []
        self._is_greeting = options.g is not None
        self._greetings = self._endless_greetings(options)
        self._selector = selectors.DefaultSelector()
        for port in options.listen:
            self._selector.register(socket.create_server(("127.0.0.1", port)), selectors.EVENT_READ, None)
        self._senders = [self._connect(options.p) for _ in range(options.c)]
        self._pending = [memoryview(b"") for _ in self._senders]

    def flood(self, count: int, _hertz: float) -> None:
        """As fast as the hop takes them."""
        sent = 0
        window = max(1, WINDOW_BYTES // self.frame_bytes)
        while self.received < count:
            while sent < min(count, self.received + window) and self._try_send(sent, time.monotonic_ns()):
                sent += 1
            self._poll(0.001 if sent < count else STALLED_SECONDS)

    def rate(self, count: int, hertz: float) -> None:
        """One every 1 / `hertz` seconds."""
        begun = time.monotonic_ns()
        sent = 0
        while self.received < count:
            due = begun + int(sent / hertz * 1e9)
            if sent < count and due <= time.monotonic_ns() and self._try_send(sent, due):
                sent += 1
            self._poll(0 if sent < count else STALLED_SECONDS)

    def ping(self, count: int, _hertz: float) -> None:
        """One in flight."""
        for number in range(count):
            while not self._try_send(number, time.monotonic_ns()):
                self._poll(0.001)
            while self.received <= number:
                self._poll(STALLED_SECONDS)

    def press(self, seconds: float, hertz: float, rest_ms: float) -> dict[str, float]:
        """An open loop that takes no for an answer."""
        self.received, self.latencies, self.slow_latencies, self.fast_latencies = 0, [], [], []
        begun = last_news = time.monotonic_ns()
        due = taken = late = 0
        while (now := time.monotonic_ns()) < begun + seconds * 1e9:
            if (due_at := begun + int(due / hertz * 1e9) if hertz else now + 1) <= now:
                taken += self._offer(due, due_at)
                due, late = due + 1, max(late, now - due_at)
            self._poll(0 if due_at <= now else self._turn_seconds)
        self.taken_ever += taken
        last_received, end = self.received, time.monotonic_ns()
        while self.arrived_ever + self.received < self.taken_ever and time.monotonic_ns() - end < rest_ms * 1e6:
            for at, pending in enumerate(self._pending):
                if pending:
                    self._try_send(at, 0)  # the rest of a frame that was stamped when it began
            self._poll(TURN_SECONDS)
            if self.received != last_received:
                last_received, last_news = self.received, time.monotonic_ns()
            elif time.monotonic_ns() - last_news > STRAGGLER_SECONDS * 1e9:
                break
        self.arrived_ever += self.received
        on_the_way = self.taken_ever - self.arrived_ever
        return {
            "messages": due,
            "taken": taken,
            "refused": due - taken,
            "on_the_way": on_the_way,
            "late_us": late / 1e3,
        }

    def drink(self, bytes_s: int) -> None:
        """Read so much a second of the last port; 0 is as much as there is."""
        for sock, decoder in self._drinkers:
            if bytes_s and not self._drink_bytes_s:
                self._selector.unregister(sock)
            elif self._drink_bytes_s and not bytes_s:
                self._selector.register(sock, selectors.EVENT_READ, decoder)
        self._drink_bytes_s, self._drink_at, self._drink_left = bytes_s, time.monotonic(), 0.0

    def settle(self) -> None:
        """Wait until nothing comes any more; count from now on."""
        while self._poll(QUIET_SECONDS):
            pass
        self.received = 0
        self.latencies = []

    def _offer(self, number: int, stamp: int) -> bool:
        """Send the next frame, unless another one waits for its connection: then it is refused."""
        at = number % len(self._senders)
        if self._pending[at] and not self._try_send(number, stamp):
            return False
        self._try_send(number, stamp)
        return True

    def _drink(self) -> bool:
        """Whether anything came of the last port."""
        now = time.monotonic()
        self._drink_left = min(
            self._drink_left + (now - self._drink_at) * self._drink_bytes_s, max(DRINK_BYTES, self._drink_bytes_s / 10)
        )
        self._drink_at, has_come = now, False
        for sock, decoder in self._drinkers:
            if self._drink_left >= DRINK_BYTES:
                with suppress(BlockingIOError):
                    self._drink_left -= self._read(sock, decoder, DRINK_BYTES)
                    has_come = True
        return has_come

    def _try_send(self, number: int, stamp: int) -> bool:
        """Send the next frame through one of the connections in turn; False when that takes nothing now."""
        at = number % len(self._senders)
        frame = self._pending[at] or self._next(stamp)
        try:
            sent = self._senders[at].send(frame)
        except BlockingIOError:
            sent = 0
        self._pending[at] = frame[sent:]
        return not self._pending[at]

    def _next(self, stamp: int) -> memoryview:
        """A copy of the next frame, with its due time and with numbers that no earlier one had."""
        start = self.next_frame * self.frame_bytes
        for begin, end in NUMBERS_AT:
            number = int.from_bytes(self.frames[start + begin : start + end], "big") + self.frame_count
            self.frames[start + begin : start + end] = number.to_bytes(8, "big")
        body = start + self.stamp_at
        self.frames[body : body + STAMP_BYTES] = stamp.to_bytes(STAMP_BYTES, "big")
        self.next_frame = (self.next_frame + 1) % self.frame_count
        return memoryview(bytes(self.frames[start : start + self.frame_bytes]))

    def _poll(self, seconds: float) -> bool:
        """Whether anything came."""
        has_drunk = self._drink_bytes_s > 0 and self._drink()
        ready = self._selector.select(min(seconds, TURN_SECONDS) if self._drink_bytes_s else seconds)
        if not ready and seconds == STALLED_SECONDS:
            sys.exit(f"load generator: {self.received} frames arrived and nothing more comes")
        for key, _ in ready:
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if key.data is None:
                self._accept(sock)
            else:
                self._read(sock, key.data, READ_BYTES)
        return bool(ready) or has_drunk

    def _accept(self, listener: socket.socket) -> None:
        sock = self._register(listener.accept()[0])
        if sock.getsockname()[1] == self._slow_port:
            self._drinkers.append((sock, self._selector.get_key(sock).data))
            if self._drink_bytes_s:
                self._selector.unregister(sock)

    def _read(self, sock: socket.socket, decoder: Decoder, most: int) -> int:
        data = sock.recv(most)
        if not data:
            sys.exit("load generator: the hop closed a connection")
        now = time.monotonic_ns()
        for frame in decoder.feed(data):
            if frame[4] >= FIRST_DIALOG_KIND:
                self.received += 1
                stamp = int.from_bytes(frame[self.stamp_at : self.stamp_at + STAMP_BYTES], "big")
                self.latencies.append(now - stamp)
                is_slow = sock.getsockname()[1] == self._slow_port
                (self.slow_latencies if is_slow else self.fast_latencies).append(now - stamp)
        return len(data)

    def _connect(self, port: int) -> socket.socket:
        return self._register(socket.create_connection(("127.0.0.1", port)))

    def _register(self, sock: socket.socket) -> socket.socket:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._is_greeting:
            sock.sendall(next(self._greetings))
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, Decoder(MAX_FRAME))
        return sock

    @staticmethod
    def _endless_greetings(options: argparse.Namespace) -> Iterator[bytes]:
        data = Path(options.g).read_bytes() if options.g else b""
        while True:
            for start in range(0, len(data), options.n or 1):
                yield data[start : start + options.n]


def answer(twin: Twin, line: str) -> dict[str, float]:
    """Carry out one line; what came of it."""
    word, count, *hertz = line.split()
    if word == "drink":
        twin.drink(int(count))
        return {}
    if word == "press":
        return _pressed(twin, *map(float, (count, *hertz)))
    twin.settle()
    begun, cpu = time.monotonic(), time.process_time()
    {"flood": twin.flood, "rate": twin.rate, "ping": twin.ping}[word](int(count), float(hertz[0]) if hertz else 0.0)
    told = {
        "messages": float(count),
        "seconds": time.monotonic() - begun,
        "cpu_seconds": time.process_time() - cpu,
    }
    if word != "flood":
        told |= _quantiles(twin.latencies, "")
    return told


def _pressed(twin: Twin, seconds: float, hertz: float, limit_us: float, rest_ms: float) -> dict[str, float]:
    begun, cpu = time.monotonic(), time.process_time()
    told = twin.press(seconds, hertz, rest_ms)
    told |= {"seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - cpu}
    told["arrived"], told["slow_arrived"] = len(twin.latencies), len(twin.slow_latencies)
    told["in_time"] = sum(one <= limit_us * 1e3 for one in twin.latencies)
    told |= _quantiles(twin.slow_latencies, "slow_") | _quantiles(twin.fast_latencies, "fast_")
    return told | _quantiles(twin.latencies, "")


def _quantiles(latencies: list[int], prefix: str) -> dict[str, float]:
    """Zero of no latencies."""
    latencies = sorted(latencies) or [0]
    parts = (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999))
    told = {prefix + name: latencies[int(len(latencies) * part)] / 1000 for name, part in parts}
    return told | {f"{prefix}max_us": latencies[-1] / 1000}


def main() -> None:
    """Connect, then obey the lines on standard input."""
    parser = argparse.ArgumentParser()
    for name, kind in (("p", int), ("c", int), ("f", str), ("s", int), ("t", int), ("g", str), ("n", int)):
        parser.add_argument(f"-{name}", type=kind)
    parser.add_argument("-w", action="store_true")
    parser.add_argument("listen", nargs="+", type=int)
    options = parser.parse_args()
    twin = Twin(options)
    _say({"connections": options.c})
    for line in sys.stdin:
        _say(answer(twin, line))


def _say(told: dict[str, float]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
