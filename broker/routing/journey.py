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
from enum import Enum, auto

from msgspec import Struct
from msgspec.structs import replace

from broker.flow import Disposition
from broker.routing.address import NetworkAddress
from broker.routing.choose import AddressHealth
from broker.routing.decide import Decision, Pass, RoutingContext, decide
from broker.routing.facts import Hosted, RoutingFacts
from broker.routing.match import pick_instance
from broker.routing.route import Route
from broker.routing.table import RouteTable

INSTANCES_MAX = 32  # broker instances of one service that are followed; what holds for 32 holds for the rest
_TRIES = 16  # conversation ids tried for each of them: of equal weights, one in 10^7 is missed

# Somebody else's answer is needed to tell where it goes.
_ASKS = frozenset({Disposition.ASKING_FOR_ROUTE, Disposition.PRINCIPAL_UNKNOWN})


class Site(Struct, frozen=True, eq=False):
    """
    One instance.

    Shape: `addresses` lead to it; `databases` the tables by broker instance, `msdb` the one for what arrives. When its
    databases may have services that `hosted` does not tell, `has_all_services` is False; when one of them may have a
    broker instance other than `hosted` tells, `has_all_instances` is.
    """

    name: str
    addresses: frozenset[NetworkAddress]
    msdb: RouteTable
    databases: Mapping[bytes, RouteTable]
    hosted: Hosted
    is_forwarding: bool
    has_all_services: bool = True
    has_all_instances: bool = True


class JourneyOutcome(Enum):
    """How a way ends."""

    DELIVERED = auto()
    LOST = auto()  # dropped, or delayed where it begins
    CIRCLE = auto()
    UNKNOWN = auto()


class Leg(Struct, frozen=True):
    """One decision on the way. Shape: `database` the sending one, None = by msdb; `route` the one taken, if any."""

    site: Site
    database: bytes | None
    route: Route | None


class JourneyEnd(Struct, frozen=True):
    """
    The end of one way.

    Shape: `legs` from the beginning; of a CIRCLE the last leg is at the site where it closes, met before. `database`
    the one it was delivered to; `disposition` what the last site said.
    """

    outcome: JourneyOutcome
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
        if self.outcome is not JourneyOutcome.CIRCLE:
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

    def follow(self, facts: RoutingFacts, start: Site) -> list[JourneyEnd]:
        """
        Every end of what is sent with these facts.

        Args:
            facts: With `database`, sent from it; without, as it arrives at `start`.
            start: Where the way begins.

        Cost: each site is visited once.
        """
        return list(self._walk(facts, start, (), set()))

    def _walk(
        self, facts: RoutingFacts, site: Site, before: tuple[Leg, ...], visited: set[Site]
    ) -> Iterator[JourneyEnd]:
        if facts.is_incoming:
            visited.add(site)
        decision, so_far = _decide(facts, site, before)
        for address, route in _hops(decision, site):
            legs = (*so_far[:-1], replace(so_far[-1], route=route))
            nexts = self._at.get(address, [])
            if not nexts:
                yield JourneyEnd(JourneyOutcome.UNKNOWN, legs, decision.disposition)
            for following in nexts:
                if any(leg.database is None and leg.site is following for leg in legs):
                    yield JourneyEnd(JourneyOutcome.CIRCLE, (*legs, Leg(following, None, None)), decision.disposition)
                elif following not in visited:
                    yield from self._walk(replace(facts, database=None), following, legs, visited)
        if not _hops(decision, site):
            yield _end(decision, facts, so_far)


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


def _decide(facts: RoutingFacts, site: Site, before: tuple[Leg, ...]) -> tuple[Decision, tuple[Leg, ...]]:
    """The decision, and the way up to here; a route to the site's own address is a leg of its own."""
    table = site.msdb if facts.database is None else site.databases[facts.database]
    here = RoutingContext(
        table, site.hosted, lambda _: AddressHealth.UNTRIED, site.is_forwarding, msdb=site.msdb, own=site.addresses
    )
    passes: list[Pass] = []
    decision = decide(facts, here, passes)
    return decision, (*before, *(Leg(site, one.facts.database, one.decision.route) for one in passes))


def _hops(decision: Decision, site: Site) -> list[tuple[NetworkAddress, Route]]:
    """Where it may go on to; either partner of a mirrored pair may be the principal."""
    if decision.candidates:
        return [(candidate.address, candidate.route) for candidate in decision.candidates]
    route = decision.route
    if decision.disposition is Disposition.PRINCIPAL_UNKNOWN and route is not None:
        addresses = (route.address, route.mirror_address)
        return [(one, route) for one in addresses if isinstance(one, NetworkAddress) and one not in site.addresses]
    return []


def _end(decision: Decision, facts: RoutingFacts, legs: tuple[Leg, ...]) -> JourneyEnd:
    site, disposition, database = legs[-1].site, decision.disposition, decision.database
    if database is not None:
        if site.has_all_services and facts.to_service not in site.hosted.services_of.get(database, ()):
            return JourneyEnd(
                JourneyOutcome.LOST, legs, Disposition.SERVICE_NOT_FOUND
            )  # that database answers with an error (R4.1)
        return JourneyEnd(JourneyOutcome.DELIVERED, legs, disposition, database)
    match disposition:
        case Disposition.SERVICE_NOT_HERE:
            is_certain = site.has_all_services
        case Disposition.INSTANCE_NOT_HERE:
            is_certain = site.has_all_instances
        case Disposition.NO_ROUTE:
            is_certain = site.has_all_services and site.has_all_instances
        case _:
            is_certain = disposition not in _ASKS
    return JourneyEnd(JourneyOutcome.LOST if is_certain else JourneyOutcome.UNKNOWN, legs, disposition)
