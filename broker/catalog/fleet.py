"""
Lint of a fleet: what several configurations say together, such as circles, dead ends, and answers that do not arrive.

Instances are linked by the addresses they advertise and those they listen on; one that listens on all interfaces and
advertises nothing cannot be found by address. A route that leads to an instance that was not given is not judged. Every
path is followed with the function that routes real frames (`broker.routing.plan`).

Whether the names of next hops resolve is checked on this machine, with some seconds for all of them together. One that
does not resolve today may do tomorrow, and an instance tries again at every attempt to connect: so it is a concern and
not an error, and a name without an answer in time is not reported.
"""

from __future__ import annotations

import glob
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from ipaddress import ip_address
from itertools import chain, pairwise
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeAlias

from cryptography.x509 import Certificate
from msgspec import Struct
from msgspec.structs import replace

from broker.advice import ADDRESS_GAP, create_route, render_name, to_run
from broker.catalog.catalog import MSDB
from broker.catalog.diagnostics import KEPT_MAX, Diagnostic, Kind, concern, first_of_each
from broker.catalog.dry_run import DryDatabase, DryRun
from broker.catalog.handlers import grants_of
from broker.catalog.lint import differing_names, live_routes, shown, survey
from broker.catalog.unscripted import import_again
from broker.config.settings import DatabaseSettings, EndpointSettings
from broker.config.toml import KeyPath, dotted
from broker.errors import CertificateUnusableError, SettingError
from broker.flow import Disposition
from broker.net.certificates import holders, security_of, trusted_files
from broker.net.tls import NO_SECURITY, Security, advice_for_hosts, is_ip
from broker.protocol.layout import NO_GUID, show_guid
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.decide import RoutingFacts
from broker.routing.lint import Lint, leads_out
from broker.routing.plan import JourneyEnd, JourneyOutcome, Leg, Network, Site, conversations
from broker.routing.route import Route
from broker.routing.table import RouteTable, build_table
from broker.security.certificate_files import read_certificates
from broker.security.grants import PermissionRuling, RemoteServiceBinding
from broker.security.identity import is_signed_by
from broker.security.principal import NOBODY, Who

SECONDS = 5.0  # for all names: one try of the usual resolver
NAMES_MAX = 200  # that are asked for, each in a thread
_LED_MAX = 3  # routes in one hint
UNNAMED = ""  # means a service that no route names: what routes of last resort are for

# The site and the table that lose a message, the reason, and the route that leads there.
_Fault: TypeAlias = tuple[Site, bytes | None, Disposition, Site | None, bytes | None, str | None]

_NOBODY = frozenset({Lint.NOBODY_MAY_CONNECT, Lint.NOBODY_MAY_SEND})
_REMEDY = {
    Disposition.FORWARDING_DISABLED: "set endpoint.message_forwarding = true there, or lead it elsewhere",
    Disposition.SERVICE_NOT_HERE: "create the service there, compare its name byte for byte, or lead it elsewhere",
    Disposition.INSTANCE_NOT_HERE: "compare the BROKER_INSTANCE with that of the database, or lead it elsewhere",
    Disposition.SERVICE_NOT_FOUND: "create the service there, or name the BROKER_INSTANCE of a database that has it",
    Disposition.ROUTE_INVALID: "TRANSPORT needs a name like tcp://host:4022/Name: CREATE ROUTE for this one there",
}


def survey_all(runs: Sequence[DryRun]) -> tuple[list[Diagnostic], dict[Kind, int]]:
    """
    Survey these instances, each by itself and all together.

    Returns:
        The first `KEPT_MAX` of each kind, sorted by place; and how many others there are.
    """
    kept, left_out = first_of_each(_concerns(runs), lambda one: (one.lint, one.file), most=KEPT_MAX)
    return sorted(kept, key=_by_place), left_out


def _concerns(runs: Sequence[DryRun]) -> Iterator[Diagnostic]:
    given = Given(runs)
    lost, lacking = list(_missing_returns(given)), list(_missing_grants(given))
    named, ends = {one.subject for one in lacking}, [given.at(one.back.legs[-1]) for one in lost]
    dropped = _dead_ends(given)
    yield from (_missing_return(given, one, dropped) for one in lost)
    for run in runs:
        unanswered = {home.name for home in ends if home.settings is run.settings}
        for one in survey(run, partial(_several_targets, given), unanswered):
            if one.lint not in _NOBODY or one.subject not in named:  # whose statements are named already
                yield one
    yield from differing_names(runs)
    yield from _circles(given)
    yield from lacking
    yield from _strangers(given)
    yield from _other_hosts(given)
    told = {(_fault(one.back), service) for one in lost for service in one.home.rows.services}
    for fault, (end, services) in dropped.items():
        if untold := {service for service in services if (fault, service) not in told}:
            yield _dead_end(given, end, untold)


