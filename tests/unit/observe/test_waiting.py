from __future__ import annotations

from typing import Any

from broker.observe.snapshot import why_held
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

    unconnected = why_held(outbox, gateway.peers, gateway.mirrors)
    outbox.outlet = Link(can_send=False)
    full = why_held(outbox, gateway.peers, gateway.mirrors)

    held = f"; {outbox.share.used_bytes} of at most {32 * 1024 * 1024} bytes wait for it"
    assert unconnected == f"waiting for a connection to tcp://127.0.0.1:1: Connection refused{held}"
    assert full == f"the connection to tcp://127.0.0.1:1 takes no more at the moment{held}"


async def test_held_frames_that_leave_no_room_say_so(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    outbox = gateway.forwarder.outboxes[DEAD]

    gateway.forwarder.pool.limit_bytes = 2 * outbox.share.used_bytes

    used = outbox.share.used_bytes
    assert why_held(outbox, gateway.peers, gateway.mirrors).endswith(
        f"; {used} of at most {used} bytes wait for it, no room for more"
    )


async def test_frames_for_a_mirrored_pair_wait_for_its_principal_and_then_for_a_link(start: Any, take: Any) -> None:
    pair_route = (
        "CREATE ROUTE pair WITH SERVICE_NAME = '//far', BROKER_INSTANCE = '00000000-0000-0000-0000-000000000001',"
        " ADDRESS = 'tcp://127.0.0.1:1', MIRROR_ADDRESS = 'tcp://127.0.0.1:2'"
    )
    gateway = await start("gateway", msdb=pair_route)
    take(gateway)
    ((pair, outbox),) = gateway.forwarder.pairs.items()

    unasked = why_held(outbox, gateway.peers, gateway.mirrors)
    gateway.forwarder.lead({pair: DEAD}, 1.0)
    gateway.peers.attempts[DEAD].problem = "Connection refused"
    known = why_held(outbox, gateway.peers, gateway.mirrors)

    assert unasked.startswith("principal unknown (9794): both partners are about to be asked; ")
    assert known.startswith(f"waiting for a connection to {DEAD}: Connection refused; ")
