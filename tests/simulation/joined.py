"""
Stories of whole instances, made of the product's own parts, on machines that are played.

A story is a value, drawn from a number: the instances and their routes, deeds, habits, and blows. While it is played
the ledger of a database holds after every batch of its writer, nothing is stored by a former principal, and what is
promised sooner is checked sooner: after LONG_SECONDS of one trouble, at those whom nothing else has befallen meanwhile.
At the end the network is whole, everything is made up for, and everything promised must come true.
"""

import asyncio
import contextlib
import random
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from broker.client.dialog import Dialog, begin_dialog
from broker.errors import HandshakeRefusedError, PeerSilentError, StatementError
from broker.forwarding.outbox import Outbox
from broker.net.link import LinkState
from broker.net.mirrors import PairInUse
from broker.protocol.frame import decode_dialog
from broker.routing.address import NetworkAddress
from broker.routing.route import RouteProperties
from broker.store.sqlite.database import open_store
from broker.store.sqlite.inspect import read_balance
from broker.store.sqlite.transaction import epoch
from tests.simulation.instance import Instance, Part
from tests.simulation.machine import MachineLoop, Net, Road
from tests.simulation.performance import (
    DAY,
    FRAMES_FACTOR,
    FRAMES_MORE,
    QUIET_SECONDS,
    SIDES,
    SILENCE_SECONDS,
    Application,
    Blow,
    Deed,
    Habit,
    Outcome,
    calmer,
    check_direction,
    draw_deed,
    draw_habit,
    left_out,
    plainer,
)
from tests.simulation.world import World, perform
from tests.support.dialog import open_database

LONG_SECONDS = 6.0  # three heartbeats of a second, two looks, an attempt to connect that is given up, and a question
TOLD_SECONDS = 1.0  # until everybody has been told who is the principal, and has heard the next one; trips come on top
TRIPS = 8  # ... so many
LOOK_SECONDS = 0.1  # between two looks at what is held
STRANDED_SECONDS = 0.5  # a move takes turns of the loop; an attempt to connect, which tells as well, up to two seconds
NOT_BY_RULES = frozenset({PeerSilentError.__name__, HandshakeRefusedError.__name__})  # may be the network's fault

Belief = tuple[str, PairInUse]
"""Who believes it, and of which pair."""