class Given:
    """
    The instances as a network. Never changed once made.

    Attributes:
        run_of: By site.
        home_of: The database by site and broker instance, None for msdb.
        is_closed: Whether no route leads to an instance that was not given.
    """

    def __init__(self, runs: Sequence[DryRun]) -> None:
        self.run_of: dict[Site, DryRun] = {}
        self.home_of: dict[tuple[Site, bytes | None], DryDatabase] = {}
        self.tables: list[RouteTable] = []
        instances = {home.broker_instance for run in runs for home in run.users if home.is_identified}
        routes = [one for run in runs for home in run.databases.values() for one in live_routes(run, home)]
        self._services_of_strangers = frozenset(
            one.remote_service_name
            for one in routes
            if one.broker_instance is not None and one.broker_instance.bytes not in instances
        )
        for run in runs:
            tables = {name: build_table(one.routes.values(), now=run.now) for name, one in run.databases.items()}
            site = _site(run, tables, has_all_instances=all(map(self.is_identified, run.users)))
            self.run_of[site] = run
            self.home_of[site, None] = run.msdb
            for home in run.users:
                self.home_of[site, home.broker_instance] = home
            self.tables += tables.values()
        self.network = Network(self.run_of)
        self.is_closed = all(map(self._stays, routes))

    def at(self, leg: Leg) -> DryDatabase:
        """Return the database whose table decided a leg."""
        return self.home_of[leg.site, leg.database]

    def is_identified(self, home: DryDatabase) -> bool:
        """Whether its broker instance is known, or certainly another one than all that routes name."""
        return home.is_identified or (home.is_known and self._services_of_strangers.isdisjoint(home.rows.services))

    def _stays(self, route: Route) -> bool:
        return not leads_out(route) or (bool(route.addresses) and all(map(self.network.sites_at, route.addresses)))

    def leads_in(self, route: Route) -> bool:
        """Whether a route leads to an instance that was given, or may: TRANSPORT depends on the name."""
        return any(map(self.network.sites_at, route.addresses)) if route.addresses else leads_out(route)

    def facts(self, site: Site, database: bytes | None) -> Iterator[RoutingFacts]:
        """Messages that take the named routes of one table to an instance that was given."""
        home = self.home_of[site, database]
        named: dict[str, set[bytes]] = {}
        for route in live_routes(self.run_of[site], home):
            if route.remote_service_name is not None and self.leads_in(route):
                instances = named.setdefault(route.remote_service_name, set())
                if route.broker_instance is not None:
                    instances.add(route.broker_instance.bytes)
        for service, instances in named.items():
            yield from self.open_facts(service, database)
            for instance in sorted(instances):
                yield RoutingFacts(service, instance, bytes(16), database=database)

    def arrivals(self) -> Iterator[tuple[DryDatabase, str, JourneyEnd]]:
        """Ways of messages from a database to another instance: the sender, the service and the way."""
        for (site, sender), home in self.home_of.items():
            if sender is not None:
                yield from self._arrivals(home, site, self.facts(site, sender))

    def last_resorts(self) -> Iterator[tuple[DryDatabase, str, JourneyEnd]]:
        """Likewise by a route of last resort, to services that an msdb leads on, whether they are sent to or not."""
        services = {one.remote_service_name for run in self.run_of.values() for one in live_routes(run, run.msdb)}
        for (site, sender), home in self.home_of.items():
            run = self.run_of[site]
            routes = [*live_routes(run, home), *live_routes(run, run.msdb)]
            if sender is None or not any(one.remote_service_name is None and self.leads_in(one) for one in routes):
                continue
            unnamed = services - {one.remote_service_name for one in routes} - set(home.rows.services)
            facts = (one for service in sorted(filter(None, unnamed)) for one in self.open_facts(service, sender))
            yield from self._arrivals(home, site, facts)

    def _arrivals(
        self, home: DryDatabase, site: Site, sent: Iterable[RoutingFacts]
    ) -> Iterator[tuple[DryDatabase, str, JourneyEnd]]:
        for facts in sent:
            for end in self.network.follow(facts, site):
                if end.outcome is JourneyOutcome.DELIVERED and len(end.legs) > 1:
                    yield home, facts.to_service, end

    def open_facts(self, service: str, database: bytes | None) -> Iterator[RoutingFacts]:
        """Conversations that leave the broker instance open."""
        for conversation_id in conversations(service, self.tables):
            yield RoutingFacts(service, NO_GUID, conversation_id, database=database)


