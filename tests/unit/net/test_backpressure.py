"""Links that feed a tight outbox are not read until it has room, or until it had its time."""

import asyncio
from dataclasses import replace

import pytest

from broker.flow import Disposition
from broker.forwarding.outbox import Outbox
from broker.forwarding.pool import HELD_OVERHEAD
from broker.net.backpressure import GRANT_SECONDS, RETRY_SECONDS, Backpressure
from broker.protocol.frame import encode_dialog
from broker.routing.address import NetworkAddress
from tests.support.peers import NORTH, PLAIN, SOUTH, Neighbourhood, sent
from tests.support.played import PlayedLoop

SECONDS = 0.25
BODY = bytes(2000)


class Crossing:
    """Two neighbours that send, and two next hops of which the first takes nothing."""

    def __init__(self, near: Neighbourhood) -> None:
        self.near = near
        self.near.forwarder.pool.limit_bytes = 40 * (len(self.frame(NORTH)) + HELD_OVERHEAD)
        self.near.forwarder.pool.share_percent = 50
        self.near.forwarder.pool.read_cost = 3 * (len(self.frame(NORTH)) + HELD_OVERHEAD)
        self.stuck = self.near.accept(addresses=[str(NORTH)], arbitration=b"1" * 16)
        self.stuck.room = 0
        self.open = self.near.accept(addresses=[str(SOUTH)], arbitration=b"2" * 16)
        self.senders = [self.near.accept(arbitration=bytes([n]) * 16) for n in (3, 4)]
        self.links = self.near.links[2:]
        self.number = 0

    def frame(self, address: NetworkAddress, number: int = 0, time_to_live: int = 60_000) -> bytes:
        header = replace(PLAIN, to_service=f"{address}/x", sequence_number=number, time_to_live=time_to_live)
        return encode_dialog(header, BODY)

    def feed(self, sender: int, address: NetworkAddress, count: int, time_to_live: int = 60_000) -> None:
        """A neighbour sends frames that all differ."""
        for _ in range(count):
            self.number += 1
            self.senders[sender].feed(self.frame(address, self.number, time_to_live))

    def read(self) -> None:
        """What has piled up is read, as far as somebody reads."""
        for sock in self.senders * 100:  # each read brings a part of it
            sock.read()

    @property
    def outbox(self) -> Outbox:
        return self.near.forwarder.table.outboxes[NORTH]

    @property
    def paused(self) -> list[bool]:
        return [link.is_paused for link in self.links]

    @property
    def dropped(self) -> int:
        return self.near.forwarder.dropped[Disposition.POOL_LIMIT]


@pytest.fixture
async def crossing(near: Neighbourhood) -> Crossing:
    return Crossing(near)


async def test_feeder_is_paused_before_anything_is_dropped(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 17)
    assert [False, False] == crossing.paused

    crossing.feed(0, NORTH, 20)

    assert ([True, False], 0) == (crossing.paused, crossing.dropped)
    assert {"endpoint.message_forward_share": 1} == crossing.links[0].slowed_by
    assert crossing.near.forwarder.unaccounted == 0
    crossing.stuck.breathe()
    assert ([False, False], {}) == (crossing.paused, crossing.links[0].slowed_by)


async def test_they_are_read_again_one_by_one_the_longest_paused_first(crossing: Crossing) -> None:
    crossing.feed(1, NORTH, 18)
    await asyncio.sleep(0.01)
    crossing.feed(0, NORTH, 1)
    size = len(crossing.frame(NORTH))
    assert [True, True] == crossing.paused
    crossing.near.forwarder.pool.read_cost = 8 * (size + HELD_OVERHEAD)  # what one of them may bring now

    crossing.stuck.breathe(14 * size)
    assert [True, True] == crossing.paused
    crossing.stuck.breathe(2 * size)
    assert [True, False] == crossing.paused
    crossing.stuck.breathe(3 * size)
    assert [True, False] == crossing.paused
    await asyncio.sleep(GRANT_SECONDS + RETRY_SECONDS)

    assert [False, False] == crossing.paused


async def test_who_brings_something_for_others_as_well_is_read_nearly_all_the_time(crossing: Crossing) -> None:
    waits, served = crossing.frame(NORTH), crossing.frame(SOUTH)
    paused = 0

    for number in range(1000):
        crossing.number += 1
        frames = [
            crossing.frame(NORTH, 2 * number),
            crossing.frame(SOUTH, number),
            crossing.frame(NORTH, 2 * number + 1),
        ]
        crossing.senders[0].feed(b"".join(frames))
        await asyncio.sleep(0.01)
        crossing.stuck.breathe(len(waits))
        paused += crossing.paused[0]
    crossing.read()

    assert (1000, True) == (len(sent(crossing.open)) // len(served), 0 < paused <= 30)
    assert crossing.dropped > 0
    assert crossing.near.forwarder.unaccounted == 0


async def test_dead_next_hop_has_its_time_and_holds_back_again_only_when_it_lives_again(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 60)
    assert crossing.dropped == 0

    await asyncio.sleep(SECONDS)
    crossing.read()

    assert ([False, False], 60) == (crossing.paused, crossing.dropped + len(crossing.outbox.held))
    assert crossing.outbox.share.used_bytes <= crossing.outbox.share.limit_bytes
    assert crossing.outbox.share.refused == crossing.dropped > 0
    crossing.feed(0, SOUTH, 1)
    assert sent(crossing.open)

    crossing.stuck.breathe(10)
    crossing.feed(0, NORTH, 2)
    assert [True, False] == crossing.paused


async def test_room_of_what_expires_is_room_too(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 60, time_to_live=100)
    await asyncio.sleep(SECONDS)
    crossing.read()

    await asyncio.sleep(2.0)
    crossing.feed(0, NORTH, 30)

    assert [True, False] == crossing.paused
    await crossing.near.peers.close(reason="over", seconds=0.1)
    assert crossing.near.loop.readers == {}


async def test_link_that_feeds_two_is_read_when_the_last_one_lets_it_go(loop: PlayedLoop, crossing: Crossing) -> None:
    backpressure = Backpressure(SECONDS)
    link, *_ = crossing.links
    outboxes = [crossing.near.forwarder.table.outbox(NetworkAddress(f"10.2.0.{n}")) for n in range(2)]

    for outbox in outboxes:
        assert outbox.share.admit(outbox.share.limit_bytes - HELD_OVERHEAD)
        outbox.share.fed_by(link, loop.time())
        backpressure.on_waiting(outbox, link)
        await asyncio.sleep(0.1)
    await asyncio.sleep(SECONDS - 0.2)
    assert link.is_paused
    await asyncio.sleep(0.1)

    assert not link.is_paused


async def test_full_pool_holds_back_once_for_all_next_hops_that_are_dead(crossing: Crossing) -> None:
    dead = [NetworkAddress(f"10.2.0.{n}") for n in range(100)]
    feeders = [sender for sender in range(2) for _ in range(200)]

    for number, sender in enumerate(feeders):
        crossing.feed(sender, dead[number % 100], 1)
    assert ([True, True], 0) == (crossing.paused, crossing.dropped)
    await asyncio.sleep(SECONDS)
    crossing.read()

    pool = crossing.near.forwarder.pool
    assert ([False, False], 400) == (crossing.paused, crossing.dropped + pool.frames)
    assert (True, 0) == (pool.used_bytes <= pool.limit_bytes, pool.over_share)
