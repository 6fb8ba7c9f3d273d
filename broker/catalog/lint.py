"""
Lint: scripts and settings of an instance that are legal and probably not meant.

A rule is worth a warning when it names something that goes wrong, not something that could be done otherwise. A rule
that cannot be sure reports nothing.

Names compare byte for byte, so two spellings are two services, and a message for one never reaches the other. A hosted
name is taken for right, on whichever instance it is; without one, the first spelling is.

Grants are for peers that authenticate. So an authenticating endpoint without any lets no peer in, and rules about
certificates where none is shown do nothing. The subject of a rule is compared with the routes of msdb and the services
that are here. A service that neither knows may still be meant, so only a name that almost fits is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import chain, groupby, islice

from msgspec.structs import replace

from broker.advice import render_name, to_run
from broker.catalog.diagnostics import Diagnostic, concern, first_of_each
from broker.catalog.dry_run import DryDatabase, DryRun, stored
from broker.catalog.handlers import grants_of
from broker.catalog.identities import credentials_of
from broker.catalog.scripts import scripts_setting
from broker.catalog.unscripted import Unscripted, import_again, is_unscripted, not_there, shown_rule, unscripted
from broker.config.toml import KeyPath, dotted
from broker.conversation.message_types import CONTRACT_NAMES
from broker.ddl.render import render_statement
from broker.ddl.statements import Statement
from broker.errors import SettingError
from broker.files import ANSWERED, socket_problem
from broker.net.certificates import holders
from broker.routing.address import LOCAL, TRANSPORT, transport_address
from broker.routing.lint import Lint, Remark, leads_out, lint_table
from broker.routing.route import Route, is_live
from broker.security.grants import Permission, PermissionRule, PermissionState, render_rule
from broker.security.principal import ANY, PUBLIC, PrincipalKind, covers_text, parse_principal

_GRANTS_MAX = 10  # statements in one hint
_SHOWN = 3  # names in one sentence; the rest is counted
_LACK = {
    Permission.CONNECT: (
        Lint.NOBODY_MAY_CONNECT,
        "peers prove who they are by certificate, and no GRANT CONNECT of msdb says that any of them may connect",
    ),
    Permission.SEND: (
        Lint.NOBODY_MAY_SEND,
        "peers prove who they are by certificate, and no GRANT SEND of msdb lets any of them send anything here",
    ),
}


# --- one instance ---


def survey(
    run: DryRun, several_targets: Callable[[DryDatabase, str], str | None], unanswered: Collection[str]
) -> Iterator[Diagnostic]:
    """
    Yield every diagnostic about one instance.

    Args:
        run: The result of running its scripts dry.
        several_targets: The remedy where the routes of a database to a service are known to lead to several targets:
            "" is the usual one, None that it is not known.
        unanswered: Databases of which a missing return path is reported already.
    """
    for database in run.databases.values():
        is_msdb = database is run.msdb
        routes = database.routes.values()
        loose = {one.name for one in routes if is_unscripted(database, one)}
        remarks = lint_table(routes, run.hosted(), now=run.now, is_msdb=is_msdb, unscripted=loose)
        for remark in remarks:
            hint: str | None = remark.hint
            if remark.lint is Lint.SEVERAL_TARGETS:  # two hosts may be gateways to one target
                other = several_targets(database, remark.route.remote_service_name or "")
                hint = None if other is None else other or hint
            elif remark.lint is Lint.DUPLICATE_ROUTE:  # a statement
                option = run.settings.config_option
                hint = to_run(remark.hint, database=database.name, is_scripted=False, option=option)
                if remark.route.name in database.statements:
                    hint = f"leave [{remark.route.name}] out of its script, and {hint}"
            if hint is not None and _is_certain(remark, run):
                yield concern(database, remark.lint, remark.problem, hint, database.statements.get(remark.route.name))
        yield from _renewed(database)
        yield from _missed_drops(database)
        yield from _transport_names(run, database)
        yield from _undeclared_contracts(database)
        yield from _unsealable(run, database)
    yield from _exposed_services(run)
    yield from _forwarding_off(run)
    yield from survey_grants(run)
    yield from _unscripted(run)
    yield from _not_in_force(run)
    yield from _unanswerable(run, unanswered)


def shown(names: Iterable[str]) -> str:
    """A few names as people list them."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(map(repr, islice(ordered, _SHOWN))) + more


