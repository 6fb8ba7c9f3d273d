"""What is known of addresses, and which of them matter to anybody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.net import peer_table as module
from broker.net.link import LinkState
from broker.net.peer_table import Addresses, DialHistory
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth

NORTH, SOUTH = NetworkAddress("10.0.0.1"), NetworkAddress("10.0.0.2")


class Played:
    """As much of a link as this is about."""

    state = LinkState.LOGGED_IN
    is_leaving = False


async def test_health_goes_by_who_serves_and_then_by_the_last_attempt() -> None:
    addresses = Addresses()
    link: Any = Played()
    assert (AddressHealth.UNTRIED, "") == (addresses.health_of(NORTH), addresses.problem_of(NORTH))

    addresses.attempts[NORTH] = DialHistory()
    addresses.suppress(NORTH, "Connection refused")
    assert (AddressHealth.SUPPRESSED, "Connection refused") == (addresses.health_of(NORTH), addresses.problem_of(NORTH))
    addresses.servers.add(link, NORTH)
    assert AddressHealth.CONNECTED is addresses.health_of(NORTH)
    addresses.servers.remove(link)
    await asyncio.sleep(1)

    assert AddressHealth.UNTRIED is addresses.health_of(NORTH)
    assert {NORTH} == addresses.known


async def test_address_matters_from_when_its_health_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_MAX", 2)
    addresses = Addresses()

    addresses.health_of(NORTH)
    assert (True, False) == (addresses.matters(NORTH), addresses.matters(SOUTH))
    addresses.health_of(NetworkAddress("10.0.0.3"))
    assert addresses.matters(SOUTH)  # more cannot be told apart
    addresses.forget_who_asked()

    assert (False, False) == (addresses.matters(NORTH), addresses.matters(SOUTH))


async def test_past_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPTS_MAX", 2)
    addresses = Addresses()
    link: Any = Played()
    addresses.servers.add(link, NORTH)
    addresses.attempts |= {NORTH: DialHistory(), SOUTH: DialHistory()}
    addresses.forget_old(0.0)
    assert 2 == len(addresses.attempts)
    trying, resting = NetworkAddress("10.0.0.3"), NetworkAddress("10.0.0.4")
    addresses.attempts |= {trying: DialHistory(is_under_way=True), resting: DialHistory(suppressed_until=10.0)}

    addresses.forget_old(5.0)

    assert {NORTH, trying, resting} == addresses.attempts.keys()


async def test_address_whose_only_link_leaves_is_better_than_one_not_tried() -> None:
    addresses = Addresses()
    link: Any = Played()
    addresses.servers.add(link, NORTH)
    link.is_leaving = True

    assert AddressHealth.CONNECTED < addresses.health_of(NORTH) < AddressHealth.UNTRIED
