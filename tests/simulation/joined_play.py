"""
Play a joined story: instances made of the product's own parts, on machines that are played, under one virtual clock.

While it runs, the ledger of a database holds after every turn of its writer, nothing is stored by a principal of
earlier, and what is promised sooner comes true sooner (`joined_watch`). At the end the network is whole, everybody is
up, every prober knows the principal, and everything that was promised must come true (`performance`).
"""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
import uuid
import zlib
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import structlog

from broker.dialog.commit_watch import CommitWatch
from broker.routing.route import RouteProperties
from broker.store.sqlite.database import open_store
from broker.store.sqlite.transaction import epoch
from tests.simulation.application import Application
from tests.simulation.instance import Instance, Part, Surroundings
from tests.simulation.joined_blows import Blows
from tests.simulation.joined_story import FRAGMENT_SIZE, JoinedStory
from tests.simulation.machine import MachineLoop, Net, Road
from tests.simulation.performance import Outcome, Performance, forget_tasks, place, tuning
from tests.simulation.story import SIDES, Blow
from tests.simulation.watched_store import WatchedStore
from tests.support.dialog import open_database
from tests.support.virtual_time import run_virtually

HINTED = 0.0  # chance that a batch of a writer is followed by hints
STORY_SECONDS = 900.0  # within which a story is told, or somebody waits for ever
SERVICES = {"shop": "Orders", "bank": "Billing"}


def play(story: JoinedStory) -> Outcome:
    """
    Tell it from beginning to end.

    Raises:
        AssertionError, or whatever went wrong in it; the history so far is in its `__notes__`.
    """
    return perform(story, Stage, MachineLoop())


def perform(story: Any, stage: type[Stage], loop: MachineLoop) -> Outcome:
    """Tell it on this stage, in this loop's time. Raises: as `play`."""
    chance = random.Random(story.seed)
    outcome = Outcome()

    async def main(_loop: object) -> None:
        async with asyncio.timeout(STORY_SECONDS):
            await stage(story, loop, chance, directory, outcome).run()

    state = random.getstate()
    random.seed(story.seed)  # what the product leaves to chance
    try:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place())))
            stand_in(stack, loop, chance, poll=story.poll)
            said = stack.enter_context(structlog.testing.capture_logs())
            run_virtually(main, loop)
            outcome.seconds = loop.time()
            errors = [
                one for one in said if one["log_level"] in {"error", "critical"} and one["event"] != "store failed"
            ]
            assert errors == [], f"what no instance should have to log: {errors}"
    except Exception as error:
        error.add_note("\n".join(outcome.history[-300:]))
        raise
    finally:
        random.setstate(state)
        for instance in outcome.members.values():
            instance.process.tasks.clear()
    return outcome


def stand_in(stack: ExitStack, loop: MachineLoop, chance: random.Random, *, poll: float) -> None:
    """Played sockets, clocks and GUIDs stand in for those of the machine; `poll` seconds at most between two looks."""

    def guid() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    sockets = SimpleNamespace(socket=lambda *_: loop.net.socket(), SOCK_STREAM=socket.SOCK_STREAM)
    stack.enter_context(mock.patch("broker.net.dialer.socket", sockets))
    hints = random.Random(poll)  # their own chance: a story stays what it was

    class PlayedWatch(CommitWatch):
        """Hints at any time: lost, late, doubled and stale ones, whatever was committed."""

        def end(self, **how: Any) -> None:
            super().end(**how)
            if hints.random() < HINTED:
                for _ in range(hints.randint(1, 2)):
                    self._loop.call_later(hints.uniform(0.0, poll), self.hint)

    stack.enter_context(mock.patch("broker.dialog.endpoint.CommitWatch", PlayedWatch))
    stack.enter_context(mock.patch("broker.dialog.commit_watch.POLL_SECONDS", poll))
    stack.enter_context(mock.patch("broker.store.sqlite.write_batch.COMMIT_STEP", 0.0))
    stack.enter_context(mock.patch("time.time", loop.wall_clock))
    stack.enter_context(mock.patch("time.monotonic", loop.time))
    stack.enter_context(mock.patch("uuid.uuid4", guid))


def around(net: Net, chance: random.Random, *, pool_bytes: int = 1 << 22) -> Surroundings:
    """What instances share that are in no story."""
    return Surroundings(net, chance, tuning(FRAGMENT_SIZE), WatchedStore, pool_bytes)


