"""
A cable between two hosts on loopback: each direction can be cut in silence, delayed and slowed down.

What it moves is bytes of connections, not packets: nothing is lost, doubled or reordered by it. A connection that is
begun during a cut is accepted by the proxy, and then silent.
"""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import threading
import time

from tests.chaos.network.impairment import WHOLE, Impairment
from tests.support.cable import Cable

CHUNK_BYTES = 16 * 1024
CHUNKS = 64  # under way in one direction of one connection
Chunks = queue.Queue[tuple[float, bytes]]


class Lane:
    """One direction between two hosts, for all connections; changed by the network, read by threads of proxies."""

    def __init__(self, seed: str) -> None:
        self.is_whole = threading.Event()
        self.is_whole.set()
        self._impairment = WHOLE
        self._dice = random.Random(seed)

    def impair(self, how: Impairment) -> None:
        """From the next bytes on; a cut holds for those under way as well."""
        self._impairment = how
        if how.is_cut:
            self.is_whole.clear()
        else:
            self.is_whole.set()

    def delay(self) -> float:
        """Seconds that the next bytes are under way."""
        how = self._impairment
        return how.delay + self._dice.uniform(0.0, how.jitter)

    def transfer(self, count: int) -> float:
        """Seconds that the slow link takes for so many bytes."""
        rate = self._impairment.rate
        return count / rate if rate else 0.0


class Proxy(Cable):
    """Shape: `lanes` from whoever connects to whoever is connected to, and back."""

    def __init__(self, to_host: str, to: int, lanes: tuple[Lane, Lane]) -> None:
        self.lanes = lanes
        super().__init__()
        self.to_host, self.to = to_host, to

    def _move(self, near: socket.socket, far: socket.socket, is_onward: bool, link: int) -> None:  # noqa: FBT001 - as Cable calls it
        lane = self.lanes[0 if is_onward else 1]
        chunks: Chunks = queue.Queue(CHUNKS)
        sender = threading.Thread(target=self._send, args=(chunks, far, lane), daemon=True)
        sender.start()
        data = b"-"
        with contextlib.suppress(OSError):
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data:
                data = near.recv(CHUNK_BYTES)
                chunks.put((time.monotonic() + lane.delay(), data))
        if data:  # broken off, not ended
            chunks.put((time.monotonic(), b""))
        sender.join()
        with self._lock:
            self._ends -= {near, far}
        near.close()

    def _send(self, chunks: Chunks, far: socket.socket, lane: Lane) -> None:
        """Each chunk at its time, in their order; the empty one is the end."""
        is_open = True
        while True:
            due, data = chunks.get()
            if is_open:
                time.sleep(max(0.0, due - time.monotonic()))
                lane.is_whole.wait()
                time.sleep(lane.transfer(len(data)))
                try:
                    far.sendall(data) if data else far.shutdown(socket.SHUT_WR)
                except OSError:
                    is_open = False
            if not data:
                return
