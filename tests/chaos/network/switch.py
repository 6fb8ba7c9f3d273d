"""
The process through which the packets of impaired ways pass, and which removes everything when its harness is gone.

    nsenter --net=/run/netns/TAG -- python -m tests.chaos.network.switch TAG SEED

It runs in the namespace of the kernel's bridge. Packets come to it and leave by a TAP device that is a port of the
bridge: filters send those of impaired ways there, and what is written to it goes where its addresses say. Its standard
input brings orders, one JSON object a line, each answered by one line: `{"impair": [[source, destination,
{impairment}], ...]}`, `{"counts": [source, destination]}`. The end of the input is the end of the network.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import struct
import sys
import time
from dataclasses import asdict
from typing import Any

from tests.chaos.network.impairment import Impairment
from tests.chaos.network.relay import Relay
from tests.chaos.network.removal import remove

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
