from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from broker.observe.waiting import transmission_status, why_held
from broker.routing.address import NetworkAddress
from broker.wire.frame import Rejected

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


@pytest.fixture
async def sending(start: Any, send: Any, until: Any) -> Any:
    """An instance whose one dialog has a message to send to an address where nobody listens, and its status."""
    instance = await start("near", DEAD_ROUTE)
    send(instance, "//far")
    transmitter = instance.endpoints["near"].transmitter
    (sender,) = await until(lambda: list(transmitter.senders.values()))
    await until(lambda: instance.peers.problem_of(DEAD))

    def status() -> str:
        return transmission_status(sender, transmitter, instance.peers, now=asyncio.get_running_loop().time())

    return instance, transmitter, sender, status


async def test_no_connection_is_told_with_its_reason(sending: Any) -> None:
    *_, status = sending

    assert status() == "waiting for connection to tcp://127.0.0.1:1 (Connection refused)"


async def test_connection_under_way_has_no_reason_yet(sending: Any) -> None:
    instance, *_, status = sending
    instance.peers.attempts[DEAD].problem = ""

    assert status() == "waiting for connection to tcp://127.0.0.1:1"


async def test_no_route_is_told_with_its_number(sending: Any) -> None:
    instance, transmitter, _, status = sending
    transmitter.table = instance.forwarder.here.table  # msdb's, which has no route

    assert status() == "delayed, no route (9798); matched again when routes or services change"


async def test_full_connection_is_told(sending: Any) -> None:
    instance, *_, status = sending
    instance.forwarder.outbox(DEAD).outlet = Link(can_send=False)

    assert status() == "waiting for room on the connection to tcp://127.0.0.1:1"


async def test_open_way_is_used_in_turn(sending: Any) -> None:
    instance, *_, status = sending
    instance.forwarder.outbox(DEAD).outlet = Link(can_send=True)

    assert status() == "waiting for its turn"


async def test_what_is_in_flight_waits_for_its_acknowledgement(sending: Any) -> None:
    instance, _, sender, status = sending
    instance.forwarder.outbox(DEAD).outlet = Link(can_send=True)
    sender.outbound.in_flight = 3
    sender.outbound.resend_at = asyncio.get_running_loop().time() + 60

    assert re.fullmatch(r"sent, 3 in flight, waiting for acknowledgement, next resend in (60\.0|59\.\d) s", status())


async def test_later_attempts_are_numbered(sending: Any) -> None:
    instance, _, sender, status = sending
    instance.forwarder.outbox(DEAD).outlet = Link(can_send=True)
    sender.outbound.attempts = 2
    waiting = status()
    sender.outbound.in_flight = 1
    sender.outbound.resend_at = 0.0

    assert waiting == "waiting for its turn, attempt 3"
    assert status() == "sent, 1 in flight, waiting for acknowledgement, next resend in 0.0 s, attempt 3"


async def test_advice_of_the_next_hop_is_passed_on(sending: Any) -> None:
    _, transmitter, sender, status = sending
    transmitter.advise(Rejected(conversation=sender.contact.conversation_id, code=11289, reason="pool limit exceeded"))

    assert status().endswith("; the next hop refused the last one: pool limit exceeded (11289)")


async def test_way_inside_the_instance_needs_no_connection(start: Any, send: Any, until: Any) -> None:
    instance = await start("near", "CREATE SERVICE [//other] ON QUEUE Q")
    transmitter = instance.endpoints["near"].transmitter
    found: list[str] = []
    acknowledge = transmitter.acknowledge

    def spying(endpoint_id: int, place: tuple[int, int]) -> None:
        sender = transmitter.senders[endpoint_id]
        found.append(transmission_status(sender, transmitter, instance.peers, now=0.0))
        acknowledge(endpoint_id, place)

    transmitter.acknowledge = spying
    send(instance, "//other")
    await until(lambda: found)

    assert re.match("sent, 1 in flight, waiting for acknowledgement, next resend in ", found[0])


async def test_held_frames_wait_for_the_connection_or_for_room(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    outbox = gateway.forwarder.outboxes[DEAD]
    gateway.peers.attempts[DEAD].problem = "Connection refused"

    unconnected = why_held(outbox, gateway.peers)
    outbox.outlet = Link(can_send=False)
    full = why_held(outbox, gateway.peers)

    held = f"; {outbox.share.used_bytes} of at most {32 * 1024 * 1024} bytes wait for it"
    assert unconnected == f"waiting for connection to tcp://127.0.0.1:1 (Connection refused){held}"
    assert full == f"the connection to tcp://127.0.0.1:1 takes no more at the moment{held}"


async def test_held_frames_that_leave_no_room_say_so(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    outbox = gateway.forwarder.outboxes[DEAD]

    gateway.forwarder.pool.limit_bytes = 2 * outbox.share.used_bytes

    used = outbox.share.used_bytes
    assert why_held(outbox, gateway.peers).endswith(f"; {used} of at most {used} bytes wait for it, no room for more")


async def test_a_route_that_is_asked_for_is_told_with_whom_and_since_when(start: Any, send: Any, until: Any) -> None:
    ask = "CREATE ROUTE ask WITH SERVICE_NAME = 'SQL/ServiceBroker/BrokerConfiguration', ADDRESS = 'tcp://far:1'"
    instance = await start("near", ask)
    send(instance, "//far")
    endpoint = instance.endpoints["near"]
    await until(lambda: endpoint.inquirer.requests)
    sender = next(s for s in endpoint.transmitter.senders.values() if s.contact.far_service == "//far")

    status = transmission_status(sender, endpoint.transmitter, instance.peers, now=0.0, inquirer=endpoint.inquirer)

    assert re.fullmatch(
        r"delayed, asking for route \(9770\) by ask to tcp://far:1: asked \d{4}-\d\d-\d\d [\d:]+ UTC, not answered yet",
        status,
    )
