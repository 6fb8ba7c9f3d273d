"""
Lints of one route table: what is legal and probably not meant. Pure.

Every remark follows from the rules of matching and choosing, and from nothing else: what might be meant differently
elsewhere is not remarked on here. Routes are grouped by what they match, so a million of them are visited once each.
`Lint` holds the code of every remark of the package, also of those that need more than one table.

Source: Service Broker documentation, "Service Broker Routing"; "Using multiple routes in Service Broker".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from msgspec import Struct

from broker.advice import render_name
from broker.protocol.layout import NO_GUID, show_guid
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import NEVER_ASKED_ABOUT, Hosted, RouteClass, RoutingFacts, class_of, is_here
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, DEFAULT_WEIGHT, Identity, Route, is_live


class Lint(StrEnum):
    """The codes. They never change: people sort reports by them. `lints.toml` has their meanings."""

    # of one table
    SHADOWED_ROUTE = "shadowed-route"
    BALANCING_OFF = "balancing-off"
    SEVERAL_TARGETS = "several-targets"
    DUPLICATE_ROUTE = "duplicate-route"
    WEIGHT_UNUSED = "weight-unused"
    LOCAL_SERVICE_ABSENT = "local-service-absent"
    EXPIRED_ROUTE = "expired-route"
    ASKED_FOR_LOCAL_SERVICE = "asked-for-local-service"
    # of one instance
    LIFETIME_RENEWED = "lifetime-renewed"
    NAMES_DIFFER_IN_CASE = "names-differ-in-case"
    NO_TRANSPORT_ADDRESS = "no-transport-address"
    EXPOSED_SERVICES = "exposed-services"
    FORWARDING_OFF = "forwarding-off"
    NAME_UNRESOLVED = "name-unresolved"
    UNDECLARED_CONTRACT = "undeclared-contract"
    NOBODY_MAY_CONNECT = "nobody-may-connect"
    NOBODY_MAY_SEND = "nobody-may-send"
    GRANT_TO_ALL = "grant-to-all"
    GRANT_UNUSED = "grant-unused"
    NOT_IN_SCRIPTS = "not-in-scripts"
    NOT_IN_FORCE = "not-in-force"
    # of one instance, and of several together
    MISSING_RETURN_ROUTE = "missing-return-route"
    ROUTING_LOOP = "routing-loop"
    DEAD_END = "dead-end"
    MISSING_GRANT = "missing-grant"
    HOST_NOT_IN_CERTIFICATE = "host-not-in-certificate"
    ENCRYPTION_DIFFERS = "encryption-differs"
    UNKNOWN_CERTIFICATE = "unknown-certificate"


class Remark(Struct, frozen=True):
    """
    One finding about one route of a table.

    Attributes:
        route: Its name.
        problem: Its effect; `hint` the remedy; both are sentences without a stop.
    """

    lint: Lint
    route: Route
    problem: str
    hint: str


_Key: TypeAlias = tuple[str | None, UUID | None]


def lint_table(
    routes: Iterable[Route],
    hosted: Hosted,
    *,
    now: datetime,
    is_msdb: bool,
    unscripted: Collection[str] = (),
) -> Iterator[Remark]:
    """
    Yield all findings about a table.

    Args:
        routes: All routes of the table, expired ones included.
        hosted: The databases and services of the instance.
        now: The UTC instant at which routes are live or expired.
        is_msdb: Whether this is the table for messages that arrive from outside.
        unscripted: The names of routes that are in no script, which of duplicates are the ones to drop.

    Cost: O(number of routes); the remarks are made one by one.
    """
    groups: dict[_Key, list[Route]] = {}
    instances: dict[str, int] = {}
    for route in routes:
        if not is_live(route.lifetime, now):
            yield _expired(route)
            continue
        service, instance = key = (route.remote_service_name, route.broker_instance)
        if key not in groups and service is not None and instance is not None:
            instances[service] = instances.get(service, 0) + 1
        groups.setdefault(key, []).append(route)
        if route.weight != DEFAULT_WEIGHT and instance is None:
            yield _weight_unused(route)
    for (service, instance), group in groups.items():
        yield from _absent(service, instance, group, hosted, is_msdb=is_msdb)
        yield from _shadowed(group, hosted)
        yield from _duplicates(group, unscripted)
        if service is not None and instance is None:
            yield from _balancing_off(service, group, instances.get(service, 0))
            yield from _several_targets(service, group, hosted)
    if (BROKER_CONFIGURATION, None) in groups:
        asked, last_resort = groups[BROKER_CONFIGURATION, None][0], groups.get((None, None), ())
        yield from _unreached(last_resort, asked)
        named = {service for service, _ in groups}
        yield from _asked_for(hosted.databases_with.keys() - named, last_resort, asked, is_msdb=is_msdb)


def leads_out(route: Route) -> bool:
    """Whether what takes this route leaves the instance."""
    return route.address != LOCAL


def _expired(route: Route) -> Remark:
    problem = f"[{route.name}] expired at {route.lifetime:%Y-%m-%d %H:%M:%S} UTC, so it is no longer used"
    return Remark(
        Lint.EXPIRED_ROUTE, route, problem, "revive it with ALTER ROUTE and a new LIFETIME, or drop it with DROP ROUTE"
    )


def _weight_unused(route: Route) -> Remark:
    problem = f"the WEIGHT of [{route.name}] has no effect: shares are between broker instances, and it names none"
    return Remark(Lint.WEIGHT_UNUSED, route, problem, "name the BROKER_INSTANCE it leads to, or leave WEIGHT out")


def _absent(
    service: str | None, instance: UUID | None, group: Sequence[Route], hosted: Hosted, *, is_msdb: bool
) -> Iterator[Remark]:
    """LOCAL routes by name whose service no database here has."""
    if service is None:
        return
    if instance is None:
        is_absent, where = service not in hosted.databases_with, "no database here has it"
    else:
        is_absent = service not in hosted.services_of.get(instance.bytes, ())
        where = f"no database here is {show_guid(instance)}"
        if instance.bytes in hosted.services_of:
            where = f"the database {show_guid(instance)} does not have it"
    goes_on = any(leads_out(route) for route in group)
    lost = "messages that arrive for it are dropped" if is_msdb else "what is sent to it waits"
    if instance is not None and instance.bytes in hosted.services_of:
        lost = "senders get an error (-8490)"
    end = "the other routes to it are used instead" if goes_on else lost
    for route in group:
        if is_absent and route.address == LOCAL:
            problem = f"[{route.name}] leads {service!r} to this instance, and {where}: {end}"
            hint = "create the service, compare its name byte for byte, or let the route lead where the service is"
            yield Remark(Lint.LOCAL_SERVICE_ABSENT, route, problem, hint)


# Why a class keeps all later ones from ever being taken.
_BEFORE = {
    RouteClass.MIRRORED: "a mirrored route is taken before any other",
    RouteClass.LOCAL: "the service is here, and LOCAL is taken before a network address",
    RouteClass.NETWORK: "a network address is taken before TRANSPORT",
}


def _shadowed(group: Sequence[Route], hosted: Hosted) -> Iterator[Remark]:
    """Routes of later classes than one that is always taken; whether that is so may depend on the message."""
    if len(group) < 2:
        return
    order = list(RouteClass)
    firsts = {class_of(route): route for route in reversed(group)}
    for route_class, why in _BEFORE.items():
        first = firsts.get(route_class)
        if first is not None and (route_class is not RouteClass.LOCAL or _is_here(first, hosted)):
            for route in group:
                if order.index(class_of(route)) > order.index(route_class):
                    problem = f"[{route.name}] is never taken: [{first.name}] matches the same, and {why}"
                    yield Remark(Lint.SHADOWED_ROUTE, route, problem, f"drop it, or drop [{first.name}]")
            return


def _is_here(route: Route, hosted: Hosted) -> bool:
    """Whether LOCAL works for what is sent to the service of a route and names no broker instance."""
    service = route.remote_service_name
    return service is not None and is_here(route, hosted, RoutingFacts(service, NO_GUID, NO_GUID))


def _unreached(last_resort: Sequence[Route], asked: Route) -> Iterator[Remark]:
    """With a route to the configuration service, matching asks it and never comes to the routes of last resort."""
    for route in last_resort:
        if route.name != AUTO_CREATED_LOCAL.name:
            problem = (
                f"[{route.name}] is never taken: for a name without a separate route"
                f" {BROKER_CONFIGURATION!r} is asked first, because of [{asked.name}]"
            )
            yield Remark(Lint.SHADOWED_ROUTE, route, problem, f"drop it, or drop [{asked.name}]")


def _asked_for(
    unnamed: AbstractSet[str], last_resort: Sequence[Route], asked: Route, *, is_msdb: bool
) -> Iterator[Remark]:
    """Services of this instance that a route of last resort to LOCAL would find, were it not for step 4."""
    services = sorted(unnamed - NEVER_ASKED_ABOUT)
    door = next((route for route in last_resort if route.address == LOCAL), None)
    # The only service of a database has no sender here.
    if door is None or len(services) < (1 if is_msdb else 2):
        return
    more = f" and {len(services) - 1} more services of this instance are" if len(services) > 1 else " is"
    problem = (
        f"{services[0]!r}{more} asked for instead of found here: because of [{asked.name}] nothing comes to"
        f" [{door.name}]"
    )
    hint = (
        "CREATE ROUTE with its SERVICE_NAME and ADDRESS = 'LOCAL' for each service here that conversations begin with"
    )
    yield Remark(Lint.ASKED_FOR_LOCAL_SERVICE, asked, problem, hint)


def _duplicates(group: Sequence[Route], unscripted: Collection[str]) -> Iterator[Remark]:
    """Routes without which nothing changes: another one leads the same, lasts as long, and weighs or gets as much."""
    first_of: dict[Identity, Route] = {}
    ordered = sorted(group, key=lambda one: (one.name not in unscripted, one.weight, _end(one)), reverse=True)
    heaviest = max(ordered, key=lambda one: one.weight)
    for route in ordered:
        first = first_of.setdefault(route.identity, route)
        if first is not route and _end(route) <= _end(first):
            problem = f"[{route.name}] counts as one with [{first.name}]: it leads the same to the same address"
            hint, name = f"DROP ROUTE {render_name(route.name)};", render_name(first.name)
            if route.broker_instance is not None and route is heaviest:
                problem += f", is in no script, and has the WEIGHT that counts, {route.weight}"
                hint = f"ALTER ROUTE {name} WITH WEIGHT = {route.weight}; {hint} write that WEIGHT into the script, too"
            elif route.broker_instance is not None:
                weight = f"the greatest WEIGHT counts, {heaviest.weight} of [{heaviest.name}]"
                problem += f", and gives that instance no larger share: {weight}"
                hint += f" for a larger share give {name} a greater WEIGHT"
            yield Remark(Lint.DUPLICATE_ROUTE, route, problem, hint)


def _end(route: Route) -> datetime:
    return route.lifetime or datetime.max.replace(tzinfo=UTC)


def _balancing_off(service: str, group: Sequence[Route], instances: int) -> Iterator[Remark]:
    if instances > 1:
        route = group[0]
        problem = (
            f"[{route.name}] takes every conversation to {service!r} that names no broker instance,"
            f" so the {instances} instances with separate routes do not share them"
        )
        hint = "drop it, or name the BROKER_INSTANCE it leads to"
        yield Remark(Lint.BALANCING_OFF, route, problem, hint)


def _several_targets(service: str, group: Sequence[Route], hosted: Hosted) -> Iterator[Remark]:
    if service in hosted.databases_with and any(route.address == LOCAL for route in group):
        return  # taken first
    by_address: dict[NetworkAddress, Route] = {}
    for route in group:
        if isinstance(route.address, NetworkAddress):
            by_address.setdefault(route.address, route)
    if len(by_address) > 1:
        (_, first), *others = by_address.items()
        address, route = others[0]
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        problem = (
            f"[{first.name}] and [{route.name}] lead {service!r} to {first.address} and {address}{more} and name no"
            " broker instance: one conversation may begin at both targets, and the second is ended (-8495)"
        )
        hint = "name the BROKER_INSTANCE in each"
        yield Remark(Lint.SEVERAL_TARGETS, route, problem, hint)