class Stage(Performance):
    """One performance."""

    fragment_size = FRAGMENT_SIZE
    loop: MachineLoop

    def __init__(
        self, story: JoinedStory, loop: MachineLoop, chance: random.Random, directory: Path, outcome: Outcome
    ) -> None:
        super().__init__(story, loop, chance, outcome)
        self.net = Net(loop, chance)
        loop.executor_delay = lambda: chance.uniform(0.0, 0.01)
        self.around = Surroundings(self.net, chance, tuning(FRAGMENT_SIZE), self.store, story.pool_bytes)
        self.ids = {name: uuid.UUID(int=chance.getrandbits(128), version=4) for name in SIDES}
        self.paths = {name: directory / f"{name}.db" for name in SIDES}
        self.instances: dict[str, Instance] = outcome.members
        self.blows = Blows(story, self.net, self.instances, self.note)
        for name in SIDES:
            open_store(self.paths[name], broker_instance=self.ids[name]).close()
            open_database(self.paths[name], SERVICES[name]).close()
        for name in SIDES:
            self.applications[name] = Application(name, self.paths[name], chance, self.note)
        for part in self._parts():
            side = "bank" if part.service == "Billing" else "shop"
            own = self.ids[side].bytes if part.path is not None else uuid.uuid4().bytes
            self.instances[part.name] = Instance(part, self.around, own)

    # --- who is there ---

    def _parts(self) -> list[Part]:
        tiers = [["shop"], *self.story.rows, list(self.story.banks)]
        local = (RouteProperties(address="LOCAL"),)
        parts = [Part("shop", local, self.paths["shop"], "Orders", self._to_bank(tiers[1], is_last=len(tiers) == 2))]
        for row in range(1, len(tiers) - 1):
            on = self._to_bank(tiers[row + 1], is_last=row == len(tiers) - 2)
            back = tuple(RouteProperties(service_name="Orders", address=f"tcp://{one}:4022") for one in tiers[row - 1])
            parts += [Part(name, on + back) for name in tiers[row]]
        back = tuple(RouteProperties(service_name="Orders", address=f"tcp://{one}:4022") for one in tiers[-2])
        for name in tiers[-1]:
            parts.append(Part(name, local, self.paths["bank"], "Billing", back, is_mirrored=self.story.is_pair))
        return parts

    def _to_bank(self, hops: list[str], *, is_last: bool) -> tuple[RouteProperties, ...]:
        if is_last and self.story.is_pair:
            first, second = (f"tcp://{name}:4022" for name in hops)
            instance = str(self.ids["bank"])
            return (RouteProperties("Billing", instance, address=first, mirror_address=second),)
        return tuple(RouteProperties(service_name="Billing", address=f"tcp://{name}:4022") for name in hops)

    # --- what happens, and what must have become of it ---

    def start(self) -> None:
        for instance in self.instances.values():
            instance.start()
        self.net.road = self.story.road

    def lasting(self) -> list[Coroutine[Any, Any, None]]:
        return [self.blows.watch.hold_to_ways()]

    async def strike(self, blow: Blow) -> None:
        await self.blows.strike(blow)

    def part(self) -> None:
        for instance in self.instances.values():
            if not instance.process.is_gone:
                instance.kill()
        forget_tasks(self.loop)

    def get_well(self) -> None:
        self.net.road = Road()

    def check_now(self) -> None:
        assert self.net.nonsense == []

    def is_sending(self) -> bool:
        members = self.instances.values()
        return any(one.forwarder.pool.frames or (one.endpoint and one.endpoint.transmitter.senders) for one in members)

    def is_quiet(self) -> bool:
        """As of dialogs, and nobody connects: a second connection of two instances ends the first one late."""
        tables = [one.peers.table for one in self.instances.values()]
        return super().is_quiet() and not any(one.is_dialling for table in tables for one in table.histories.values())

    def is_known(self) -> bool:
        """Every prober that is used knows who the principal is, and nobody else believes to be it."""
        if not self.story.is_pair:
            return True
        principal = self.blows.maybe_principal()
        if principal is None:
            return False
        there = (principal.address, epoch(self.applications["bank"].db))
        uses = [one for instance in self.instances.values() for one in instance.mirrors.in_use.values()]
        return all((one.route.principal, one.route.epoch) == there and not one.waiting for one in uses)

    def said(self) -> int:
        return self.net.carried.total() + sum(one.mirrors.probes for one in self.instances.values())

    def digest(self) -> int:
        return zlib.crc32("\n".join(self.outcome.history).encode(), self.net.digest)

    def check_rest(self) -> int:
        for name, instance in self.instances.items():
            self.blows.watch.check_rest(name, instance)
        return sum(self.net.carried[name] for name in ("shop", *self.story.banks))

    def tell_rest(self) -> None:
        for name, instance in self.instances.items():
            links = [(link.peer_name, str(link.state), link.reason) for link in instance.peers.links.values()]
            attempts = {str(to): (one.problem, one.is_dialling) for to, one in instance.peers.table.histories.items()}
            self.note(f"{name}: up {instance.is_up}, links {links}, attempts {attempts}")
            if instance.keeper is not None:
                self.note(f"{name}: {instance.keeper.standing}")
            for one in instance.mirrors.in_use.values():
                self.note(
                    f"{name}: {one.pair} principal {one.route.principal} epoch {one.route.epoch} {one.route.seen}"
                )