def _site(run: DryRun, tables: dict[str, RouteTable], *, has_all_instances: bool) -> Site:
    settings = run.settings
    return Site(
        name=settings.instance.name,
        addresses=frozenset(_addresses(settings.endpoint)),
        msdb=tables[MSDB],
        databases={home.broker_instance: tables[home.name] for home in run.users},
        hosted=run.hosted(),
        is_forwarding=settings.endpoint.message_forwarding,
        has_all_services=all(home.is_known for home in run.users),
        has_all_instances=has_all_instances,
    )


def _addresses(endpoint: EndpointSettings) -> list[NetworkAddress]:
    """Return the addresses that lead to the instance, as far as the configuration has them; advertised ones first."""
    listening = (NetworkAddress(one.host, one.port) for one in endpoint.listen if one.port and not _is_any(one.host))
    return [*endpoint.advertise, *listening]


def _is_any(host: str) -> bool:
    return is_ip(host) and ip_address(host).is_unspecified


# --- circles ------------------------------------------------------------------------------------------------


def _circles(given: Given) -> Iterator[Diagnostic]:
    """Ways that come back to an instance they passed; each circle once, whatever goes round in it."""
    order = {site: number for number, site in enumerate(given.network.sites)}
    found: dict[tuple[int, ...], tuple[JourneyEnd, set[str]]] = {}
    for site in given.network.sites:
        for facts in [*given.open_facts(UNNAMED, None), *given.facts(site, None)]:
            for end in given.network.follow(facts, site):
                if end.outcome is JourneyOutcome.CIRCLE:
                    circle = [order[leg.site] for leg in end.circle[:-1]]
                    first = circle.index(min(circle))
                    key = (*circle[first:], *circle[:first])
                    found.setdefault(key, (end, set()))[1].add(facts.to_service)
    for end, services in found.values():
        leg = end.circle[0]
        assert leg.route is not None, "a way that goes on has a route"
        path = " -> ".join(one.site.name for one in end.circle)
        what = "every service that no route names" if UNNAMED in services else shown(services)
        problem = f"messages to {what} go in a circle, {path}, until their hops are used up (11285)"
        hint = "end the circle: on one of these instances lead them to where the service is, or drop the route"
        home = given.at(leg)
        yield concern(home, Lint.ROUTING_LOOP, problem, hint, home.statements.get(leg.route.name))


# --- permissions ------------------------------------------------------------------------------------------


def _missing_grants(given: Given) -> Iterator[Diagnostic]:
    """Yield the permissions that instances and databases lack for messages of others, as statements to run."""
    # By instance and database, whether only dialogs that begin need it, and the DENY: statement, and a path with it.
    found: dict[tuple[tuple[Site, str], bool, str], dict[str, str]] = {}
    ways = chain(((way, True) for way in given.arrivals()), ((way, False) for way in given.last_resorts()))
    for (home, service, end), is_named in ways:
        for where, ruling in _refusals(given, end, service, is_named=is_named):
            is_of_begin = where[1] != MSDB and _binding(home, service) is None
            kind = where, is_of_begin, "" if ruling.rule is None else ruling.why
            found.setdefault(kind, {}).setdefault(ruling.remedy, end.path)
    lacking = {where for where, _, _ in found}
    ordered = sorted(found.items(), key=lambda one: one[0][0][1] == MSDB)  # what fails dialogs before what delays them
    for ((site, name), is_of_begin, deny), statements in ordered:
        run, paths = given.run_of[site], ", ".join(dict.fromkeys(statements.values()))
        problem = f"messages over {paths} are refused: {name} " + (f"has {deny}" if deny else "lacks permissions")
        if is_of_begin:
            what = f"{name} refuses dialogs" if deny else f"{name} lacks permissions for dialogs"
            problem = f"{what} that begin over {paths}{f' by {deny}' if deny else ''}; answers there need none"
        database = run.databases[name]
        every = " ".join(statements)
        hint = to_run(every, database=name, is_scripted=database.is_scripted, option=run.settings.config_option)
        path: KeyPath = ("endpoint", "authentication") if (site, MSDB) in lacking else ("databases", name, "path")
        if deny:
            hint = f"if that is not meant, {hint}"
        elif name != MSDB and (site, MSDB) in lacking:
            hint = f"before those of msdb, or dialogs that arrive between them fail: {hint}"
        yield concern(database, Lint.MISSING_GRANT, problem, hint, path)


