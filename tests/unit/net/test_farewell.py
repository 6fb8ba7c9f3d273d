"""Every peer is told that this instance leaves, and what is left is counted until each has moved."""

from __future__ import annotations

import asyncio

import pytest

from broker.net.drain import HOPS_MAX, QUIET_SECONDS, Left, OwnDeparture
from broker.protocol.frame import GoAway, encode_link
from broker.routing.address import NetworkAddress
from tests.support.peers import HIGHER, LOWER, NORTH, SOUTH, Neighbourhood, said
from tests.support.played import PlayedLoop


@pytest.fixture
async def near(loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> Neighbourhood:
    near = Neighbourhood(loop, monkeypatch)
    near.start()
    return near


def goaways(near: Neighbourhood) -> list[list[GoAway]]:
    """What each neighbour was told of our leaving."""
    return [[one for one in said(sock) if isinstance(one, GoAway)] for sock in near.socks]


async def test_peers_are_told_once_and_a_late_one_with_what_is_left_of_the_time(near: Neighbourhood) -> None:
    near.accept(arbitration=LOWER)
    late = near.accept(is_greeting=False)

    near.peers.leave(reason="upgrade", seconds=5.0)
    await asyncio.sleep(2)
    near.greet(late, arbitration=HIGHER)

    assert [[GoAway("upgrade", 5000)], [GoAway("upgrade", 3000)]] == goaways(near)


async def test_nobody_is_told_anything_while_the_instance_stays(near: Neighbourhood) -> None:
    near.accept()

    OwnDeparture().greet(near.links[0])

    assert [[]] == goaways(near)


async def test_peer_that_has_ended_its_direction_has_moved_and_still_gets_what_is_for_it(near: Neighbourhood) -> None:
    sock = near.accept(addresses=[str(NORTH)])
    near.peers.leave(reason="upgrade", seconds=5.0)
    assert 1 == near.peers.left().peers

    sock.end()
    frame = near.send(NORTH)

    assert (0, False) == (near.peers.left().peers, sock.is_closed)
    assert sock.written.endswith(frame)


async def test_peer_that_ends_its_direction_while_the_instance_stays_is_closed(near: Neighbourhood) -> None:
    sock = near.accept()

    sock.end()

    assert sock.is_closed


async def test_peer_that_says_nothing_of_moving_counts_as_moved_when_no_frames_come(near: Neighbourhood) -> None:
    sock, frame = near.accept(), near.send(SOUTH)
    near.peers.leave(reason="upgrade", seconds=60.0)

    for _ in range(3):
        assert 1 == near.peers.left().peers
        await asyncio.sleep(QUIET_SECONDS - 0.1)
        sock.feed(frame)
    await asyncio.sleep(0)
    assert 1 == near.peers.left().peers
    await asyncio.sleep(QUIET_SECONDS)

    assert 0 == near.peers.left().peers


async def test_what_is_held_is_counted_by_next_hop(near: Neighbourhood) -> None:
    blocked = near.accept(addresses=[str(SOUTH)])
    blocked.room = 0
    near.send(SOUTH, 1)
    near.send(NORTH, 2)
    near.send(NORTH, 3)

    left = near.peers.left()

    assert Left(held=3, unserved=2, peers=1, by_hop={str(NORTH): 2, str(SOUTH): 1}) == left


async def test_not_every_next_hop_is_named(near: Neighbourhood) -> None:
    for number in range(HOPS_MAX + 5):
        near.send(NetworkAddress(f"10.7.0.{number}"), number)

    left = near.peers.left()

    assert (HOPS_MAX + 5, HOPS_MAX) == (left.held, len(left.by_hop))


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (Left(), (True, True, "0 held, 0 peers left")),
        (Left(held=2, unserved=2), (False, True, "2 held, 0 peers left")),
        (Left(held=2, unserved=1), (False, False, "2 held, 0 peers left")),
        (Left(peers=1), (False, False, "0 held, 1 peer left")),
        (Left(busy=("orders",)), (False, False, "0 held, 0 peers left, busy: orders")),
    ],
)
def test_what_is_left_says_whether_it_is_worth_waiting(left: Left, expected: tuple[bool, bool, str]) -> None:
    assert expected == (left.is_nothing, left.is_stuck, str(left))


async def test_instance_that_leaves_goes_nowhere_itself_when_its_peer_leaves_too(near: Neighbourhood) -> None:
    near.reachable.add(NORTH)
    near.send(NORTH)
    await asyncio.sleep(0)
    near.greet(near.socks[0])
    near.peers.leave(reason="upgrade", seconds=5.0)

    near.socks[0].feed(encode_link(GoAway(deadline_ms=5000)))
    await asyncio.sleep(0.2)

    assert (1, True) == (len(near.dialled), near.socks[0].shut)
