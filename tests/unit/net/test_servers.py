"""Which link serves an address: the one dialled for it first, then the oldest that announced it."""

from __future__ import annotations

from typing import Any

from broker.net.link import LinkState
from broker.net.peer_table import Servers
from broker.routing.address import NetworkAddress

NORTH, SOUTH = NetworkAddress("10.0.0.1"), NetworkAddress("10.0.0.2")


class Played:
    """As much of a link as this is about."""

    def __init__(self) -> None:
        self.state = LinkState.LOGGED_IN
        self.is_leaving = False


def new_links(count: int) -> Any:
    return [Played() for _ in range(count)]


def test_oldest_that_can_send_serves_and_whoever_was_dialled_comes_first() -> None:
    servers = Servers()
    old, young, dialled = new_links(3)
    servers.add(old, NORTH)
    servers.add(young, NORTH)
    assert old == servers.serving(NORTH)

    servers.add(dialled, NORTH, is_first=True)
    assert dialled == servers.serving(NORTH)
    dialled.state = LinkState.DRAINING
    assert old == servers.serving(NORTH)
    assert [NORTH] == servers.remove(old)

    assert young == servers.serving(NORTH)
    assert None is servers.serving(SOUTH)


def test_nothing_stays_of_a_link_that_is_gone() -> None:
    servers = Servers()
    (link,) = new_links(1)
    for _ in range(2):
        servers.add(link, NORTH, is_first=True)
        servers.add(link, SOUTH)
    assert [NORTH, SOUTH] == list(servers.addresses_of(link)) == list(servers.addresses)

    assert [NORTH, SOUTH] == servers.remove(link)

    assert ([], [], [], None) == (
        servers.remove(link), list(servers.addresses), list(servers.addresses_of(link)), servers.serving(NORTH)
    )  # fmt: skip


def test_link_whose_peer_leaves_serves_where_there_is_no_other() -> None:
    servers = Servers()
    leaving, other = new_links(2)
    servers.add(leaving, NORTH, is_first=True)
    leaving.is_leaving = True

    assert (leaving, None) == (servers.serving(NORTH), servers.staying(NORTH))

    servers.add(other, NORTH)

    assert (other, other) == (servers.serving(NORTH), servers.staying(NORTH))