def _refusals(
    given: Given, end: JourneyEnd, service: str, *, is_named: bool
) -> Iterator[tuple[tuple[Site, str], PermissionRuling]]:
    """
    The permissions that a path lacks, each with the instance and database where.

    Where no route of the sender names the service, SEND is lacking only if no sender may send to it.
    """
    for before, leg in pairwise(end.legs):
        run = given.run_of[leg.site]
        grants = grants_of(run.settings, run.msdb.rows.permissions)
        who = _holder(given.run_of[before.site].settings.endpoint) if grants.is_default_deny else NOBODY
        is_connected = not _differ(given.run_of[before.site].settings.endpoint, run.settings.endpoint)
        if leg.site is not before.site and who is not None and is_connected:
            is_meant = is_named or not grants.may_be_granted(service)
            for ruling in (grants.connect(who), *([grants.send(who, service)] if is_meant else [])):
                if not ruling.is_permitted:
                    yield (leg.site, MSDB), ruling
    first, last = end.legs[0], end.legs[-1]
    run, target = given.run_of[last.site], given.home_of[last.site, end.database]
    sender = given.home_of[first.site, first.database].name
    if target.name not in run.settings.databases:
        return
    grants = grants_of(run.settings, target.rows.permissions, target.name)
    who = _holder(given.run_of[first.site].settings.databases.get(sender)) if grants.is_default_deny else NOBODY
    if who is not None and (is_named or not grants.may_be_granted(service)):
        ruling = grants.send(who, service)
        if not ruling.is_permitted:
            yield (last.site, target.name), ruling


def _differ(one: EndpointSettings, other: EndpointSettings) -> bool:
    """Whether one side speaks plain text only, and the other one TLS only."""
    return {one.encryption, other.encryption} == {"disabled", "required"}


def _binding(home: DryDatabase, service: str) -> RemoteServiceBinding | None:
    return next((one for one in home.rows.bindings.values() if one.remote_service_name == service), None)


def _holder(section: EndpointSettings | DatabaseSettings | None) -> Who | None:
    """The principal that an instance or a database proves; None without a certificate that can be read."""
    certificate = None if section is None else section.certificate
    return None if certificate is None else next(holders((glob.escape(str(certificate)),)), None)


# --- certificates -----------------------------------------------------------------------------------------


def _strangers(given: Given) -> Iterator[Diagnostic]:
    """Yield what keeps instances from connecting: encryption, and certificates that they or databases do not know."""
    needed: dict[tuple[Site, str, Path | None, str], None] = {}
    differing: dict[tuple[Site, Site], None] = {}
    for home, service, end in given.arrivals():
        for before, leg in pairwise(end.legs):
            for near, far in ((before.site, leg.site), (leg.site, before.site)):
                endpoint, other = (given.run_of[one].settings.endpoint for one in (near, far))
                is_encrypted = "disabled" not in (endpoint.encryption, other.encryption)
                if _differ(endpoint, other) and endpoint.encryption == "disabled":
                    differing[near, far] = None
                if near is not far and is_encrypted and endpoint.authentication == "certificate":
                    needed[near, MSDB, other.certificate, far.name] = None
        binding, target = _binding(home, service), given.home_of[end.legs[-1].site, end.database]
        sender = given.run_of[end.legs[0].site].settings.databases.get(home.name)
        if binding is not None and not binding.is_anonymous_on and sender is not None:
            needed[end.legs[-1].site, target.name, sender.certificate, home.name] = None
    for near, far in differing:
        run = given.run_of[near]
        problem = f'endpoint.encryption is "disabled" here and "required" at {far.name}: no connection is made'
        hint = f'set "required" here, with a certificate, or "disabled" at {far.name}; then broker reload at both'
        yield concern(run.msdb, Lint.ENCRYPTION_DIFFERS, problem, hint, ("endpoint", "encryption"))
    for site, name, file, of in needed:
        run = given.run_of[site]
        section = run.settings.databases.get(name, run.settings.endpoint)
        if not _is_known(file, section):
            path: KeyPath = ("endpoint", "peers") if name == MSDB else ("databases", name, "peers")
            effect = "no connection is made" if name == MSDB else "its dialogs are refused"
            problem, hint = f"{dotted(path)} lacks the certificate of {of}: {effect}", f"name {file} there as well"
            if directory := next((Path(one).parent for one in section.peers if "*" in Path(one).name), None):
                hint = f"copy {file} into {directory}, next to the files that are there"
            if name == MSDB and run.settings.endpoint.trust:
                hint += ", or its CA to the files of endpoint.trust"
            yield concern(run.databases[name], Lint.UNKNOWN_CERTIFICATE, problem, hint, path)