def live_routes(run: DryRun, database: DryDatabase) -> Iterator[Route]:
    """The routes that take part in matching."""
    return (route for route in database.routes.values() if is_live(route.lifetime, run.now))


def _is_certain(remark: Remark, run: DryRun) -> bool:
    """Return False if it may not be so: applications may create services."""
    if remark.lint is not Lint.LOCAL_SERVICE_ABSENT:
        return True
    needs_identity = remark.route.broker_instance is not None
    return all(database.is_known and (database.is_identified or not needs_identity) for database in run.users)


def _renewed(database: DryDatabase) -> Iterator[Diagnostic]:
    for name, statement in database.statements.items():
        if statement.properties.lifetime is not None:
            problem = f"the LIFETIME of [{name}] starts again whenever the script runs, which is at every start"
            hint = "give it with ALTER ROUTE to the running instance, or let the route stay until it is dropped"
            yield concern(database, Lint.LIFETIME_RENEWED, problem, hint, statement, part="LIFETIME")


def _missed_drops(database: DryDatabase) -> Iterator[Diagnostic]:
    """DROP ROUTE of a name that is there in another case: a declared DROP that finds nothing is silent."""
    if not database.missed_drops:
        return
    spelled = {name.casefold(): name for name in database.routes}
    for statement in database.missed_drops:
        other = spelled.get(statement.name.casefold())
        if other is not None and other != statement.name:
            problem = f"DROP ROUTE finds no {statement.name!r}, and [{other}] stays: they differ in case"
            yield concern(database, Lint.NAMES_DIFFER_IN_CASE, problem, f"write [{other}]", statement)


def _transport_names(run: DryRun, database: DryDatabase) -> Iterator[Diagnostic]:
    """Yield services that TRANSPORT cannot find: of a database that uses it, and those with names like an address."""
    uses_transport = any(route.address == TRANSPORT for route in live_routes(run, database))
    for service in sorted(database.rows.services):
        if transport_address(service) is not None:
            continue
        statement = database.service_statements.get(service)
        hint = "name it tcp://host:4022/Name, with an address of this instance"
        if service.casefold().startswith("tcp:"):
            problem = f"{service!r} looks as if it began with an address, and TRANSPORT finds none in it"
            yield concern(database, Lint.NO_TRANSPORT_ADDRESS, problem, hint, statement)
        elif uses_transport:
            problem = f"this database sends by TRANSPORT, and an answer to {service!r} by TRANSPORT finds no address"
            hint += ", or give the instance that answers it a route to it"
            yield concern(database, Lint.NO_TRANSPORT_ADDRESS, problem, hint, statement)


def _undeclared_contracts(database: DryDatabase) -> Iterator[Diagnostic]:
    """Contracts that services name and nothing has made, where contracts are made at all."""
    if not database.contracts:
        return
    known = database.contracts | CONTRACT_NAMES
    for name, service in sorted(database.rows.services.items()):
        for contract in sorted(service.contracts - known):
            problem = f"{name!r} names the contract {contract!r}, which no statement makes: it is not checked"
            near = get_close_matches(contract, sorted(database.contracts), n=1)
            hint = f"write [{near[0]}], or CREATE CONTRACT [{contract}]" if near else f"CREATE CONTRACT [{contract}]"
            statement = database.service_statements.get(name)
            yield concern(database, Lint.UNDECLARED_CONTRACT, problem, hint, statement)


def _unsealable(run: DryRun, database: DryDatabase) -> Iterator[Diagnostic]:
    """Yield the bindings to principals that no certificate of the database's peers proves."""
    if not database.rows.bindings:
        return
    with suppress(SettingError):  # reported for itself
        known = credentials_of(run.settings, database.name).peers
        for binding in database.rows.bindings.values():
            principal = parse_principal(binding.remote_principal)
            if known.named(principal, run.now.timestamp()) is None:
                missing = known.missing(principal, run.now.timestamp())
                problem = f"dialogs with {binding.remote_service_name!r} cannot be sealed: {missing}"
                path: KeyPath = ("databases", database.name, "peers")
                hint = f"add it to {dotted(path)}"
                yield concern(database, Lint.UNKNOWN_CERTIFICATE, problem, hint, path)


