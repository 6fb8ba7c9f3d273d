"""
A fleet of whole instances with databases, under one virtual clock, while everything happens to it that can.

`python -m tests.simulation.stored_fleet` plays two thousand, prints how far it is and writes
`docs/performance/stored-fleet.json`. What has become of each message is told by name, by the applications' records.

Exit codes: 0 everything promised came true; 1 it did not, and what was wrong is told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import sqlite3
import sys
import tempfile
import time
import uuid
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from broker.client.dialog import Dialog, begin_dialog
from broker.store.sqlite.database import open_store
from broker.store.sqlite.inspect import read_balance
from broker.store.sqlite.transaction import epoch
from tests.simulation.fleet import DIRECTORY
from tests.simulation.instance import Instance, Surroundings
from tests.simulation.joined import stand_in
from tests.simulation.joined_blows import Belief, Blows, Watch
from tests.simulation.machine import MachineLoop, Net, Road
from tests.simulation.performance import (
    FRAMES_FACTOR,
    FRAMES_MORE,
    QUIET_SECONDS,
    SILENCE_SECONDS,
    Application,
    WatchedStore,
    ended,
    failing_store,
    forget_tasks,
    fragments_needed,
    is_nothing_left,
    keep_reading,
    maybe_end,
    place,
    raise_first,
    tuning,
)
from tests.simulation.stored_plan import House, Plan, Size, draw, parts_of
from tests.simulation.story import DAY, Blow, Habit
from tests.support.dialog import open_database
from tests.support.virtual_time import run_virtually

NUMBER_BYTES = 8
TOLD_LINES = 300  # of what happened last
AGAIN_SECONDS = 5.0  # until held frames are looked at again, once some were held too long


class Diary:
    """What has happened, in words: a sum of all of it, and its last lines."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.sum = 0
        self.lines: deque[str] = deque(maxlen=TOLD_LINES)
        self._clock = clock

    def note(self, what: str) -> None:
        line = f"{self._clock():8.3f} {what}"
        self.sum = zlib.crc32(line.encode(), self.sum)
        self.lines.append(line)


class Said:
    """What instances log, counted; `errors` but for those of a store that was made to fail."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.errors: list[Any] = []

    def __call__(self, _logger: Any, method: str, event: Any) -> Any:
        self.events[event["event"]] += 1
        if method in {"error", "critical", "exception"} and event["event"] != "store failed":
            self.errors.append(event)
        raise structlog.DropEvent


class Clerk(Application):
    """An application whose bodies can be told apart. Shape: `numbers` of all bodies of the fleet so far."""

    numbers: Iterator[int]

    def __init__(self, numbers: Iterator[int], name: str, path: Path, chance: random.Random, diary: Diary) -> None:
        super().__init__(name, path, chance, diary.note)
        self.numbers = numbers

    def body(self, size: int) -> bytes:
        """Its number, and what chance adds."""
        filling = self._random.randbytes(size - NUMBER_BYTES) if size > NUMBER_BYTES else b""
        return next(self.numbers).to_bytes(NUMBER_BYTES) + filling


class FleetStore(WatchedStore):
    """A database of the fleet. Shape: `problems` of all of them, what has gone wrong in a turn."""

    problems: list[str]

    def write_in_writer(self, batch: Any) -> Any:
        """As `WatchedStore`; what is found in it is found at once, though its task is begun anew."""
        try:
            return super().write_in_writer(batch)
        except AssertionError as error:
            self.problems.append(f"{self.path.name}: {error}")
            raise


class FleetWatch(Watch):
    """What has to be true while it lasts is noted where it is not, and the fleet goes on. Shape: `noted` in words."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self.noted: list[str] = []

    def check_silence(self, near: str, far: str, since: float, *, own: int) -> None:
        self._note(lambda: super(FleetWatch, self).check_silence(near, far, since, own=own))

    def check_followed(self, beliefs: Iterable[Belief], heir: str, since: float, *, own: int = 0) -> None:
        self._note(lambda: super(FleetWatch, self).check_followed(beliefs, heir, since, own=own))

    async def hold_to_ways(self) -> None:
        while True:
            try:
                await super().hold_to_ways()
            except AssertionError as error:
                self.noted.append(str(error))
                await asyncio.sleep(AGAIN_SECONDS)

    def _note(self, check: Callable[[], None]) -> None:
        try:
            check()
        except AssertionError as error:
            self.noted.append(f"{self._clock():.3f}: {error}")