def _is_known(file: Path | None, by: EndpointSettings | DatabaseSettings) -> bool:
    """Whether the first certificate of a file is among `peers`, or `trust` has it or its CA; as far as can be read."""
    if file is None:
        return True
    try:
        chain, peers = read_certificates(file), _certificates_in(by.peers)
        trusted = _certificates_in(by.trust) if isinstance(by, EndpointSettings) else []
    except (CertificateUnusableError, OSError, ValueError):  # reported for itself
        return True
    return chain[0] in [*peers, *trusted] or any(is_signed_by(one, issuer) for one in chain for issuer in trusted)


def _certificates_in(patterns: tuple[str, ...]) -> list[Certificate]:
    return [one for path in trusted_files(patterns) for one in read_certificates(path)]


def _other_hosts(given: Given) -> Iterator[Diagnostic]:
    """Yield the routes to instances whose certificates do not name the host of the route: no connection is made."""
    securities = {site: _security_of(run) for site, run in given.run_of.items()}
    for site, run in given.run_of.items():
        near = securities[site]
        for database in run.databases.values() if near.is_authenticating else ():
            for route, address in _next_hops(run, database):
                for far in given.network.sites_at(address):
                    own = securities[far].own
                    if own is None or own.fingerprint in near.pinned or own.covers(address.host):
                        continue
                    if _is_known(given.run_of[far].settings.endpoint.certificate, run.settings.endpoint):
                        problem = f"{address} leads to {far.name}, and {own.for_hosts}: no connection is made"
                        hint = f"correct the route, or {advice_for_hosts(own, address.host)}"
                        made = database.statements.get(route.name)
                        yield concern(database, Lint.HOST_NOT_IN_CERTIFICATE, problem, hint, made)


def _next_hops(run: DryRun, database: DryDatabase) -> Iterator[tuple[Route, NetworkAddress]]:
    """The addresses that routes of a database name."""
    return ((route, address) for route in live_routes(run, database) for address in route.addresses)


def _security_of(run: DryRun) -> Security:
    with suppress(SettingError):  # reported for itself
        return security_of(run.settings)
    return NO_SECURITY


# --- dead ends ----------------------------------------------------------------------------------------------


def _dead_ends(given: Given) -> dict[_Fault, tuple[JourneyEnd, set[str]]]:
    """Return where instances drop what another one of them sends there, a way for each, and for which services."""
    found: dict[_Fault, tuple[JourneyEnd, set[str]]] = {}
    for site, database in given.home_of:
        for facts in given.facts(site, database):
            for end in given.network.follow(facts, site):
                is_lost = end.outcome is JourneyOutcome.LOST and len(end.legs) > 1
                if is_lost and not _is_for_answers(given, site, facts, end):
                    found.setdefault(_fault(end), (end, set()))[1].add(facts.to_service)
    told = {service for _, services in found.values() for service in services}
    for service, end in _unreached(given) if given.is_closed else ():
        if service not in told:
            found.setdefault(_fault(end), (end, set()))[1].add(service)
    return found


def _unreached(given: Given) -> Iterator[tuple[str, JourneyEnd]]:
    """
    Yield the services of databases with a way out that nothing reaches, and where a route of last resort to them ends.

    Nothing says who sends to them. But where all are given, what has a way out also needs one in: for what begins there
    or for answers. One that arrives, or may, is enough.
    """
    for (site, instance), home in given.home_of.items():
        if instance is None or not any(map(leads_out, live_routes(given.run_of[site], home))):
            continue
        lost: dict[str, JourneyEnd] = {}
        for service, end in _ways_to(given, site, home):
            if end.outcome in {JourneyOutcome.DELIVERED, JourneyOutcome.UNKNOWN}:
                break
            leg = end.legs[0]
            is_last_resort = leg.route is not None and leg.route.remote_service_name is None
            if is_last_resort and leg.database is not None and len(end.legs) > 1:
                lost.setdefault(service, end)
        else:
            yield from lost.items()


def _ways_to(given: Given, site: Site, home: DryDatabase) -> Iterator[tuple[str, JourneyEnd]]:
    """Ways to the services of a database from all other tables, of what begins there and of answers."""
    instance = home.broker_instance
    for near, sender in given.home_of:
        if (near, sender) not in {(site, instance), (site, None)}:
            for service in sorted(home.rows.services):
                answer = RoutingFacts(service, instance, bytes(16), is_from_target=True, database=sender)
                for facts in (*given.open_facts(service, sender), answer):
                    yield from ((service, end) for end in given.network.follow(facts, near))


