"""What it means for a gateway of several processes to leave: all workers do, and what any of them has is left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from broker.net.farewell import Left
from broker.workers.slot import Slot


class Leaving(Protocol):
    """The supervisor that leaves."""

    stopping: asyncio.Event

    @property
    def slots(self) -> Sequence[Slot]:
        """The places of its workers."""


class SupervisorLeaver:
    """As `broker.net.drain.Leaver`. Loop-only."""

    def __init__(self, supervisor: Leaving) -> None:
        self._supervisor = supervisor

    def on_drain(self) -> None:
        """Nobody is to send anything here any more."""
        self._supervisor.stopping.set()

    async def leave(self, seconds: float) -> None:
        """Every worker begins to leave, and is not replaced any more."""
        await asyncio.gather(*(slot.leave(seconds) for slot in self._supervisor.slots))

    async def left(self) -> Left:
        """What is left in all workers; one that does not answer counts as busy."""
        found = await asyncio.gather(*(slot.left() for slot in self._supervisor.slots))
        return sum(found, Left())
