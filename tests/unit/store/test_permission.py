"""Permissions and bindings in a file, also those that another program has put there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from broker.security.grants import Permission, PermissionRule, PermissionState, RemoteServiceBinding
from broker.security.principal import parse_principal
from broker.store.sqlite import database
from broker.store.sqlite import metadata as permission


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(database.open_store(":memory:")) as db:
        yield db


def rule(state: PermissionState, principal: str = "a", service: str = "s") -> PermissionRule:
    return PermissionRule(Permission.SEND, service, parse_principal(principal), state)


def test_there_is_one_rule_about_the_same(db: sqlite3.Connection) -> None:
    for state in (PermissionState.GRANT, PermissionState.DENY):
        permission.put_permission(db, rule(state))
    permission.put_permission(db, rule(PermissionState.GRANT, "b"))

    assert ((rule(PermissionState.DENY), rule(PermissionState.GRANT, "b")), []) == permission.permissions(db)
    assert PermissionState.DENY is permission.find_state(db, rule(PermissionState.GRANT))
    assert permission.find_state(db, rule(PermissionState.GRANT, "c")) is None


def test_rule_is_dropped_by_what_it_is_about(db: sqlite3.Connection) -> None:
    permission.put_permission(db, rule(PermissionState.DENY))
    permission.put_permission(db, rule(PermissionState.GRANT, "b"))

    permission.drop_permission(db, rule(PermissionState.GRANT))

    assert ((rule(PermissionState.GRANT, "b"),), []) == permission.permissions(db)


def test_rules_go_with_their_service_and_those_of_connect_stay(db: sqlite3.Connection) -> None:
    connect = PermissionRule(Permission.CONNECT, "s", parse_principal("a"), PermissionState.GRANT)
    for one in (
        connect,
        rule(PermissionState.GRANT),
        rule(PermissionState.DENY, "b"),
        rule(PermissionState.GRANT, service="s*"),
    ):
        permission.put_permission(db, one)

    permission.drop_permissions_on(db, "s")

    assert {connect, rule(PermissionState.GRANT, service="s*")} == set(permission.permissions(db)[0])


def test_what_cannot_be_read_grants_nothing_and_denies_everybody(db: sqlite3.Connection) -> None:
    db.executemany(
        "INSERT INTO broker_permission (permission, securable, principal, state) VALUES ('SEND', 's', ?, ?)",
        [("sha256:1", "GRANT"), ("CN=a,b", "DENY")],
    )

    rules, unreadable = permission.permissions(db)

    assert (rule(PermissionState.DENY, "public"),) == rules
    assert ["CN=a,b", "sha256:1"] == sorted(unreadable)


def test_binding_is_found_by_name_and_by_service(db: sqlite3.Connection) -> None:
    first, second = RemoteServiceBinding("b", "//a", "a"), RemoteServiceBinding("c", "//c", "c", is_anonymous_on=True)
    changed = RemoteServiceBinding("b", "//b", "x")
    for one in (first, second, changed):
        permission.put_binding(db, one)

    assert {"b": changed, "c": second} == permission.bindings(db)
    assert (changed, second) == (permission.find_binding(db, "b"), permission.find_binding_of(db, "//c"))
    assert (None, None) == (permission.find_binding(db, "x"), permission.find_binding_of(db, "//a"))


def test_binding_that_is_dropped_is_gone(db: sqlite3.Connection) -> None:
    permission.put_binding(db, RemoteServiceBinding("b", "//a", "a"))

    permission.drop_binding(db, "b")

    assert {} == permission.bindings(db)
