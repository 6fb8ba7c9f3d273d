"""
Play a joined story: instances made of the product's own parts, on machines that are played, under one virtual clock.

While it runs, the ledger of a database holds after every turn of its writer, nothing is stored by a principal of
earlier, and what is promised sooner comes true sooner (`joined_watch`). When it has been told the network is whole,
everybody is up, and then everything that was promised must come true: each direction of each dialog was delivered once
and in order, both sides know that it is over, nothing is left in files or in memory, every prober knows the principal,
and nobody says anything any more but heartbeats.
"""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
import uuid
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import structlog

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog.transmitter import DialogTuning
from broker.routing.route import RouteProperties
from broker.store.sqlite.database import open_store
from broker.store.sqlite.inspect import read_balance
from broker.store.sqlite.transaction import epoch
from tests.simulation.application import Application, carry_out, keep_reading
from tests.simulation.ending import check_direction, fragments_needed, is_nothing_left, maybe_end, rows_left
from tests.simulation.instance import Instance, Part, Surroundings
from tests.simulation.joined_blows import Blows
from tests.simulation.joined_story import FRAGMENT_SIZE, JoinedStory
from tests.simulation.machine import MachineLoop, Net, Road
from tests.simulation.play import FRAMES_FACTOR, FRAMES_MORE
from tests.simulation.story import DAY, SIDES
from tests.simulation.watched_store import WatchedStore
from tests.support.dialog import open_database
from tests.support.virtual_time import run_virtually

QUIET_SECONDS = 120.0  # virtual; within which everything has to be over once the network is whole
LOOK_SECONDS = 0.1  # between two looks whether it is
SILENCE_SECONDS = 3.0  # ... and so long nobody says anything afterwards
STORY_SECONDS = 900.0  # within which a story is told, or somebody waits for ever
SERVICES = {"shop": "Orders", "bank": "Billing"}
FAST_DIRECTORY = Path("/dev/shm")


@dataclass
class Outcome:
    """
    How it went.

    Shape: `frames` that the ends sent, `needed` the least there can be; `seconds` virtual; `history` in words.
    """

    digest: int = 0
    frames: int = 0
    needed: int = 0
    seconds: float = 0.0
    history: list[str] = field(default_factory=list)
    instances: dict[str, Instance] = field(default_factory=dict, repr=False)


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
            place = FAST_DIRECTORY if FAST_DIRECTORY.is_dir() else None
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place)))
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
        for instance in outcome.instances.values():
            instance.process.tasks.clear()
    return outcome


def stand_in(stack: ExitStack, loop: MachineLoop, chance: random.Random, *, poll: float) -> None:
    """Played sockets, clocks and GUIDs stand in for those of the machine; `poll` seconds at most between two looks."""

    def guid() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    sockets = SimpleNamespace(socket=lambda *_: loop.net.socket(), SOCK_STREAM=socket.SOCK_STREAM)
    stack.enter_context(mock.patch("broker.net.dialer.socket", sockets))
    stack.enter_context(mock.patch("broker.dialog.endpoint.POLL_SECONDS", (0.002, poll)))
    stack.enter_context(mock.patch("time.time", loop.wall_clock))
    stack.enter_context(mock.patch("time.monotonic", loop.time))
    stack.enter_context(mock.patch("uuid.uuid4", guid))


def around(net: Net, chance: random.Random, *, pool_bytes: int = 1 << 22) -> Surroundings:
    """What instances share that are in no story."""
    settings = DialogTuning(Backoff(0.2, 2.0), Travel(), window=16, fragment_size=FRAGMENT_SIZE)
    return Surroundings(net, chance, settings, WatchedStore, pool_bytes)


