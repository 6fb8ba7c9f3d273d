"""
Stories of whole instances, made of the product's own parts, on machines that are played.

A story is a value, drawn from a number: the instances and their routes, deeds, habits, and blows. While it is played
the ledger of a database holds after every batch of its writer, nothing is stored by a former principal, and what is
promised sooner comes true sooner (`joined_blows`). At the end everything promised must come true (`performance`).
"""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import structlog

from broker.client.dialog import Dialog, begin_dialog
from broker.dialog.commit_watch import CommitWatch
from broker.routing.route import RouteProperties
from broker.store.sqlite.database import open_store
from broker.store.sqlite.inspect import read_balance
from broker.store.sqlite.transaction import epoch
from tests.simulation.instance import Instance, Part, Surroundings
from tests.simulation.joined_blows import Blows
from tests.simulation.machine import MachineLoop, Net, Road
from tests.simulation.performance import (
    FRAMES_FACTOR,
    FRAMES_MORE,
    QUIET_SECONDS,
    SILENCE_SECONDS,
    Application,
    Outcome,
    WatchedStore,
    carry_out,
    check_direction,
    ended,
    failing_store,
    forget_tasks,
    fragments_needed,
    is_nothing_left,
    keep_reading,
    maybe_end,
    place,
    raise_first,
    rows_left,
    tuning,
)
from tests.simulation.story import DAY, SIDES, Blow, Deed, Habit, calmer, draw_deed, draw_habit, left_out, plainer
from tests.support.dialog import open_database
from tests.support.virtual_time import run_virtually

PARTNERS = ("bank-a", "bank-b")
TIERS = ((), (1,), (1,), (2,), (3,), (1, 1), (2, 1), (1, 2), (2, 2))
BLOWS = {  # what happens, and how often
    "kill": 4,  # a process is gone, its connections are reset
    "power": 2,  # a machine is without power: nobody is told
    "restart": 2,  # a process drains and ends in order, and another one begins
    "freeze": 3,  # a process stands still; a mirrored database is taken from it meanwhile
    "cut": 3,  # nothing arrives between two machines, both ways
    "deafen": 2,  # ... in one direction
    "reset": 2,  # connections between two machines are gone, and both know
    "failover": 4,  # planned: the principal hands over
    "reroute": 2,  # an instance has no routes to the bank for a while
    "jump": 2,  # the wall clock of a process is wrong for a while
    "stale": 2,  # the mirror claims to be the principal with an epoch that is over, as a restored copy does
    "heir": 4,  # the mirror is started anew, so that it knows nobody who asked, and has to follow the principal then
}
SECONDS = (0.0, 0.1, 0.7, 3.0, 8.0, 8.0)  # the longest outlasts everything that waits for silence
JUMPS = (-300.0, -30.0, -2.0, 2.0, 30.0, 300.0)
FRAGMENT_SIZE = 100
OVER_SECONDS = 6.0  # blows begin within it
SMALL_POOL = 20_000  # bytes, a few frames


@dataclass(frozen=True)
class JoinedStory:
    """
    Shape: `tiers` gateways in each row between shop and bank; `is_pair` whether the bank is mirrored; `pool_bytes` of
    each instance; `poll` seconds at most between two looks for what applications have committed; `lifetimes` of the
    dialogs.
    """

    seed: int
    tiers: tuple[int, ...]
    is_pair: bool
    road: Road
    pool_bytes: int
    poll: float
    store_failure: float
    lifetimes: tuple[float, ...]
    habits: dict[str, Habit]
    deeds: tuple[Deed, ...]
    blows: tuple[Blow, ...]

    @property
    def rows(self) -> list[list[str]]:
        return [[f"gateway-{row}{number}" for number in range(size)] for row, size in enumerate(self.tiers)]

    @property
    def banks(self) -> tuple[str, ...]:
        return PARTNERS if self.is_pair else ("bank",)


