"""
Stories of two targets: a service with two instances, routes by name, a network that loses, and crashes.

The initiator reaches the one over the first gateway and the other over the second, and changes its path when nothing
answers, so both may get the beginning of one dialog. Or each gateway leads to both, and prefers another one after a
crash. With EXCLUSIVE_TARGET never two applications see it. At the end the network is whole, each dialog has arrived at
one of them, and nothing waits for a confirmation.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.client.dialog import begin_dialog
from broker.client.receiving import receive
from broker.routing.route import RouteProperties
from broker.store.sqlite.failure import UNCONFIRMED
from broker.store.sqlite.metadata import find_queue, put_service
from broker.store.sqlite.transaction import writing
from tests.simulation.instance import Part
from tests.simulation.machine import MachineLoop, Road
from tests.simulation.performance import Outcome, left_out
from tests.simulation.world import World, perform
from tests.support.dialog import QUEUE, open_database, rows

TARGETS = ("bank", "branch")
SETTLED_SECONDS = 300.0  # virtual, within which all have arrived once the network is whole


@dataclass(frozen=True)
class TargetStory:
    """
    What happens.

    Shape: `dialogs` (seconds after the one before, messages, whether it ends at once); `blows` (at, name, other name or
    "" for a crash, seconds); `is_meshed` whether each gateway leads to both; `is_exclusive` whether the service is.
    """

    seed: int
    road: Road
    dialogs: tuple[tuple[float, int, bool], ...]
    blows: tuple[tuple[float, str, str, float], ...]
    is_meshed: bool = False
    is_exclusive: bool = True
    poll: float = 0.02


def draw(seed: int) -> TargetStory:
    chance = random.Random(seed)
    pick = chance.choice
    names = ["shop", "gateway0", "gateway1", *TARGETS]
    blows = []
    for _ in range(pick([0, 1, 2, 4])):
        name, other = chance.sample(names, 2)
        blows.append((chance.uniform(0.0, 3.0), name, pick(["", other, other]), pick([0.1, 0.7, 3.0])))
    return TargetStory(
        seed=seed,
        road=Road(loss=pick([0.0, 0.2, 0.5]), repeat=pick([0.0, 0.3]), late=pick([0.001, 0.1, 0.4])),
        dialogs=tuple((pick([0.0, 0.2, 1.0]), pick([1, 1, 2, 5]), pick([False, True])) for _ in range(pick([1, 2, 5]))),
        blows=tuple(sorted(blows)),
        is_meshed=pick([False, True]),
    )


def smaller(story: TargetStory) -> Iterator[TargetStory]:
    yield from left_out(story, "dialogs", "blows")


def play(story: TargetStory) -> Outcome:
    """
    Tell it from beginning to end.

    Raises:
        AssertionError: two applications saw one dialog, or one did not arrive.
    """
    return perform(story, _Stage, MachineLoop())


def _routes(service: str, *hosts: str) -> tuple[RouteProperties, ...]:
    return tuple(RouteProperties(service_name=service, address=f"tcp://{host}:4022") for host in hosts)


class _Stage(World):
    def __init__(
        self, story: TargetStory, loop: MachineLoop, chance: random.Random, directory: Path, outcome: Outcome
    ) -> None:
        super().__init__(loop, chance, outcome)
        self.story = story
        self.directory = directory
        self.severed: set[tuple[str, str]] = set()  # ways on which every frame is lost
        self.net.tamper = lambda near, far, frame: [] if (near, far) in self.severed else [frame]
        self.seen: dict[str, set[bytes]] = {name: set() for name in TARGETS}  # conversation ids
        self.begun: list[bytes] = []

    def _begin_instances(self) -> None:
        local = (RouteProperties(address="LOCAL"),)
        for number, target in enumerate(TARGETS):
            with closing(open_database(self.directory / f"{target}.db", "Billing")) as db, writing(db):
                queue = find_queue(db, QUEUE)
                assert queue is not None
                put_service(db, "Billing", queue.queue_id, frozenset(), is_exclusive_target=self.story.is_exclusive)
            there = _routes("Billing", *(TARGETS if self.story.is_meshed else [target]))
            self.add(Part(f"gateway{number}", _routes("Orders", "shop") + there))
            back = _routes("Orders", "gateway0", "gateway1")
            self.add(Part(target, local, self.directory / f"{target}.db", "Billing", back))
        out = _routes("Billing", "gateway0", "gateway1")
        self.add(Part("shop", local, self.directory / "shop.db", "Orders", out))

    async def run(self) -> None:
        """The story, then good weather, until each dialog has arrived."""
        self._begin_instances()
        self.net.road = self.story.road
        blows = [self._strike(*blow) for blow in self.story.blows]
        readers = [asyncio.ensure_future(self._read(target)) for target in TARGETS]
        await asyncio.gather(self._begin(), *blows)
        await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        self.net.road = Road()
        self.severed.clear()
        try:
            await self.until(self._has_arrived, seconds=SETTLED_SECONDS)
        finally:
            await self.part(*readers)
        self.outcome.digest = self.net.digest
        self.outcome.frames = self.net.carried.total()
        self.outcome.needed = 4 * len(self.begun)
        self.outcome.history.append(f"{len(self.begun)} dialogs, losers {self._losers()}")

    def _has_arrived(self) -> bool:
        if set(self.begun) != self.seen["bank"] | self.seen["branch"]:
            return False
        query = "SELECT 1 FROM broker_message WHERE status = ?"
        return not any(self._rows(target, query, UNCONFIRMED) for target in TARGETS)

    def _losers(self) -> int:
        query = "SELECT conversation_id FROM broker_conversation UNION SELECT conversation_id FROM broker_tombstone"
        first, second = (set(self._rows(target, query)) for target in TARGETS)
        return len(first & second)

    def _rows(self, target: str, query: str, *parameters: object) -> list[Any]:
        with closing(open_database(self.directory / f"{target}.db", "Billing")) as db:
            return rows(db, query, *parameters)

    async def _begin(self) -> None:
        with closing(open_database(self.directory / "shop.db", "Orders")) as db:
            for pause, messages, has_end in self.story.dialogs:
                await asyncio.sleep(pause)
                with writing(db):
                    dialog = begin_dialog(db, from_service="Orders", to_service="Billing")
                    for number in range(messages):
                        dialog.send(b"%d" % number)
                    if has_end:
                        dialog.end()
                self.begun.append(dialog.conversation_id.bytes)

    async def _read(self, target: str) -> None:
        """The application at one target: whatever dialog it sees, the other must never have seen."""
        other = TARGETS[1 - TARGETS.index(target)]
        with closing(open_database(self.directory / f"{target}.db", "Billing")) as db:
            while True:
                await asyncio.sleep(self.chance.uniform(0.01, 0.3))
                with writing(db):
                    for message in receive(db, queue=QUEUE, top=10):
                        conversation = message.dialog.conversation_id.bytes
                        self.note(f"{target} saw {conversation.hex()}")
                        self.seen[target].add(conversation)
                        assert conversation not in self.seen[other], "two applications saw one dialog"
                        if message.is_end or message.is_error:
                            message.dialog.end()

    async def _strike(self, at: float, name: str, other: str, seconds: float) -> None:
        await asyncio.sleep(at)
        instance = self.instances[name]
        if other:
            self.severed.add((name, other))
            await asyncio.sleep(seconds)
            self.severed.discard((name, other))
        elif instance.is_up:
            instance.kill()
            await asyncio.sleep(seconds)
            instance.start()
