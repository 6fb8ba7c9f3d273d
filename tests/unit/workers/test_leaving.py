"""A gateway of several processes leaves when all of its workers do."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from broker.net.farewell import Left
from broker.workers.leaving import SupervisorLeaver


class Slot:
    """As much of a place as this is about."""

    def __init__(self, left: Left) -> None:
        self.told: list[float] = []
        self._left = left

    async def leave(self, seconds: float) -> None:
        self.told.append(seconds)

    async def left(self) -> Left:
        return self._left


class Supervisor:
    """As much of a supervisor as this is about."""

    def __init__(self, *slots: Slot) -> None:
        self.stopping = asyncio.Event()
        self.slots = slots


async def test_every_worker_is_told_and_what_they_have_left_is_added_up() -> None:
    slots = Slot(Left(held=2, unserved=1, peers=1, by_hop={"a": 2})), Slot(Left(peers=2, busy=("worker 2",)))
    leaver = SupervisorLeaver(cast("Any", Supervisor(*slots)))

    await leaver.leave(12.5)

    assert [[12.5], [12.5]] == [slot.told for slot in slots]
    assert Left(held=2, unserved=1, peers=3, by_hop={"a": 2}, busy=("worker 2",)) == await leaver.left()


async def test_gateway_is_not_ready_any_more_once_it_drains() -> None:
    supervisor = Supervisor()

    SupervisorLeaver(cast("Any", supervisor)).on_drain()

    assert supervisor.stopping.is_set()