def draw(seed: int) -> JoinedStory:
    chance = random.Random(seed)
    pick = chance.choice
    tiers, is_pair = pick(TIERS), chance.random() < 0.6
    is_hostile = chance.random() < 0.3
    road = Road(
        delay=pick([0.001, 0.02, 0.2]),
        room=pick([1 << 18, 1 << 18, 8192, 700]),  # the least cuts frames in the middle
        crumb=pick([1 << 18, 1 << 18, 300]),
        loss=pick([0.0, 0.02, 0.2]) if is_hostile else 0.0,
        repeat=pick([0.0, 0.3]) if is_hostile else 0.0,
        late=pick([0.0, 0.4]) if is_hostile else 0.0,
        damage=pick([0.0, 0.05]) if is_hostile else 0.0,
    )
    dialogs = pick([1, 1, 2, 3])
    blows = [blow for blow in (_blow(chance, tiers, is_pair=is_pair) for _ in range(pick([0, 1, 2, 3, 5]))) if blow]
    has_jumps = any(blow.what == "jump" for blow in blows)
    deeds = [draw_deed(chance, dialogs) for _ in range(pick([1, 3, 8, 16]))]
    slowness = pick([1.0, 4.0])  # so that blows find something to hit
    return JoinedStory(
        seed=seed,
        tiers=tiers,
        is_pair=is_pair,
        road=road,
        pool_bytes=pick([1 << 20, 1 << 20, SMALL_POOL]),
        poll=pick([0.02, 0.1, 0.3]),
        store_failure=pick([0.0, 0.0, 0.0, 0.02]),
        lifetimes=tuple(pick([DAY] * 9 + [2.0]) for _ in range(dialogs)),
        habits={side: draw_habit(chance) for side in SIDES},
        # What a timer does while a clock is wrong is told by test_clock_jump.
        deeds=tuple(
            replace(deed, after=deed.after * slowness) for deed in deeds if not (has_jumps and deed.what == "timer")
        ),
        blows=tuple(sorted(blows, key=lambda blow: blow.at)),
    )


def _blow(chance: random.Random, tiers: tuple[int, ...], *, is_pair: bool) -> Blow | None:
    story = replace(_EMPTY, tiers=tiers, is_pair=is_pair)
    rows = [["shop"], *story.rows, list(story.banks)]
    (what,) = chance.choices(list(BLOWS), weights=list(BLOWS.values()))
    at, seconds = chance.uniform(0.0, OVER_SECONDS), chance.choice(SECONDS)
    number = chance.randrange(len(rows) - 1)
    near, far = chance.choice(rows[number]), chance.choice(rows[number + 1])  # neighbours, which talk to each other
    if what in ("failover", "heir", "stale"):
        return Blow(at, what, "", "", seconds) if is_pair else None
    if what == "jump":
        return Blow(at, what, chance.choice([near, far]), str(chance.choice(JUMPS)), seconds)
    if what == "reroute":
        return Blow(at, what, near, far, seconds)
    name, other = chance.sample([near, far], 2)
    return Blow(at, what, name, other, seconds)


_EMPTY = JoinedStory(
    seed=0,
    tiers=(),
    is_pair=False,
    road=Road(),
    pool_bytes=1 << 20,
    poll=0.02,
    store_failure=0.0,
    lifetimes=(DAY,),
    habits={side: Habit() for side in SIDES},
    deeds=(),
    blows=(),
)


def smaller(story: JoinedStory) -> Iterator[JoinedStory]:
    yield from left_out(story, "deeds", "blows")
    yield from plainer(story, Road(), "loss", "repeat", "late", "damage", "delay", "room", "crumb", within="road")
    yield from plainer(story, _EMPTY, "store_failure", "pool_bytes", "poll")
    rows = story.tiers
    for tiers in ((), *((*rows[:row], size - 1, *rows[row + 1 :]) for row, size in enumerate(rows))):
        names = {"shop", *story.banks, *(name for row in replace(story, tiers=tiers).rows for name in row)}
        if 0 not in tiers and tiers != rows and all(blow.name in {"", *names} for blow in story.blows):
            yield replace(story, tiers=tiers)
    yield from calmer(story)


LOOK_SECONDS = 0.1  # between two looks at the end
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
    return Surroundings(net, chance, tuning(FRAGMENT_SIZE), WatchedStore, pool_bytes)


