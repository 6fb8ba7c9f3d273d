"""Links that feed a tight outbox are not read until it has room, or until it had its time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broker.flow import Disposition
from broker.forwarding.outbox import Outbox
from broker.forwarding.pool import HELD_OVERHEAD
from broker.net.backpressure import Backpressure
from broker.routing.address import NetworkAddress
from broker.wire.frame import encode_dialog
from tests.support.peers import NORTH, PLAIN, SOUTH, Neighbourhood, sent
from tests.support.played import PlayedLoop

SECONDS = 0.25
BODY = bytes(2000)


class Crossing:
    """Two neighbours that send, and two next hops of which the first takes nothing."""

    def __init__(self, loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.near = Neighbourhood(loop, monkeypatch)
        self.near.start()
        self.near.forwarder.pool.limit_bytes = 40 * (len(self.frame(NORTH)) + HELD_OVERHEAD)
        self.near.forwarder.pool.share_percent = 50
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

    @property
    def outbox(self) -> Outbox:
        return self.near.forwarder.outboxes[NORTH]

    @property
    def paused(self) -> list[bool]:
        return [link.is_paused for link in self.links]

    @property
    def dropped(self) -> int:
        return self.near.forwarder.dropped[Disposition.POOL_LIMIT]


@pytest.fixture
async def crossing(loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> Crossing:
    return Crossing(loop, monkeypatch)


async def test_feeder_is_paused_before_anything_is_dropped(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 17)
    assert [False, False] == crossing.paused

    crossing.feed(0, NORTH, 20)

    assert ([True, False], 0) == (crossing.paused, crossing.dropped)
    assert crossing.near.forwarder.unaccounted == 0


async def test_link_that_fed_others_is_read_on(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 30)

    crossing.feed(1, SOUTH, 3)

    assert ([True, False], 3) == (crossing.paused, len(sent(crossing.open)) // len(crossing.frame(SOUTH)))


async def test_all_who_lately_fed_it_are_paused_together(crossing: Crossing) -> None:
    crossing.feed(1, NORTH, 1)

    crossing.feed(0, NORTH, 30)

    assert [True, True] == crossing.paused


async def test_who_fed_it_long_ago_is_not_paused_until_it_does_again(crossing: Crossing) -> None:
    crossing.feed(1, NORTH, 1)
    crossing.near.forwarder.expire(crossing.near.loop.time() + 2.0)

    crossing.feed(0, NORTH, 30)
    assert [True, False] == crossing.paused
    crossing.feed(1, NORTH, 1)

    assert [True, True] == crossing.paused


async def test_reading_goes_on_as_soon_as_there_is_room(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 30)
    held = len(crossing.outbox.held)

    crossing.stuck.breathe(3 * len(crossing.frame(NORTH)))
    crossing.stuck.breathe(3 * len(crossing.frame(NORTH)))

    assert (True, [False, False]) == (len(crossing.outbox.held) < held, crossing.paused)


async def test_a_little_room_is_not_enough(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 30)

    crossing.stuck.breathe(10)

    assert [True, False] == crossing.paused


async def test_dead_next_hop_has_its_time_and_then_frames_for_it_are_dropped(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 60)
    assert crossing.dropped == 0

    await asyncio.sleep(SECONDS)
    crossing.senders[0].read()

    assert ([False, False], 60) == (crossing.paused, crossing.dropped + len(crossing.outbox.held))
    assert crossing.outbox.share.used_bytes <= crossing.outbox.share.limit_bytes
    assert crossing.outbox.share.refused == crossing.dropped > 0
    crossing.feed(0, SOUTH, 1)
    assert sent(crossing.open)


async def test_next_hop_that_lives_again_may_hold_back_again(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 60)
    await asyncio.sleep(SECONDS)
    crossing.senders[0].read()
    crossing.feed(0, NORTH, 1)
    assert [False, False] == crossing.paused

    crossing.stuck.breathe(10)
    crossing.feed(0, NORTH, 2)

    assert [True, False] == crossing.paused


async def test_room_of_what_expires_is_room_too(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 60, time_to_live=100)
    await asyncio.sleep(SECONDS)
    crossing.senders[0].read()

    await asyncio.sleep(2.0)
    crossing.feed(0, NORTH, 30)

    assert [True, False] == crossing.paused
    await crossing.near.peers.close(reason="over", seconds=0.1)
    assert crossing.near.loop.readers == {}


async def test_pause_off_drops_at_once(loop: PlayedLoop, crossing: Crossing) -> None:
    crossing.near.peers.backpressure.close()

    crossing.feed(0, NORTH, 60)

    assert ([False, False], True) == (crossing.paused, crossing.dropped > 0)


async def test_dialogs_of_databases_here_are_not_paused(crossing: Crossing) -> None:
    for number in range(60):
        crossing.near.send(NORTH, 1000 + number)

    crossing.feed(0, NORTH, 60)

    assert [True, False] == crossing.paused


async def test_link_that_feeds_two_is_read_when_the_last_one_lets_it_go(loop: PlayedLoop, crossing: Crossing) -> None:
    backpressure = Backpressure(SECONDS)
    link, *_ = crossing.links
    outboxes = [crossing.near.forwarder.outbox(NetworkAddress(f"10.2.0.{n}")) for n in range(2)]

    for outbox in outboxes:
        assert outbox.share.admit(outbox.share.limit_bytes - HELD_OVERHEAD)
        outbox.feeders[link] = loop.time()
        backpressure.hold_back(outbox, link)
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
    for sock in crossing.senders * 2:  # what has piled up takes more than one read
        sock.read()

    pool = crossing.near.forwarder.pool
    assert ([False, False], 400) == (crossing.paused, crossing.dropped + pool.frames)
    assert (True, 0) == (pool.used_bytes <= pool.limit_bytes, pool.over_share)


async def test_link_of_a_dead_next_hop_that_only_says_it_can_send_holds_nobody_back(crossing: Crossing) -> None:
    """Only what has left is a sign of life."""
    backpressure = crossing.near.peers.backpressure
    crossing.feed(0, NORTH, 60)
    await asyncio.sleep(SECONDS)
    crossing.senders[0].read()

    backpressure.drain(crossing.outbox, crossing.near.loop.time())
    crossing.feed(0, NORTH, 1)

    assert [False, False] == crossing.paused


async def test_link_that_closes_while_it_is_held_back_is_forgotten(crossing: Crossing) -> None:
    crossing.feed(0, NORTH, 30)

    crossing.links[0].close("gone")
    await asyncio.sleep(SECONDS)

    assert crossing.senders[0].is_closed
    assert crossing.senders[0] not in crossing.near.loop.readers
