"""
Two instances that host the same databases, the locks and epochs they share, and the links that probers have to them.

One virtual clock, no asyncio. A link carries both directions in order; a direction that is cut swallows what is sent,
and from then on the link is doomed: its prober finds out after `HEARTBEAT_SECONDS`. An instance is principal of a
database by its lock: who gets it raises the epoch in the store, in one step. A receiver commits into the copy that it
took over, and the store refuses the commit of who does not have the last epoch.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

HEARTBEAT_SECONDS = 1.0  # within which a link that carries nothing is found dead
DIAL_SECONDS = 1.0  # after which nobody has answered
LEASE_SECONDS = 0.5  # after which an instance that stands still has lost its locks

Copy = set[tuple[int, int]]
"""(dialog, sequence) of each message committed."""


class Clock:
    """Virtual seconds; what is due at one instant is done in the order in which it was planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Do it after so long."""
        heapq.heappush(self._plan, (self.now + seconds, next(self._number), do))

    def run(self, until: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass, up to this instant or until it is over."""
        while self._plan and self._plan[0][0] <= until:
            self.now, _, do = heapq.heappop(self._plan)
            do()
            if is_over():
                return
        self.now = until


@dataclass(frozen=True)
class Frame:
    """One message on its way. Shape: `believed` the highest epoch that its prober knew when it sent it."""

    database: int
    dialog: int
    sequence: int
    believed: int = 0


@dataclass
class Database:
    """What both instances share. Shape: `copy` that of the last reign; `committed` epoch by (dialog, sequence)."""

    epoch: int = 0
    holder: Instance | None = None
    heir: Instance | None = None  # for whom the lock is kept in a planned failover
    copy: Copy = field(default_factory=set)
    committed: dict[tuple[int, int], int] = field(default_factory=dict)
    is_rogue: bool = False


@dataclass(eq=False)
class Link:
    """One connection. Shape: `prober` its number; `free_at` the instant before which nothing may arrive, each way."""

    prober: int
    instance: Instance
    to_prober: Callable[[Link, tuple[object, ...]], None]
    lost: Callable[[Link], None]
    is_doomed: bool = False
    is_over: bool = False
    free_at: list[float] = field(default_factory=lambda: [0.0, 0.0])


class World:
    """Clock, weather and databases."""

    def __init__(self, chance: random.Random, *, delay: float, commit: float, poll: float, is_fenced: bool) -> None:
        self.clock = Clock()
        self.chance = chance
        self.delay, self.commit, self.poll, self.is_fenced = delay, commit, poll, is_fenced
        self.databases: dict[int, Database] = defaultdict(Database)
        self.cuts: dict[tuple[int, str, bool], int] = defaultdict(int)  # prober, instance, is towards the prober
        self.links: dict[Link, None] = {}  # in the order in which they came, so that a number tells one story
        self.instances: list[Instance] = []
        self.history: list[str] = []

    def note(self, what: str) -> None:
        """One line of the history."""
        self.history.append(f"{self.clock.now:8.3f} {what}")

    def stir(self) -> None:
        """A lock, or who may have it, has changed: whoever found nothing to do looks again."""
        for instance in self.instances:
            instance.look_soon()

    def is_cut(self, prober: int, name: str) -> bool:
        """Whether any direction is."""
        return any(self.cuts[prober, name, towards] for towards in (False, True))

    def carry(self, link: Link, words: tuple[object, ...], *, to_prober: bool) -> None:
        """Send something over a link; it arrives in order, or not at all."""
        if link.is_over or link.is_doomed:
            return
        if self.cuts[link.prober, link.instance.name, to_prober]:
            self.doom(link)
            return
        link.free_at[to_prober] = max(link.free_at[to_prober], self.clock.now + self.chance.uniform(0.0, self.delay))
        arrive = link.to_prober if to_prober else link.instance.hear
        self.clock.later(link.free_at[to_prober] - self.clock.now, lambda: arrive(link, words))

    def doom(self, link: Link) -> None:
        """It carries nothing any more; its prober finds out after a while."""
        if not link.is_doomed:
            link.is_doomed = True
            self.clock.later(HEARTBEAT_SECONDS, lambda: self.end(link))

    def end(self, link: Link) -> None:
        """It is gone, and its prober knows."""
        if not link.is_over:
            link.is_over = True
            self.links.pop(link, None)
            link.lost(link)

    def watch(self, link: Link) -> None:
        """A heartbeat is due: a link that is cut or whose instance stands still is given up."""
        name = link.instance.name
        if self.is_cut(link.prober, name) or link.instance.is_frozen:
            self.end(link)