class Watch:
    """
    Args:
        instances: All of them, by name.
        clock: Virtual seconds.
    """

    def __init__(self, instances: Mapping[str, Instance], clock: Callable[[], float]) -> None:
        self._instances = instances
        self._clock = clock
        self._under: Counter[str] = Counter()  # how much befalls an instance now
        self._touched_at: dict[str, float] = {}  # when something last began or ended

    @contextmanager
    def befall(self, names: Iterable[str]) -> Iterator[float]:
        """Something befalls these while this lasts; the instant at which it began."""
        names = list(names)
        for name in names:
            self._under[name] += 1
            self._touched_at[name] = self._clock()
        try:
            yield self._clock()
        finally:
            for name in names:
                self._under[name] -= 1
                self._touched_at[name] = self._clock()

    def is_calm(self, name: str, since: float, *, own: int = 0) -> bool:
        """Whether an instance is at work and nothing has befallen it since, but for `own` troubles that last."""
        instance = self._instances[name]
        is_at_work = instance.is_up and not instance.process.is_frozen
        return is_at_work and self._under[name] <= own and self._touched_at.get(name, -1.0) <= since

    def check_silence(self, near: str, far: str, since: float, *, own: int) -> None:
        """`near` has heard nothing of `far` since then, which is longer than three heartbeats."""
        if self._clock() - since < LONG_SECONDS or not self.is_calm(near, since, own=own):
            return
        links = [
            link.address
            for link in self._instances[near].peers.links.values()
            if link.peer_name == far and link.state is LinkState.LOGGED_IN and not link.is_paused
        ]
        assert not links, (
            f"{near} has heard nothing of {far} for {self._clock() - since:.1f} s and keeps its connection"
        )

    def silent(self, far: str, since: float) -> None:
        for near in self._instances:
            if near != far:
                self.check_silence(near, far, since, own=0)

    def beliefs(self, principal: str) -> list[Belief]:
        """Who is connected to a principal and believes that it is that."""
        instance = self._instances[principal]
        found = []
        for name, other in self._instances.items():
            links = other.peers.links.values()
            if other.is_up and any(link.peer_name == principal and link.state is LinkState.LOGGED_IN for link in links):
                uses = [one for one in other.mirrors.in_use.values() if one.route.principal == instance.address]
                found += [(name, one) for one in uses]
        return found

    def check_followed(self, beliefs: Iterable[Belief], heir: str, since: float, *, own: int = 0) -> None:
        """The principal of then is none any more: its heir is, and all who believed in the former believe in it."""
        if not self.is_calm(heir, since, own=own):
            return
        instance = self._instances[heir]
        assert instance.endpoint is not None, f"{heir} has not taken over in {self._clock() - since:.1f} s"
        for name, one in beliefs:
            if self.is_calm(name, since):
                there = one.route.principal
                assert there == instance.address, f"{name} believes in {there} and not in {heir} after a failover"

    async def hold_to_ways(self) -> None:
        """
        Look for ever whether frames are left behind: held for a next hop that has no connection while another one has.

        Raises:
            AssertionError: some were, for longer than it takes to give them to the other one.
        """
        since: dict[tuple[str, int, str, str], float] = {}  # by who holds, in which life, for whom, and who leads on
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock()
            found = {one for instance in self._instances.values() for one in _stranded(instance)}
            since = {one: since.get(one, now) for one in found}
            for (name, _, far, other), begun in since.items():
                assert now - begun < STRANDED_SECONDS, (
                    f"{name} has held frames for {far}, with which it has no connection, for {now - begun:.1f} s,"
                    f" and {other} leads on"
                )

    def check_rules(self, instance: Instance) -> None:
        """In its life of now it has found no peer that broke the rules: all peers are instances like itself."""
        broken = {kind: count for kind, count in instance.peers.protocol_errors.items() if kind not in NOT_BY_RULES}
        assert broken == {}, f"{instance.part.name} has met peers that broke the rules: {broken}"

    def check_rest(self, name: str, instance: Instance) -> None:
        """At the end of everything: nothing is held or unaccounted for, and no link or store stands still."""
        self.check_rules(instance)
        forwarder = instance.forwarder
        assert forwarder.unaccounted == 0, f"{name}: frames unaccounted for"
        assert (forwarder.pool.used_bytes, forwarder.pool.frames) == (0, 0), f"{name}: frames are held"
        links = [link for link in instance.peers.links.values() if link.state is LinkState.LOGGED_IN]
        peers = [link.peer_name for link in links]
        assert len(peers) == len(set(peers)), f"{name}: two connections to one peer: {peers}"
        assert all(not link.kept_bytes and not link.is_paused for link in links), f"{name}: a link stands still"
        assert instance.endpoint is None or instance.endpoint.problem == ""


def _stranded(instance: Instance) -> Iterator[tuple[str, int, str, str]]:
    """Who holds frames from outside, in which life, for whom, and who leads on instead and takes them at once."""
    outboxes = instance.forwarder.table.outboxes
    if not instance.is_up or instance.process.is_frozen or not any(one.held for one in outboxes.values()):
        return
    links = [link for link in instance.peers.links.values() if link.state is LinkState.LOGGED_IN]
    connected = {link.peer_name for link in links}
    ready = {link.peer_name for link in links if link.can_send and not link.is_peer_draining}
    for address, outbox in outboxes.items():
        if address.host in connected:
            continue
        for service in _held_for(outbox):
            routes = instance.routes.routes(service)
            hops = {route.address for route in routes if isinstance(route.address, NetworkAddress)}
            for hop in hops - {address} if address in hops else ():
                if hop.host in ready and not (hop in outboxes and outboxes[hop].held):
                    yield instance.part.name, instance.life, address.host, hop.host


def _held_for(outbox: Outbox) -> set[str]:
    """The services that frames are held for which came from outside; a database here sends its own again."""
    headers = [decode_dialog(held.frame)[0] for held in outbox.held]
    return {header.to_service for header in headers if header.hop_count}