@dataclass(frozen=True)
class Talk:
    dialog: Dialog
    shop: Clerk
    bank: Clerk

    @property
    def sides(self) -> dict[str, Application]:
        return {"shop": self.shop, "bank": self.bank}

    def directions(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        ours, theirs = (one.sides[self.dialog.conversation_id] for one in (self.shop, self.bank))
        yield ours.sent, theirs.got
        yield theirs.sent, ours.got


def judge(talks: Iterable[Talk], *, is_over: bool) -> Counter[str]:
    """What is wrong, by its name; what has not come yet is lost only when all is over, or later ones have come."""
    wrong: Counter[str] = Counter()
    for talk in talks:
        for sent, got in talk.directions():
            if got != sent[: len(got)] or (is_over and len(got) < len(sent)):
                wrong += told_apart(sent, got, is_over=is_over)
    return wrong


def told_apart(sent: list[bytes], got: list[bytes], *, is_over: bool) -> Counter[str]:
    """Of one direction of a dialog: messages that are doubled, invented, out of order, or lost."""
    wrong: Counter[str] = Counter()
    places = {body: place for place, body in enumerate(sent)}
    seen: set[int] = set()
    newest = -1
    for body in got:
        place = places.get(body)
        if place is None:
            wrong["invented"] += 1
        elif place in seen:
            wrong["doubled"] += 1
        else:
            wrong["out of order"] += place < newest
            newest = max(newest, place)
            seen.add(place)
    wrong["lost"] = len(set(range(len(sent) if is_over else newest)) - seen)
    return +wrong


def counted(talks: Iterable[Talk]) -> tuple[int, int, int]:
    """Messages to banks, messages to shops, and a sum over all that has come."""
    there = back = total = 0
    for talk in talks:
        (_, to_bank), (_, to_shop) = talk.directions()
        there, back = there + len(to_bank), back + len(to_shop)
        for body in (*to_bank, *to_shop):
            total = zlib.crc32(body, total)
    return there, back, total


POLL_SECONDS = 0.1  # at most between two looks for what applications have committed
LOOK_SECONDS = 0.5  # between two looks whether it is
JUDGE_SECONDS = 5.0  # between two judgements of what has come so far
FRAGMENT_SIZE = 1000
POOL_BYTES = 1 << 20
NOBODY = House(0, "", (), is_shop=False)


@dataclass
class Outcome:
    """
    How it went.

    Shape: `digest` of all that was sent, done and received; `messages` to banks and to shops; `happened` blows by kind,
    and `harm` frames by what the network did to them; `said` what instances logged; `noted` what was not true while it
    lasted, in words; `seconds` virtual.
    """

    digest: int = 0
    messages: tuple[int, int] = (0, 0)
    dialogs: int = 0
    frames: int = 0
    needed: int = 0
    seconds: float = 0.0
    refused_by_mirrors: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    harm: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    noted: list[str] = field(default_factory=list)
    file_bytes: int = 0


class Member(Instance):
    """One of the fleet. Shape: `refused` frames that came while it was the mirror."""

    refused = 0

    def _deliver(self, database: bytes, frames: list[bytes], origin: Any) -> None:
        if self.endpoint is None:
            self.refused += len(frames)
        super()._deliver(database, frames, origin)


class FleetBlows(Blows):
    """Blows to one bank, or to whoever belongs to none. Shape: `struck` by kind; `watch` and who is busy are shared."""

    def __init__(self, house: House, fleet: Fleet) -> None:
        super().__init__(house, fleet.net, fleet.instances, fleet.diary.note)
        self.watch, self._busy, self._struck = fleet.watch, fleet.busy, fleet.outcome.happened

    async def strike(self, blow: Blow) -> None:
        """When it is time, unless something befalls its victim already."""
        await asyncio.sleep(blow.at)
        if not self._busy[blow.name]:
            self._struck[blow.what] += 1
            await super().strike(replace(blow, at=0.0))

    async def _partition(self, blow: Blow, _since: float) -> None:
        half = blow.other.split()
        ways = [(blow.name, one) for one in half] + [(one, blow.name) for one in half]
        with self.watch.befall(half) as since:
            await self._cut_ways(blow, ways, since)


def play(plan: Plan, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """
    From beginning to end; `tell` is told how far it is.

    Raises:
        AssertionError, or whatever went wrong in it; the last of its history is in its `__notes__`.
    """
    chance, loop, said = random.Random(plan.seed), MachineLoop(), Said()
    fleets: list[Fleet] = []

    async def main(_: object) -> None:
        fleets.append(Fleet(plan, loop, chance, directory, said))
        await fleets[0].run(tell)

    state = random.getstate()
    random.seed(plan.seed)  # what the product leaves to chance
    try:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place())))
            stand_in(stack, loop, chance, poll=POLL_SECONDS)
            stack.enter_context(structlog.testing.capture_logs([said]))
            run_virtually(main, loop)
    except Exception as error:
        error.add_note("\n".join(fleets[0].diary.lines) if fleets else "it has not begun")
        raise
    finally:
        random.setstate(state)
        for fleet in fleets:
            for instance in fleet.instances.values():
                instance.process.tasks.clear()
    assert said.errors == [], f"what no instance should have to log: {said.errors[:3]}"
    return fleets[0].outcome