def _exposed_services(run: DryRun) -> Iterator[Diagnostic]:
    """
    Yield a diagnostic if msdb's route of last resort to LOCAL opens services to others that no route there names.

    Where peers show certificates, no peer sends to a service without a GRANT that names it.
    """
    if run.settings.endpoint.authentication == "certificate":
        return
    routes = list(live_routes(run, run.msdb))
    door = next((one for one in routes if one.remote_service_name is None and one.address == LOCAL), None)
    named = {route.remote_service_name for route in routes}
    exposed = {service for database in run.users for service in database.rows.services} - named
    listen = run.settings.endpoint.listen
    reachable = next((n for n, address in enumerate(listen) if not address.is_loopback), None)
    if door is None or not exposed or reachable is None:
        return
    problem = (
        f"[{door.name}] lets every peer that reaches {listen[reachable]} begin conversations with {shown(exposed)}"
    )
    hint = (
        f"drop it there (USE msdb; DROP ROUTE [{door.name}];) and name with ADDRESS = 'LOCAL' each service that others"
        " may begin with; answers to what begins here need no route in msdb"
    )
    at = run.msdb.statements.get(door.name) or ("endpoint", "listen", reachable)
    yield concern(run.msdb, Lint.EXPOSED_SERVICES, problem, hint, at)


def _forwarding_off(run: DryRun) -> Iterator[Diagnostic]:
    if run.settings.endpoint.message_forwarding:
        return
    out = [route for route in live_routes(run, run.msdb) if leads_out(route)]
    if out:
        more = f" and {len(out) - 1} more routes of msdb lead" if len(out) > 1 else " leads"
        problem = (
            f"[{out[0].name}]{more} out of this instance, and endpoint.message_forwarding is false:"
            " what takes them is dropped (9792)"
        )
        hint = "set message_forwarding = true, or drop them; what begins here needs its route in its own database"
        yield concern(run.msdb, Lint.FORWARDING_OFF, problem, hint, run.msdb.statements.get(out[0].name))


def _unanswerable(run: DryRun, unanswered: Collection[str]) -> Iterator[Diagnostic]:
    """
    Databases that others are meant to reach and that have no route by which an answer could leave.

    Meant to be reached is what a route of msdb names, and on an instance that advertises itself every service that
    msdb lets in, unless another of its databases leads out: then that is what it advertises itself for.
    """
    msdb = list(live_routes(run, run.msdb))
    let_in = {route.remote_service_name for route in msdb if route.address == LOCAL}
    is_closed = {
        database.name: not any(leads_out(route) for route in live_routes(run, database)) for database in run.users
    }
    is_advertised = bool(run.settings.endpoint.advertise) and all(is_closed.values()) and None in let_in
    for database in run.users:
        named = database.rows.services.keys() & let_in
        meant = named or (set(database.rows.services) if is_advertised else set())
        if meant and is_closed[database.name] and database.name not in unanswered:
            why = "msdb lets others in to" if named else "this instance advertises itself to others for"
            problem = f"{why} {shown(meant)}, and no route of its database leads out: no acknowledgement, no answer"
            hint = import_again(database) or (
                f"CREATE ROUTE in {database.name}, for the services that begin the conversations or without a name,"
                " with the address of the next instance towards the sender"
            )
            path = ("databases", database.name)
            yield concern(database, Lint.MISSING_RETURN_ROUTE, problem, hint, path, of_key=True)


