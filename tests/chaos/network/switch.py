"""
The process through which the packets of impaired ways pass, and which removes everything when its harness is gone.

    nsenter --net=/run/netns/TAG -- python -m tests.chaos.network.switch TAG SEED

It runs in the namespace of the kernel's bridge. Packets come to it and leave by a TAP device that is a port of the
bridge: filters send those of impaired ways there, and what is written to it goes where its addresses say. Its standard
input brings orders, one JSON object a line, each answered by one line: `{"impair": [[source, destination,
{impairment}], ...]}`, `{"counts": [source, destination]}`. The end of the input is the end of the network.

What happens to a frame is decided when it comes, by the impairment of its way at that moment and by dice of that way
alone; only a cut holds for those as well that are under way already. The order of a way is kept, whatever delay and
jitter say, but for what is reordered: that is held back for `HELD_BACK` seconds, and what comes meanwhile passes it.
"""

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address
from itertools import count
from typing import Any

from tests.chaos.network.impairment import WHOLE, Counts, Impairment
from tests.chaos.network.removal import remove

ETHERNET_BYTES = 14
QUOTED_BYTES = 8  # of the packet behind its IP header: ports and sequence number of TCP
TYPE, CODE = 3, 4  # destination unreachable: fragmentation needed and DF set


def fragmentation_needed(frame: bytes, mtu: int) -> bytes:
    """
    The frame that tells the sender of `frame` that its packet was larger than `mtu` bytes.

    It comes from the address that the packet was meant for, as there is no router to name: every host is on the same
    switch. Shape: both are Ethernet frames with IPv4.
    """
    packet = frame[ETHERNET_BYTES:]
    header_bytes = (packet[0] & 15) * 4
    quoted = packet[: header_bytes + QUOTED_BYTES]
    message = struct.pack(">BBHHH", TYPE, CODE, 0, 0, mtu) + quoted
    message = message[:2] + checksum(message) + message[4:]
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(message), 0, 0, 64, 1, 0) + packet[16:20] + packet[12:16]
    header = header[:10] + checksum(header) + header[12:]
    return frame[6:12] + frame[:6] + frame[12:14] + header + message


def checksum(data: bytes) -> bytes:
    """The Internet checksum of RFC 1071, big-endian."""
    padded = data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", ~total & 0xFFFF)


ADDRESSES = slice(26, 34)  # of an Ethernet frame with IPv4: source and destination
LENGTH = slice(16, 18)  # likewise: total length of the packet, big-endian
HELD_BACK = 0.02  # seconds; longer than the gap between packets of a busy connection
QUEUE_SECONDS = 1.0  # of traffic in front of a slow link
PENDING_BYTES = 64 << 20  # of all delayed frames together


@dataclass(slots=True)
class Way:
    """
    One direction between two hosts; changed by `Relay` alone.

    Shape: `last_at` the instant of the latest frame that keeps its order; `free_at` when the slow link is done with all
    that it has been given.
    """

    dice: random.Random
    impairment: Impairment = WHOLE
    counts: Counts = field(default_factory=Counts)
    last_at: float = 0.0
    free_at: float = 0.0


