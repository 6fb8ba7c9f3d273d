"""Faults of the network between the hosts."""

from __future__ import annotations

from dataclasses import astuple, fields
from itertools import permutations, product
from typing import ClassVar

from tests.chaos.configuration import BILLING, INITIATORS, PARCELS, STOCK
from tests.chaos.faults.fault import Fault
from tests.chaos.network.host import Host
from tests.chaos.network.impairment import CUT, Counts, Impairment, ImpossibleError
from tests.chaos.network.impairment import Fault as Ability


class _Between(Fault):
    """
    Something between hosts. Shape: `between` pairs of them; `shows` of what the network counts what grows by the fault.
    """

    shows: ClassVar[tuple[str, ...]] = ("cut",)
    between: list[tuple[str, str]]

    def start(self) -> None:
        self._before = self._counts()
        super().start()

    def has_bitten(self) -> bool:
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
        near = self.take(self.fleet.gateways)
        far = self.pick(self.fleet.neighbours(near), lambda far: self.fleet.traffic.between(near, far))
        self.ways = self.between = [(near, far)]
        one, other = self.dice.sample([near, far], 2)
        self._ends: tuple[Host, Host] = self.fleet.network.hosts[one], self.fleet.network.hosts[other]
        return f"{one} to {other}"

    def end(self) -> None:
        self.fleet.network.mend(*self._ends)


class Partition(_Between):
    """The hosts fall into two parts: a gateway and one end of the dialogs cannot hear the rest."""

    name = "partition"
    needs = frozenset({Ability.CUT})

    def choose(self) -> str:
        self._gateway = self.take(self.fleet.gateways)
        self._part = self.dice.choice([INITIATORS, (BILLING, *STOCK, *PARCELS)])
        self.ways = self.between = [(self._gateway, name) for name in self._part]
        return f"{self._gateway} from {', '.join(self._part)}"

    def begin(self) -> None:
        hosts = self.fleet.network.hosts
        self.fleet.network.partition([hosts[self._gateway]], [hosts[name] for name in self._part])

    def end(self) -> None:
        hosts = self.fleet.network.hosts
        for name in self._part:
            self.fleet.network.mend(hosts[self._gateway], hosts[name])


class Isolate(_Between):
    """A host hears nobody, and nobody hears it."""

    name = "isolate"
    needs = frozenset({Ability.CUT})

    def choose(self) -> str:
        self.victim = self.take(self.fleet.names)
        self.between = list(product([self.victim], self.fleet.neighbours(self.victim)))
        return self.victim

    def begin(self) -> None:
        self.fleet.network.isolate(self.fleet.network.hosts[self.victim])

    def end(self) -> None:
        hosts = self.fleet.network.hosts
        for name in self.fleet.names:
            if name != self.victim:
                self.fleet.network.mend(hosts[self.victim], hosts[name])


class OneWay(_Way):
    """What one host sends to another vanishes; what comes back arrives."""

    name = "one-way"
    needs = frozenset({Ability.CUT})

    def begin(self) -> None:
        self.fleet.network.impair(*self._ends, CUT, is_both_ways=False)


class Reset(_Way):
    """Every connection between two hosts is broken off, again and again."""

    name = "reset"
    needs = frozenset({Ability.RESET})
    shows = ()
    TIMES = 8

    def begin(self) -> None:
        for _ in range(self.TIMES):
            self.fleet.network.reset(*self._ends)
            self.fleet.pause(self.dice.uniform(0.1, 0.6))


class _Everywhere(_Between):
    """The ways of one gateway to and from everybody."""

    hides = True
    shows: ClassVar[tuple[str, ...]] = ("carried",)
    how: ClassVar[Impairment]

    def choose(self) -> str:
        self.victim = self.take(self.fleet.gateways)
        self.between = list(product([self.victim], self.fleet.neighbours(self.victim)))
        return f"{self.victim}, all ways"

    def begin(self) -> None:
        self._impair(self.how)

    def end(self) -> None:
        self._impair(Impairment())

    def _impair(self, how: Impairment) -> None:
        hosts = self.fleet.network.hosts
        for name in self.fleet.neighbours(self.victim):
            self.fleet.network.impair(hosts[self.victim], hosts[name], how, is_both_ways=True)


def _everywhere(name: str, needs: set[Ability], how: Impairment, *shows: str) -> type[_Everywhere]:
    values = {"name": name, "needs": frozenset(needs), "how": how, "shows": shows or ("carried",)}
    return type(name, (_Everywhere,), values)


EVERYWHERE = (
    _everywhere("delay", {Ability.DELAY}, Impairment(delay=0.15, jitter=0.15)),
    _everywhere("loss", {Ability.LOSS}, Impairment(loss=0.05), "lost"),
    _everywhere(
        "scramble",
        {Ability.DUPLICATION, Ability.REORDERING},
        Impairment(duplication=0.1, reordering=0.1),
        "duplicated",
        "reordered",
    ),
    _everywhere("slow-link", {Ability.RATE}, Impairment(rate=32 * 1024)),  # bytes a second each way
    _everywhere("small-mtu", {Ability.MTU}, Impairment(mtu=700, is_mtu_told=True), "too_large"),
    _everywhere("mtu-black-hole", {Ability.MTU}, Impairment(mtu=700), "too_large"),  # nobody is told
)
