"""
Who may do what, statement by statement: GRANT, DENY and REVOKE; and remote service bindings.

SEND is about a service: in msdb about what neighbours may bring to this instance, wherever the service is; in any
other database about its own services and who may begin conversations with them. CONNECT is about the one endpoint of
the instance, so it is said in msdb. Importing this module adds its statements to `carry_out`.

Source: T-SQL documentation, "GRANT Service Broker Permissions", "GRANT Endpoint Permissions", "CREATE REMOTE SERVICE
BINDING" and their kin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from broker.control.effect import Session, carry_out, expect_absent, expect_present, may_drop
from broker.ddl.statements import (
    AlterRemoteServiceBinding,
    ChangePermission,
    CreateRemoteServiceBinding,
    DenyPermission,
    DropRemoteServiceBinding,
    RevokePermission,
)
from broker.errors import DuplicateNameError, StatementError, UnknownNameError
from broker.routing.route import PropertyError
from broker.security.binding import RemoteServiceBinding
from broker.security.grants import Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import ANY, PrincipalKind, parse_principal
from broker.store import metadata, permission

if TYPE_CHECKING:
    from broker.control.config import Settings

MSDB = "msdb"
BINDING = "remote service binding"


def grants_of(settings: Settings, rules: Iterable[PermissionRule]) -> Grants:
    """What the rules of msdb mean for neighbours: where they prove who they are, what is not granted is denied."""
    is_authenticating = settings.endpoint.authentication == "certificate"
    return Grants(rules, is_default_deny=is_authenticating, endpoint=settings.instance.name)


# --- the rules, for whoever only looks ahead as well --------------------------------------------------------


def rules_of(
    statement: ChangePermission, *, database: str, endpoint: str, services: Collection[str]
) -> Iterator[PermissionRule]:
    """
    What a statement says, one rule for each of its principals; REVOKE takes away what they are about.

    Args:
        statement: As read.
        database: Where it is said.
        endpoint: The name of the endpoint.
        services: Those of the database.

    Raises:
        StatementError: 4621 CONNECT outside msdb; 15151 an endpoint or a service that does not exist.
    """
    if statement.permission is Permission.CONNECT:
        securable = _endpoint(statement.securable, database, endpoint)
    else:
        securable = statement.securable
        is_gone = isinstance(statement, RevokePermission)
        if database != MSDB and ANY not in securable and securable not in services and not is_gone:
            raise _unknown_service(securable, services)
    state = PermissionState.DENY if isinstance(statement, DenyPermission) else PermissionState.GRANT
    for text in statement.principals:
        yield PermissionRule(statement.permission, securable, parse_principal(text), state)


def _endpoint(name: str, database: str, endpoint: str) -> str:
    if database != MSDB:
        problem = "CONNECT is about the endpoint of the whole instance: say it in msdb (USE msdb)"
        raise StatementError(4621, problem)
    if name != ANY and name.casefold() != endpoint.casefold():
        problem = f"the endpoint {name!r} does not exist; it is called [{endpoint}] here, and [{ANY}] anywhere"
        raise UnknownNameError(15151, problem)
    return ANY


def _unknown_service(name: str, services: Collection[str]) -> UnknownNameError:
    from difflib import get_close_matches  # noqa: PLC0415 - for those who mistype; a slow import for all others

    near = get_close_matches(name, sorted(services), n=1)
    hint = f"did you mean [{near[0]}]?" if near else f"CREATE SERVICE [{name}] first"
    return UnknownNameError(15151, f"the service {name!r} does not exist in this database; {hint}")


def next_binding(
    statement: CreateRemoteServiceBinding | AlterRemoteServiceBinding,
    old: RemoteServiceBinding | None,
    others: Iterable[RemoteServiceBinding],
) -> RemoteServiceBinding:
    """
    The binding after CREATE, or ALTER of `old`.

    Raises:
        StatementError: 15151 a principal that stands for several; 2714 a service that has a binding already.
    """
    if isinstance(statement, CreateRemoteServiceBinding):
        service, user, is_anonymous_on = statement.remote_service_name, statement.user, statement.anonymous
    else:
        assert old is not None, "ALTER of nothing"
        service = old.remote_service_name
        user = old.remote_principal if statement.user is None else statement.user
        is_anonymous_on = old.is_anonymous_on if statement.anonymous is None else statement.anonymous
    principal = parse_principal(user)
    if principal.kind is PrincipalKind.PUBLIC or principal.is_pattern:
        problem = f"the principal {user!r} stands for several, and a conversation is sealed to one: write its name"
        raise PropertyError(15151, problem, properties=("USER",))
    for other in others:
        if other.name != statement.name and other.remote_service_name == service:
            raise same_service(other)
    return RemoteServiceBinding(statement.name, service, principal.text, is_anonymous_on)


def same_service(other: RemoteServiceBinding) -> DuplicateNameError:
    """The error for a second binding of one service."""
    problem = f"the service {other.remote_service_name!r} is bound already by [{other.name}]; alter or drop that one"
    return DuplicateNameError(2714, problem)


# --- carried out --------------------------------------------------------------------------------------------


@carry_out.register(ChangePermission)
def _(statement: ChangePermission, session: Session) -> None:
    is_there = metadata.find_service(session.db, statement.securable) is not None
    services = {statement.securable} if is_there else metadata.services(session.db).keys()  # all of them for a hint
    for rule in rules_of(statement, database=session.database, endpoint=session.endpoint, services=services):
        if isinstance(statement, RevokePermission):
            permission.drop_permission(session.db, rule)
            done = "revoked"
        else:
            old = permission.find_state(session.db, rule)
            permission.put_permission(session.db, rule)
            done = "unchanged" if old is rule.state else "granted" if rule.state is PermissionState.GRANT else "denied"
        securable = "the endpoint" if rule.permission is Permission.CONNECT else rule.securable
        session.messages.add(f"{rule.permission} on {securable} to", rule.principal.text, done)


@carry_out.register(CreateRemoteServiceBinding)
def _(statement: CreateRemoteServiceBinding, session: Session) -> None:
    exists = permission.find_binding(session.db, statement.name) is not None
    expect_absent(BINDING, statement.name, session, exists=exists)
    _put_binding(next_binding(statement, None, ()), session)
    session.messages.add(BINDING, statement.name, "replaced" if exists else "created")


@carry_out.register(AlterRemoteServiceBinding)
def _(statement: AlterRemoteServiceBinding, session: Session) -> None:
    old = expect_present(BINDING, statement.name, permission.find_binding(session.db, statement.name))
    _put_binding(next_binding(statement, old, ()), session)
    session.messages.add(BINDING, statement.name, "altered")


@carry_out.register(DropRemoteServiceBinding)
def _(statement: DropRemoteServiceBinding, session: Session) -> None:
    exists = permission.find_binding(session.db, statement.name) is not None
    if may_drop(BINDING, statement.name, session, exists=exists):
        permission.drop_binding(session.db, statement.name)
    session.messages.add(BINDING, statement.name, "dropped")


def _put_binding(binding: RemoteServiceBinding, session: Session) -> None:
    other = permission.find_binding_of(session.db, binding.remote_service_name)
    if other is not None and other.name != binding.name:
        raise same_service(other)
    permission.put_binding(session.db, binding)
