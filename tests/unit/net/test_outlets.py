"""Which link an outbox leaves by, and whose turn it is when a link takes more."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.net.peer_table import Outlets
from broker.routing.address import NetworkAddress

NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")


class Box:
    """An outbox that counts how often it was drained."""

    def __init__(self, *, held: int = 0) -> None:
        self.held = [0] * held
        self.outlet: Any = None
        self.drained = 0
        self.alternatives: set[NetworkAddress] = set()

    def drain(self, _now: float) -> None:
        self.drained += 1


class Link:
    """A link. Shape: `sends` writes so far."""

    def __init__(self, sends: int = 0) -> None:
        self.sends = sends


class Town:
    """Boxes by address, and who serves it."""

    def __init__(self) -> None:
        self.boxes: dict[NetworkAddress, list[Box]] = {}
        self.links: dict[NetworkAddress, Link] = {}
        self.wanted: list[NetworkAddress] = []
        self.outlets = Outlets(cast("Any", self), want=self.wanted.append, on_room=lambda: None)
        self.outlets.forwarder = cast("Any", self)

    def outboxes_to(self, address: NetworkAddress) -> list[Box]:
        return self.boxes.get(address, [])

    def every_outbox(self) -> list[Box]:
        return [box for boxes in self.boxes.values() for box in boxes]

    def serving(self, address: NetworkAddress) -> Link | None:
        return self.links.get(address)

    def staying(self, address: NetworkAddress) -> Link | None:
        return self.links.get(address)

    def addresses_of(self, link: Link) -> list[NetworkAddress]:
        return [address for address, one in self.links.items() if one is link]


@pytest.fixture
async def town() -> Town:
    return Town()


async def test_all_that_leads_to_an_address_gets_the_link_that_serves_it(town: Town) -> None:
    """An outbox of its own, and those of pairs whose principal is there; once each."""
    boxes = town.boxes[NORTH] = [Box(), Box(held=1)]
    town.links[NORTH] = link = Link()

    town.outlets.fit(NORTH)
    town.outlets.fit(NORTH)

    assert [(link, 1), (link, 1)] == [(box.outlet, box.drained) for box in boxes]
    assert [] == town.wanted


async def test_link_is_wanted_where_there_is_none_and_frames_wait(town: Town) -> None:
    """And not where none do."""
    town.boxes = {NORTH: [Box(held=1)], SOUTH: [Box()]}

    for address in town.boxes:
        town.outlets.fit(address)

    assert [NORTH] == town.wanted


@pytest.mark.parametrize("sends", range(3))
async def test_all_that_wait_for_a_link_are_drained_and_another_is_the_first_each_time(town: Town, sends: int) -> None:
    """Or one that always has more would keep the others waiting."""
    link = town.links[NORTH] = town.links[SOUTH] = Link(sends)
    boxes = [Box(held=1), Box(held=1), Box(held=1)]
    town.boxes = {NORTH: [boxes[0], Box()], SOUTH: [*boxes[1:], Box(held=1)]}
    for box in boxes:
        box.outlet = link
    order: list[Box] = []
    for box in boxes:
        box.drain = lambda _, box=box: order.append(box)  # type: ignore[method-assign, misc]

    town.outlets.drain(cast("Any", link))

    assert [boxes[sends], boxes[(sends + 1) % 3], boxes[(sends + 2) % 3]] == order


async def test_link_for_which_nothing_waits_drains_nothing(town: Town) -> None:
    """Whatever it serves."""
    link = town.links[NORTH] = Link()
    town.boxes = {NORTH: [Box()]}

    town.outlets.drain(cast("Any", link))

    assert [0] == [box.drained for box in town.boxes[NORTH]]


async def test_something_drains_while_a_link_may_take_what_waits(town: Town) -> None:
    """Not what has no link, and not what is empty."""
    town.boxes = {NORTH: [Box(held=1)], SOUTH: [Box()]}
    town.boxes[SOUTH][0].outlet = Link()
    assert not town.outlets.is_draining

    town.boxes[NORTH][0].outlet = Link()

    assert town.outlets.is_draining


async def test_frames_for_an_address_may_go_there_again_or_where_else_they_lead(town: Town) -> None:
    """Where frames were sent at all, and nobody serves it yet."""
    used, east, west = Box(), NetworkAddress("east"), NetworkAddress("west")
    used.alternatives = {east, west}
    town.boxes = {NORTH: [used]}
    town.links[west] = Link()

    assert {NORTH, east} == town.outlets.replacing([NORTH, SOUTH])


async def test_address_that_somebody_serves_needs_no_other(town: Town) -> None:
    town.boxes = {NORTH: [Box()]}
    town.links[NORTH] = Link()

    assert set() == town.outlets.replacing([NORTH])
