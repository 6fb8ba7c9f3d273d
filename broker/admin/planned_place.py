"""An instance as a plan finds it and as it would leave it, in values that travel: for whoever asks a history too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from broker.admin.explaining import Place
from broker.admin.message import PlaceTold, PlannedRoute, TableTold
from broker.control.catalog import MSDB
from broker.routing.address import NetworkAddress, parse_address
from broker.routing.facts import hosted
from broker.routing.journey import Site
from broker.routing.route import Route, RouteRow, route_of
from broker.routing.table import RouteTable, build_table

ROUTES_MAX = 20_000  # of all tables of an instance that are told: twice some 4 MB, which take the loop 20 ms to encode


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """What was told. Shape: `names` of databases by broker instance."""

    site: Site
    names: Mapping[bytes, str]


def tell_place(place: Place) -> PlaceTold | None:
    """A place; None when it has more than ROUTES_MAX routes."""
    here = place.surroundings
    if here.msdb.count + sum(home.table.count for home in place.homes.values()) > ROUTES_MAX:
        return None
    homes = [TableTold(MSDB, None, _routes(here.msdb))]
    homes += [
        TableTold(name, str(UUID(bytes=home.broker_instance)), _routes(home.table))
        for name, home in place.homes.items()
    ]
    services = {str(UUID(bytes=guid)): sorted(some) for guid, some in here.hosted.services_of.items()}
    mirrors = sorted(str(UUID(bytes=guid)) for guid in here.hosted.mirrors)
    return PlaceTold(place.name, sorted(map(str, here.own)), here.is_forwarding, services, mirrors, homes)


def read_place(told: PlaceTold, *, now: datetime) -> ReadPlace:
    """
    The place again, with the routes as they hold at this UTC instant.

    Raises:
        ValueError: it is not of `tell_place`.
    """
    tables = {one.broker_instance: build_table(_read_routes(one), now=now) for one in told.tables}
    services = {UUID(guid).bytes: some for guid, some in told.services.items()}
    addresses = frozenset(one for one in map(parse_address, told.addresses) if isinstance(one, NetworkAddress))
    site = Site(
        told.instance,
        addresses,
        tables.pop(None, build_table([], now=now)),
        {UUID(guid).bytes: table for guid, table in tables.items()},
        hosted(services, mirrors=[UUID(guid).bytes for guid in told.mirrors]),
        told.is_forwarding,
    )
    names = {UUID(one.broker_instance).bytes: one.database for one in told.tables if one.broker_instance is not None}
    return ReadPlace(site, names)


def planned_route(route: Route) -> PlannedRoute:
    """A route as plans tell it."""
    return PlannedRoute(
        route.remote_service_name,
        None if route.broker_instance is None else str(route.broker_instance),
        route.address_text,
        route.mirror_address_text,
        route.weight,
        route.lifetime,
    )


def _routes(table: RouteTable) -> dict[str, PlannedRoute]:
    return {route.name: planned_route(route) for route in table}


def _read_routes(told: TableTold) -> Iterator[Route]:
    return map(route_of, _rows(told.routes.items()))


def _rows(routes: Iterable[tuple[str, PlannedRoute]]) -> Iterator[RouteRow]:
    for name, one in routes:
        yield (
            name,
            one.remote_service_name,
            None if one.broker_instance is None else UUID(one.broker_instance).bytes,
            None if one.lifetime is None else one.lifetime.timestamp(),
            one.address,
            one.mirror_address,
            one.weight,
        )
