"""
The effects of a change of routes on conversations under way, and the places where messages end in a known network.

For a plan every conversation is decided twice, by the routes that hold now and by those that would hold. The two
decisions are compared: does the conversation keep its next hops, get others, or lose its route. A conversation that
has sent something may have a target endpoint already, so one that moves is *harm*: its messages would reach an
instance that does not know the dialog, or a second target would answer (-8495). So is the loss of a service, at either
end: the dialog fails (-8470, -8490).

A journey follows messages through a network of instances that are all known. Each hop is one call of `decide`, the
function that routes real frames, for every address the hop may use: health decides which of several is used, so all of
them count. An address leads to the sites that have it; one that no site has leads outside the known network. A
conversation that names no broker instance picks one by its id. Instead of all ids a few are followed, of which each
known broker instance wins one, up to `INSTANCES_MAX`. Pure.

Source: rules R1.6, R2.3, R4.1 and R5.1 of docs/contributors/conformance.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as dataclasses_replace
from enum import Enum, StrEnum, auto
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from broker.flow import Disposition
from broker.routing.address import NetworkAddress
from broker.routing.decide import (
    AddressHealth,
    Decision,
    Hosted,
    Pass,
    RoutingContext,
    RoutingFacts,
    decide,
    pick_instance,
    wanted_instance,
)
from broker.routing.route import Route
from broker.routing.table import RouteChange, RouteTable

INSTANCES_MAX = 32  # broker instances of one service that are followed; what holds for 32 holds for the rest
ALIKE_MAX = 10_000  # consequences remembered for conversations with equal facts; some 10 MB
_TRIES = 16  # conversation ids tried for each of them: of equal weights, one in 10^7 is missed
# The answer of another instance decides where it goes.
_ASKS = frozenset({Disposition.ASKING_FOR_ROUTE, Disposition.PRINCIPAL_UNKNOWN})
_TO_PRINCIPAL = frozenset({Disposition.FORWARDED, Disposition.PRINCIPAL_UNKNOWN})
Place: TypeAlias = NetworkAddress | bytes
"""Target of a decision: a next hop, or a database here."""


class Fate(StrEnum):
    """The effect of a plan on a conversation, the harmless first."""

    KEEPS = "keeps its target"
    FINDS = "finds a route"
    STAYS_LOST = "stays without a route"
    OTHER_PATHS = "keeps its target, over other paths"
    MOVES = "moves"
    LOSES = "loses its route"
    FAILS = "loses its service here"


HARMFUL = frozenset({Fate.MOVES, Fate.LOSES, Fate.FAILS})
UNCHANGED = frozenset({Fate.KEEPS, Fate.STAYS_LOST})


# --- what becomes of conversations ---


@dataclass(frozen=True, slots=True)
class PlannedFlow:
    """
    A conversation, or all that share a route key, in a plan.

    Attributes:
        name: The name under which people find it.
        has_sent: Whether a target may know it already.
        from_service: The service at this end, None when that is not here.
    """

    name: str
    facts: RoutingFacts
    has_sent: bool
    from_service: str | None = None


@dataclass(frozen=True, slots=True)
class FlowConsequence:
    """The effect of a plan on one flow."""

    flow: PlannedFlow
    fate: Fate
    before: Decision
    after: Decision

    @property
    def is_harm(self) -> bool:
        """Whether messages would go to another target than before, or nowhere."""
        return self.flow.has_sent and self.fate in HARMFUL

    @property
    def is_by_conversation(self) -> bool:
        """Whether another flow with the same route key may fare differently."""
        return self.before.is_by_conversation or self.after.is_by_conversation


@dataclass(slots=True)
class RoutePlan:
    """
    Attributes:
        fates: How many flows have each.
        consequences: Those that change, harm first, `kept` of them at most.
    """

    fates: Counter[Fate] = field(default_factory=Counter)
    harmed: int = 0
    consequences: list[FlowConsequence] = field(default_factory=list)


def plan(flows: Iterable[tuple[PlannedFlow, RoutingContext, RoutingContext]], *, kept: int) -> RoutePlan:
    """
    Compare what holds for each flow now with what would hold.

    Args:
        flows: Each with the surroundings before and after; flows of one database share them.
        kept: How many harmed ones are kept at most, and as many that change without harm.

    Cost: two decisions for each route key, or for each flow where the conversation has a say.
    """
    made = RoutePlan()
    harmless: list[FlowConsequence] = []
    for one in _consequences(flows):
        made.fates[one.fate] += 1
        if one.is_harm:
            made.harmed += 1
            if len(made.consequences) < kept:
                made.consequences.append(one)
        elif one.fate not in UNCHANGED and len(harmless) < kept:
            harmless.append(one)
    made.consequences += harmless
    return made


def _consequences(flows: Iterable[tuple[PlannedFlow, RoutingContext, RoutingContext]]) -> Iterator[FlowConsequence]:
    """Yield one consequence for each flow; flows with equal facts are decided once."""
    alike: dict[tuple[object, ...], FlowConsequence] = {}
    for flow, before, after in flows:
        facts = flow.facts
        key = facts.database, facts.to_service, facts.to_broker_instance, facts.is_from_target, flow.from_service
        known = alike.get(key)
        if known is not None:
            yield dataclasses_replace(known, flow=flow)
            continue
        one = consequence(flow, before, after)
        if not one.is_by_conversation and len(alike) < ALIKE_MAX:
            alike[key] = one
        yield one


def consequence(flow: PlannedFlow, before: RoutingContext, after: RoutingContext) -> FlowConsequence:
    """Return the effect of a plan on one flow."""
    was, will = decide(flow.facts, before), decide(flow.facts, after)
    if _is_served(flow, before.hosted) and not _is_served(flow, after.hosted):
        return FlowConsequence(flow, Fate.FAILS, was, will)
    had, has = _places(was, flow.facts, before.hosted), _places(will, flow.facts, after.hosted)
    return FlowConsequence(flow, _fate(flow.facts, (was, had), (will, has)), was, will)


def _is_served(flow: PlannedFlow, hosted: Hosted) -> bool:
    """Whether the service at this end is there to take what the far side says."""
    database = flow.facts.database
    return flow.from_service is None or (
        database is not None and flow.from_service in hosted.services_of.get(database, ())
    )


def _fate(
    facts: RoutingFacts, before: tuple[Decision, frozenset[Place]], after: tuple[Decision, frozenset[Place]]
) -> Fate:
    (was, had), (will, has) = before, after
    if not had:
        return Fate.FINDS if has else Fate.STAYS_LOST
    if not has:
        return Fate.LOSES
    if _instance(facts, was) != _instance(facts, will) or (had.isdisjoint(has) and not _is_declared(facts, will)):
        return Fate.MOVES
    return Fate.KEEPS if had == has else Fate.OTHER_PATHS


def _places(decision: Decision, facts: RoutingFacts, hosted: Hosted) -> frozenset[Place]:
    """
    Possible targets of a decision; empty when there is none, or when the database lacks the service.

    Either partner of a mirrored pair may be the principal, so a failover moves nothing.
    """
    if decision.database is not None:
        is_there = facts.to_service in hosted.services_of.get(decision.database, ())
        return frozenset({decision.database} if is_there else ())
    pair = None if decision.route is None else decision.route.pair
    if pair is not None and decision.disposition in _TO_PRINCIPAL:
        return frozenset({pair.address, pair.mirror_address})
    return frozenset(candidate.address for candidate in decision.candidates)


def _is_declared(facts: RoutingFacts, decision: Decision) -> bool:
    """Whether the route itself says that the broker instance which a conversation names is there."""
    route = decision.route
    return not facts.is_open and route is not None and route.broker_instance is not None


def _instance(facts: RoutingFacts, decision: Decision) -> bytes | None:
    """The broker instance that a decision leads to; None when the route does not say."""
    if facts.is_open and decision.database is not None:
        return decision.database
    return wanted_instance(decision.route, facts)


# --- what becomes of routes ---


def edits(changes: Iterable[RouteChange]) -> dict[str, RouteChange]:
    """Return the net effect of a script on routes, by name; intermediate steps are folded."""
    first: dict[str, Route | None] = {}
    last: dict[str, Route | None] = {}
    for old, new in changes:
        for route in (old, new):
            if route is not None:
                first.setdefault(route.name, old)
        if old is not None:
            last[old.name] = None
        if new is not None:
            last[new.name] = new
    return {name: RouteChange(first[name], last[name]) for name in sorted(first) if first[name] != last[name]}


# --- journeys through a network ---


class Site(Struct, frozen=True, eq=False):
    """
    One instance.

    Attributes:
        addresses: The network addresses that lead to it.
        msdb: The table for messages that arrive.
        databases: The tables by broker instance.
        has_all_services: False when its databases may have services that `hosted` does not list.
        has_all_instances: False when a database may have a broker instance other than the one in `hosted`.
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
    """One decision of a journey: of the database that sends, or of msdb (None), and the route taken, if any."""

    site: Site
    database: bytes | None
    route: Route | None


