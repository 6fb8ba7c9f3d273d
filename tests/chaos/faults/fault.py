"""
What a fault is: something that begins, lasts, and ends, at hosts that are chosen by dice.

A fault is known by its name on the command line. It leaves behind a fleet that works again by itself, or whose
processes are only to be started again; what it needs of the network is asked for beforehand.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import ClassVar

from tests.chaos.fleet import Fleet
from tests.chaos.network.impairment import Fault as Ability


class NoVictimError(Exception):
    """All hosts that this fault could befall are taken by others."""


class Fault(ABC):
    """
    Shape: `name`; `needs` of the network; `hides` whether a message may be held somewhere for as long as the fault
    lasts without any clock of the broker noticing. Of one that was made: `victims` hosts that no other fault may have;
    `told` what it does to whom; `astray` databases whose wall clock will not be right.
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
        self._free = set(free)
        self.told = self.choose()

    @abstractmethod
    def choose(self) -> str:
        """Take the victims; what it will do to them, in words."""

    @abstractmethod
    def begin(self) -> None:
        """From now on."""

    @abstractmethod
    def end(self) -> None:
        """Until now."""

    def take(self, candidates: Iterable[str]) -> str:
        """
        One of these hosts, for itself alone.

        Raises:
            NoVictimError: none is free.
        """
        found = sorted(self._free.intersection(candidates))
        if not found:
            raise NoVictimError(self.name)
        name = self.dice.choice(found)
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
