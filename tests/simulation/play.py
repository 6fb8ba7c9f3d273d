"""
Play a story: two real databases, real endpoints and forwarders, a network that is played, one virtual clock.

While the story runs, the ledger of a database is checked after every turn of its writer. At its end the weather clears,
and everything that was promised must come true (`performance`).
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

import structlog

from broker.flow import Disposition
from tests.simulation.performance import Application, Outcome, Performance, failing_store, place, tuning
from tests.simulation.story import SIDES, Blow, Story
from tests.support.network import Network, Node, Weather
from tests.support.virtual_time import VirtualLoop, run_virtually


def play(story: Story) -> Outcome:
    """
    Tell it from beginning to end.

    Raises:
        AssertionError, or whatever went wrong in it; the history so far is in its `__notes__`.
    """
    chance = random.Random(story.seed)
    outcome = Outcome()

    def guid() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    async def main(loop: VirtualLoop) -> None:
        with tempfile.TemporaryDirectory(dir=place()) as directory, mock.patch("time.time", loop.wall_clock):
            await _Stage(story, loop, Path(directory), outcome).run()

    try:
        with mock.patch("uuid.uuid4", guid), structlog.testing.capture_logs():
            run_virtually(main)
    except Exception as error:
        error.add_note("\n".join(outcome.history))
        raise
    return outcome


class _Stage(Performance):
    look_seconds = 0.05

    def __init__(self, story: Story, loop: VirtualLoop, directory: Path, outcome: Outcome) -> None:
        self.network = Network(loop, story.seed, tuning(story.fragment_size))
        super().__init__(story, loop, self.network.random, outcome)
        self.fragment_size = story.fragment_size
        self.store = self.network.store = failing_store(self.chance)
        self.store.failure = story.store_failure
        hops = [f"gateway{number}" for number in range(story.gateways)]
        for name in hops:
            self.network.add(Node(self.network, name, [("Orders", "tcp://shop:4022"), ("Billing", "tcp://bank:4022")]))
        ends = (("shop", "Orders", "Billing", "bank"), ("bank", "Billing", "Orders", "shop"))
        for name, service, far_service, far in ends:
            ways = [(far_service, f"tcp://{hop}:4022") for hop in hops or [far]]
            self.network.add(Node(self.network, name, [(None, "LOCAL")], directory / f"{name}.db", service, ways))
        for name in SIDES:
            self.applications[name] = Application(name, directory / f"{name}.db", self.chance, self.note)

    def start(self) -> None:
        self.network.weather = self.story.weather

    def lasting(self) -> list[Coroutine[Any, Any, None]]:
        return [self._age()]

    async def _age(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for node in self.network.nodes.values():
                node.forwarder.expire(self.loop.time())

    async def strike(self, blow: Blow) -> None:
        await asyncio.sleep(blow.at)
        network, near, far = self.network, self.network.nodes[blow.name], self.network.nodes[blow.other]
        self.note(f"{blow.what} {blow.name} {blow.other} for {blow.seconds} s")
        if blow.what == "crash":
            if near.is_up:
                near.crash()
                await asyncio.sleep(blow.seconds)
                near.start()
        elif blow.what == "cut":
            for one, other in ((near, far), (far, near)):
                one.forwarder.table.outbox(other.address).outlet = None
            network._tell(near)
            await asyncio.sleep(blow.seconds)
            if near.is_up:
                network.connect(near)
        else:
            pairs = {(near.name, far.name)} | ({(far.name, near.name)} if blow.what == "sever" else set())
            network.severed |= pairs
            await asyncio.sleep(blow.seconds)
            network.severed -= pairs

    def part(self) -> None:
        for node in self.network.nodes.values():
            if node.is_up:
                node.crash()

    def get_well(self) -> None:
        self.network.weather = Weather()
        self.network.severed.clear()

    def is_sending(self) -> bool:
        nodes = [self.network.nodes[name] for name in SIDES]
        return any(node.endpoint and node.endpoint.transmitter.senders for node in nodes)

    def said(self) -> int:
        return self.network.digest

    def check_rest(self) -> int:
        for node in self.network.nodes.values():
            assert node.forwarder.unaccounted == 0, f"{node.name}: frames unaccounted for"
            if node.endpoint is not None:
                transmitter = node.endpoint.transmitter
                assert node.endpoint.problem == ""
                assert (transmitter._budget.loaded_bytes, node.endpoint._acks.pending) == (0, {})
                assert Disposition.MALFORMED not in node.endpoint.dropped
        return sum(self.network.carried[name] for name in SIDES)

    def tell_rest(self) -> None:
        for name in SIDES:
            endpoint = self.network.nodes[name].endpoint
            if endpoint is not None:
                self.note(f"{name}: senders {list(endpoint.transmitter.senders)}, problem {endpoint.problem!r}")
