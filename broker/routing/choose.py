"""
Choosing among the routes that matched, and ordering the addresses that lead on.

The classes are tried in the documented order: mirrored, LOCAL, network address, TRANSPORT. The first class that has
a member and works is taken. Of a network class every distinct address is a candidate; which one is used now depends
on health, and among equals on a hash of conversation and address, so that one dialog stays on one path while that
path is healthy and moves when it breaks (R3.5).

Source: Service Broker documentation, "Service Broker Routing", section "Choosing a Route".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress, transport_address
from broker.routing.facts import Facts, Hosted
from broker.routing.match import score
from broker.routing.route import Identity, Route


class Health(IntEnum):
    """What is remembered of an address; the lower is preferred."""

    CONNECTED = 0
    UNTRIED = 1
    SUPPRESSED = 2


HealthOf = Callable[[NetworkAddress], Health]


class RouteClass(StrEnum):
    """The four classes, in the order in which they are tried."""

    MIRRORED = "mirrored"
    LOCAL = "LOCAL"
    NETWORK = "network address"
    TRANSPORT = "TRANSPORT"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One address that leads on, the route that named it, and its health when the choice was made."""

    address: NetworkAddress
    route: Route
    health: Health


@dataclass(frozen=True, slots=True)
class Choice:
    """
    The class taken.

    Shape: `routes` its members, each distinct route once (R1.5); `candidates` for NETWORK and TRANSPORT, best first.
    """

    route_class: RouteClass
    routes: tuple[Route, ...]
    candidates: tuple[Candidate, ...] = ()


def choose(routes: Iterable[Route], hosted: Hosted, facts: Facts, health_of: HealthOf) -> Choice | None:
    """The first class that has a member and works; None when none does."""
    first_of: dict[Identity, Route] = {}
    for route in routes:
        first_of.setdefault(route.identity, route)
    distinct = tuple(first_of.values())
    mirrored = tuple(route for route in distinct if route.mirror_address is not None)
    if mirrored:
        return Choice(RouteClass.MIRRORED, mirrored)
    local = tuple(route for route in distinct if route.address == LOCAL and _is_here(route, hosted, facts))
    if local:
        return Choice(RouteClass.LOCAL, local)
    network = [(route.address, route) for route in distinct if isinstance(route.address, NetworkAddress)]
    if network:
        return _forward(RouteClass.NETWORK, network, facts, health_of)
    address = transport_address(facts.to_service)
    transport = [(address, route) for route in distinct if route.address == TRANSPORT and address is not None]
    return _forward(RouteClass.TRANSPORT, transport, facts, health_of) if transport else None


def wanted_instance(route: Route, facts: Facts) -> bytes | None:
    """The broker instance that decides the database: the conversation's, else the route's, else None (R4.1)."""
    if not facts.is_open:
        return facts.to_broker_instance
    return route.broker_instance.bytes if route.broker_instance is not None else None


def _is_here(route: Route, hosted: Hosted, facts: Facts) -> bool:
    """Whether LOCAL works: the service exists here and, where one is named, so does the broker instance (R3.7)."""
    instance = wanted_instance(route, facts)
    is_database_here = instance is None or instance in hosted.services_of
    return is_database_here and facts.to_service in hosted.databases_with


def _forward(
    route_class: RouteClass, pairs: list[tuple[NetworkAddress, Route]], facts: Facts, health_of: HealthOf
) -> Choice:
    by_address = {address: Candidate(address, route, health_of(address)) for address, route in reversed(pairs)}
    candidates = sorted(
        by_address.values(),
        key=lambda c: (c.health, -score(facts.conversation_id, str(c.address).encode()), str(c.address)),
    )
    return Choice(route_class, tuple(route for _, route in pairs), tuple(candidates))