def _not_in_force(run: DryRun) -> Iterator[Diagnostic]:
    """Yield what scripts make and the running instance does not have."""
    if socket_problem(run.settings.admin.socket) != ANSWERED:
        return
    for database in run.databases.values():
        there = stored(run.settings, database.name)
        gone = [] if there is None else [what for what, _ in islice(not_there(database, there), _SHOWN + 1)]
        if gone:
            more = " and more" if len(gone) > _SHOWN else ""
            what = f"{', '.join(gone[:_SHOWN])}{more} {'is' if len(gone) == 1 else 'are'}"
            problem = f"{what} in its scripts, and not in the running instance: dropped or revoked there, or made since"
            hint = (
                f"broker reload{run.settings.config_option} runs what has changed, and has the statements for the rest"
            )
            path, _ = scripts_setting(run.settings, database.name)
            yield concern(database, Lint.NOT_IN_FORCE, problem, hint, path)


def _unscripted(run: DryRun) -> Iterator[Diagnostic]:
    """Yield what is in a database and in none of its scripts: what a reload drops on demand, and what it does not."""
    found, more = first_of_each(unscripted(run), _kind, most=_SHOWN)
    for kind, some in groupby(sorted(found, key=_kind), _kind):
        first, *others = some
        what = ", ".join(one.what for one in (first, *others)) + (f" and {more[kind]:,} more" if kind in more else "")
        them = "them" if others else "it"
        problem = f"{what} {'are' if others else 'is'} in no script: removed from one, or made by broker sql"
        option, drops = run.settings.config_option, " ".join(render_statement(one.drop) for one in (first, *others))
        drop = f", {to_run(drops, database=first.database.name, is_scripted=False, option=option)}"
        if first.is_prunable and others:
            drop = (
                f": broker reload{option} --prune, which drops every route, binding and permission that no script names"
            )
        need = "none is" if others else "it is not"
        hint = f"write {them} into a script; or, if {need} needed, drop {them}{drop}"
        path, _ = scripts_setting(run.settings, first.database.name)
        yield concern(first.database, Lint.NOT_IN_SCRIPTS, problem, hint, path)


def _kind(one: Unscripted) -> tuple[str, str]:
    return one.database.name, "prunable" if one.is_prunable else "kept"


# --- permissions ---


def survey_grants(run: DryRun) -> Iterator[Diagnostic]:
    """Yield every diagnostic about the permissions of msdb and of databases."""
    known = {service for database in run.users for service in database.rows.services}
    known |= {route.remote_service_name for route in run.msdb.routes.values() if route.remote_service_name}
    if run.settings.endpoint.authentication == "certificate":
        yield from _lacks(run, known)
    for database in run.databases.values():
        yield from _survey_rules(run, database)
    by_fold = {name.casefold(): name for name in sorted(known)}
    for rule in run.msdb.rows.permissions:
        spelled = by_fold.get(rule.securable.casefold())
        if spelled is not None and rule.securable not in known:
            problem = f"{shown_rule(run.msdb, rule)} is not about {spelled!r}: they differ in case"
            statement = run.msdb.permission_statements.get(rule)
            yield concern(run.msdb, Lint.NAMES_DIFFER_IN_CASE, problem, f"write [{spelled}]", statement)


def _survey_rules(run: DryRun, database: DryDatabase) -> Iterator[Diagnostic]:
    """Yield the rules of one database that do nothing, or too much."""
    is_msdb, rules = database is run.msdb, database.rows.permissions
    why, remedy = "peer: endpoint.authentication is none", 'set authentication = "certificate"'
    if not is_msdb:
        setting = dotted(("databases", database.name, "certificate"))
        why, remedy = f"sender: {setting} is not set, so no dialog here is sealed", f"set {setting}"
    denied = [rule for rule in rules if rule.state is PermissionState.DENY]
    grants = grants_of(run.settings, rules, database.name)
    for rule in rules:
        lint = Lint.GRANT_UNUSED
        if not grants.is_default_deny and rule.principal.kind is not PrincipalKind.PUBLIC:
            problem, hint = f"{shown_rule(database, rule)} applies to no {why}, and all are public", remedy
            if not grants.is_for_all(rule.permission, rule.securable):
                to_all = replace(rule, principal=parse_principal(PUBLIC), state=PermissionState.GRANT)
                problem += " and are refused"
                hint += f", or USE {render_name(database.name)}; {shown_rule(database, to_all)}"
        elif rule.state is PermissionState.GRANT and (deny := _overruled_by(rule, denied)) is not None:
            problem = f"{shown_rule(database, rule)} permits nothing: {shown_rule(database, deny)} wins"
            hint = "REVOKE one of the two"
        elif is_msdb and grants.is_default_deny and _is_for_all(rule):
            lint = Lint.GRANT_TO_ALL
            problem = f"{shown_rule(database, rule)} lets every peer send to every service, whatever name it proves"
            hint = "name the principals, or the services that all may send to"
        else:
            continue
        statement = database.permission_statements.get(rule)
        yield concern(database, lint, problem, hint, statement)


