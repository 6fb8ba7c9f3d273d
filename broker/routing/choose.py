"""
Choosing among the routes that matched, and ordering the addresses that lead on.

Of a mirrored route only the principal leads on (R3.1, R6.2); while nobody knows which address that is, none does.

The classes are tried in the documented order: mirrored, LOCAL, network address, TRANSPORT. The first class that has
a member and works is taken. Of a network class every distinct address is a candidate; which one is used now depends
on health, and among equals on a hash of conversation and address, so that one dialog stays on one path while that
path is healthy and moves when it breaks (R3.5).

Source: Service Broker documentation, "Service Broker Routing", section "Choosing a Route".
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType

from msgspec import Struct

from broker.routing.address import LOCAL, NetworkAddress, transport_address
from broker.routing.facts import Hosted, RoutingFacts
from broker.routing.match import score
from broker.routing.route import Identity, MirroredPair, Route


class AddressHealth(IntEnum):
    """What is remembered of an address; the lower is preferred."""

    CONNECTED = 0
    LEAVING = 1  # still connected, to a peer that drains
    UNTRIED = 2
    SUPPRESSED = 3


HealthOf = Callable[[NetworkAddress], AddressHealth]
Principals = Mapping[MirroredPair, NetworkAddress]
"""Where the principal of each mirrored pair is, as far as it is known."""
NOBODY: Principals = MappingProxyType({})


class RouteClass(StrEnum):
    """The four classes, in the order in which they are tried."""

    MIRRORED = "mirrored"
    LOCAL = "LOCAL"
    NETWORK = "network address"
    TRANSPORT = "TRANSPORT"


class Candidate(Struct, frozen=True):
    """One address that leads on, the route that named it, and its health when the choice was made."""

    address: NetworkAddress
    route: Route
    health: AddressHealth


class RouteChoice(Struct, frozen=True):
    """
    The class taken.

    Shape: `routes` its members, each distinct route once (R1.5); `candidates` for NETWORK and TRANSPORT, best first,
    for MIRRORED the principal alone, or none while nobody knows it.
    """

    route_class: RouteClass
    routes: tuple[Route, ...]
    candidates: tuple[Candidate, ...] = ()


def choose(
    routes: Iterable[Route],
    hosted: Hosted,
    facts: RoutingFacts,
    health_of: HealthOf,
    *,
    unusable: Container[NetworkAddress] = frozenset(),
    principals: Principals = NOBODY,
) -> RouteChoice | None:
    """The first class that has a member and works, none of its addresses `unusable`; None when none does."""
    distinct = distinct_routes(routes)
    mirrored = tuple(route for route in distinct if class_of(route) is RouteClass.MIRRORED)
    if mirrored:
        return RouteChoice(RouteClass.MIRRORED, mirrored, _principal(mirrored, principals, health_of))
    local = tuple(route for route in distinct if class_of(route) is RouteClass.LOCAL and is_here(route, hosted, facts))
    if local:
        return RouteChoice(RouteClass.LOCAL, local)
    for route_class in (RouteClass.NETWORK, RouteClass.TRANSPORT):
        members = [(next_hop(route, facts), route) for route in distinct if class_of(route) is route_class]
        usable = [(hop, route) for hop, route in members if hop is not None and hop not in unusable]
        if usable:
            return _forwarded(route_class, usable, facts, health_of)
    return None


def distinct_routes(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Of identical routes the first (R1.5)."""
    first_of: dict[Identity, Route] = {}
    for route in routes:
        first_of.setdefault(route.identity, route)
    return tuple(first_of.values())


def class_of(route: Route) -> RouteClass:
    """The class that a route is tried in."""
    if route.mirror_address is not None:
        return RouteClass.MIRRORED
    if isinstance(route.address, NetworkAddress):
        return RouteClass.NETWORK
    return RouteClass.LOCAL if route.address == LOCAL else RouteClass.TRANSPORT


def next_hop(route: Route, facts: RoutingFacts) -> NetworkAddress | None:
    """Where a route leads on: its address, or the one that the service name holds; None when that holds none (R3.6)."""
    return route.address if isinstance(route.address, NetworkAddress) else transport_address(facts.to_service)


def wanted_instance(route: Route, facts: RoutingFacts) -> bytes | None:
    """The broker instance that decides the database: the conversation's, else the route's, else None (R4.1)."""
    if not facts.is_open:
        return facts.to_broker_instance
    return route.broker_instance.bytes if route.broker_instance is not None else None


def is_here(route: Route, hosted: Hosted, facts: RoutingFacts) -> bool:
    """Whether LOCAL works: the service exists here and, where one is named, so does the broker instance (R3.7)."""
    instance = wanted_instance(route, facts)
    is_database_here = instance is None or instance in hosted.services_of
    return is_database_here and facts.to_service in hosted.databases_with


def preference(address: NetworkAddress, facts: RoutingFacts) -> float:
    """How much a conversation prefers an address among equally healthy ones: the higher wins (R3.5)."""
    return score(facts.conversation_id, str(address).encode())


def _principal(routes: Iterable[Route], principals: Principals, health_of: HealthOf) -> tuple[Candidate, ...]:
    """The principal of the first pair that has one."""
    for route in routes:
        address = None if route.pair is None else principals.get(route.pair)
        if address is not None:
            return (Candidate(address, route, health_of(address)),)
    return ()


def _forwarded(
    route_class: RouteClass, pairs: list[tuple[NetworkAddress, Route]], facts: RoutingFacts, health_of: HealthOf
) -> RouteChoice:
    by_address = {address: Candidate(address, route, health_of(address)) for address, route in reversed(pairs)}
    candidates = sorted(by_address.values(), key=lambda c: (c.health, -preference(c.address, facts), str(c.address)))
    return RouteChoice(route_class, tuple(route for _, route in pairs), tuple(candidates))
