"""
What a fault is: something that begins, lasts, and ends, at hosts that are chosen by dice.

A fault is known by its name on the command line. It leaves behind a fleet that works again by itself, or whose
processes are only to be started again; what it needs of the network is asked for beforehand.
"""

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import ClassVar, TypeVar

from tests.chaos.fleet import Fleet
from tests.chaos.network.impairment import Fault as Ability

T = TypeVar("T")


class NoVictimError(Exception):
    """All hosts that this fault could befall are taken by others."""


class Fault(ABC):
    """
    Shape: `name`; `needs` of the network; `hides` whether a message may be held somewhere for as long as the fault
    lasts without any clock of the broker noticing. Of one that was made: `victims` hosts that no other fault may have;
    `told` what it does to whom; `astray` databases whose wall clock will not be right; `ways` between two hosts each,
    where it befalls ways and not whole hosts; `span` from when until when it lasted, monotonic seconds.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Ability]] = frozenset()
    hides: ClassVar[bool] = False

    def __init__(self, fleet: Fleet, dice: random.Random, free: Collection[str]) -> None:
        """
        Args:
            fleet: Whom it befalls.
            dice: What it leaves to chance.
            free: Hosts that it may choose from.

        Raises:
            NoVictimError: none of them will do.
        """
        self.fleet = fleet
        self.dice = dice
        self.victims: set[str] = set()
        self.astray: set[str] = set()
        self.ways: list[tuple[str, str]] = []
        self.span = (math.inf, math.inf)
        self._free = set(free)
        self.told = self.choose()

    @abstractmethod
    def choose(self) -> str:
        """Take the victims; what it will do to them, in words."""

    @abstractmethod
    def begin(self) -> None:
        """From now on."""

    def end(self) -> None:  # noqa: B027 - some are over when they have begun
        """Until now."""

    def start(self) -> None:
        """It begins, at this moment."""
        self.span = (time.monotonic(), math.inf)
        self.begin()

    def stop(self) -> None:
        """It ends; at the latest when this returns."""
        self.end()
        self.span = (self.span[0], time.monotonic())

    @property
    def hidden(self) -> list[tuple[float, float]]:
        """Spans in which a message may have been held somewhere without any clock of the broker noticing."""
        return [self.span] if self.hides else []

    @property
    def frames(self) -> int | None:
        """Frames that what it befalls has carried in this phase; None where it befalls everybody."""
        traffic = self.fleet.traffic
        if self.ways:
            return sum(traffic.between(*way) for way in self.ways)
        return sum(traffic.carried(name) for name in self.victims) if self.victims else None

    @property
    def is_felt(self) -> bool:
        """Whether somebody can have felt it: what carries nothing does not, but for the mirror of the pair."""
        return self.frames != 0 or self.victims == {self.fleet.mirror}

    def has_bitten(self) -> bool:
        """Whether it does what it says, by what can be seen of it; asked while it lasts."""
        return True

    @property
    def hosts(self) -> set[str]:
        """Whose logs may tell of it."""
        return self.victims or set(self.fleet.names)

    def pick(self, candidates: Iterable[T], frames: Callable[[T], int]) -> T:
        """One of those that have carried anything in this phase, or of all if none has."""
        found = list(candidates)
        return self.dice.choice([one for one in found if frames(one)] or found)

    def take(self, candidates: Iterable[str]) -> str:
        """
        One of these hosts, for itself alone; if possible one that has carried anything in this phase, or the mirror.

        Raises:
            NoVictimError: none is free.
        """
        found = sorted(self._free.intersection(candidates))
        if not found:
            raise NoVictimError(self.name)
        carried, mirror = self.fleet.traffic.carried, self.fleet.mirror
        name = self.pick(found, lambda one: carried(one) + (one == mirror))
        self.victims.add(name)
        self._free.discard(name)
        return name

    def take_all(self, names: Iterable[str]) -> list[str]:
        """
        All of these hosts.

        Raises:
            NoVictimError: one is not free.
        """
        return [self.take([name]) for name in names]


class OnOne(Fault):
    """A fault of one host, which may be any. Shape: `victim` its name; `of` what there, in words."""

    of: ClassVar[str] = ""

    def candidates(self) -> Iterable[str]:
        """Hosts that it may befall."""
        return self.fleet.names

    def choose(self) -> str:
        self.victim = self.take(self.candidates())
        return f"{self.of}{self.victim}"
