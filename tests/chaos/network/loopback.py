"""
Hosts that are addresses of loopback, for machines where namespaces cannot be made; between each pair a proxy.

What a proxy moves is bytes of connections, not packets: it cuts in silence, delays and slows down each direction, and
nothing is lost, doubled or reordered by it. A connection that is begun during a cut is accepted, and then silent.
"""

import contextlib
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.network.host import Clock, Host
from tests.chaos.network.impairment import WHOLE, Counts, Fault, Impairment, ImpossibleError
from tests.chaos.network.network import Network
from tests.support.cable import Cable, Cut

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


class LoopbackNetwork(Network):
    """
    Hosts as 127.x.y.1 and on, the same for one process; every port of a host that another one may reach is a proxy of
    127.0.0.1, and `address` tells which. A cut is a cut of what goes through it, and a host reaches itself directly.
    """

    kind = "loopback"
    abilities = frozenset({Fault.CUT, Fault.DELAY, Fault.RATE, Fault.RESET, Fault.DESCRIPTORS, Fault.CLOCK})

    def __init__(self, directory: Path, *, seed: int, reason: str) -> None:
        super().__init__(directory)
        self.reason = reason
        self._seed = seed
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._proxies: dict[tuple[str, str, int], Proxy] = {}

    def address(self, source: Host, destination: Host, port: int) -> str:
        if source is destination:
            return f"{destination.address}:{port}"
        key = (source.name, destination.name, port)
        if key not in self._proxies:
            lanes = (self._lane(source, destination), self._lane(destination, source))
            self._proxies[key] = Proxy(destination.address, port, lanes)
        return f"127.0.0.1:{self._proxies[key].port}"

    def reset(self, one: Host, other: Host) -> None:
        for (here, there, _), proxy in self._proxies.items():
            if {here, there} == {one.name, other.name}:
                proxy.cut(Cut.BROKEN)
                proxy.mend()

    def counts(self, source: Host, destination: Host) -> Counts:
        raise ImpossibleError("a proxy knows bytes of connections, not packets")

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.is_whole.set()
        for host in self.hosts.values():
            host.end()
        for proxy in self._proxies.values():
            proxy.close()

    def _make(self, name: str, number: int, directory: Path, disk_bytes: int | None, clocks: list[Clock]) -> Host:
        assert disk_bytes is None
        high, low = divmod(os.getpid() % (254 * 256), 256)
        return Host(name, f"127.{high + 1}.{low}.{number}", directory, parts=clocks)

    def impair(self, ways: Iterable[tuple[str, ...]], how: Impairment) -> None:
        for here, there in ways:
            self._lane(self.hosts[here], self.hosts[there]).impair(how)

    def _lane(self, source: Host, destination: Host) -> Lane:
        way = (source.name, destination.name)
        if way not in self._lanes:
            self._lanes[way] = Lane(f"{self._seed} {source.name} {destination.name}")
        return self._lanes[way]
