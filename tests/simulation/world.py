"""Instances of a story on played machines, and what stands in for the machine that the story is told on."""

import asyncio
import random
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import structlog

from broker.dialog.commit_watch import CommitWatch
from broker.dialog.transmitter import DialogTuning
from broker.store.sqlite.database import broker_instance
from tests.simulation.instance import Instance, Part, Surroundings
from tests.simulation.machine import MachineLoop, Net
from tests.simulation.performance import TUNING, Outcome, failing_store
from tests.support.dialog import open_database
from tests.support.virtual_time import run_virtually

FAST = Path("/dev/shm")
HINTED = 0.0  # chance that a batch of a writer is followed by hints
LOOK_SECONDS = 0.1  # between two looks whether something has come about
STORY_SECONDS = 900.0  # within which a story is told, or somebody waits for ever


def perform(story: Any, stage: Callable[..., Any], loop: MachineLoop) -> Outcome:
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
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FAST if FAST.is_dir() else None)))
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

    stack.enter_context(loop.played_sockets())
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


@dataclass(frozen=True)
class Told:
    """A story that is told step by step."""

    tell: Callable[[Any], Awaitable[None]]
    seed: int = 1
    poll: float = 0.02


class World:
    """Machines, and the instances on them by name."""

    def __init__(
        self,
        loop: MachineLoop,
        chance: random.Random,
        outcome: Outcome,
        *,
        settings: DialogTuning = TUNING,
        pool_bytes: int = 1 << 20,
    ) -> None:
        self.loop = loop
        self.chance = chance
        self.outcome = outcome
        self.store = failing_store(chance)
        self.net = Net(loop, chance)
        loop.executor_delay = lambda: chance.uniform(0.0, 0.01)
        self.around = Surroundings(self.net, chance, settings, self.store, pool_bytes)
        self.instances: dict[str, Instance] = outcome.members

    def note(self, what: str) -> None:
        self.outcome.history.append(f"{self.loop.time():8.3f} {what}")

    def add(self, part: Part) -> Instance:
        """One more instance, which starts; the file of its database is made if it is missing."""
        own = uuid.uuid4().bytes
        if part.path is not None:
            with closing(open_database(part.path, part.service)) as db:
                own = broker_instance(db)
        self.instances[part.name] = Instance(part, self.around, own)
        self.instances[part.name].start()
        return self.instances[part.name]

    async def until(self, condition: Callable[[], bool], what: str = "it", *, seconds: float = 30.0) -> None:
        """Let time pass until a condition holds; it has to before so many seconds are over."""
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.net.nonsense == []
            assert self.loop.time() < deadline, f"{what}: not within {seconds} s"
            await asyncio.sleep(LOOK_SECONDS)

    async def part(self, *tasks: asyncio.Task[Any]) -> None:
        """End these tasks, and all instances; what went wrong in a task is raised."""
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for instance in self.instances.values():
            if not instance.process.is_gone:
                instance.kill()
        self.loop.forget_tasks()
        for result in results:
            if isinstance(result, Exception):
                raise result
