"""
A route table as matching wants it: every question one dictionary look-up, never a scan (R1.7).

A table is built from the live routes of one database (or of msdb) at one instant and never changes afterwards; a
change of routes, and the passing of `next_expiry`, builds a new one and swaps one reference (R1.6). So a reader
never locks, and "is it expired" is never asked while frames flow (R1.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from broker.routing.route import Route


@dataclass(frozen=True, slots=True)
class ServiceRoutes:
    """
    The live routes to one service name.

    Shape: `any_instance` routes without broker instance; `by_instance` the others, keyed by the 16 bytes of it.
    """

    any_instance: tuple[Route, ...] = ()
    by_instance: Mapping[bytes, tuple[Route, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouteTable:
    """
    Live routes, indexed. Make one with `build_table`.

    Shape: `by_service` keyed by remote_service_name, byte for byte; `last_resort` the routes that name neither
    service nor broker instance; `next_expiry` the UTC instant at which this table is out of date, None = never.
    """

    by_service: Mapping[str, ServiceRoutes] = field(default_factory=dict)
    last_resort: tuple[Route, ...] = ()
    next_expiry: datetime | None = None


NO_ROUTES = ServiceRoutes()


def build_table(routes: Iterable[Route], *, now: datetime) -> RouteTable:
    """
    Index the routes that are live at this UTC instant, in the order given.

    Cost: O(number of routes).
    """
    any_instance: dict[str, list[Route]] = {}
    by_instance: dict[str, dict[bytes, list[Route]]] = {}
    last_resort: list[Route] = []
    next_expiry: datetime | None = None
    for route in routes:
        if not route.is_live(now):
            continue
        if route.lifetime is not None and (next_expiry is None or route.lifetime < next_expiry):
            next_expiry = route.lifetime
        service = route.remote_service_name
        if service is None:
            last_resort.append(route)
        elif route.broker_instance is None:
            any_instance.setdefault(service, []).append(route)
        else:
            by_instance.setdefault(service, {}).setdefault(route.broker_instance.bytes, []).append(route)
    services = {
        service: ServiceRoutes(
            tuple(any_instance.get(service, ())),
            {instance: tuple(group) for instance, group in by_instance.get(service, {}).items()},
        )
        for service in any_instance.keys() | by_instance.keys()
    }
    return RouteTable(services, tuple(last_resort), next_expiry)
