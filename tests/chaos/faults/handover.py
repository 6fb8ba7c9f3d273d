"""Failovers while one of the partners of the mirrored pair is in trouble itself."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from typing import ClassVar

from tests.chaos import pair
from tests.chaos.cast import STOCK
from tests.chaos.faults.fault import Fault
from tests.chaos.network.impairment import Fault as Ability


class _Partner(Fault):
    """The pair changes its roles, and changes them again; each time something befalls one of the partners meanwhile."""

    what: ClassVar[str]

    def choose(self) -> str:
        self.take_all(STOCK)
        principal = self.fleet.principal
        self._troubled = self.dice.sample(STOCK, 2)
        self._still: list[tuple[float, float]] = []
        first, second = self._troubled
        return f"{principal} hands over while {first} {self.what}, and back while {second} does"

    def begin(self) -> None:
        self.hand_over(self._troubled[0])

    def end(self) -> None:
        self.hand_over(self._troubled[1])

    @abstractmethod
    def hand_over(self, troubled: str) -> None:
        """The pair changes its roles while this one is in trouble."""


class FrozenPartner(_Partner):
    """A partner stands still when the pair is told to change its roles, and goes on some seconds later."""

    name = "failover-frozen"
    what = "stands still"
    hides = True
    SECONDS = (1.0, 5.0)

    def hand_over(self, troubled: str) -> None:
        """It goes on while everybody waits for it."""
        since = time.monotonic()
        self.fleet.freeze(troubled)
        thawing = threading.Timer(self.dice.uniform(*self.SECONDS), self._thaw, [troubled, since])
        thawing.start()
        try:
            pair.fail_over(self.fleet)
        finally:
            thawing.join()

    @property
    def hidden(self) -> list[tuple[float, float]]:
        return self._still

    def _thaw(self, name: str, since: float) -> None:
        self.fleet.thaw(name)
        self._still.append((since, time.monotonic()))


class IsolatedPartner(_Partner):
    """A partner hears nobody, and nobody hears it, before, while and after the pair changes its roles."""

    name = "failover-isolated"
    what = "hears nobody"
    needs = frozenset({Ability.CUT})
    SECONDS = (1.0, 3.0)  # before and after

    def hand_over(self, troubled: str) -> None:
        """Whoever decides about the roles reaches it all the same."""
        fleet, hosts = self.fleet, self.fleet.network.hosts
        fleet.network.isolate(hosts[troubled])
        fleet.pause(self.dice.uniform(*self.SECONDS))
        pair.fail_over(fleet)
        fleet.pause(self.dice.uniform(*self.SECONDS))
        for name in fleet.neighbours(troubled):
            fleet.network.mend(hosts[troubled], hosts[name])