LEASE_SECONDS = 0.5  # after which a process that stands still has lost its lock
STOP_SECONDS = 15.0  # for an orderly end, at most
SETTLED_SECONDS = 3.0  # until who was started again is connected and stands by
TO_ONE = frozenset({"kill", "power", "restart", "freeze"})  # of which an instance bears one at a time
ON_PAIR = frozenset({"failover", "heir", "stale"})  # which find their victims when it is time


class Blows:
    """
    Args:
        story: Whose they are: `banks` the names of the instances of the bank, `store_failure`.
        instances: All of them, by name.
        note: Told of each.
    """

    def __init__(self, story: Any, net: Net, instances: dict[str, Instance], note: Callable[[str], None]) -> None:
        self._story = story
        self._net = net
        self._loop: MachineLoop = net.loop
        self._instances = instances
        self._note = note
        self._busy: Counter[str] = Counter()  # how many blows last, by whom they hit
        self.watch = Watch(instances, net.loop.time)

    async def strike(self, blow: Blow) -> None:
        await asyncio.sleep(blow.at)
        if self._busy[blow.name] and blow.what in TO_ONE:
            return
        self._note(f"{blow.what} {blow.name} {blow.other} for {blow.seconds} s")
        self._busy[blow.name] += 1
        if blow.what in ON_PAIR:
            await getattr(self, f"_{blow.what}")(blow)
        else:
            with self.watch.befall({blow.name, blow.other} & set(self._instances)) as since:
                await getattr(self, f"_{blow.what}")(blow, since)
        self._busy[blow.name] -= 1

    def maybe_principal(self) -> Instance | None:
        """The partner that serves the database, when exactly one does."""
        banks = [self._instances[name] for name in self._story.banks]
        there = [one for one in banks if one.part.is_mirrored and one.endpoint is not None]
        return there[0] if len(there) == 1 else None

    # --- somebody is gone ---

    async def _kill(self, blow: Blow, since: float) -> None:
        instance, beliefs = self._instances[blow.name], self._beliefs(blow.name)
        self.watch.check_rules(instance)
        instance.kill()
        await asyncio.sleep(blow.seconds)
        self._check_gone(blow.name, beliefs, since)
        instance.start()

    async def _power(self, blow: Blow, since: float) -> None:
        instance, beliefs = self._instances[blow.name], self._beliefs(blow.name)
        self.watch.check_rules(instance)
        self._net.dark.add(blow.name)
        instance.kill(is_dark=True)
        await asyncio.sleep(blow.seconds)
        self._check_gone(blow.name, beliefs, since)
        self._net.dark.discard(blow.name)
        instance.start()

    async def _restart(self, blow: Blow, _since: float) -> None:
        instance, beliefs = self._instances[blow.name], self._beliefs(blow.name)
        self.watch.check_rules(instance)
        await asyncio.wait([instance.do(instance.stop())], timeout=STOP_SECONDS)
        instance.kill()
        since = self._loop.time()
        await asyncio.sleep(blow.seconds)
        self._check_gone(blow.name, beliefs, since)
        instance.start()

    async def _freeze(self, blow: Blow, since: float) -> None:
        instance, beliefs = self._instances[blow.name], self._beliefs(blow.name)
        process = instance.process
        process.is_frozen = True
        await asyncio.sleep(min(LEASE_SECONDS, blow.seconds))
        if blow.seconds > LEASE_SECONDS:
            if instance.part.is_mirrored:
                instance.lose_lock()
            await asyncio.sleep(blow.seconds - LEASE_SECONDS)
            self._check_gone(blow.name, beliefs, since)
        self._loop.thaw(process)

    def _beliefs(self, name: str) -> list[Belief] | None:
        """Who believes that this is the principal; None when it is none."""
        principal = self.maybe_principal()
        return self.watch.beliefs(name) if principal is self._instances[name] and principal.part.is_mirrored else None

    def _check_gone(self, name: str, beliefs: list[Belief] | None, since: float) -> None:
        if self._loop.time() - since < LONG_SECONDS:
            return
        self.watch.silent(name, since)
        if beliefs is not None and not self._story.store_failure:
            self.watch.check_followed(beliefs, self._partner(name), since)

    def _partner(self, name: str) -> str:
        return next(str(one) for one in self._story.banks if one != name)

    # --- the network ---

    async def _cut(self, blow: Blow, since: float) -> None:
        await self._cut_ways(blow, [(blow.name, blow.other), (blow.other, blow.name)], since)

    async def _deafen(self, blow: Blow, since: float) -> None:
        await self._cut_ways(blow, [(blow.other, blow.name)], since)

    async def _cut_ways(self, blow: Blow, ways: list[tuple[str, str]], since: float) -> None:
        mend = self._net.cut(ways)
        await asyncio.sleep(blow.seconds)
        for far, near in ways:
            self.watch.check_silence(near, far, since, own=1)
        mend()

    async def _reset(self, blow: Blow, _since: float) -> None:
        self._net.reset(blow.name, blow.other)

    # --- what people do ---

    async def _failover(self, _: Blow) -> None:
        principal = self.maybe_principal()
        if principal is None or principal.process.is_frozen:
            return
        name = principal.part.name
        partner, beliefs = self._partner(name), self.watch.beliefs(name)
        with self.watch.befall(self._story.banks) as since:
            await asyncio.wait([principal.do(_fail_over(principal))], timeout=STOP_SECONDS)
            await asyncio.sleep(TOLD_SECONDS + TRIPS * self._net.road.delay)
            is_over = self.maybe_principal() is self._instances[partner]
            if is_over and self.watch.is_calm(name, since, own=1):
                self.watch.check_followed(beliefs, partner, since, own=1)

    async def _heir(self, blow: Blow) -> None:
        """The mirror forgets who asked, and is the principal soon after; nobody but those who asked can know."""
        principal = self.maybe_principal()
        if principal is None or any(self._busy[one] for one in self._story.banks):
            return
        name = principal.part.name
        partner = self._partner(name)
        self._busy.update((name, partner))
        with self.watch.befall([partner]) as since:
            await self._kill(replace(blow, name=partner, seconds=0.1), since)
        await asyncio.sleep(SETTLED_SECONDS)
        if self.maybe_principal() is principal and blow.seconds < LONG_SECONDS:
            await self._failover(blow)
        elif self.maybe_principal() is principal:
            with self.watch.befall([name]) as since:
                await self._kill(replace(blow, name=name), since)
        self._busy.subtract((name, partner))

    async def _stale(self, blow: Blow) -> None:
        """Whoever knows the principal of today goes on believing in it."""
        principal = self.maybe_principal()
        if principal is None or principal.keeper is None:
            return
        name, since = principal.part.name, self._loop.time()
        copy, beliefs = self._instances[self._partner(name)], self.watch.beliefs(name)
        copy.claim(principal.keeper.standing.epoch - 1)
        await asyncio.sleep(blow.seconds)
        if self.maybe_principal() is principal:
            self.watch.check_followed(beliefs, name, since)
        copy.claim(None)

    async def _reroute(self, blow: Blow, _since: float) -> None:
        instance = self._instances[blow.name]
        part = instance.part
        routes, own = (
            tuple(one for one in table if not (one.service_name or "").startswith("Billing"))
            for table in (part.routes, part.own_routes)
        )
        life = instance.life
        if not instance.is_up or instance.process.is_frozen:
            return
        instance.reroute(routes, own)
        await asyncio.sleep(blow.seconds)
        while instance.life == life and instance.process.is_frozen:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        if instance.life == life and not instance.process.is_gone:
            instance.reroute(part.routes, part.own_routes)

    async def _jump(self, blow: Blow, _since: float) -> None:
        process = self._instances[blow.name].process
        process.off = float(blow.other)
        await asyncio.sleep(blow.seconds)
        process.off = 0.0


