"""
Permissions and remote service bindings as a database keeps them.

A function that writes is called inside a transaction of its caller's. What another program has put there may be no
rule: a GRANT that cannot be read grants nothing, and a DENY that cannot be read denies everybody.
"""

from __future__ import annotations

import sqlite3

from broker.security.binding import RemoteServiceBinding
from broker.security.grants import Permission, PermissionRule, PermissionState
from broker.security.principal import PUBLIC, PrincipalError, parse_principal

_BINDINGS = "SELECT name, remote_service_name, remote_principal, is_anonymous_on FROM broker_remote_service_binding"


def permissions(db: sqlite3.Connection) -> tuple[tuple[PermissionRule, ...], list[str]]:
    """The rules in the order of their principals, and the principals that cannot be read."""
    rules: list[PermissionRule] = []
    unreadable: list[str] = []
    query = "SELECT permission, securable, principal, state FROM broker_permission ORDER BY principal, securable"
    for permission, securable, text, state in db.execute(query):
        try:
            principal = parse_principal(text)
        except PrincipalError:
            unreadable.append(text)
            if state == PermissionState.GRANT:
                continue
            principal = parse_principal(PUBLIC)
        rules.append(PermissionRule(Permission(permission), securable, principal, PermissionState(state)))
    return tuple(rules), unreadable


def find_state(db: sqlite3.Connection, rule: PermissionRule) -> PermissionState | None:
    """What is stored about the permission, securable and principal of a rule."""
    row = db.execute(
        "SELECT state FROM broker_permission WHERE permission = ? AND securable = ? AND principal = ?",
        (str(rule.permission), rule.securable, rule.principal.text),
    ).fetchone()
    return None if row is None else PermissionState(row[0])


def put_permission(db: sqlite3.Connection, rule: PermissionRule) -> None:
    """Store a rule in the place of the one about the same."""
    db.execute(
        "INSERT INTO broker_permission (permission, securable, principal, state) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (permission, securable, principal) DO UPDATE SET state = excluded.state",
        (str(rule.permission), rule.securable, rule.principal.text, str(rule.state)),
    )


def drop_permission(db: sqlite3.Connection, rule: PermissionRule) -> None:
    """Remove what is stored about the same as this rule."""
    db.execute(
        "DELETE FROM broker_permission WHERE permission = ? AND securable = ? AND principal = ?",
        (str(rule.permission), rule.securable, rule.principal.text),
    )


def drop_permissions_on(db: sqlite3.Connection, service: str) -> None:
    """Remove what is stored about a service that is no more; patterns stay."""
    db.execute("DELETE FROM broker_permission WHERE permission = 'SEND' AND securable = ?", (service,))


# --- remote service bindings ---


def bindings(db: sqlite3.Connection) -> dict[str, RemoteServiceBinding]:
    """The bindings by name."""
    return {row[0]: _binding(row) for row in db.execute(_BINDINGS)}


def find_binding(db: sqlite3.Connection, name: str) -> RemoteServiceBinding | None:
    """The binding of this name."""
    row = db.execute(f"{_BINDINGS} WHERE name = ?", (name,)).fetchone()
    return None if row is None else _binding(row)


def find_binding_of(db: sqlite3.Connection, remote_service_name: str) -> RemoteServiceBinding | None:
    """The binding of a far service. Cost: one look-up in an index."""
    row = db.execute(f"{_BINDINGS} WHERE remote_service_name = ?", (remote_service_name,)).fetchone()
    return None if row is None else _binding(row)


def put_binding(db: sqlite3.Connection, binding: RemoteServiceBinding) -> None:
    """Make a binding, or change the one of this name; no other is of the same service."""
    db.execute(
        "INSERT INTO broker_remote_service_binding (name, remote_service_name, remote_principal, is_anonymous_on)"
        " VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET remote_service_name = excluded.remote_service_name,"
        " remote_principal = excluded.remote_principal, is_anonymous_on = excluded.is_anonymous_on",
        (binding.name, binding.remote_service_name, binding.remote_principal, binding.is_anonymous_on),
    )


def drop_binding(db: sqlite3.Connection, name: str) -> None:
    """Remove a binding."""
    db.execute("DELETE FROM broker_remote_service_binding WHERE name = ?", (name,))


def _binding(row: tuple[str, str, str, int]) -> RemoteServiceBinding:
    name, service, principal, is_anonymous_on = row
    return RemoteServiceBinding(name, service, principal, bool(is_anonymous_on))
