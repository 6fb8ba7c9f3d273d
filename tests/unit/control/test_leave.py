"""One instance leaves: nobody new is taken, peers and databases are told, and what is left is looked up."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from broker.config.settings import DrainSettings, Settings
from broker.daemon.instance import InstanceLeaver, bounds_of, drain_of
from broker.net.drain import DrainBounds, Left


class Database:
    """As much of a database at work as this is about."""

    def __init__(self, told: list[str], *, is_at_rest: bool = True, problem: str = "") -> None:
        self.is_at_rest = is_at_rest
        self.problem = problem
        self._told = told

    def rest(self) -> None:
        self._told.append("database rests")


class Instance:
    """Listener, peers and databases in one, which note what they are told, in order."""

    def __init__(self, **databases: Database) -> None:
        self.told: list[str] = []
        self.settings = Settings()
        self.is_ready = True
        self.stopping = asyncio.Event()
        self.endpoints = databases
        self.listeners = [self]
        self.peers = self.databases = self

    def finish(self) -> None:
        self.told.append("no new connections")

    def leave(self, *, reason: str, seconds: float) -> None:
        self.told.append(f"GOAWAY {reason} in {seconds:g} s")

    def left(self) -> Left:
        return Left(held=3)

    async def hand_over(self) -> None:
        self.told.append("handed over")


async def test_ports_close_before_peers_are_told_and_partners_have_what_is_shared() -> None:
    instance = Instance()
    instance.endpoints["orders"] = Database(instance.told)

    await InstanceLeaver(cast("Any", instance)).leave(20.0)

    assert [
        "no new connections",
        "GOAWAY the instance drains in 20 s",
        "database rests",
        "handed over",
    ] == instance.told


async def test_database_counts_as_busy_until_it_rests_unless_its_store_has_failed() -> None:
    told: list[str] = []
    instance = Instance(
        resting=Database(told),
        busy=Database(told, is_at_rest=False),
        broken=Database(told, is_at_rest=False, problem="disk full"),
    )

    assert Left(held=3, busy=("busy",)) == await InstanceLeaver(cast("Any", instance)).left()


async def test_instance_that_drains_is_not_ready_and_goes_by_the_settings_of_that_moment() -> None:
    instance = Instance()
    drain = drain_of(cast("Any", instance))
    brief = DrainSettings().with_values({"announce": 0.0, "timeout": 0.05})
    instance.settings = instance.settings.with_values({"drain": brief})

    await drain.end("SIGTERM")

    assert (False, True, False) == (instance.is_ready, instance.stopping.is_set(), drain.is_clean)
    assert DrainBounds(0.0, 0.05) == bounds_of(instance.settings)
