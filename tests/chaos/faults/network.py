"""Faults of the network between the hosts."""

from __future__ import annotations

from dataclasses import astuple, fields
from itertools import permutations, product
from typing import ClassVar

from tests.chaos.cast import BILLING, INITIATORS, PARCELS, STOCK
from tests.chaos.faults.fault import Fault
from tests.chaos.network.host import Host
from tests.chaos.network.impairment import Counts, Impairment, ImpossibleError
from tests.chaos.network.impairment import Fault as Ability


class _Between(Fault):
    """
    Something between hosts. Shape: `between` pairs of them; `shows` of what the network counts what grows by the fault.
    """

    shows: ClassVar[tuple[str, ...]] = ("cut",)
    between: list[tuple[str, str]]

    def start(self) -> None:
        """It begins, at this moment."""
        self._before = self._counts()
        super().start()

    def has_bitten(self) -> bool:
        """Packets have met it; loopback, where there are none, has nothing to tell."""
        now = self._counts()
        return now is None or self._before is None or all(now[one] > self._before[one] for one in self.shows)

    def _counts(self) -> dict[str, int] | None:
        network, hosts = self.fleet.network, self.fleet.network.hosts
        ways = [way for pair in self.between for way in permutations(pair, 2)]
        try:
            told = [astuple(network.counts(hosts[here], hosts[there])) for here, there in ways]
        except ImpossibleError:
            return None
        names = [one.name for one in fields(Counts)]
        return dict(zip(names, map(sum, zip(*told, strict=True)), strict=True))


class _Way(_Between):
    """The ways between one gateway and one of its neighbours."""

    def choose(self) -> str:
        """A gateway alone; the neighbour may have other troubles."""
        near = self.take(self.fleet.gateways)
        far = self.pick(self.fleet.neighbours(near), lambda far: self.fleet.traffic.between(near, far))
        self.ways = self.between = [(near, far)]
        one, other = self.dice.sample([near, far], 2)
        self._ends: tuple[Host, Host] = self.fleet.network.hosts[one], self.fleet.network.hosts[other]
        return f"{one} to {other}"

    def end(self) -> None:
        """As before."""
        self.fleet.network.mend(*self._ends)


class Partition(_Between):
    """The hosts fall into two parts: a gateway and one end of the dialogs cannot hear the rest."""

    name = "partition"
    needs = frozenset({Ability.CUT})

    def choose(self) -> str:
        """A gateway, and all its neighbours of one side."""
        self._gateway = self.take(self.fleet.gateways)
        self._part = self.dice.choice([INITIATORS, (BILLING, *STOCK, *PARCELS)])
        self.ways = self.between = [(self._gateway, name) for name in self._part]
        return f"{self._gateway} from {', '.join(self._part)}"

    def begin(self) -> None:
        """Both ways."""
        hosts = self.fleet.network.hosts
        self.fleet.network.partition([hosts[self._gateway]], [hosts[name] for name in self._part])

    def end(self) -> None:
        """One network again."""
        hosts = self.fleet.network.hosts
        for name in self._part:
            self.fleet.network.mend(hosts[self._gateway], hosts[name])


class Isolate(_Between):
    """A host hears nobody, and nobody hears it."""

    name = "isolate"
    needs = frozenset({Ability.CUT})

    def choose(self) -> str:
        """Any host."""
        self._victim = self.take(self.fleet.names)
        self.between = list(product([self._victim], self.fleet.neighbours(self._victim)))
        return self._victim

    def begin(self) -> None:
        """Cut off from everybody."""
        self.fleet.network.isolate(self.fleet.network.hosts[self._victim])

    def end(self) -> None:
        """Everybody again."""
        hosts = self.fleet.network.hosts
        for name in self.fleet.names:
            if name != self._victim:
                self.fleet.network.mend(hosts[self._victim], hosts[name])


class OneWay(_Way):
    """What one host sends to another vanishes; what comes back arrives."""

    name = "one-way"
    needs = frozenset({Ability.CUT})

    def begin(self) -> None:
        """One way only."""
        self.fleet.network.cut(*self._ends, is_both_ways=False)


class Reset(_Way):
    """Every connection between two hosts is broken off, again and again."""

    name = "reset"
    needs = frozenset({Ability.RESET})
    shows = ()
    TIMES = 8

    def begin(self) -> None:
        """Again and again."""
        for _ in range(self.TIMES):
            self.fleet.network.reset(*self._ends)
            self.fleet.pause(self.dice.uniform(0.1, 0.6))

    def end(self) -> None:
        """No more."""


class _Everywhere(_Between):
    """The ways of one gateway to and from everybody."""

    hides = True
    shows: ClassVar[tuple[str, ...]] = ("carried",)
    how: ClassVar[Impairment]

    def choose(self) -> str:
        """A gateway."""
        self._victim = self.take(self.fleet.gateways)
        self.between = list(product([self._victim], self.fleet.neighbours(self._victim)))
        return f"{self._victim}, all ways"

    def begin(self) -> None:
        """All ways, both directions."""
        self._impair(self.how)

    def end(self) -> None:
        """As before."""
        self._impair(Impairment())

    def _impair(self, how: Impairment) -> None:
        hosts = self.fleet.network.hosts
        for name in self.fleet.neighbours(self._victim):
            self.fleet.network.impair(hosts[self._victim], hosts[name], how, is_both_ways=True)


class Delay(_Everywhere):
    """Every packet takes 150 to 300 ms longer."""

    name = "delay"
    needs = frozenset({Ability.DELAY})
    how = Impairment(delay=0.15, jitter=0.15)


class Loss(_Everywhere):
    """One packet of twenty is lost."""

    name = "loss"
    needs = frozenset({Ability.LOSS})
    shows = ("lost",)
    how = Impairment(loss=0.05)


class Scramble(_Everywhere):
    """One packet of ten is doubled, one of ten overtaken."""

    name = "scramble"
    needs = frozenset({Ability.DUPLICATION, Ability.REORDERING})
    shows = ("duplicated", "reordered")
    how = Impairment(duplication=0.1, reordering=0.1)


class SlowLink(_Everywhere):
    """32 KiB a second each way."""

    name = "slow-link"
    needs = frozenset({Ability.RATE})
    how = Impairment(rate=32 * 1024)


class SmallMtu(_Everywhere):
    """Packets above 700 bytes do not pass, and their sender is told."""

    name = "small-mtu"
    needs = frozenset({Ability.MTU})
    shows = ("too_large",)
    how = Impairment(mtu=700, is_mtu_told=True)


class BlackHole(_Everywhere):
    """Packets above 700 bytes vanish."""

    name = "mtu-black-hole"
    needs = frozenset({Ability.MTU})
    shows = ("too_large",)
    how = Impairment(mtu=700)
