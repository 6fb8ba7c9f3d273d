"""
Play a story: two real databases, real endpoints and forwarders, a network that is played, one virtual clock.

While the story runs, the ledger of a database is checked after every turn of its writer. When it has been told, the
weather clears, and then everything that was promised must come true: each direction of each dialog was delivered once
and in order, both sides know that it is over, nothing is left in the files or in memory, and nobody sends any more.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import structlog

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog.transmitter import DialogTuning
from broker.flow import Disposition
from broker.store.sqlite.inspect import read_balance
from tests.simulation.application import Application, Side, carry_out, keep_reading
from tests.simulation.ending import check_direction, fragments_needed, is_nothing_left, maybe_end, rows_left
from tests.simulation.story import DAY, SIDES, Blow, Story
from tests.simulation.watched_store import WatchedStore
from tests.support.network import Network, Node, Weather
from tests.support.virtual_time import VirtualLoop, run_virtually

QUIET_SECONDS = 120.0  # virtual; within which everything has to be over once the weather is fine
SILENCE_SECONDS = 3.0  # ... and so long nobody says anything afterwards
FRAMES_FACTOR = 20  # frames sent for each that is needed, at most: above it somebody sends again and again
FRAMES_MORE = 400  # ... and for what time-outs and acknowledgements of a story with few messages cost
FAST_DIRECTORY = Path("/dev/shm")


@dataclass
class Outcome:
    """
    How it went.

    Shape: `frames` that both databases sent, `needed` the least there can be; `history` in words; `nodes` and `sides`
    as the story left them, `sides` by name and conversation id.
    """

    digest: int = 0
    frames: int = 0
    needed: int = 0
    seconds: float = 0.0
    history: list[str] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict, repr=False)
    sides: dict[str, dict[uuid.UUID, Side]] = field(default_factory=dict, repr=False)


def play(story: Story, *, is_followed: bool = False) -> Outcome:
    """
    Tell it from beginning to end, and maybe let every instance tell of all its frames.

    Raises:
        AssertionError, or whatever went wrong in it; the history so far is in its `__notes__`.
    """
    chance = random.Random(story.seed)
    outcome = Outcome()

    def guid() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    place = FAST_DIRECTORY if FAST_DIRECTORY.is_dir() else None

    async def main(loop: VirtualLoop) -> None:
        with tempfile.TemporaryDirectory(dir=place) as directory, mock.patch("time.time", loop.wall_clock):
            await _Stage(story, loop, Path(directory), outcome, is_followed=is_followed).run()

    try:
        with mock.patch("uuid.uuid4", guid), structlog.testing.capture_logs():
            run_virtually(main)
    except Exception as error:
        error.add_note("\n".join(outcome.history))
        raise
    return outcome


class _Stage:
    """One performance."""

    def __init__(
        self, story: Story, loop: VirtualLoop, directory: Path, outcome: Outcome, *, is_followed: bool
    ) -> None:
        self.story = story
        self.outcome = outcome
        self.loop = loop
        settings = DialogTuning(Backoff(0.2, 2.0), Travel(), window=16, fragment_size=story.fragment_size)
        self.network = Network(loop, story.seed, settings)
        self.network.is_followed = is_followed
        self.store: type[WatchedStore] = type("_Store", (WatchedStore,), {})
        self.store.chance, self.store.failure = self.network.random, story.store_failure
        self.network.store = self.store
        self.is_settling = False
        self._build(directory)
        self.applications = {
            name: Application(name, directory / f"{name}.db", self.network.random, self.note) for name in SIDES
        }
        outcome.nodes = self.network.nodes
        outcome.sides = {name: application.sides for name, application in self.applications.items()}

    def note(self, what: str) -> None:
        """One line of the history."""
        self.outcome.history.append(f"{self.loop.time():8.3f} {what}")

    async def run(self) -> None:
        """All of it."""
        shop = self.applications["shop"]
        self.network.weather = self.story.weather
        dialogs = [
            begin_dialog(shop.db, from_service="Orders", to_service="Billing", lifetime=lifetime)
            for lifetime in self.story.lifetimes
        ]
        tasks = [asyncio.create_task(self._age()), *(asyncio.create_task(self._read(name)) for name in SIDES)]
        blows = [asyncio.create_task(self._blow(blow)) for blow in self.story.blows]
        try:
            await carry_out(self.story.deeds, dialogs, self.applications)
            await asyncio.gather(*blows)
            self._clear_up()
            await self._settle(dialogs)
        except BaseException:
            if self.is_settling:
                self._tell_what_is_left()
            raise
        finally:
            self.outcome.seconds = self.loop.time()
            for task in [*tasks, *blows]:
                task.cancel()
            ended = await asyncio.gather(*tasks, *blows, return_exceptions=True)
            for node in self.network.nodes.values():
                if node.is_up:
                    node.crash()
            for side in self.applications.values():
                side.db.close()
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def _build(self, directory: Path) -> None:
        hops = [f"gateway{number}" for number in range(self.story.gateways)]
        for name in hops:
            self.network.add(Node(self.network, name, [("Orders", "tcp://shop:4022"), ("Billing", "tcp://bank:4022")]))
        ends = (("shop", "Orders", "Billing", "bank"), ("bank", "Billing", "Orders", "shop"))
        for name, service, far_service, far in ends:
            ways = [(far_service, f"tcp://{hop}:4022") for hop in hops or [far]]
            self.network.add(Node(self.network, name, [(None, "LOCAL")], directory / f"{name}.db", service, ways))

    # --- what happens ---

    async def _read(self, name: str) -> None:
        habit = self.story.habits[name]
        await keep_reading(self.applications[name], habit, self.network.random, lambda: self.is_settling)

    async def _age(self) -> None:
        """Held frames grow old."""
        while True:
            await asyncio.sleep(1.0)
            for node in self.network.nodes.values():
                node.forwarder.expire(self.loop.time())

    async def _blow(self, blow: Blow) -> None:
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

    # --- what must have become of it ---

    def _clear_up(self) -> None:
        self.note("the weather clears")
        self.network.weather = Weather()
        self.network.severed.clear()
        self.store.failure = 0.0
        self.is_settling = True

    async def _settle(self, dialogs: list[Dialog]) -> None:
        open_ones = list(dialogs)

        def is_ended() -> bool:
            for dialog in list(open_ones):
                if maybe_end(self.applications, dialog):
                    open_ones.remove(dialog)
            return not open_ones

        await self.network.until(is_ended, seconds=QUIET_SECONDS)
        await self.network.until(self._is_quiet, seconds=QUIET_SECONDS)
        await asyncio.sleep(0.5)
        self.outcome.digest = self.network.digest
        await asyncio.sleep(SILENCE_SECONDS)
        self._check(dialogs)

    def _is_quiet(self) -> bool:
        is_empty = is_nothing_left(self.applications)
        nodes = [self.network.nodes[name] for name in SIDES]
        return is_empty and not any(node.endpoint and node.endpoint.transmitter.senders for node in nodes)

    def _check(self, dialogs: list[Dialog]) -> None:
        assert self.outcome.digest == self.network.digest, "somebody still sends when all is over"
        for number, dialog in enumerate(dialogs):
            ours, theirs = (self.applications[name].sides[dialog.conversation_id] for name in SIDES)
            has_failed = ours.has_failed or theirs.has_failed or self.story.lifetimes[number] < DAY
            check_direction(f"dialog {number}, shop to bank", ours, theirs, has_failed=has_failed)
            check_direction(f"dialog {number}, bank to shop", theirs, ours, has_failed=has_failed)
        assert len(self.applications["bank"].sides) <= len(dialogs), "the bank knows more dialogs than were begun"
        for side in self.applications.values():
            balance = read_balance(side.db)
            assert (balance.unaccounted, balance.held) == (0, 0), balance
        for node in self.network.nodes.values():
            assert node.forwarder.unaccounted == 0, f"{node.name}: frames unaccounted for"
            if node.endpoint is not None:
                transmitter = node.endpoint.transmitter
                assert node.endpoint.problem == ""
                assert (transmitter._budget.loaded_bytes, node.endpoint._acks.pending) == (0, {})
                assert Disposition.MALFORMED not in node.endpoint.dropped
        self._count()

    def _count(self) -> None:
        fragments = fragments_needed(self.applications, self.story.fragment_size)
        self.outcome.needed = fragments
        self.outcome.frames = sum(self.network.carried[name] for name in SIDES)
        assert self.outcome.frames <= FRAMES_FACTOR * fragments + FRAMES_MORE, (self.outcome.frames, fragments)

    def _tell_what_is_left(self) -> None:
        for line in rows_left(self.applications):
            self.note(line)
        for name in SIDES:
            endpoint = self.network.nodes[name].endpoint
            if endpoint is not None:
                self.note(f"{name}: senders {list(endpoint.transmitter.senders)}, problem {endpoint.problem!r}")