class Relay:
    """
    All impaired ways. Shape: instants are monotonic seconds, given by the caller; `pending_bytes` what waits for its
    time, never more than PENDING_BYTES.
    """

    def __init__(self, seed: int) -> None:
        self.pending_bytes = 0
        self._seed = seed
        self._ways: dict[bytes, Way] = {}
        self._pending: list[tuple[float, int, bytes, Way]] = []
        self._numbers = count()

    def impair(self, source: str, destination: str, impairment: Impairment) -> None:
        """From the next frame on; the dice go on where they were."""
        self._way(source, destination).impairment = impairment

    def counts(self, source: str, destination: str) -> Counts:
        """What became of the frames of a way so far."""
        return self._way(source, destination).counts

    def take(self, frame: bytes, now: float) -> list[bytes]:
        """What is to be sent at once because of this frame: itself, twice, an answer to its sender, or nothing yet."""
        way = self._ways.get(frame[ADDRESSES])
        if way is None:
            return [frame]
        told, counts = way.impairment, way.counts
        if told.mtu is not None and not told.is_cut and int.from_bytes(frame[LENGTH], "big") > told.mtu:
            counts.too_large += 1
            return [fragmentation_needed(frame, told.mtu)] if told.is_mtu_told else []
        copies = _copies(way)
        size = copies * len(frame)
        send_at = self._time(way, now, size) if copies else None
        if send_at is None:
            return []
        if send_at <= now:
            counts.carried += copies
            return [frame] * copies
        for _ in range(copies):
            heapq.heappush(self._pending, (send_at, next(self._numbers), frame, way))
        self.pending_bytes += size
        return []

    def due(self, now: float) -> list[bytes]:
        """The delayed frames whose time has come, in their order."""
        found = []
        while self._pending and self._pending[0][0] <= now:
            _, _, frame, way = heapq.heappop(self._pending)
            self.pending_bytes -= len(frame)
            if way.impairment.is_cut:
                way.counts.cut += 1
            else:
                way.counts.carried += 1
                found.append(frame)
        return found

    @property
    def next_due(self) -> float | None:
        """When the next delayed frame is to be sent; None while there is none."""
        return self._pending[0][0] if self._pending else None

    def _way(self, source: str, destination: str) -> Way:
        key = IPv4Address(source).packed + IPv4Address(destination).packed
        if key not in self._ways:
            self._ways[key] = Way(random.Random(f"{self._seed} {source} {destination}"))
        return self._ways[key]

    def _time(self, way: Way, now: float, size: int) -> float | None:
        """When to send so many bytes; None when there is no room for them to wait."""
        told, send_at = way.impairment, now
        if self.pending_bytes + size > PENDING_BYTES:
            return None
        if told.rate is not None:
            start = max(now, way.free_at)
            if start - now > QUEUE_SECONDS:
                return None
            send_at = way.free_at = start + size / told.rate
        send_at += told.delay
        if told.jitter:
            send_at += way.dice.uniform(0.0, told.jitter)
        if told.reordering and way.dice.random() < told.reordering:
            way.counts.reordered += 1
            return send_at + HELD_BACK
        way.last_at = max(way.last_at, send_at)
        return way.last_at


def _copies(way: Way) -> int:
    """How many of a frame go on: none, one or two."""
    told, counts, happens = way.impairment, way.counts, way.dice.random
    if told.is_cut:
        counts.cut += 1
        return 0
    if told.loss and happens() < told.loss:
        counts.lost += 1
        return 0
    if told.duplication and happens() < told.duplication:
        counts.duplicated += 1
        return 2
    return 1


DEVICE = "relay"
SET_INTERFACE = 0x400454CA  # TUNSETIFF of <linux/if_tun.h>
TAP_WITHOUT_INFORMATION = 0x1002  # IFF_TAP | IFF_NO_PI
IPV4 = b"\x08\x00"
LARGEST_FRAME = 1 << 16  # bytes
FRAMES_A_TURN = 64  # read before the delayed ones have their turn
ORDERS_BYTES = 1 << 16
PRIORITY = -10  # so that a delay is that of the impairment, not that of a busy machine


def open_tap() -> int:
    """A TAP device in the namespace of this process; its descriptor, which does not block."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, SET_INTERFACE, struct.pack("16sH22x", DEVICE.encode(), TAP_WITHOUT_INFORMATION))
    return tap


def serve(tap: int, orders: int, answers: int, relay: Relay) -> None:
    """Relay and obey until the orders end."""
    unread = b""
    while True:
        due = relay.next_due
        readable, _, _ = select.select([tap, orders], [], [], None if due is None else max(0.0, due - time.monotonic()))
        if tap in readable:
            _relay(tap, relay)
        for frame in relay.due(time.monotonic()):
            _write(tap, frame)
        if orders in readable:
            data = os.read(orders, ORDERS_BYTES)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                os.write(answers, json.dumps(_obey(relay, json.loads(line))).encode() + b"\n")


def _relay(tap: int, relay: Relay) -> None:
    for _ in range(FRAMES_A_TURN):
        try:
            frame = os.read(tap, LARGEST_FRAME)
        except BlockingIOError:
            return
        if frame[12:14] == IPV4:
            for one in relay.take(frame, time.monotonic()):
                _write(tap, one)


def _write(tap: int, frame: bytes) -> None:
    """Give it to the bridge; one that the kernel has no room for is lost, as on any switch."""
    with contextlib.suppress(BlockingIOError):
        os.write(tap, frame)


def _obey(relay: Relay, order: dict[str, Any]) -> dict[str, Any]:
    if "impair" in order:
        for source, destination, fields in order["impair"]:
            relay.impair(source, destination, Impairment(**fields))
        return {}
    return asdict(relay.counts(*order["counts"]))


def main() -> None:
    """Everything of the network is gone when it ends."""
    tag, seed = sys.argv[1], int(sys.argv[2])
    try:
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        tap = open_tap()
        os.write(sys.stdout.fileno(), b"{}\n")
        serve(tap, sys.stdin.fileno(), sys.stdout.fileno(), Relay(seed))
    finally:
        remove(tag)


if __name__ == "__main__":
    main()