def _lacks(run: DryRun, services: Collection[str]) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each permission that is granted to no principal; `services` are those it may be for."""
    grants, endpoint = grants_of(run.settings, run.msdb.rows.permissions), run.settings.endpoint
    own = {who.name for who in holders((str(endpoint.certificate),) if endpoint.certificate else ())}
    named = (one.principal for one in run.msdb.rows.permissions if one.principal.kind is PrincipalKind.SUBJECT)
    known = {one.text for one in named if ANY not in one.text} | {who.name for who in holders(endpoint.peers)}
    peers = sorted(known - own) or ["PRINCIPAL"]
    for permission, (lint, problem) in _LACK.items():
        if grants.has_granted(permission):
            continue
        of_send = sorted(services) or ["SERVICE"]
        securables = [run.settings.instance.name] if permission is Permission.CONNECT else of_send
        pairs = [(securable, peer) for securable in securables for peer in peers]
        statements = (render_rule(PermissionState.GRANT, permission, *pair) for pair in pairs[:_GRANTS_MAX])
        more = f"; and {len(pairs) - _GRANTS_MAX:,} more" if len(pairs) > _GRANTS_MAX else ""
        hint = f"USE msdb; {'; '.join(statements)}{more}"
        yield concern(run.msdb, lint, problem, hint, ("endpoint", "authentication"))


def _overruled_by(rule: PermissionRule, denied: list[PermissionRule]) -> PermissionRule | None:
    """The DENY that is about all that this rule is about; only what is certain counts."""
    for deny in denied:
        is_wider = deny.securable == rule.securable or (
            ANY not in rule.securable and covers_text(deny.securable, rule.securable)
        )
        same_who = deny.principal == rule.principal or deny.principal.kind is PrincipalKind.PUBLIC
        if deny.permission is rule.permission and same_who and (is_wider or deny.securable == ANY):
            return deny
    return None


def _is_for_all(rule: PermissionRule) -> bool:
    is_grant = rule.state is PermissionState.GRANT and rule.permission is Permission.SEND
    return is_grant and rule.principal.kind is PrincipalKind.PUBLIC and rule.securable == ANY


# --- service names that differ in case ---


def differing_names(runs: Sequence[DryRun]) -> Iterator[Diagnostic]:
    """Each name that differs from another one, once for every instance that has it; hosted ones come first."""
    hosted = (
        (name, database, database.service_statements.get(name))
        for run in runs
        for database in run.users
        for name in sorted(database.rows.services)
    )
    named = (
        (route.remote_service_name, database, database.statements.get(route.name))
        for run in runs
        for database in run.databases.values()
        for route in live_routes(run, database)
        if route.remote_service_name is not None
    )
    right: dict[str, tuple[str, DryDatabase, Statement | None]] = {}
    seen: set[tuple[int, str]] = set()
    for name, database, statement in chain(hosted, named):
        other, home, made = right.setdefault(name.casefold(), (name, database, statement))
        key = id(database.settings), name
        if other != name and key not in seen:
            seen.add(key)
            first = concern(home, Lint.NAMES_DIFFER_IN_CASE, "", "", made)
            where = f"{first.span.source}:{first.span.line}:{first.span.column}" if first.span else first.subject
            problem = (
                f"{name!r} here and {other!r} at {where} differ only in case, so they are two services and never match"
                " each other"
            )
            hint = "write both the same, unless two services are meant"
            yield concern(database, Lint.NAMES_DIFFER_IN_CASE, problem, hint, statement)