class Stage:
    """One performance."""

    def __init__(
        self, story: JoinedStory, loop: MachineLoop, chance: random.Random, directory: Path, outcome: Outcome
    ) -> None:
        self.story = story
        self.loop = loop
        self.chance = chance
        self.outcome = outcome
        self.net = Net(loop, chance)
        loop.executor_delay = lambda: chance.uniform(0.0, 0.01)
        self.store: type[WatchedStore] = type("_Store", (WatchedStore,), {})
        self.store.chance, self.store.failure = chance, 0.0
        settings = DialogTuning(Backoff(0.2, 2.0), Travel(), window=16, fragment_size=FRAGMENT_SIZE)
        self.around = Surroundings(self.net, chance, settings, self.store, story.pool_bytes)
        self.ids = {name: uuid.UUID(int=chance.getrandbits(128), version=4) for name in SIDES}
        self.paths = {name: directory / f"{name}.db" for name in SIDES}
        self.instances = outcome.instances
        self.blows = Blows(story, self.net, self.instances, self.note)
        self.is_settling = False
        for name in SIDES:
            open_store(self.paths[name], broker_instance=self.ids[name]).close()
            open_database(self.paths[name], SERVICES[name]).close()
        self.applications = {name: Application(name, self.paths[name], chance, self.note) for name in SIDES}
        for part in self._parts():
            side = "bank" if part.service == "Billing" else "shop"
            own = self.ids[side].bytes if part.path is not None else uuid.uuid4().bytes
            self.instances[part.name] = Instance(part, self.around, own)

    def note(self, what: str) -> None:
        """One line of the history."""
        self.outcome.history.append(f"{self.loop.time():8.3f} {what}")

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

    # --- what happens ---

    async def run(self) -> None:
        """All of it."""
        for instance in self.instances.values():
            instance.start()
        shop = self.applications["shop"]
        self.net.road, self.store.failure = self.story.road, self.story.store_failure
        dialogs = [
            begin_dialog(shop.db, from_service="Orders", to_service="Billing", lifetime=lifetime)
            for lifetime in self.story.lifetimes
        ]
        tasks = [asyncio.create_task(self._read(name)) for name in SIDES]
        tasks.append(asyncio.create_task(self.blows.watch.hold_to_ways()))
        blows = [asyncio.create_task(self.blows.strike(blow)) for blow in self.story.blows]
        try:
            await carry_out(self.story.deeds, dialogs, self.applications)
            await asyncio.gather(*blows)
            self._clear_up()
            await self._settle(dialogs)
        except BaseException:
            self._tell_what_is_left()
            raise
        finally:
            for task in [*tasks, *blows]:
                task.cancel()
            ended = await asyncio.gather(*tasks, *blows, return_exceptions=True)
            for instance in self.instances.values():
                if not instance.process.is_gone:
                    instance.kill()
            for side in self.applications.values():
                side.db.close()
            self._forget_tasks()
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def _forget_tasks(self) -> None:
        """Tasks of processes that are gone never end; nobody is to wait for them."""
        for task in asyncio.all_tasks(self.loop):
            if task is not asyncio.current_task():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                asyncio.tasks._unregister_task(task)

    async def _read(self, name: str) -> None:
        habit = self.story.habits[name]
        await keep_reading(self.applications[name], habit, self.chance, lambda: self.is_settling)

    # --- what must have become of it ---

    def _clear_up(self) -> None:
        self.note("the network is whole")
        self.net.road = Road()
        self.store.failure = 0.0
        self.is_settling = True

    async def _settle(self, dialogs: list[Dialog]) -> None:
        open_ones = list(dialogs)

        def is_ended() -> bool:
            for dialog in list(open_ones):
                if maybe_end(self.applications, dialog):
                    open_ones.remove(dialog)
            return not open_ones

        await self._until(is_ended, "dialogs are open")
        await self._until(self._is_quiet, "something is left")
        await self._until(self._is_known, "the principal is not known to all")
        await asyncio.sleep(0.5)
        before = self._said()
        self.outcome.digest = zlib.crc32("\n".join(self.outcome.history).encode(), self.net.digest)
        await asyncio.sleep(SILENCE_SECONDS)
        assert before == self._said(), "somebody still sends when all is over"
        self._check(dialogs)

    async def _until(self, condition: Any, what: str) -> None:
        deadline = self.loop.time() + QUIET_SECONDS
        while not condition():
            assert self.net.nonsense == []
            assert self.loop.time() < deadline, f"{what} after {QUIET_SECONDS} s"
            await asyncio.sleep(LOOK_SECONDS)

    def _is_quiet(self) -> bool:
        is_empty = is_nothing_left(self.applications)
        if not is_empty or any(one.forwarder.pool.frames for one in self.instances.values()):
            return False
        return not any(one.endpoint and one.endpoint.transmitter.senders for one in self.instances.values())

    def _is_known(self) -> bool:
        """Every prober that is used knows who the principal is, and nobody else believes to be it."""
        if not self.story.is_pair:
            return True
        principal = self.blows.maybe_principal()
        if principal is None:
            return False
        there = (principal.address, epoch(self.applications["bank"].db))
        uses = [one for instance in self.instances.values() for one in instance.mirrors.in_use.values()]
        return all((one.route.principal, one.route.epoch) == there and not one.waiting for one in uses)

    def _said(self) -> tuple[int, int]:
        return self.net.carried.total(), sum(one.mirrors.probes for one in self.instances.values())

    def _check(self, dialogs: list[Dialog]) -> None:
        for number, dialog in enumerate(dialogs):
            ours, theirs = (self.applications[name].sides[dialog.conversation_id] for name in SIDES)
            has_failed = ours.has_failed or theirs.has_failed or self.story.lifetimes[number] < DAY
            check_direction(f"dialog {number}, shop to bank", ours, theirs, has_failed=has_failed)
            check_direction(f"dialog {number}, bank to shop", theirs, ours, has_failed=has_failed)
        assert len(self.applications["bank"].sides) <= len(dialogs), "the bank knows more dialogs than were begun"
        for side in self.applications.values():
            balance = read_balance(side.db)
            assert (balance.unaccounted, balance.held) == (0, 0), balance
        for name, instance in self.instances.items():
            self.blows.watch.check_rest(name, instance)
        self._count()

    def _count(self) -> None:
        fragments = fragments_needed(self.applications, FRAGMENT_SIZE)
        self.outcome.needed = fragments
        self.outcome.frames = sum(self.net.carried[name] for name in ("shop", *self.story.banks))
        assert self.outcome.frames <= FRAMES_FACTOR * fragments + FRAMES_MORE, (self.outcome.frames, fragments)

    def _tell_what_is_left(self) -> None:
        for line in rows_left(self.applications):
            self.note(line)
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