async def _fail_over(principal: Instance) -> None:
    assert principal.keeper is not None
    with contextlib.suppress(StatementError):
        await principal.keeper.fail_over()


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
        # What a timer does while a clock is wrong is told by a test of the endpoint.
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


SERVICES = {"shop": "Orders", "bank": "Billing"}


def play(story: JoinedStory) -> Outcome:
    """
    Tell it from beginning to end.

    Raises:
        AssertionError, or whatever went wrong in it; the history so far is in its `__notes__`.
    """
    return perform(story, Stage, MachineLoop())


class Stage(World):
    """One performance of a story with a shop and a bank."""

    def __init__(
        self, story: JoinedStory, loop: MachineLoop, chance: random.Random, directory: Path, outcome: Outcome
    ) -> None:
        super().__init__(loop, chance, outcome, pool_bytes=story.pool_bytes)
        self.story = story
        self.is_settling = False
        self.applications: dict[str, Application] = {}
        self.ids = {name: uuid.UUID(int=chance.getrandbits(128), version=4) for name in SIDES}
        self.paths = {name: directory / f"{name}.db" for name in SIDES}
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
            await self._carry_out(dialogs)
            await asyncio.gather(*blows)
            self.clear_up()
            await self.settle(dialogs)
        except BaseException:
            with suppress(AttributeError):
                self.tell_what_is_left()
            raise
        finally:
            self.outcome.seconds = self.loop.time()
            try:
                await self.part(*tasks, *blows)
            finally:
                for side in self.applications.values():
                    side.db.close()

    async def _carry_out(self, dialogs: list[Dialog]) -> None:
        """All that the story has the applications do, each in its time."""
        for deed in self.story.deeds:
            await asyncio.sleep(deed.after)
            dialog = self.applications[deed.side].find(dialogs[deed.dialog].conversation_id)
            if dialog is not None:
                self.applications[deed.side].do(deed, dialog)

    async def _read(self, name: str) -> None:
        await self.applications[name].keep_reading(self.story.habits[name], lambda: self.is_settling)

    def maybe_end(self, dialog: Dialog) -> bool:
        """The shop ends what nobody has ended, when everything has come; True when there is nothing more to do."""
        ours, theirs = (self.applications[name].sides[dialog.conversation_id] for name in SIDES)
        if ours.has_ended or theirs.has_ended or ours.has_failed or theirs.has_failed:
            return True
        is_complete = theirs.got == ours.sent and ours.got == theirs.sent
        if is_complete and ours.timer is None and theirs.timer is None:
            self.applications["shop"].end(dialog)
            return True
        return False

    def clear_up(self) -> None:
        self.note("the network is whole")
        self.net.road = Road()
        self.store.failure = 0.0
        self.is_settling = True

    async def settle(self, dialogs: list[Dialog]) -> None:
        """Until all is over, and a while longer."""
        open_ones = list(dialogs)

        def is_ended() -> bool:
            open_ones[:] = [one for one in open_ones if not self.maybe_end(one)]
            return not open_ones

        await self.until(is_ended, "dialogs are open", seconds=QUIET_SECONDS)
        await self.until(self.is_quiet, "something is left", seconds=QUIET_SECONDS)
        await self.until(self.is_known, "the principal is not known to all", seconds=QUIET_SECONDS)
        await asyncio.sleep(0.5)
        before = self.said()
        self.outcome.digest = self.digest()
        await asyncio.sleep(SILENCE_SECONDS)
        assert before == self.said(), "somebody still sends when all is over"
        self.check(dialogs)

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
        self.outcome.needed = sum(one.fragments_needed() for one in self.applications.values())
        assert self.outcome.frames <= FRAMES_FACTOR * self.outcome.needed + FRAMES_MORE, self.outcome

    def tell_what_is_left(self) -> None:
        for one in self.applications.values():
            for line in one.rows_left():
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

    def is_sending(self) -> bool:
        members = self.instances.values()
        return any(one.forwarder.pool.frames or (one.endpoint and one.endpoint.transmitter.senders) for one in members)

    def is_quiet(self) -> bool:
        """As of dialogs, and nobody connects: a second connection of two instances ends the first one late."""
        tables = [one.peers.table for one in self.instances.values()]
        is_over = all(one.is_over() for one in self.applications.values()) and not self.is_sending()
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