class Stage:
    """One performance of a story with a shop and a bank."""

    def __init__(
        self, story: JoinedStory, loop: MachineLoop, chance: random.Random, directory: Path, outcome: Outcome
    ) -> None:
        self.story = story
        self.loop = loop
        self.chance = chance
        self.outcome = outcome
        self.is_settling = False
        self.applications: dict[str, Application] = {}
        self.store = failing_store(chance)
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

    def note(self, what: str) -> None:
        self.outcome.history.append(f"{self.loop.time():8.3f} {what}")

    async def run(self) -> None:
        self.start()
        self.store.failure = self.story.store_failure
        shop = self.applications["shop"]
        dialogs = [
            begin_dialog(shop.db, from_service="Orders", to_service="Billing", lifetime=lifetime)
            for lifetime in self.story.lifetimes
        ]
        tasks = [asyncio.create_task(one) for one in (*map(self._read, SIDES), self.blows.watch.hold_to_ways())]
        blows = [asyncio.create_task(self.blows.strike(blow)) for blow in self.story.blows]
        try:
            await carry_out(self.story.deeds, dialogs, self.applications)
            await asyncio.gather(*blows)
            self.clear_up()
            await self.settle(dialogs)
        except BaseException:
            with suppress(AttributeError):
                self.tell_what_is_left()
            raise
        finally:
            self.outcome.seconds = self.loop.time()
            results = await ended([*tasks, *blows])
            self.part()
            for side in self.applications.values():
                side.db.close()
        raise_first(results)

    async def _read(self, name: str) -> None:
        await keep_reading(self.applications[name], self.story.habits[name], self.chance, lambda: self.is_settling)

    def clear_up(self) -> None:
        self.note("the network is whole")
        self.net.road = Road()
        self.store.failure = 0.0
        self.is_settling = True

    async def settle(self, dialogs: list[Dialog]) -> None:
        """Until all is over, and a while longer."""
        open_ones = list(dialogs)

        def is_ended() -> bool:
            open_ones[:] = [one for one in open_ones if not maybe_end(self.applications, one)]
            return not open_ones

        await self._until(is_ended, "dialogs are open")
        await self._until(self.is_quiet, "something is left")
        await self._until(self.is_known, "the principal is not known to all")
        await asyncio.sleep(0.5)
        before = self.said()
        self.outcome.digest = self.digest()
        await asyncio.sleep(SILENCE_SECONDS)
        assert before == self.said(), "somebody still sends when all is over"
        self.check(dialogs)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = self.loop.time() + QUIET_SECONDS
        while not condition():
            assert self.net.nonsense == []
            assert self.loop.time() < deadline, f"{what} after {QUIET_SECONDS} s"
            await asyncio.sleep(LOOK_SECONDS)

    def check(self, dialogs: list[Dialog]) -> None:
        for number, dialog in enumerate(dialogs):
            ours, theirs = (self.applications[name].sides[dialog.conversation_id] for name in SIDES)
            has_failed = ours.has_failed or theirs.has_failed or self.story.lifetimes[number] < DAY
            check_direction(f"dialog {number}, shop to bank", ours, theirs, has_failed=has_failed)
            check_direction(f"dialog {number}, bank to shop", theirs, ours, has_failed=has_failed)
        assert len(self.applications["bank"].sides) <= len(dialogs), "the bank knows more dialogs than were begun"
        for side in self.applications.values():
            balance = read_balance(side.db)
            assert (balance.unaccounted, balance.held) == (0, 0), balance
        self.outcome.frames = self.check_rest()
        self.outcome.needed = fragments_needed(self.applications, FRAGMENT_SIZE)
        assert self.outcome.frames <= FRAMES_FACTOR * self.outcome.needed + FRAMES_MORE, self.outcome

    def tell_what_is_left(self) -> None:
        for line in rows_left(self.applications):
            self.note(line)
        self.tell_rest()

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

    def part(self) -> None:
        for instance in self.instances.values():
            if not instance.process.is_gone:
                instance.kill()
        forget_tasks(self.loop)

    def is_sending(self) -> bool:
        members = self.instances.values()
        return any(one.forwarder.pool.frames or (one.endpoint and one.endpoint.transmitter.senders) for one in members)

    def is_quiet(self) -> bool:
        """As of dialogs, and nobody connects: a second connection of two instances ends the first one late."""
        tables = [one.peers.table for one in self.instances.values()]
        is_over = is_nothing_left(self.applications) and not self.is_sending()
        return is_over and not any(one.is_dialling for table in tables for one in table.histories.values())

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