class Instance:
    """One process. It knows of a role what it was told; `reign` is the epoch with which it serves a database."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_up = True
        self.is_frozen = False
        self.life = 0
        self.reign: dict[int, int] = {}
        self.copies: dict[int, Copy] = {}
        self.claims: dict[int, tuple[int, bool]] = {}  # epoch it claims without having it; whether it takes messages
        self._asked: dict[int, dict[Link, None]] = defaultdict(dict)
        self._inbox: list[Callable[[], None]] = []
        self._committed_at = 0.0
        self._is_looking = False
        world.instances.append(self)

    def look_soon(self) -> None:
        """Look for locks from now on, until there is nothing to be done about them."""
        if not self._is_looking:
            self._is_looking = True
            self.world.clock.later(self.world.chance.uniform(0.0, self.world.poll), self._look)

    def crash(self) -> None:
        """Everything in memory is gone; locks are free, links reset."""
        self.is_up = self.is_frozen = False
        self.life += 1
        self.reign.clear()
        self.claims.clear()
        self._asked.clear()
        self._inbox.clear()
        for database in self.world.databases.values():
            if database.holder is self:
                database.holder = None
        self.world.stir()
        for link in [link for link in self.world.links if link.instance is self]:
            if self.world.is_cut(link.prober, self.name):
                self.world.doom(link)
            else:
                self.world.clock.later(self.world.delay, lambda link=link: self.world.end(link))  # type: ignore[misc]
                link.is_doomed = True

    def thaw(self) -> None:
        """Go on with what has come meanwhile, as if no time had passed."""
        self.is_frozen = False
        inbox, self._inbox = self._inbox, []
        for do in inbox:
            self._do(do)
        self.world.stir()

    def hear(self, link: Link, words: tuple[object, ...]) -> None:
        """PROBE or MESSAGE."""
        self._do(lambda: self._hear(link, words))

    def _do(self, do: Callable[[], None]) -> None:
        if self.is_frozen:
            self._inbox.append(do)
        elif self.is_up:
            do()

    def _hear(self, link: Link, words: tuple[object, ...]) -> None:
        if link.is_over or link.is_doomed:
            return
        if words[0] == "probe":
            assert isinstance(words[1], int)
            self._asked[words[1]][link] = None
            self._answer(link, words[1])
        else:
            frame = words[1]
            assert isinstance(frame, Frame)
            self._take(link, frame)

    def _answer(self, link: Link, number: int) -> None:
        epoch, _ = self.claims.get(number, (self.reign.get(number), False))
        role = "mirror" if epoch is None else "principal"
        known = self.world.databases[number].epoch if epoch is None else epoch
        self.world.carry(link, ("reply", number, role, known), to_prober=True)

    def tell_all(self, number: int) -> None:
        """The role has changed: whoever has asked is told."""
        for link in self._asked[number]:
            self._answer(link, number)

    # --- frames ---

    def _take(self, link: Link, frame: Frame) -> None:
        epoch, is_taking = self.claims.get(frame.database, (0, False))
        if is_taking:
            assert frame.believed <= epoch, f"{self.name}: a stale copy of epoch {epoch} got {frame}"
        elif frame.database not in self.reign:
            self.world.carry(link, ("denied", frame.database), to_prober=True)
        else:
            at = max(self._committed_at, self.world.clock.now + self.world.chance.uniform(0.0, self.world.commit))
            self._committed_at = at
            life = self.life
            self.world.clock.later(at - self.world.clock.now, lambda: self._do(lambda: self._commit(link, frame, life)))

    def _commit(self, link: Link, frame: Frame, life: int) -> None:
        if life != self.life:
            return
        number, database = frame.database, self.world.databases[frame.database]
        if number in self.reign and self.reign[number] != database.epoch and self.world.is_fenced:
            self._stand_back(number)
        if number not in self.reign:
            self.world.carry(link, ("denied", number), to_prober=True)
            return
        key = (frame.dialog, frame.sequence)
        if key not in self.copies[number]:
            self.copies[number].add(key)
            earlier = database.committed.setdefault(key, self.reign[number])
            assert earlier == self.reign[number], f"{frame} committed in epochs {earlier} and {self.reign[number]}"
            assert self.reign[number] == database.epoch, f"{self.name} committed {frame} as a mirror"
        self.world.carry(link, ("ack", *key), to_prober=True)

    # --- roles ---

    def _look(self) -> None:
        if self.is_up and not self.is_frozen:
            for number, database in self.world.databases.items():
                self._look_at(number, database)
            if any(self._has_more(number, database) for number, database in self.world.databases.items()):
                self.world.clock.later(self.world.poll * self.world.chance.uniform(0.5, 1.0), self._look)
                return
        self._is_looking = False

    def _has_more(self, number: int, database: Database) -> bool:
        """Whether the next look may find something without anything having changed."""
        return database.is_rogue or database.holder is None or (database.holder is self) != (number in self.reign)

    def _look_at(self, number: int, database: Database) -> None:
        if database.is_rogue:
            if self.reign.get(number) != database.epoch:
                self._take_over(number, database)
        elif number in self.reign and database.holder is not self:
            self._stand_back(number)
        elif database.holder is None and database.heir in (None, self):
            self._take_over(number, database)

    def _take_over(self, number: int, database: Database) -> None:
        database.epoch += 1
        database.holder, database.heir = self, None
        database.copy = set(database.copy)
        self.copies[number] = database.copy
        self.reign[number] = database.epoch
        self.claims.pop(number, None)
        self.world.note(f"{self.name} is principal of {number} with epoch {database.epoch}")
        self.world.stir()
        self.tell_all(number)

    def _stand_back(self, number: int) -> None:
        del self.reign[number]
        self.world.note(f"{self.name} stands back from {number}")
        self.tell_all(number)

    def hand_over(self, number: int, heir: Instance) -> None:
        """Planned failover: stop serving, then let the heir have the lock."""
        database = self.world.databases[number]
        if database.holder is not self or self.is_frozen or number not in self.reign:
            return
        self._stand_back(number)
        database.holder, database.heir = None, heir if heir.is_up else None
        self.world.stir()
        self.world.clock.later(2.0, lambda: setattr(database, "heir", None))