class Fleet:
    def __init__(self, plan: Plan, loop: MachineLoop, chance: random.Random, directory: Path, said: Said) -> None:
        self.plan = plan
        self.loop = loop
        self.chance = chance
        self.directory = directory
        self.said = said
        self.outcome = Outcome(said=said.events)
        self.net = Net(loop, chance)
        loop.executor_delay = lambda: chance.uniform(0.0, 0.01)
        self.diary = Diary(loop.time)
        self.problems: list[str] = []
        self.instances: dict[str, Instance] = {}
        self.clerks: dict[str, Clerk] = {}
        self.talks: list[Talk] = []
        self.busy: Counter[str] = Counter()
        self.watch = FleetWatch(self.instances, loop.time)
        self.is_settling = False
        self.ids: dict[str, uuid.UUID] = {}
        self.stores: list[type[WatchedStore]] = []
        self._build()

    def _build(self) -> None:
        around = {}
        for is_pair in (False, True):
            self.stores.append(failing_store(self.chance, FleetStore, problems=self.problems))
            around[is_pair] = Surroundings(self.net, self.chance, tuning(FRAGMENT_SIZE), self.stores[-1], POOL_BYTES)
        numbers = count(1)
        for house in self.plan.houses:
            own = self.ids[house.service] = uuid.UUID(int=self.chance.getrandbits(128), version=4)
            path = self._path(house)
            open_store(path, broker_instance=own).close()
            open_database(path, house.service).close()
            self.clerks[house.service] = Clerk(numbers, house.service, path, self.chance, self.diary)
        for part, owner in parts_of(self.plan, self._path, self.ids):
            own_bytes = uuid.uuid4().bytes if owner is None else self.ids[owner.service].bytes
            self.instances[part.name] = Member(part, around[part.is_mirrored], own_bytes)

    def _path(self, house: House) -> Path:
        return self.directory / f"{house.service.replace(' ', '-')}.db"

    # --- what happens ---

    async def run(self, tell: Callable[[str], None]) -> None:
        for instance in self.instances.values():
            instance.start()
        await asyncio.sleep(1.0)
        talking = [asyncio.create_task(self._talk(shop)) for shop in self.plan.houses if shop.is_shop]
        blows = [asyncio.create_task(one) for one in self._strikes()]
        for_ever = [self._weather(), self.watch.hold_to_ways(), self._tell(tell), *self._readings()]
        lasting = [asyncio.create_task(one) for one in for_ever]
        try:
            work = asyncio.gather(*talking, *blows)
            await asyncio.wait([work, *lasting], return_when=asyncio.FIRST_COMPLETED)
            for task in lasting:
                assert not task.done(), task.result()  # what lasts for ever ends only by what has gone wrong
            await work
            await self._settle()
        except BaseException:
            self._look_for_trouble()
            raise
        finally:
            results = await ended([*talking, *blows, *lasting])
            self._part()
        raise_first(results)

    def _strikes(self) -> list[Any]:
        by_house = {one.service: FleetBlows(one, self) for one in self.plan.houses if one.is_pair}
        by_house[""] = FleetBlows(NOBODY, self)
        return [by_house[service].strike(blow) for region in self.plan.regions for service, blow in region.blows]

    def _readings(self) -> list[Any]:
        readings = []
        for house in self.plan.houses:
            habit = Habit(
                pause=self.chance.choice([0.1, 0.2, 0.3]),
                top=self.chance.choice([10, 50, 100]),
                rollback=self.chance.choice([0.0, 0.0, 0.1]),
                answer=0.0 if house.is_shop else 0.3,
            )
            clerk = self.clerks[house.service]
            readings.append(keep_reading(clerk, habit, self.chance, lambda: self.is_settling))
        return readings

    async def _talk(self, shop: House) -> None:
        """A shop begins its dialogs, and it and its banks say what they have to."""
        near = self.clerks[shop.service]
        talks = []
        for bank in self.plan.far[shop.service]:
            dialog = begin_dialog(near.db, from_service=shop.service, to_service=bank.service, lifetime=DAY)
            talks.append(Talk(dialog, near, self.clerks[bank.service]))
        self.talks += talks
        for deed in self.plan.deeds[shop.service]:
            await asyncio.sleep(deed.after)
            talk = talks[deed.dialog]
            clerk = talk.shop if deed.side == "shop" else talk.bank
            its = clerk.find(talk.dialog.conversation_id)
            if its is not None:
                clerk.do(deed, its)

    async def _weather(self) -> None:
        """What the network is like; stores fail while it is bad."""
        begun = self.loop.time()
        for at, road in self.plan.roads:
            await asyncio.sleep(begun + at - self.loop.time())
            self.net.road = road
            self.stores[0].failure = NOBODY.store_failure if road.is_hostile else 0.0
        await asyncio.Event().wait()

    async def _tell(self, tell: Callable[[str], None]) -> None:
        """How far it is, and what is wrong so far."""
        while True:
            await asyncio.sleep(JUDGE_SECONDS)
            self._look_for_trouble()
            sent, received = (sum(map(len, one)) for one in zip(*self._records(), strict=True))
            blows, noted = self.outcome.happened.total(), len(self.watch.noted)
            tell(f"{self.loop.time():8.1f} s: {sent} sent, {received} received, {blows} blows, {noted} noted")

    def _records(self) -> Any:
        return [pair for talk in self.talks for pair in talk.directions()] or [((), ())]

    def _look_for_trouble(self) -> None:
        wrong = judge(self.talks, is_over=False)
        assert wrong == {}, f"wrong so far: {dict(wrong)}"
        assert self.problems == [], self.problems[:3]
        assert self.net.nonsense == []
        assert self.said.errors == [], f"what no instance should have to log: {self.said.errors[:3]}"

    # --- what must have become of it ---

    async def _settle(self) -> None:
        self.diary.note("the network is whole")
        self.net.road = Road()
        self.stores[0].failure = 0.0
        self.is_settling = True
        open_ones, full = list(self.talks), list(self.clerks.items())

        def is_ended() -> bool:
            open_ones[:] = [one for one in open_ones if not maybe_end(one.sides, one.dialog)]
            return not open_ones

        def is_quiet() -> bool:
            full[:] = [one for one in full if not is_nothing_left(dict([one]))]
            members = self.instances.values()
            is_sending = any(one.endpoint and one.endpoint.transmitter.senders for one in members)
            return not full and not is_sending and not any(one.forwarder.pool.frames for one in members)

        await self._until(is_ended, lambda: f"{len(open_ones)} dialogs are open")
        await self._until(is_quiet, lambda: f"something is left in {[name for name, _ in full][:5]}")
        await self._until(self._is_known, lambda: "the principal is not known to all")
        await asyncio.sleep(0.5)
        before = self._noise()
        self._sum_up()
        await asyncio.sleep(SILENCE_SECONDS)
        assert before == self._noise(), "somebody still sends when all is over"
        self._check()

    async def _until(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        deadline = self.loop.time() + QUIET_SECONDS
        while not condition():
            if self.loop.time() >= deadline:
                wrong = dict(judge(self.talks, is_over=True))
                raise AssertionError(f"{what()} after {QUIET_SECONDS} s: {wrong}")
            self._look_for_trouble()
            await asyncio.sleep(LOOK_SECONDS)

    def _is_known(self) -> bool:
        """Every prober that is used knows who the principal of its pair is."""
        there = {}
        for house in self.plan.houses:
            serving = [one for one in house.names if house.is_pair and self.instances[one].endpoint is not None]
            if house.is_pair and len(serving) != 1:
                return False
            if house.is_pair:
                known = self.instances[serving[0]].address, epoch(self.clerks[house.service].db)
                there[self.ids[house.service]] = known
        uses = [one for instance in self.instances.values() for one in instance.mirrors.in_use.values()]
        return all(
            (one.route.principal, one.route.epoch) == there[one.pair.broker_instance] and not one.waiting
            for one in uses
        )

    def _noise(self) -> tuple[int, int]:
        return self.net.carried.total(), sum(one.mirrors.probes for one in self.instances.values())

    def _sum_up(self) -> None:
        there, back, total = counted(self.talks)
        outcome = self.outcome
        outcome.digest = zlib.crc32(b"%d %d" % (self.diary.sum, total), self.net.digest)
        outcome.messages, outcome.dialogs, outcome.seconds = (there, back), len(self.talks), self.loop.time()
        outcome.harm, outcome.noted = self.net.harm, self.watch.noted
        outcome.refused_by_mirrors = sum(one.refused for one in self.instances.values() if isinstance(one, Member))
        outcome.file_bytes = sum(one.stat().st_size for one in self.directory.iterdir())
        outcome.frames = sum(self.net.carried[name] for house in self.plan.houses for name in house.names)
        outcome.needed = fragments_needed(self.clerks, FRAGMENT_SIZE)

    def _check(self) -> None:
        wrong = judge(self.talks, is_over=True)
        assert wrong == {}, f"wrong: {dict(wrong)}"
        known = {talk.dialog.conversation_id for talk in self.talks}
        for clerk in self.clerks.values():
            assert set(clerk.sides) <= known, f"{clerk.name} knows dialogs that nobody has begun"
            balance = read_balance(clerk.db)
            assert (balance.unaccounted, balance.held) == (0, 0), balance
        for name, instance in self.instances.items():
            self.watch.check_rest(name, instance)
        most = FRAMES_FACTOR * self.outcome.needed + FRAMES_MORE * len(self.clerks)
        assert self.outcome.frames <= most, (self.outcome.frames, self.outcome.needed)

    def _part(self) -> None:
        """All of them end; nobody is to wait for tasks of processes that are gone."""
        for instance in self.instances.values():
            if instance.life and not instance.process.is_gone:
                instance.kill()
        for clerk in self.clerks.values():
            clerk.db.close()
        forget_tasks(self.loop)


FILE = DIRECTORY / "stored-fleet.json"
HASHES = "PYTHONHASHSEED"


def figures(seed: int, size: Size, outcome: Outcome, cpu_seconds: float) -> dict[str, Any]:
    """What is kept of a run; whoever was wrong is in `noted`, for all else ends the run."""
    there, back = outcome.messages
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs",
        "versions": {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version},
        "seed": seed,
        "size": asdict(size),
        "instances": size.instances,
        "databases": size.regions * (size.shops + size.banks + size.pairs),
        "mirrored pairs": size.regions * size.pairs,
        "dialogs": outcome.dialogs,
        "messages to banks": there,
        "messages to shops": back,
        "lost, doubled, out of order, or invented": 0,
        "noted while it lasted": outcome.noted,
        "blows": dict(sorted(outcome.happened.items())),
        "frames of the bad spell": dict(sorted(outcome.harm.items())),
        "takeovers": outcome.said["database taken over"],
        "turns of stores that failed": outcome.said["store failed"],
        "frames refused by mirrors": outcome.refused_by_mirrors,
        "frames sent by instances with databases": outcome.frames,
        "fragments needed at least": outcome.needed,
        "virtual seconds": round(outcome.seconds, 1),
        "CPU seconds": round(cpu_seconds),
        "peak of resident memory, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "files at the end, MiB": outcome.file_bytes >> 20,
        "digest": outcome.digest,
    }


def main() -> int:
    """Play, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--regions", type=int, default=Size.regions, help="of 21 instances; less is not written")
    chosen = parser.parse_args()
    if os.environ.get(HASHES) != "0":
        itself = [sys.executable, "-m", "tests.simulation.stored_fleet", *sys.argv[1:]]
        os.execve(sys.executable, itself, os.environ | {HASHES: "0"})
    size = Size(regions=chosen.regions)

    def tell(text: str) -> None:
        sys.stdout.write(f"{time.process_time():7.1f} s of CPU, {text}\n")
        sys.stdout.flush()

    outcome = play(draw(chosen.seed, size), tell)
    found = figures(chosen.seed, size, outcome, time.process_time())
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    if size == Size() and not outcome.noted:
        FILE.write_text(text, encoding="utf-8")
    return 1 if outcome.noted else 0


if __name__ == "__main__":
    sys.exit(main())
