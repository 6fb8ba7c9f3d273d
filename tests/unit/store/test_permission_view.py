"""The views of permissions and remote service bindings, over what statements have stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.observe.query import SELF_MADE, SystemViews
from broker.observe.views import MEMORY_VIEWS, MSDB_ROUTES
from broker.security.grants import Permission, PermissionRule, PermissionState, RemoteServiceBinding
from broker.security.principal import parse_principal
from broker.store.sqlite.database import open_store
from broker.store.sqlite.metadata import put_binding, put_permission, put_queue, put_service, queues

OWN = {*SELF_MADE, MSDB_ROUTES}
Ask = Callable[..., list[tuple[object, ...]]]


def rule(
    permission: Permission, securable: str, principal: str, state: PermissionState = PermissionState.GRANT
) -> PermissionRule:
    return PermissionRule(permission, securable, parse_principal(principal), state)


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """The rows of a statement over msdb and a database."""
    paths = {"msdb": tmp_path / "msdb.db", "orders": tmp_path / "orders.db"}
    with closing(open_store(paths["msdb"])) as msdb, closing(open_store(paths["orders"])) as orders:
        put_permission(msdb, rule(Permission.CONNECT, "*", "CN=a"))
        put_permission(msdb, rule(Permission.SEND, "//far", "public", PermissionState.DENY))
        put_queue(orders, "Q", is_receive_enabled=True)
        put_service(orders, "S", queues(orders)["Q"].queue_id, frozenset())
        put_permission(orders, rule(Permission.SEND, "S", "b"))
        put_permission(orders, rule(Permission.SEND, "S*", "b", PermissionState.DENY))
        put_binding(orders, RemoteServiceBinding("b", "//far", "CN=far", is_anonymous_on=True))
        snapshots = {name: tuple for name in MEMORY_VIEWS if name not in OWN}
        views = SystemViews(databases=paths, snapshots=snapshots, transmission_statuses=dict)
        yield lambda statement, database="orders": views.select(statement, database=database).rows


@pytest.mark.parametrize("database", ["msdb", "orders"])
def test_who_may_connect_is_of_the_instance(ask: Ask, database: str) -> None:
    rows = ask("SELECT * FROM sys.server_permissions", database)

    assert [(105, "ENDPOINT", 1, 0, None, None, "CO", "CONNECT", "G", "GRANT", "*", "CN=a")] == rows


def test_who_may_send_is_of_each_database(ask: Ask) -> None:
    columns = "class, class_desc, major_id, type, permission_name, state, state_desc, securable_name, grantee_name"
    query = f"SELECT {columns} FROM sys.database_permissions ORDER BY securable_name"

    assert [
        (17, "SERVICE", 1, "SN", "SEND", "G", "GRANT", "S", "b"),
        (17, "SERVICE", None, "SN", "SEND", "D", "DENY", "S*", "b"),
    ] == ask(query)
    assert [(17, "SERVICE", None, "SN", "SEND", "D", "DENY", "//far", "public")] == ask(query, "msdb")


def test_permission_joins_its_service(ask: Ask) -> None:
    query = "SELECT s.name FROM sys.database_permissions p JOIN sys.services s ON s.service_id = p.major_id"

    assert [("S",)] == ask(query)


def test_bindings_are_shown(ask: Ask) -> None:
    assert [("b", 1, None, "//far", None, None, 1, "CN=far")] == ask("SELECT * FROM sys.remote_service_bindings")
    assert [] == ask("SELECT * FROM sys.remote_service_bindings", "msdb")


@pytest.mark.parametrize("view", ["server_permissions", "database_permissions", "remote_service_bindings"])
def test_rows_can_be_counted(ask: Ask, view: str) -> None:
    assert 1 == len(ask(f"SELECT count(*) FROM sys.{view}"))
