"""Faults of the network between the hosts."""

from dataclasses import astuple, fields
from itertools import permutations
from typing import ClassVar

from tests.chaos.configuration import BILLING, INITIATORS, PARCELS, STOCK
from tests.chaos.faults.fault import Fault
from tests.chaos.network.impairment import CUT, WHOLE, Counts, Impairment, ImpossibleError
from tests.chaos.network.impairment import Fault as Ability


class _Between(Fault):
    """
    Something between hosts. Shape: `between` pairs of them; `how` what passes between them fares, both ways; `shows` of
    what the network counts what grows by the fault.
    """

    how: ClassVar[Impairment] = CUT
    needs = CUT.faults
    shows: ClassVar[tuple[str, ...]] = ("cut",)
    between: list[tuple[str, str]]

    def start(self) -> None:
        self._before = self._counts()
        super().start()

    def begin(self) -> None:
        self.fleet.network.impair(self.both_ways, self.how)

    def end(self) -> None:
        self.fleet.network.impair(self.both_ways, WHOLE)

    def has_bitten(self) -> bool:
        now = self._counts()
        return now is None or self._before is None or all(now[one] > self._before[one] for one in self.shows)

    @property
    def both_ways(self) -> list[tuple[str, ...]]:
        return [way for pair in self.between for way in permutations(pair, 2)]

    def _counts(self) -> dict[str, int] | None:
        network, hosts = self.fleet.network, self.fleet.network.hosts
        try:
            told = [astuple(network.counts(hosts[here], hosts[there])) for here, there in self.both_ways]
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
        self._from, self._to = self.dice.sample([near, far], 2)
        return f"{self._from} to {self._to}"


class Partition(_Between):
    """The hosts fall into two parts: a gateway and one end of the dialogs cannot hear the rest."""

    name = "partition"

    def choose(self) -> str:
        gateway = self.take(self.fleet.gateways)
        part = self.dice.choice([INITIATORS, (BILLING, *STOCK, *PARCELS)])
        self.ways = self.between = [(gateway, name) for name in part]
        return f"{gateway} from {', '.join(part)}"


class Isolate(_Between):
    """A host hears nobody, and nobody hears it."""

    name = "isolate"

    def choose(self) -> str:
        victim = self.take(self.fleet.names)
        self.between = [(victim, name) for name in self.fleet.neighbours(victim)]
        return victim


class OneWay(_Way):
    """What one host sends to another vanishes; what comes back arrives."""

    name = "one-way"

    def begin(self) -> None:
        self.fleet.network.impair([(self._from, self._to)], CUT)


class Reset(_Way):
    """Every connection between two hosts is broken off, again and again."""

    name = "reset"
    needs = frozenset({Ability.RESET})
    shows = ()
    TIMES = 8

    def begin(self) -> None:
        hosts = self.fleet.network.hosts
        for _ in range(self.TIMES):
            self.fleet.network.reset(hosts[self._from], hosts[self._to])
            self.fleet.pause(self.dice.uniform(0.1, 0.6))


class _Everywhere(_Between):
    """The ways of one gateway to and from everybody."""

    hides = True

    def choose(self) -> str:
        victim = self.take(self.fleet.gateways)
        self.between = [(victim, name) for name in self.fleet.neighbours(victim)]
        return f"{victim}, all ways"


def _everywhere(name: str, how: Impairment, *shows: str) -> type[_Everywhere]:
    return type(name, (_Everywhere,), {"name": name, "needs": how.faults, "how": how, "shows": shows or ("carried",)})


EVERYWHERE = (
    _everywhere("delay", Impairment(delay=0.15, jitter=0.15)),
    _everywhere("loss", Impairment(loss=0.05), "lost"),
    _everywhere("scramble", Impairment(duplication=0.1, reordering=0.1), "duplicated", "reordered"),
    _everywhere("slow-link", Impairment(rate=32 * 1024)),  # bytes a second each way
    _everywhere("small-mtu", Impairment(mtu=700, is_mtu_told=True), "too_large"),
    _everywhere("mtu-black-hole", Impairment(mtu=700), "too_large"),  # nobody is told
)
