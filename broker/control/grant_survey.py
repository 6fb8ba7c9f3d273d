"""
What the permissions of msdb say that is legal and probably not meant, or leave out.

Grants are for peers who prove who they are. So an authenticating endpoint without any lets nobody in, and rules about
certificates where nobody shows one do nothing. What a rule is about is compared with the routes of msdb and the
services that are here; a service that neither knows may still be meant, so only a name that almost fits is remarked on.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.control.concern import Diagnostic, of_setting, of_statement
from broker.control.permission import grants_of
from broker.control.rehearsal import Rehearsal
from broker.routing.lint import Lint
from broker.security.grants import Permission, PermissionRule, PermissionState, render_rule
from broker.security.principal import ANY, PrincipalKind, covers_text

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


def survey_grants(rehearsal: Rehearsal) -> Iterator[Diagnostic]:
    """Everything to tell about the permissions of msdb."""
    rules = list(rehearsal.msdb.permissions.values())
    is_authenticating = rehearsal.settings.endpoint.authentication == "certificate"
    if is_authenticating:
        yield from _lacks(rehearsal)
    known = {service for played in rehearsal.users for service in played.services}
    known |= {route.remote_service_name for route in rehearsal.msdb.routes.values() if route.remote_service_name}
    by_fold = {name.casefold(): name for name in sorted(known)}
    denied = [rule for rule in rules if rule.state is PermissionState.DENY]
    for rule in rules:
        if not is_authenticating and rule.principal.kind is not PrincipalKind.PUBLIC:
            problem = f"{_told(rehearsal, rule)} is about nobody: endpoint.authentication is none, so all are public"
            yield _of_rule(rehearsal, Lint.GRANT_UNUSED, problem, 'set authentication = "certificate"', rule)
        elif rule.state is PermissionState.GRANT and (deny := _overruled_by(rule, denied)) is not None:
            problem = f"{_told(rehearsal, rule)} permits nothing: {_told(rehearsal, deny)} wins"
            yield _of_rule(rehearsal, Lint.GRANT_UNUSED, problem, "REVOKE one of the two", rule)
        elif is_authenticating and _is_for_all(rule):
            problem = f"{_told(rehearsal, rule)} lets every peer send to every service, whoever it proves to be"
            hint = "name the principals, or the services that all may send to"
            yield _of_rule(rehearsal, Lint.GRANT_TO_ALL, problem, hint, rule)
        spelled = by_fold.get(rule.securable.casefold())
        if spelled is not None and rule.securable not in known:
            problem = f"{_told(rehearsal, rule)} is not about {spelled!r}: they differ in case"
            yield _of_rule(rehearsal, Lint.NAMES_DIFFER_IN_CASE, problem, f"write [{spelled}]", rule)


def _lacks(rehearsal: Rehearsal) -> Iterator[Diagnostic]:
    """Permissions that nobody has."""
    grants = grants_of(rehearsal.settings, rehearsal.msdb.permissions.values())
    for permission, (lint, problem) in _LACK.items():
        if grants.has_granted(permission):
            continue
        securable = rehearsal.settings.instance.name if permission is Permission.CONNECT else "SERVICE"
        hint = f"USE msdb; {render_rule(PermissionState.GRANT, permission, securable, 'PRINCIPAL')}"
        at = (rehearsal, rehearsal.msdb)
        yield of_setting(lint, problem, hint, at=at, path=("endpoint", "authentication"))


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


def _told(rehearsal: Rehearsal, rule: PermissionRule) -> str:
    securable = rehearsal.settings.instance.name if rule.permission is Permission.CONNECT else rule.securable
    return render_rule(rule.state, rule.permission, securable, rule.principal.text)


def _of_rule(rehearsal: Rehearsal, lint: Lint, problem: str, hint: str, rule: PermissionRule) -> Diagnostic:
    statement = rehearsal.msdb.permission_statements.get(rule)
    return of_statement(lint, problem, hint, at=(rehearsal, rehearsal.msdb), statement=statement)