def _dead_end(given: Given, end: JourneyEnd, services: set[str]) -> Diagnostic:
    """What is dropped; reported at the route that leads there."""
    leg, last = end.legs[-2:]
    assert leg.route is not None, "a way that goes on has a route"
    problem = f"messages over {end.path} are dropped at its end, for {shown(services)}: {_reason(end)}"
    is_unled = end.disposition is Disposition.SERVICE_NOT_HERE and not last.site.databases
    if is_unled or end.disposition is Disposition.NO_ROUTE:
        having = [one for one in given.network.sites if services <= one.hosted.databases_with.keys()]
        hint = _lead_on(given, end, last, services, having[0] if len(having) == 1 else None)
    elif end.disposition is Disposition.ROUTE_INVALID and last.route is not None and last.route.address != TRANSPORT:
        hint = f"[{last.route.name}] there leads back to the same instance: lead it to the service, or to LOCAL"
    else:
        hint = _REMEDY[end.disposition]
    home = given.at(leg)
    return concern(home, Lint.DEAD_END, problem, hint, home.statements.get(leg.route.name))


def _lead_on(
    given: Given, end: JourneyEnd, leg: Leg, services: Iterable[str], towards: Site | None, *, of: str = ""
) -> str:
    """The statements that lead messages for services, `of` an instance, on from this leg, and permit them there."""
    home = given.at(leg)
    known = _addresses(given.run_of[towards].settings.endpoint) if towards else []
    address = LOCAL if towards is leg.site else str(known[0]) if known else ADDRESS_GAP
    ordered = sorted(services)
    statements = [create_route(one, of, address) for one in ordered[:_LED_MAX]]
    is_named = bool((first := end.legs[0].route) and first.remote_service_name)
    refusals = chain.from_iterable(_refusals(given, end, one, is_named=is_named) for one in ordered[:_LED_MAX])
    statements += (one.remedy for where, one in refusals if where == (leg.site, home.name) and one.rule is None)
    every = " ".join(dict.fromkeys(statements))
    hint = to_run(every, database=home.name, is_scripted=home.is_scripted, option=home.settings.config_option)
    gap = " with the address of the next instance towards it, if the name is right" if address == ADDRESS_GAP else ""
    more = f", and so for {len(ordered) - _LED_MAX} more" if len(ordered) > _LED_MAX else ""
    return f"{hint}{gap}{more}"


def _is_for_answers(given: Given, start: Site, facts: RoutingFacts, end: JourneyEnd) -> bool:
    """
    True if the service is where the path ends, and only beginning a conversation with it is refused.

    Answers are delivered there without a route. A gateway's route does not show which of the two it is for; a
    database's is for answers when the other database can begin.
    """
    last = end.legs[-1].site
    hosted = last.hosted.databases_with.get(facts.to_service, ())
    hosting = [instance for instance in hosted if facts.is_open or facts.to_broker_instance == instance]
    if not hosting or facts.database is None:
        return bool(hosting)
    sender = given.home_of[start, facts.database]
    begun = (
        back
        for instance in hosting
        for service in sorted(sender.rows.services)
        for one in given.open_facts(service, instance)
        for back in given.network.follow(one, last)
    )
    return any(back.outcome is JourneyOutcome.DELIVERED and back.database == facts.database for back in begun)


def _fault(end: JourneyEnd) -> _Fault:
    last, before = end.legs[-1], end.legs[-2] if len(end.legs) > 1 else None
    # Where a service is absent, what begins is dropped with 9796 and an answer, which names the broker instance, with
    # 9795: one fault.
    is_absent = end.disposition is Disposition.SERVICE_NOT_HERE
    disposition = Disposition.INSTANCE_NOT_HERE if is_absent else end.disposition
    if before is None:
        return (last.site, last.database, disposition, None, None, None)
    route = before.route.name if before.route is not None else None
    return (last.site, last.database, disposition, before.site, before.database, route)


def _reason(end: JourneyEnd) -> str:
    number = end.disposition.number
    return f"{end.disposition} ({number})" if number else str(end.disposition)


# --- ways back ----------------------------------------------------------------------------------------------


class _Unheard(Struct, frozen=True):
    """A database that reaches another one, over `there`, and receives no answers, which end at `back`."""

    home: DryDatabase
    there: JourneyEnd
    back: JourneyEnd


