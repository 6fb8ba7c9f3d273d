from __future__ import annotations

from typing import Any

from broker.observe.waiting import why_held
from broker.routing.address import NetworkAddress

DEAD_ROUTE = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'"
DEAD = NetworkAddress("127.0.0.1", 1)


class Link:
    """An outlet of the kind that a test needs."""

    max_frame = 1 << 20
    is_narrow = False

    def __init__(self, *, can_send: bool) -> None:
        self.can_send = can_send

    def send(self, data: bytes) -> int:
        return len(data)

    def finish(self, rest: bytes) -> None:
        raise AssertionError(rest)


async def test_held_frames_wait_for_the_connection_or_for_room(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    outbox = gateway.forwarder.outboxes[DEAD]
    gateway.peers.attempts[DEAD].problem = "Connection refused"

    unconnected = why_held(outbox, gateway.peers)
    outbox.outlet = Link(can_send=False)
    full = why_held(outbox, gateway.peers)

    held = f"; {outbox.share.used_bytes} of at most {32 * 1024 * 1024} bytes wait for it"
    assert unconnected == f"waiting for a connection to tcp://127.0.0.1:1: Connection refused{held}"
    assert full == f"the connection to tcp://127.0.0.1:1 takes no more at the moment{held}"


async def test_held_frames_that_leave_no_room_say_so(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    outbox = gateway.forwarder.outboxes[DEAD]

    gateway.forwarder.pool.limit_bytes = 2 * outbox.share.used_bytes

    used = outbox.share.used_bytes
    assert why_held(outbox, gateway.peers).endswith(f"; {used} of at most {used} bytes wait for it, no room for more")
