"""A link whose peer leaves is given up when nothing better is to be hoped for, and not before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.net.drain import LEAST_SECONDS, PeerDepartures, has_parted
from broker.net.peer_table import Addresses, DialHistory
from broker.routing.address import NetworkAddress
from tests.support.played import PlayedLoop

NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")


class Station:
    """Departures, what they dial, and what they give up."""

    def __init__(self) -> None:
        self.addresses = Addresses()
        self.given_up: list[object] = []
        self.departures = PeerDepartures(self.addresses, self.dial, self.given_up.append)

    def dial(self, address: NetworkAddress) -> None:
        self.addresses.attempts[address] = DialHistory(is_under_way=True)

    def come_to_an_end(self, address: NetworkAddress) -> None:
        self.addresses.attempts[address].is_under_way = False
        self.departures.look()


@pytest.fixture
async def station(loop: PlayedLoop) -> Station:
    return Station()


def a_link() -> Any:
    return object()


async def test_link_that_nobody_could_replace_is_given_up_after_the_least_time(station: Station) -> None:
    link = a_link()

    station.departures.begin(link, 5.0, [])
    await asyncio.sleep(LEAST_SECONDS - 0.01)
    assert [] == station.given_up
    await asyncio.sleep(0.02)

    assert ([link], 0) == (station.given_up, len(station.departures))


async def test_link_is_used_while_an_address_that_may_replace_it_is_dialled(station: Station) -> None:
    link = a_link()

    station.departures.begin(link, 5.0, [NORTH, SOUTH])
    await asyncio.sleep(2)
    station.come_to_an_end(NORTH)
    assert [] == station.given_up
    station.come_to_an_end(SOUTH)

    assert [link] == station.given_up


async def test_what_is_wanted_meanwhile_is_waited_for_as_well(station: Station) -> None:
    link = a_link()
    station.departures.begin(link, 5.0, [])

    station.dial(SOUTH)
    station.departures.wanted(SOUTH)
    await asyncio.sleep(1)
    assert [] == station.given_up
    station.come_to_an_end(SOUTH)

    assert [link] == station.given_up


async def test_deadline_ends_every_hope_and_may_be_moved(station: Station) -> None:
    first, second = a_link(), a_link()
    for link in (first, second):
        station.departures.begin(link, 5.0, [NORTH])

    station.departures.postpone(second, 10.0)
    await asyncio.sleep(6)
    station.departures.look()

    assert [first] == station.given_up
    assert 4.0 == pytest.approx(station.departures.remaining(second), abs=0.1)


async def test_link_that_has_ended_is_not_given_up(station: Station) -> None:
    link = a_link()
    station.departures.begin(link, 5.0, [])

    station.departures.forget(link)
    station.departures.postpone(link, 3.0)
    await asyncio.sleep(1)

    assert ([], 0.0) == (station.given_up, station.departures.remaining(link))


async def test_nothing_is_given_up_any_more_once_closed(station: Station) -> None:
    station.departures.begin(a_link(), 5.0, [])

    station.departures.close()
    await asyncio.sleep(1)

    assert [] == station.given_up


def test_what_is_no_link_has_not_parted() -> None:
    assert not has_parted(None)
