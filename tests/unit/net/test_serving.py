"""Who begins and ceases to serve an address is told, and whether anything depends on it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.net.link import LinkState
from broker.net.peer_table import Addresses, Serving
from broker.routing.address import NetworkAddress

NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")


class Link:
    """As much of a link as this is about."""

    def __init__(self) -> None:
        self.state = LinkState.LOGGED_IN
        self.is_leaving = False
        self.reason = ""


class Office:
    """Outlets and watcher in one, which note what they are told."""

    def __init__(self) -> None:
        self.addresses = Addresses()
        self.fitted: list[NetworkAddress] = []
        self.told: list[tuple[NetworkAddress, object]] = []
        self.outboxes: dict[NetworkAddress, object] = {}
        self.forwarder = self
        self.serving = Serving(self.addresses, cast("Any", self), lambda: cast("Any", self))

    def fit(self, address: NetworkAddress) -> None:
        self.fitted.append(address)

    def on_served(self, address: NetworkAddress, link: object) -> None:
        self.told.append((address, link))

    def on_unserved(self, address: NetworkAddress, problem: str) -> None:
        self.told.append((address, problem))


@pytest.fixture
async def office() -> Office:
    return Office()


async def test_link_serves_what_it_was_dialled_for_first_and_what_was_announced(office: Office) -> None:
    link: Any = Link()

    office.serving.begin(link, NORTH, [SOUTH, NORTH])

    assert ([NORTH, SOUTH], [(NORTH, link), (SOUTH, link)]) == (office.fitted, office.told)


async def test_it_matters_only_where_somebody_asked_or_sent_and_nobody_serves(office: Office) -> None:
    first, second, third = cast("Any", (Link(), Link(), Link()))

    assert not office.serving.begin(first, NORTH)
    office.outboxes[NORTH] = object()
    assert not office.serving.begin(second, NORTH)
    first.is_leaving = second.is_leaving = True
    assert office.serving.begin(third, NORTH)


async def test_link_that_ends_leaves_its_addresses_to_others_or_to_nobody(office: Office) -> None:
    first, second = cast("Any", (Link(), Link()))
    office.outboxes[NORTH] = object()
    office.serving.begin(first, NORTH)
    office.serving.begin(second, NORTH)
    office.told.clear()

    assert not office.serving.end(first, NORTH)
    second.reason = "closed by the peer"
    assert office.serving.end(second, NORTH)

    assert [(NORTH, second), (NORTH, "closed by the peer")] == office.told


async def test_what_was_dialled_and_not_served_yet_is_told_too(office: Office) -> None:
    office.serving.end(cast("Any", Link()), SOUTH)

    assert [(SOUTH, "the peer is draining")] == office.told


async def test_link_that_leaves_is_as_good_as_gone_to_whoever_watches(office: Office) -> None:
    link: Any = Link()
    office.serving.begin(link, NORTH)
    office.told.clear()

    link.is_leaving = True
    office.serving.look(NORTH, "the peer is draining")

    assert [(NORTH, "the peer is draining")] == office.told
