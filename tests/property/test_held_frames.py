"""Frames held at a gateway with two next hops, one of which is cut, on a played network under virtual time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from unittest import mock

from broker.forwarding.entry import UnknownOrigin
from broker.protocol.frame import decode_dialog, encode_dialog
from tests.support.forwarding import PLAIN
from tests.support.network import Network, Node, Weather, Wire
from tests.support.virtual_time import VirtualLoop, run_virtually

CONVERSATIONS = 20
FRAMES = 6
MESSAGE = replace(PLAIN, to_service="Billing", from_service="Orders", from_broker_instance=b"i" * 16)


def frames(first: int, count: int) -> list[bytes]:
    """Frames of every conversation in turn, numbered from the first."""
    return [
        encode_dialog(replace(MESSAGE, conversation_id=bytes([conversation]) * 16, sequence_number=number), b"body")
        for number in range(first, first + count)
        for conversation in range(CONVERSATIONS)
    ]


def waiting(gateway: Node, next_hop: Node) -> int:
    return len(gateway.forwarder.table.outbox(next_hop.address).held)


def test_frames_held_for_a_next_hop_that_is_cut_leave_by_the_other_before_those_that_come_later() -> None:
    carried: list[tuple[str, bytes]] = []

    def carry(wire: Wire, frame: bytes) -> None:
        carried.append((wire._far.name, frame))

    async def story(loop: VirtualLoop) -> None:
        network = Network(loop, seed=1)
        west, east = (network.add(Node(network, name, [])) for name in ("west", "east"))
        network.weather = Weather(room=0)  # links that take nothing
        gateway = network.add(
            Node(network, "gateway", [("Billing", f"tcp://{name}:4022") for name in ("west", "east")])
        )
        for frame in frames(0, FRAMES):
            gateway.receive(frame, UnknownOrigin())
        assert waiting(gateway, west) > 0 < waiting(gateway, east)
        await asyncio.sleep(0.25)

        network.disconnect(east)
        assert [len(frames(0, FRAMES)), 0] == [waiting(gateway, west), waiting(gateway, east)]
        network.weather = Weather()
        network.connect(east)  # by a link that takes frames
        assert [] == carried
        network.disconnect(west)
        for frame in frames(FRAMES, 1):
            gateway.receive(frame, UnknownOrigin())

        assert (0, 0) == (gateway.forwarder.pool.used_bytes, gateway.forwarder.unaccounted)
        assert {} == gateway.forwarder.dropped

    with mock.patch.object(Wire, "_carry", carry):
        run_virtually(story)

    numbers = defaultdict(list)
    ages = defaultdict(list)
    for name, frame in carried:
        header, _ = decode_dialog(frame)
        numbers[name, header.conversation_id].append(header.sequence_number)
        ages[header.sequence_number].append(header.time_consumed)
    assert {("east", bytes([n]) * 16): list(range(FRAMES + 1)) for n in range(CONVERSATIONS)} == numbers
    assert [{250}] * FRAMES + [{0}] == [set(ages[number]) for number in range(FRAMES + 1)]
