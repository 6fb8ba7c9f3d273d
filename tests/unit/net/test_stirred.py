"""Whoever waits looks again when something has stirred, and no longer than it may."""

from __future__ import annotations

import asyncio

from broker.net.peers import Stirred
from tests.support.played import PlayedLoop


async def test_what_is_so_is_not_waited_for(loop: PlayedLoop) -> None:
    await Stirred().until(lambda: True, 60.0)

    assert 0.0 == loop.time()


async def test_who_waits_looks_when_something_has_stirred(loop: PlayedLoop) -> None:
    stirred, left = Stirred(), [3]

    def is_empty() -> bool:
        left[0] -= 1
        return left[0] == 0

    waiting = asyncio.create_task(stirred.until(is_empty, 60.0))
    for _ in range(2):
        await asyncio.sleep(1.0)
        stirred.set()
    await waiting

    assert (0, 2.0) == (left[0], loop.time())


async def test_wait_ends_with_its_time(loop: PlayedLoop) -> None:
    await Stirred().until(lambda: False, 5.0)

    assert 5.0 == loop.time()
