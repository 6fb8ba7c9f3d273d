"""GRANT, DENY, REVOKE and remote service bindings, carried out and rehearsed: what is stored, and every mistake."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.catalog.catalog import MSDB, Catalog, Database
from broker.catalog.dry_run import begin_to_play, play
from broker.catalog.execute import execute
from broker.catalog.handlers import grants_of
from broker.config.settings import Settings
from broker.ddl.parser import parse_script
from broker.errors import StatementError
from broker.security.grants import Permission, PermissionRule, PermissionState, RemoteServiceBinding, render_rule
from broker.security.principal import NOBODY, parse_principal
from broker.store.sqlite import database
from broker.store.sqlite import metadata as permission

NOW = datetime(2025, 3, 1, tzinfo=UTC)
SERVICE = "CREATE QUEUE Q; CREATE SERVICE [//shop/Orders] ON QUEUE Q; "


class World:
    """A catalog of msdb and the database `orders`, of an endpoint called gw."""

    def __init__(self, msdb: sqlite3.Connection, orders: sqlite3.Connection) -> None:
        self.orders = orders
        self.catalog = Catalog(
            {
                MSDB: Database(MSDB, bytes(16), None, lambda: nullcontext(msdb)),
                "orders": Database("orders", bytes(15) + b"o", None, lambda: nullcontext(orders)),
            },
            lambda: None,
            "gw",
        )

    async def run(self, script: str, *, database: str = MSDB, is_declared: bool = False) -> list[str]:
        return await execute(self.catalog, parse_script(script), database=database, is_declared=is_declared)

    async def refusal(self, script: str, *, database: str = MSDB) -> StatementError:
        with pytest.raises(StatementError) as caught:
            await self.run(script, database=database)
        return caught.value

    def rules(self, database: str = MSDB) -> set[str]:
        return {
            render_rule(rule.state, rule.permission, rule.securable, rule.principal.text)
            for rule in self.catalog.databases[database].rows.permissions
        }


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with closing(database.open_store(":memory:")) as msdb, closing(database.open_store(":memory:")) as orders:
        world = World(msdb, orders)
        await world.catalog.load()
        yield world


async def test_what_is_said_of_a_principal_takes_the_place_of_what_was_said_before(world: World) -> None:
    script = "GRANT SEND ON SERVICE::[//shop/*] TO [cn = orders], public; DENY SEND ON SERVICE::[//shop/*] TO public;"

    told = await world.run(script + "GRANT CONNECT ON ENDPOINT::GW TO orders")

    assert [
        "SEND on //shop/* to CN=orders granted",
        "SEND on //shop/* to public granted",
        "SEND on //shop/* to public denied",
        "CONNECT on the endpoint to orders granted",
    ] == told
    assert {
        "GRANT SEND ON SERVICE::[//shop/*] TO [CN=orders]",
        "DENY SEND ON SERVICE::[//shop/*] TO [public]",
        "GRANT CONNECT ON ENDPOINT::[*] TO [orders]",
    } == world.rules()


async def test_what_is_revoked_is_gone_in_whatever_spelling_and_twice_is_no_mistake(world: World) -> None:
    await world.run("GRANT SEND ON SERVICE::s TO [CN=a]; DENY CONNECT ON ENDPOINT::gw TO public")

    told = await world.run(
        "REVOKE SEND ON SERVICE::s FROM [cn=a]; REVOKE CONNECT ON ENDPOINT::[*] TO [PUBLIC] CASCADE;"
    )
    again = await world.run("REVOKE SEND ON SERVICE::s FROM [CN=a]")

    assert set() == world.rules()
    assert ["SEND on s to CN=a revoked", "CONNECT on the endpoint to public revoked"] == told
    assert ["SEND on s to CN=a revoked"] == again


async def test_same_script_may_run_at_every_start(world: World) -> None:
    script = (
        "GRANT SEND ON SERVICE::s TO a; USE orders; "
        + SERVICE
        + "GRANT SEND ON SERVICE::[//shop/Orders] TO [public]; "
        + "CREATE REMOTE SERVICE BINDING b TO SERVICE '//far' WITH USER = far; DROP REMOTE SERVICE BINDING gone"
    )

    first = await world.run(script, is_declared=True)
    before = world.rules(), world.rules("orders"), world.catalog.databases["orders"].rows.bindings
    second = await world.run(script, is_declared=True)

    assert before == (world.rules(), world.rules("orders"), world.catalog.databases["orders"].rows.bindings)
    assert ("SEND on s to a granted", "SEND on s to a unchanged") == (first[0], second[0])
    assert ("remote service binding b created", "remote service binding b replaced") == (first[-2], second[-2])


@pytest.mark.parametrize(
    ("where", "script", "number", "problem"),
    [
        (MSDB, "GRANT CONNECT ON ENDPOINT::other TO a", 15151, "it is called [gw] here"),
        ("orders", "GRANT CONNECT ON ENDPOINT::gw TO a", 4621, "say it in msdb"),
        ("orders", "GRANT SEND ON SERVICE::[//shop/Order] TO a", 15151, "did you mean [//shop/Orders]?"),
        ("orders", "DENY SEND ON SERVICE::[far] TO a", 15151, "CREATE SERVICE [far] first"),
        ("orders", "CREATE REMOTE SERVICE BINDING b TO SERVICE '//f' WITH USER = public", 15151, "stands for several"),
        ("orders", "CREATE REMOTE SERVICE BINDING b TO SERVICE '//f' WITH USER = [C*]", 15151, "stands for several"),
        (
            "orders",
            "CREATE REMOTE SERVICE BINDING had TO SERVICE '//f' WITH USER = a",
            2714,
            "already a remote service",
        ),
        ("orders", "CREATE REMOTE SERVICE BINDING b TO SERVICE '//had' WITH USER = a", 2714, "bound already by [had]"),
        ("orders", "ALTER REMOTE SERVICE BINDING b WITH USER = a", 15151, "does not exist"),
        ("orders", "DROP REMOTE SERVICE BINDING b", 15151, "does not exist"),
        (MSDB, "CREATE REMOTE SERVICE BINDING b TO SERVICE '//f' WITH USER = a", 15151, "routes and permissions only"),
    ],
)
async def test_mistake_is_refused_and_changes_nothing(
    world: World, where: str, script: str, number: int, problem: str
) -> None:
    await world.run(SERVICE + "CREATE REMOTE SERVICE BINDING had TO SERVICE '//had' WITH USER = had", database="orders")
    before = list(world.orders.iterdump())

    error = await world.refusal(script, database=where)

    assert (number, True) == (error.number, problem in error.problem)
    assert error.span is not None
    assert before == list(world.orders.iterdump())


async def test_service_that_is_dropped_takes_its_permissions_with_it_and_patterns_stay(world: World) -> None:
    grants = "GRANT SEND ON SERVICE::[//shop/Orders] TO a; GRANT SEND ON SERVICE::[//shop/O*] TO a; "
    await world.run(SERVICE + grants, database="orders")

    await world.run("DROP SERVICE [//shop/Orders]", database="orders")

    assert {"GRANT SEND ON SERVICE::[//shop/O*] TO [a]"} == world.rules("orders")


async def test_binding_is_created_altered_and_dropped(world: World) -> None:
    create = "CREATE REMOTE SERVICE BINDING b TO SERVICE '//far' WITH USER = [cn=far], ANONYMOUS = ON"
    await world.run(create, database="orders")
    first = dict(world.catalog.databases["orders"].rows.bindings)
    await world.run("ALTER REMOTE SERVICE BINDING b WITH ANONYMOUS = OFF", database="orders")
    await world.run("ALTER REMOTE SERVICE BINDING b WITH USER = other", database="orders")
    second = dict(world.catalog.databases["orders"].rows.bindings)
    await world.run("DROP REMOTE SERVICE BINDING b", database="orders")

    assert {"b": RemoteServiceBinding("b", "//far", "CN=far", is_anonymous_on=True)} == first
    assert {"b": RemoteServiceBinding("b", "//far", "other")} == second
    assert {} == world.catalog.databases["orders"].rows.bindings


@pytest.mark.parametrize(("authentication", "is_permitted"), [("none", True), ("certificate", False)])
def test_neighbours_who_prove_who_they_are_need_a_grant(authentication: str, *, is_permitted: bool) -> None:
    settings = Settings.read({"endpoint": {"authentication": authentication}, "instance": {"name": "gw"}})

    grants = grants_of(settings, ())

    assert is_permitted == grants.connect(NOBODY).is_permitted == grants.is_open(Permission.SEND)


def test_rehearsal_comes_to_what_the_statements_store(tmp_path: Path) -> None:
    with closing(database.open_store(tmp_path / "orders.db")) as db:
        permission.put_permission(
            db, PermissionRule(Permission.SEND, "x*", parse_principal("a"), PermissionState.GRANT)
        )
        permission.put_binding(db, RemoteServiceBinding("old", "//old", "old"))
    played = begin_to_play("orders", tmp_path / "orders.db", is_known=True, endpoint="gw")

    for statement in parse_script(
        SERVICE
        + "DENY SEND ON SERVICE::[x*] TO a; GRANT SEND ON SERVICE::[//shop/Orders] TO b, c;"
        + "REVOKE SEND ON SERVICE::[//shop/Orders] FROM c; CREATE REMOTE SERVICE BINDING n TO SERVICE '//n' WITH USER=n"
        + "; ALTER REMOTE SERVICE BINDING n WITH ANONYMOUS = ON; DROP REMOTE SERVICE BINDING old"
    ):
        play(played, statement, NOW)

    assert {("DENY", "x*", "a"), ("GRANT", "//shop/Orders", "b")} == {
        (one.state.value, one.securable, one.principal.text) for one in played.permissions.values()
    }
    assert {"n": RemoteServiceBinding("n", "//n", "n", is_anonymous_on=True)} == played.bindings


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("GRANT CONNECT ON ENDPOINT::gw TO a", 4621),
        ("GRANT SEND ON SERVICE::s TO a", 15151),
        ("ALTER REMOTE SERVICE BINDING n WITH USER = a", 15151),
        ("CREATE REMOTE SERVICE BINDING b TO SERVICE '//had' WITH USER = a", 2714),
    ],
)
def test_rehearsal_finds_the_same_mistakes(tmp_path: Path, script: str, number: int) -> None:
    played = begin_to_play("orders", tmp_path / "orders.db", is_known=True, endpoint="gw")
    played.bindings["had"] = RemoteServiceBinding("had", "//had", "had")

    with pytest.raises(StatementError) as caught:
        play(played, parse_script(script)[0], NOW)

    assert number == caught.value.number


def test_rehearsal_forgets_the_permissions_of_a_service_that_is_dropped(tmp_path: Path) -> None:
    played = begin_to_play("orders", tmp_path / "orders.db", is_known=True)

    for statement in parse_script(
        SERVICE + "GRANT SEND ON SERVICE::[//shop/Orders] TO b; DROP SERVICE [//shop/Orders]"
    ):
        play(played, statement, NOW)

    assert {} == played.permissions