def _missing_returns(given: Given) -> Iterator[_Unheard]:
    """
    Yield pairs of databases of which one reaches the other and receives no answers.

    Which service of a database begins conversations is not written anywhere, so a pair is reported only when no
    service of the one that sends can be answered.
    """
    for site in given.network.sites:
        for home in given.run_of[site].users:
            if given.is_identified(home) and home.rows.services:
                for there in _reached(given, site, home):
                    back = _failing_way_back(given, home, there)
                    if back is not None:
                        yield _Unheard(home, there, back)


def _reached(given: Given, site: Site, home: DryDatabase) -> list[JourneyEnd]:
    """Ways to databases elsewhere that conversations of this one come to, one to each."""
    sender = home.broker_instance
    # A sender that names a broker instance already knows it: conversations begin open.
    begun = [facts for facts in given.facts(site, sender) if facts.is_open]
    default = (route for route in live_routes(given.run_of[site], home) if route.remote_service_name is None)
    if any(leads_out(route) and given.leads_in(route) for route in default):
        elsewhere = {name for other in given.network.sites if other is not site for name in other.hosted.databases_with}
        for service in sorted(elsewhere):
            begun += given.open_facts(service, sender)
    found: dict[tuple[Site, bytes | None], JourneyEnd] = {}
    for facts in begun:
        for end in given.network.follow(facts, site):
            if end.outcome is JourneyOutcome.DELIVERED and end.database != sender:
                found.setdefault((end.legs[-1].site, end.database), end)
    return list(found.values())


def _failing_way_back(given: Given, home: DryDatabase, there: JourneyEnd) -> JourneyEnd | None:
    """Return where answers to this database are lost; None if some service of it receives all of them."""
    first: JourneyEnd | None = None
    for service in sorted(home.rows.services):
        facts = RoutingFacts(service, home.broker_instance, bytes(16), is_from_target=True, database=there.database)
        ends = given.network.follow(facts, there.legs[-1].site)
        lost = [end for end in ends if end.outcome is JourneyOutcome.LOST]
        if not lost:
            return None
        first = first or lost[0]
    return first


def _missing_return(given: Given, one: _Unheard, dropped: Mapping[_Fault, tuple[JourneyEnd, set[str]]]) -> Diagnostic:
    leg, way, target = one.back.legs[-1], [leg.site for leg in one.there.legs], one.there.legs[-1].site
    home = given.at(leg)
    name, answering = f"{one.home.name} of {way[0].name}", given.home_of[target, one.there.database].name
    problem = (
        f"{name} reaches {answering} of {target.name}, and no answer comes back:"
        f" its way {one.back.path} ends in {home.name} there: {_reason(one.back)}"
    )
    if one.back.disposition is Disposition.INSTANCE_NOT_HERE:
        problem += f", for an answer names the broker instance of {name}"
    end, services = dropped.get(_fault(one.back), (one.back, set()))
    begun = services & one.home.rows.services.keys()
    if begun:
        problem += f"; what begins on this way for {shown(begun)} is dropped there too: {_reason(end)}"
    lost, of = begun or one.home.rows.services.keys(), ""
    having = [site for site in given.network.sites if not lost.isdisjoint(site.hosted.databases_with)]
    if len(having) > 1 and one.home.is_identified:  # a route by name would lead answers to any of them
        of = show_guid(one.home.broker_instance)
        leg = next(leg for leg in reversed(one.back.legs) if leg.site in way)
        home = given.at(leg)
    before = next((site for site, on in pairwise(way) if on is leg.site and site is not on), None)
    hint = import_again(home) or _lead_on(given, one.back, leg, lost, before, of=of)
    is_msdb = leg.database is None
    path: KeyPath = ("routes", "files") if is_msdb else ("databases", home.name)
    return concern(home, Lint.MISSING_RETURN_ROUTE, problem, hint, path, of_key=not is_msdb)


# --- several routes, several targets ------------------------------------------------------------------------


def _several_targets(given: Given, home: DryDatabase, service: str) -> str | None:
    """
    The remedy where a conversation with a service may begin in several databases, as its ways lead to different ones.

    Returns:
        None where that is not known; "" where no gateways share conversations out in different ways.
    """
    site, database = next(place for place, one in given.home_of.items() if one is home)
    ways = [_deliveries(given, site, facts) for facts in given.open_facts(service, database)]
    targets = [{(end.legs[-1].site, end.database) for end in ends} for ends in ways]
    sharers = [{one: one.msdb.instances(service) for end in ends if (one := _sharer(end, service))} for ends in ways]
    do_differ = any(len(set(map(_shares, at.values()))) > 1 for at in sharers)
    if all(len(some) < 2 for some in targets) and not (do_differ and len(set().union(*targets)) > 1):
        return None
    sharing = {one: weights for at in sharers for one, weights in at.items()}
    if not do_differ or all(len(weights) == 1 for weights in sharing.values()):
        return ""
    if len(set(map(frozenset, sharing.values()))) > 1:
        names = shown(one.name for one in sharing)
        return f"give {names} the same routes to {service!r}, with the same BROKER_INSTANCE and WEIGHT"
    return _equal_weights(given, sharing, service)


