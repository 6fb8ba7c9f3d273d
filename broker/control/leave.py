"""What it means for one instance to leave: who is told, who rests, and what is left of its work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from broker.control.config import Settings
from broker.control.databases import Databases
from broker.net.drain import Drain, DrainBounds
from broker.net.farewell import Left
from broker.net.listener import Listener
from broker.net.peers import Peers


class Leaving(Protocol):
    """The instance that leaves."""

    settings: Settings
    is_ready: bool
    stopping: asyncio.Event
    peers: Peers
    databases: Databases

    @property
    def listeners(self) -> Sequence[Listener]:
        """The bound ports."""


def drain_of(instance: Leaving) -> Drain:
    """The drain of an instance, with the bounds of its settings."""
    return Drain(InstanceLeaver(instance), lambda: bounds_of(instance.settings))


def bounds_of(settings: Settings) -> DrainBounds:
    """How long a drain may take by these settings."""
    return DrainBounds(settings.drain.announce, settings.drain.timeout)


class InstanceLeaver:
    """As `broker.net.drain.Leaver`. Loop-only."""

    def __init__(self, instance: Leaving) -> None:
        self._instance = instance

    def on_drain(self) -> None:
        """Nobody is to send anything here any more."""
        self._instance.is_ready = False
        self._instance.stopping.set()

    async def leave(self, seconds: float) -> None:
        """Peers and partners are told, and the databases send nothing of their own."""
        instance = self._instance
        for listener in instance.listeners:
            listener.finish()
        instance.peers.leave(reason="the instance drains", seconds=seconds)
        for endpoint in instance.databases.endpoints.values():
            endpoint.rest()
        await instance.databases.hand_over()

    async def left(self) -> Left:
        """What is held, who may still send, and which databases have something to do."""
        endpoints = self._instance.databases.endpoints.items()
        busy = (name for name, endpoint in endpoints if not (endpoint.is_at_rest or endpoint.problem))
        return replace(self._instance.peers.left(), busy=tuple(busy))