class JourneyEnd(Struct, frozen=True):
    """
    The end of one path.

    Attributes:
        legs: From the beginning; of a CIRCLE the last leg is at the site where it closes, met before.
        database: The one it was delivered to.
        disposition: The disposition that the last site decided.
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
        """Of a CIRCLE the part of the way that repeats, the site where it closes at both ends."""
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

    def sites_at(self, address: NetworkAddress) -> list[Site]:
        """The sites that have this address."""
        return self._at.get(address, [])

    def next_sites(self, facts: RoutingFacts, start: Site) -> list[Site]:
        """The sites to which `start` may give what is sent with these facts."""
        decision, _ = _decide(facts, start, ())
        return [site for address, _ in _hops(decision, start) for site in self.sites_at(address)]

    def follow(self, facts: RoutingFacts, start: Site) -> list[JourneyEnd]:
        """
        Every end of what is sent with these facts.

        Args:
            facts: With `database`, sent from it; without, as it arrives at `start`.
            start: The first site.

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
            nexts = self.sites_at(address)
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
    """Return the decision and the legs up to here; a route to the site's own address is a separate leg."""
    table = site.msdb if facts.database is None else site.databases[facts.database]
    here = RoutingContext(
        table, site.hosted, lambda _: AddressHealth.UNTRIED, site.is_forwarding, msdb=site.msdb, own=site.addresses
    )
    passes: list[Pass] = []
    decision = decide(facts, here, passes)
    return decision, (*before, *(Leg(site, one.facts.database, one.decision.route) for one in passes))


def _hops(decision: Decision, site: Site) -> list[tuple[NetworkAddress, Route]]:
    """Next hops; either partner of a mirrored pair may be the principal."""
    if decision.candidates:
        return [(candidate.address, candidate.route) for candidate in decision.candidates]
    route = decision.route
    if decision.disposition is Disposition.PRINCIPAL_UNKNOWN and route is not None:
        return [(address, route) for address in route.addresses if address not in site.addresses]
    return []


def _end(decision: Decision, facts: RoutingFacts, legs: tuple[Leg, ...]) -> JourneyEnd:
    site, disposition, database = legs[-1].site, decision.disposition, decision.database
    if database is not None:
        if site.has_all_services and facts.to_service not in site.hosted.services_of.get(database, ()):
            # that database answers with an error (R4.1)
            return JourneyEnd(JourneyOutcome.LOST, legs, Disposition.SERVICE_NOT_FOUND)
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