def _deliveries(given: Given, site: Site, facts: RoutingFacts) -> list[JourneyEnd]:
    """Where messages arrive over each next hop by itself: ways over two of them may lead on by the same instance."""
    arriving, hops = replace(facts, database=None), given.network.next_sites(facts, site)
    ways = chain.from_iterable(given.network.follow(arriving, hop) for hop in hops)
    return [end for end in ways if end.outcome is JourneyOutcome.DELIVERED]


def _sharer(end: JourneyEnd, service: str) -> Site | None:
    """The last instance that picks the database by its routes; None if none does, or the one of the database itself."""
    *before, last = end.legs
    if len(last.site.hosted.databases_with.get(service, ())) > 1:
        return None
    return next((leg.site for leg in reversed(before) if leg.route is not None and leg.route.broker_instance), None)


def _shares(weights: Mapping[bytes, int]) -> frozenset[tuple[bytes, Fraction]]:
    """The share of each broker instance: with equal ones, every conversation has the same."""
    return frozenset((instance, Fraction(weight, sum(weights.values()))) for instance, weight in weights.items())


def _equal_weights(given: Given, sharing: Mapping[Site, Mapping[bytes, int]], service: str) -> str:
    """The statements that give routes of gateways the WEIGHT that they have at the one with the greatest."""
    like = max(sharing, key=lambda site: sum(sharing[site].values()))
    wanted, hints = sharing[like], []
    for site, weights in sharing.items():
        if _shares(weights) != _shares(wanted):
            run, differing = given.run_of[site], dict(wanted.items() - weights.items())
            every = " ".join(
                f"ALTER ROUTE {render_name(one.name)} WITH WEIGHT = {weight};"
                for one in live_routes(run, run.msdb)
                if one.remote_service_name == service
                and one.broker_instance is not None
                and one.weight != (weight := differing.get(one.broker_instance.bytes, one.weight))
            )
            option, is_scripted = run.settings.config_option, run.msdb.is_scripted
            hints.append(to_run(every, database=MSDB, instance=site.name, is_scripted=is_scripted, option=option))
    return f"share by the same WEIGHT as {like.name}: {'; '.join(hints)}"


def _by_place(concern: Diagnostic) -> tuple[bool, str, int, int, str]:
    span = concern.span
    place = (span.source, span.line, span.column) if span else ("", 0, 0)
    return (span is None, *place, concern.lint)


# --- names of next hops ---


def unresolved(run: DryRun) -> list[Diagnostic]:
    """Return one concern for each name that does not resolve, at the first route that has it; takes `SECONDS`."""
    first = named_hosts(run)
    problems = _ask(sorted(first)[:NAMES_MAX])
    found = []
    for host, problem in sorted(problems.items()):
        home, route = first[host]
        text = f"the name {host!r} of its address does not resolve here: {problem}"
        hint = "correct the name, or see to the resolver; until then what takes this route waits"
        found.append(concern(home, Lint.NAME_UNRESOLVED, text, hint, home.statements.get(route)))
    return found


def named_hosts(run: DryRun) -> dict[str, tuple[DryDatabase, str]]:
    """Return each host name in a live route, with the first database and route that has it."""
    found: dict[str, tuple[DryDatabase, str]] = {}
    for home in run.databases.values():
        for route, address in _next_hops(run, home):
            if not is_ip(address.host):
                found.setdefault(address.host, (home, route.name))
    return found


def _ask(hosts: Sequence[str]) -> dict[str, str]:
    """The problem of each host that has one; threads that are still waiting end with the process."""
    answers: SimpleQueue[tuple[str, str]] = SimpleQueue()

    def ask(host: str) -> None:
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            answers.put((host, getattr(error, "strerror", None) or str(error)))
        else:
            answers.put((host, ""))

    for host in hosts:
        threading.Thread(target=ask, args=(host,), name="resolve", daemon=True).start()
    deadline, problems = time.monotonic() + SECONDS, {}
    with suppress(Empty):
        for _ in hosts:
            host, problem = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            if problem:
                problems[host] = problem
    return problems
