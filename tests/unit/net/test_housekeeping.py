"""The forwarder has its turns, one for however many wishes, and a link that failed in a pass is closed behind it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from broker.net.peers import REPORT_SECONDS, DeferredWork
from tests.support.peers import NORTH, Neighbourhood, sent
from tests.support.played import PlayedLoop


class Worker:
    """A forwarder that only counts its turns, and may wish for more."""

    def __init__(self) -> None:
        self.turns: list[float] = []
        self.wishes = 0
        self.housekeeping: DeferredWork

    def work(self, now: float) -> None:
        self.turns.append(now)
        if self.wishes:
            self.wishes -= 1
            self.housekeeping.again()


async def test_many_wishes_are_one_turn_in_a_later_turn_of_the_loop(loop: PlayedLoop) -> None:
    worker, after = Worker(), [0]
    housekeeping = worker.housekeeping = DeferredWork()
    housekeeping.start(cast("Any", worker), lambda: after.append(len(worker.turns)))
    worker.wishes = 2

    for _ in range(3):
        housekeeping.again()
    assert [] == worker.turns
    await asyncio.sleep(0.1)

    assert (3, [0, 1, 2, 3]) == (len(worker.turns), after)


async def test_link_that_fails_in_a_pass_is_closed_behind_it_and_its_address_served_by_the_next(
    loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = Neighbourhood(loop, monkeypatch)
    near.start()
    broken = near.accept(addresses=[str(NORTH)], arbitration=b"1" * 16)
    (link,) = near.links

    def fail(data: object) -> int:
        raise RuntimeError("no more")

    monkeypatch.setattr(link, "send", fail)
    frames = [near.send(NORTH, number) for number in range(3)]
    assert ([link], 3) == (near.links, near.forwarder.pool.frames)
    await asyncio.sleep(0.01)
    assert ([], True) == (near.links, broken.is_closed)
    wire = near.accept(addresses=[str(NORTH)], arbitration=b"2" * 16)

    assert b"".join(frames) == sent(wire)
    assert (3, 0) == (near.forwarder.forwarded, near.forwarder.unaccounted)


async def test_every_failure_is_counted_and_some_are_told(loop: PlayedLoop, capsys: pytest.CaptureFixture[str]) -> None:
    housekeeping = DeferredWork()

    for _ in range(3):
        housekeeping.report(None, ValueError("same again"))
    await asyncio.sleep(REPORT_SECONDS)
    housekeeping.report(None, ValueError("later"))

    told = capsys.readouterr().out
    assert (4, 2) == (housekeeping.failures, told.count("pass went on without"))
