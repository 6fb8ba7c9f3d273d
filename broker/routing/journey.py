"""
Where messages end up in a network of instances that are all known. Pure.

Each hop is one call of `decide`, the function that routes real frames, for every address the hop may use: which of
several is used now depends on health, so all of them count. An address leads to the sites that have it; one that no
site has leads beyond what is known, and nothing is said about that.

A conversation that names no broker instance picks one by its id. Instead of all ids a few are followed, of which each
known broker instance wins one, up to `INSTANCES_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from broker.flow import Disposition
from broker.routing.address import NetworkAddress
from broker.routing.choose import Health
from broker.routing.decide import Decision, Surroundings, decide
from broker.routing.facts import Facts, Hosted
from broker.routing.match import pick_instance
from broker.routing.route import Route
from broker.routing.table import RouteTable

INSTANCES_MAX = 32  # broker instances of one service that are followed; what holds for 32 holds for the rest
_TRIES = 16  # conversation ids tried for each of them: the chance to miss one is (31/32)^512, about one in 10^7

# What is not known better when the databases of a site are not all known.
_DEPENDS_ON_HOSTED = frozenset(
    {Disposition.NO_ROUTE, Disposition.SERVICE_NOT_HERE, Disposition.INSTANCE_NOT_HERE, Disposition.ROUTE_INVALID}
)


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """
    One instance.

    Shape: `addresses` lead to it; `databases` the tables by broker instance, `msdb` the one for what arrives;
    `is_complete` False when databases may have services that `hosted` does not tell.
    """

    name: str
    addresses: frozenset[NetworkAddress]
    msdb: RouteTable
    databases: Mapping[bytes, RouteTable]
    hosted: Hosted
    is_forwarding: bool
    is_complete: bool = True


class Outcome(Enum):
    """How a way ends."""

    DELIVERED = auto()
    LOST = auto()  # dropped, or delayed where it begins
    CIRCLE = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Leg:
    """One decision on the way. Shape: `database` the sending one, None = by msdb; `route` the one taken, if any."""

    site: Site
    database: bytes | None
    route: Route | None


@dataclass(frozen=True, slots=True)
class End:
    """
    The end of one way.

    Shape: `legs` from the beginning; of a CIRCLE the last leg is at the site where it closes, met before. `database`
    the one it was delivered to; `disposition` what the last site said.
    """

    outcome: Outcome
    legs: tuple[Leg, ...]
    disposition: Disposition
    database: bytes | None = None

    @property
    def path(self) -> str:
        """The names of the sites: `gateway-a -> gateway-b`."""
        return " -> ".join(leg.site.name for leg in self.legs)

    @property
    def circle(self) -> tuple[Leg, ...]:
        """The part of the way that repeats, the site where it closes at both ends; empty when nothing does."""
        if self.outcome is not Outcome.CIRCLE:
            return ()
        first = next(n for n, leg in enumerate(self.legs) if leg.database is None and leg.site is self.legs[-1].site)
        return self.legs[first:]


class Network:
    """Sites that are linked by their addresses."""

    def __init__(self, sites: Iterable[Site]) -> None:
        self.sites = tuple(sites)
        self._at: dict[NetworkAddress, list[Site]] = {}
        for site in self.sites:
            for address in site.addresses:
                self._at.setdefault(address, []).append(site)

    def knows(self, address: NetworkAddress) -> bool:
        """Whether some site has this address."""
        return address in self._at

    def follow(self, facts: Facts, start: Site) -> list[End]:
        """
        Every end of what is sent with these facts.

        Args:
            facts: With `database`, sent from it; without, as it arrives at `start`.
            start: Where the way begins.

        Cost: each site is visited once.
        """
        return list(self._walk(facts, start, (), set()))

    def _walk(self, facts: Facts, site: Site, before: tuple[Leg, ...], visited: set[Site]) -> Iterator[End]:
        if facts.is_incoming:
            visited.add(site)
        decision = _decide(facts, site)
        for address, route in _hops(decision):
            legs = (*before, Leg(site, facts.database, route))
            nexts = self._at.get(address, [])
            if not nexts:
                yield End(Outcome.UNKNOWN, legs, decision.disposition)
            for following in nexts:
                if any(leg.database is None and leg.site is following for leg in legs):
                    yield End(Outcome.CIRCLE, (*legs, Leg(following, None, None)), decision.disposition)
                elif following not in visited:
                    yield from self._walk(replace(facts, database=None), following, legs, visited)
        if not _hops(decision):
            yield _end(decision, (*before, Leg(site, facts.database, decision.route)), site)


def conversations(service: str, tables: Iterable[RouteTable]) -> list[bytes]:
    """Conversation ids of which each broker instance that any of the tables knows for the service wins one."""
    weights: dict[bytes, int] = {}
    for table in tables:
        weights |= table.instances(service)
    weights = dict(sorted(weights.items())[:INSTANCES_MAX])
    if len(weights) < 2:
        return [bytes(16)]
    won: dict[bytes, bytes] = {}
    for number in range(_TRIES * len(weights)):
        conversation_id = number.to_bytes(16, "big")
        won.setdefault(pick_instance(conversation_id, weights), conversation_id)
    return list(won.values())


def _decide(facts: Facts, site: Site) -> Decision:
    table = site.msdb if facts.database is None else site.databases[facts.database]
    return decide(facts, Surroundings(table, site.hosted, lambda _: Health.UNTRIED, site.is_forwarding))


def _hops(decision: Decision) -> list[tuple[NetworkAddress, Route]]:
    """Where it may go on to; either partner of a mirrored pair may be the principal."""
    if decision.candidates:
        return [(candidate.address, candidate.route) for candidate in decision.candidates]
    route = decision.route
    if decision.disposition is Disposition.PRINCIPAL_UNKNOWN and route is not None:
        addresses = (route.address, route.mirror_address)
        return [(address, route) for address in addresses if isinstance(address, NetworkAddress)]
    return []


def _end(decision: Decision, legs: tuple[Leg, ...], site: Site) -> End:
    disposition = decision.disposition
    if disposition is Disposition.DELIVERED:
        instance = decision.database
        return End(Outcome.DELIVERED, legs, disposition, instance)
    is_open = disposition is Disposition.ASKING_FOR_ROUTE or (
        not site.is_complete and disposition in _DEPENDS_ON_HOSTED
    )
    return End(Outcome.UNKNOWN if is_open else Outcome.LOST, legs, disposition)
