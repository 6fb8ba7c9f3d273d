"""Links end, and are looked at, so many in one turn of the loop; a bug of one is not that of all."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.net import peers as module
from broker.net.link import Link, LinkState
from broker.net.peers import ENDS, RENEW_SECONDS, RENEWALS, LoopFairness


class Played:
    """A link that ends when it is told to, or fails."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.ended = self.renewed = 0

    def wind_up(self) -> None:
        self.ended += 1
        assert not self.is_broken

    def renew(self) -> None:
        self.renewed += 1
        assert not self.is_broken


class Paced:
    """A pace and its links; `failed` are those it told of."""

    def __init__(self, *links: Played) -> None:
        self.links: list[Any] = list(links)
        self.failed: list[Any] = []
        self.pace = LoopFairness(lambda link, _: self.failed.append(link))

    def end_all(self) -> None:
        for link in self.links:
            self.pace.wind_up(link)

    @property
    def ended(self) -> int:
        return sum(link.ended for link in self.links)


async def test_link_ends_at_once() -> None:
    paced = Paced(Played())

    paced.end_all()

    assert 1 == paced.ended


async def test_crowd_ends_over_many_turns_and_in_order() -> None:
    paced = Paced(*(Played() for _ in range(3 * ENDS + 1)))

    paced.end_all()
    assert ENDS == paced.ended
    await asyncio.sleep(0)
    assert [1] * 2 * ENDS + [0] * (ENDS + 1) == [link.ended for link in paced.links]
    more = Played()
    paced.links.append(more)
    paced.pace.wind_up(cast("Link", more))
    assert 2 * ENDS == paced.ended
    for _ in range(4):
        await asyncio.sleep(0)

    assert [1] * len(paced.links) == [link.ended for link in paced.links]


async def test_those_who_come_later_find_a_turn_of_their_own() -> None:
    paced = Paced(*(Played() for _ in range(ENDS)))
    paced.end_all()
    for _ in range(3):
        await asyncio.sleep(0)

    paced.end_all()

    assert 2 * ENDS == paced.ended


async def test_bug_of_one_is_told_and_the_others_end() -> None:
    broken = Played(is_broken=True)
    paced = Paced(Played(), broken, Played())

    paced.end_all()

    assert ([1, 1, 1], [broken]) == ([link.ended for link in paced.links], paced.failed)


async def test_long_look_is_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    paced = Paced(*(Played() for _ in range(10)), Played(is_broken=True))
    looking = asyncio.ensure_future(paced.pace.visit(paced.links, lambda link: cast("Played", link).wind_up()))

    counts = []
    while not looking.done():
        await asyncio.sleep(0)
        counts.append(paced.ended)

    assert (sorted(set(counts)), 11) == (list(range(1, 12)), counts[-1])
    assert [paced.links[-1]] == paced.failed


async def test_readers_are_renewed_a_moment_later_some_in_a_turn() -> None:
    paced = Paced(*(Played() for _ in range(RENEWALS)), Played(is_broken=True))

    for link in paced.links:
        paced.pace.renew_soon(link)
    assert 0 == sum(link.renewed for link in paced.links)
    await asyncio.sleep(RENEW_SECONDS)
    for _ in range(3):
        await asyncio.sleep(0)

    assert [1] * (RENEWALS + 1) == [link.renewed for link in paced.links]
    assert [paced.links[-1]] == paced.failed


async def test_nothing_happens_any_more_when_it_is_closed() -> None:
    paced = Paced(*(Played() for _ in range(2 * ENDS)))
    paced.end_all()
    paced.pace.renew_soon(paced.links[0])

    paced.pace.close()
    await asyncio.sleep(1)

    assert (ENDS, 0) == (paced.ended, paced.links[0].renewed)


@pytest.mark.parametrize("state", list(LinkState))
async def test_time_passes_for_every_link_that_is_not_closed(state: LinkState) -> None:
    ticks: list[float] = []
    link: Any = SimpleNamespace(state=state, tick=ticks.append)

    await Paced().pace.tick([link])

    assert (state is not LinkState.CLOSED) == bool(ticks)
