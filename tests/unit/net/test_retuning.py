"""Links with other settings: what they agreed on stays, what only this side decides holds at once."""

from __future__ import annotations

from typing import Any

import pytest

from broker.net.peers import Tuning, largest_frame, narrow, retune
from broker.net.quotas import PeerLimits, Timeouts
from broker.net.tls import NO_SECURITY
from tests.support.peers import NORTH, Neighbourhood
from tests.support.played import PlayedLoop


@pytest.fixture
async def near(loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> Neighbourhood:
    near = Neighbourhood(loop, monkeypatch)
    near.start()
    return near


def tuning(**more: Any) -> Tuning:
    told = {"max_frame": 1 << 20, "heartbeat_ms": 3000, "addresses": ("tcp://new:1",)}
    limits = {"timeouts": Timeouts(2.0, 3.0, 0.5), "limits": PeerLimits(connections=7, handshakes=9)}
    return Tuning(**{**told, **limits, **more})


async def test_new_connections_are_told_and_old_ones_keep_what_they_agreed_on(near: Neighbourhood) -> None:
    before = near.peers.hello
    near.accept(addresses=[str(NORTH)], arbitration=b"1" * 16)
    [link] = near.links

    retune(near.peers, tuning(), NO_SECURITY)

    hello = near.peers.hello
    assert (1 << 20, 3000, ("tcp://new:1",)) == (hello.max_frame, hello.heartbeat_ms, hello.addresses)
    assert (before.arbitration, before.instance) == (hello.arbitration, hello.instance)
    assert before.max_frame == link.connection.max_frame


async def test_what_only_this_side_decides_holds_at_once(near: Neighbourhood) -> None:
    peers = near.peers

    retune(peers, tuning(), NO_SECURITY)

    assert (2.0, 2.0, 3.0) == (peers.timeouts.handshake, peers.entrance.timeout, peers.dialling.seconds)
    assert (7, 9) == (peers.admission.most, peers.entrance.handshakes.most)


async def test_the_largest_frame_is_the_largest_that_anybody_was_told(near: Neighbourhood) -> None:
    near.accept(addresses=[str(NORTH)], arbitration=b"1" * 16)
    [link] = near.links
    told = link.connection.max_frame

    assert (told, 2 * told) == (largest_frame([link], told // 2), largest_frame([link], 2 * told))
    assert told == largest_frame([], told)


async def test_a_peer_that_takes_less_than_may_come_now_is_looked_at(near: Neighbourhood) -> None:
    near.accept(addresses=[str(NORTH)], arbitration=b"1" * 16)
    [link] = near.links

    narrow([link], link.max_frame + 1)
    is_narrow = link.is_narrow
    narrow([link], link.max_frame)

    assert (True, False) == (is_narrow, link.is_narrow)
