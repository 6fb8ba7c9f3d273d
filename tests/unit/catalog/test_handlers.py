"""Message types, contracts, priorities and options of a database, carried out: what is stored, and every mistake."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.catalog import handlers as effect
from broker.catalog.catalog import MSDB, Catalog, Database, ScriptMessages
from broker.catalog.execute import execute, preview
from broker.catalog.handlers import RouteChanges, Session, carry_out, grants_of
from broker.client.dialog import Dialog, begin_dialog
from broker.config.settings import Settings
from broker.conversation.message_types import SentBy, Validation
from broker.ddl.parser import parse_script, read_script
from broker.ddl.statements import AlterRoute, CreateRoute, DropRoute, Statement
from broker.errors import StatementError
from broker.routing.address import LOCAL
from broker.routing.route import AUTO_CREATED_LOCAL, Route, RouteProperties
from broker.routing.table import RouteChange
from broker.security.grants import Permission, RemoteServiceBinding, render_rule
from broker.security.principal import NOBODY
from broker.store.sqlite import database, metadata
from broker.store.sqlite.metadata import Priority
from tests.support.agreement_errors import CASES, EXISTING
from tests.support.route_errors import Case


class World:
    """A catalog of msdb and the database `orders`, which is `db`."""

    def __init__(self, msdb: sqlite3.Connection, orders: sqlite3.Connection, path: Path) -> None:
        self.db = orders
        self._catalog = Catalog(
            {
                MSDB: Database(MSDB, database.broker_instance(msdb), None, lambda: nullcontext(msdb)),
                "orders": Database("orders", database.broker_instance(orders), path, lambda: nullcontext(orders)),
            },
            lambda: None,
        )

    async def run(self, script: str, *, is_declared: bool = False) -> list[str]:
        return await execute(self._catalog, read_script(script), database="orders", is_declared=is_declared)

    async def preview(self, script: str) -> None:
        await preview(self._catalog, read_script(script), database="orders")

    async def refusal(self, script: str, *, is_declared: bool = False) -> StatementError:
        """The error in which it ends; nothing may be left of it."""
        before = list(self.db.iterdump())
        with pytest.raises(StatementError) as caught:
            await self.run(script, is_declared=is_declared)
        assert before == list(self.db.iterdump())
        return caught.value

    def dialog(self, contract: str, service: str = "Orders") -> Dialog:
        return begin_dialog(self.db, from_service=service, to_service="//far", contract=contract)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    path = tmp_path / "orders.db"
    with closing(database.open_store(":memory:")) as msdb, closing(database.open_store(path)) as orders:
        world = World(msdb, orders, path)
        await world.run(EXISTING)
        yield world


# --- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_mistake_has_its_number_and_place_and_changes_nothing(world: World, case: Case) -> None:
    error = await world.refusal(case.script)

    assert (case.number, case.caret) == (error.number, "\n".join(str(error).splitlines()[-2:]))


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_script_of_the_configuration_is_told_the_same_unless_it_may(world: World, case: Case) -> None:
    if case.is_declared_too:
        assert case.number == (await world.refusal(case.script, is_declared=True)).number
    else:
        assert await world.run(case.script, is_declared=True)


def test_every_number_is_on_the_page_of_statements() -> None:
    page = (Path(__file__).parents[3] / "docs" / "statements.md").read_text(encoding="utf-8")

    assert all(f"| {case.number} | " in page for case in CASES)


async def test_remote_service_that_is_no_text_is_refused(world: World) -> None:
    """JSON can bring half of a pair of surrogates."""
    script = "CREATE BROKER PRIORITY P FOR CONVERSATION SET (REMOTE_SERVICE_NAME = N'\ud800')"

    assert (await world.refusal(script)).number == 33301


# --- message types and contracts --------------------------------------------------------------------------------


async def test_message_type_is_created_altered_and_dropped(world: World) -> None:
    told = [
        *await world.run("CREATE MESSAGE TYPE T VALIDATION = JSON"),
        *await world.run("ALTER MESSAGE TYPE T VALIDATION = EMPTY"),
    ]
    altered = metadata.find_message_type(world.db, "T")
    told += await world.run("DROP MESSAGE TYPE T")

    assert told == ["message type T created", "message type T altered", "message type T dropped"]
    assert (altered, metadata.find_message_type(world.db, "T")) == (Validation.EMPTY, None)


async def test_contract_is_created_and_dropped_and_then_its_types_can_be(world: World) -> None:
    told = await world.run("CREATE CONTRACT C (Unused SENT BY TARGET, [DEFAULT] SENT BY INITIATOR)")
    created = metadata.find_contract(world.db, "C")
    told += await world.run("DROP CONTRACT C; DROP MESSAGE TYPE Unused")

    assert told == ["contract C created", "contract C dropped", "message type Unused dropped"]
    assert created == {"Unused": SentBy.TARGET, "DEFAULT": SentBy.INITIATOR}
    assert metadata.find_contract(world.db, "C") is None


async def test_service_may_name_a_contract_that_nothing_has_made(world: World) -> None:
    assert await world.run("CREATE SERVICE S ON QUEUE Q (Nothing); DROP SERVICE S")


async def test_dropped_contract_ends_its_open_conversations_with_an_error(world: World) -> None:
    mine, other = world.dialog("Free"), world.dialog("Invoicing")
    for dialog in (mine, other):
        dialog.send("<a/>", type="Invoice")

    await world.run("DROP CONTRACT Free")

    assert (mine.state, other.state) == ("ER", "CO")
    (body,) = world.db.execute("SELECT message_body FROM broker_message").fetchone()
    assert b"<Code>-8487</Code>" in body


# --- priorities -------------------------------------------------------------------------------------------------


async def test_priority_is_created_altered_and_dropped(world: World) -> None:
    told = await world.run(
        "CREATE BROKER PRIORITY P FOR CONVERSATION SET (CONTRACT_NAME = Nothing, LOCAL_SERVICE_NAME = Billing)"
    )
    created = metadata.find_priority(world.db, "P")
    told += await world.run(
        "ALTER BROKER PRIORITY P FOR CONVERSATION SET (CONTRACT_NAME = ANY, REMOTE_SERVICE_NAME = 'r',"
        " PRIORITY_LEVEL = 10)"
    )
    altered = metadata.find_priority(world.db, "P")
    told += await world.run("DROP BROKER PRIORITY P; DROP SERVICE Billing")

    assert told[:3] == ["priority P created", "priority P altered", "priority P dropped"]
    assert created == Priority("P", "Nothing", "Billing", None, 5)
    assert altered == Priority("P", None, "Billing", "r", 10)
    assert metadata.find_priority(world.db, "P") is None


async def test_priority_counts_for_conversations_begun_later(world: World) -> None:
    before = world.dialog("Invoicing")
    await world.run("CREATE BROKER PRIORITY P FOR CONVERSATION SET (CONTRACT_NAME = Invoicing, PRIORITY_LEVEL = 8)")

    assert (before.priority, world.dialog("Invoicing").priority, world.dialog("Ranked").priority) == (5, 8, 9)


# --- queues, conversations, databases ---------------------------------------------------------------------------


async def test_queue_keeps_the_option_that_is_not_named(world: World) -> None:
    seen = []
    for options in ("STATUS = OFF", "POISON_MESSAGE_HANDLING (STATUS = ON)", "STATUS = ON"):
        await world.run(f"ALTER QUEUE Q WITH {options}")
        queue = metadata.queues(world.db)["Q"]
        seen.append((queue.is_receive_enabled, queue.is_poison_message_handling_enabled))

    assert seen == [(False, False), (False, True), (True, True)]


async def test_conversation_is_moved_to_another_group(world: World) -> None:
    first, second = world.dialog("C"), world.dialog("C")

    told = await world.run(f"MOVE CONVERSATION '{first.conversation_handle}' TO '{second.conversation_group_id}'")

    assert told == [f"conversation {first.conversation_handle} moved"]
    assert first.conversation_group_id == second.conversation_group_id


async def test_conversation_timer_is_set_within_the_lifetime(world: World) -> None:
    dialog = world.dialog("C")
    begin = f"BEGIN CONVERSATION TIMER ('{dialog.conversation_handle}') TIMEOUT ="

    await world.run(f"{begin} 60")

    (due,) = world.db.execute("SELECT dialog_timer > create_date + 50 FROM broker_conversation").fetchone()
    assert due == 1
    assert [8410, 8410] == [(await world.refusal(f"{begin} {n}")).number for n in (0, 10**9)]


@pytest.mark.parametrize("statement", ["MOVE CONVERSATION '{}' TO '{}'", "BEGIN CONVERSATION TIMER ('{}') TIMEOUT = 1"])
async def test_unknown_handle_is_refused(world: World, statement: str) -> None:
    nobody = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"

    assert (await world.refusal(statement.format(nobody, nobody))).number == 8426


@pytest.mark.parametrize("name", ["orders", "CURRENT", "msdb"])
@pytest.mark.parametrize("is_declared", [True, False])
async def test_broker_is_enabled_already(world: World, name: str, *, is_declared: bool) -> None:
    script = f"ALTER DATABASE {name} SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE"

    told = await world.run(script, is_declared=is_declared)

    assert told == ["database orders enabled" if name == "CURRENT" else f"database {name} enabled"]


async def test_all_conversations_are_ended_with_an_error_by_a_statement_but_not_at_each_start(world: World) -> None:
    dialogs = [world.dialog("C"), world.dialog("D")]
    script = "ALTER DATABASE orders SET ERROR_BROKER_CONVERSATIONS"

    refused = await world.refusal(script, is_declared=True)
    await world.preview(script)
    untouched = [dialog.state for dialog in dialogs]
    told = await world.run(script)

    assert (50000, "at each start" in refused.problem) == (refused.number, True)
    assert (untouched, [dialog.state for dialog in dialogs]) == (["SO", "SO"], ["ER", "ER"])
    assert told == ["open conversations 2 ended with error 9719"]


# --- one statement by itself ---


R, S = Route("r", LOCAL), Route("s", LOCAL)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    db: sqlite3.Connection = database.open_store(tmp_path / "a.db")
    db.execute("INSERT INTO broker_route (name, address) VALUES ('odd', 'nonsense')")
    yield Session(db, datetime.now(UTC), is_declared=False, messages=ScriptMessages())
    db.close()


def test_kind_of_statement_that_nobody_carries_out_is_a_bug(session: Session) -> None:
    with pytest.raises(AssertionError, match="no handler for Statement"):
        carry_out(Statement(), session)


def test_few_changes_of_routes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect, "CHANGES_MAX", 2)
    changes = RouteChanges()

    changes.add(None, R)
    changes.add(R, S)
    few = (list(changes.kept), changes.are_many)
    changes.add(S, None)
    changes.add(None, R)

    assert few == ([RouteChange(None, R), RouteChange(R, S)], False)
    assert (changes.kept, changes.are_many) == ([], True)


def test_change_of_a_route_is_told_with_what_was_before(session: Session) -> None:
    carry_out(AlterRoute("AutoCreatedLocal", RouteProperties(weight=3)), session)
    carry_out(DropRoute("AutoCreatedLocal"), session)

    altered = Route("AutoCreatedLocal", LOCAL, weight=3)
    assert session.changes.kept == [RouteChange(AUTO_CREATED_LOCAL, altered), RouteChange(altered, None)]


def test_declared_route_is_written_when_it_is_another_one(session: Session) -> None:
    session.is_declared = True
    before = session.db.total_changes

    for weight in (1, 2, 3):
        carry_out(CreateRoute("AutoCreatedLocal", RouteProperties(address="LOCAL", weight=weight)), session)

    second, third = (Route("AutoCreatedLocal", LOCAL, weight=weight) for weight in (2, 3))
    assert session.db.total_changes == before + 2
    assert session.changes.kept == [RouteChange(AUTO_CREATED_LOCAL, second), RouteChange(second, third)]
    done = [f"route AutoCreatedLocal {verb}" for verb in ("unchanged", "replaced", "replaced")]
    assert session.messages.lines() == done


def test_lifetime_that_is_declared_counts_anew(session: Session) -> None:
    session.is_declared = True
    create = CreateRoute("a", RouteProperties(address="LOCAL", lifetime=60))
    carry_out(create, session)
    session.now += timedelta(days=1)

    carry_out(create, session)

    row = metadata.find_route(session.db, "a")
    assert row is not None
    assert row[3] == session.now.timestamp() + 60


def test_row_that_is_no_route_cannot_be_altered(session: Session) -> None:
    with pytest.raises(StatementError, match="something that is not a route under the name 'odd'; DROP it first"):
        carry_out(AlterRoute("odd", RouteProperties(address="LOCAL")), session)


def test_row_that_is_no_route_can_be_dropped(session: Session) -> None:
    """It was in no table, so nothing has gone from there."""
    carry_out(DropRoute("odd"), session)

    assert metadata.find_route(session.db, "odd") is None
    assert session.changes.kept == [RouteChange(None, None)]


# --- permissions and bindings ---


NOW = datetime(2025, 3, 1, tzinfo=UTC)
SERVICE = "CREATE QUEUE Q; CREATE SERVICE [//shop/Orders] ON QUEUE Q; "


class PermissionWorld:
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
async def world_of_permission() -> AsyncIterator[PermissionWorld]:
    with closing(database.open_store(":memory:")) as msdb, closing(database.open_store(":memory:")) as orders:
        world_of_permission = PermissionWorld(msdb, orders)
        await world_of_permission.catalog.load()
        yield world_of_permission


async def test_what_is_said_of_a_principal_takes_the_place_of_what_was_said_before(
    world_of_permission: PermissionWorld,
) -> None:
    script = "GRANT SEND ON SERVICE::[//shop/*] TO [cn = orders], public; DENY SEND ON SERVICE::[//shop/*] TO public;"

    told = await world_of_permission.run(script + "GRANT CONNECT ON ENDPOINT::GW TO orders")

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
    } == world_of_permission.rules()


async def test_what_is_revoked_is_gone_in_whatever_spelling_and_twice_is_no_mistake(
    world_of_permission: PermissionWorld,
) -> None:
    await world_of_permission.run("GRANT SEND ON SERVICE::s TO [CN=a]; DENY CONNECT ON ENDPOINT::gw TO public")

    told = await world_of_permission.run(
        "REVOKE SEND ON SERVICE::s FROM [cn=a]; REVOKE CONNECT ON ENDPOINT::[*] TO [PUBLIC] CASCADE;"
    )
    again = await world_of_permission.run("REVOKE SEND ON SERVICE::s FROM [CN=a]")

    assert set() == world_of_permission.rules()
    assert ["SEND on s to CN=a revoked", "CONNECT on the endpoint to public revoked"] == told
    assert ["SEND on s to CN=a revoked"] == again


async def test_same_script_may_run_at_every_start(world_of_permission: PermissionWorld) -> None:
    script = (
        "GRANT SEND ON SERVICE::s TO a; USE orders; "
        + SERVICE
        + "GRANT SEND ON SERVICE::[//shop/Orders] TO [public]; "
        + "CREATE REMOTE SERVICE BINDING b TO SERVICE '//far' WITH USER = far; DROP REMOTE SERVICE BINDING gone"
    )

    first = await world_of_permission.run(script, is_declared=True)
    before = (
        world_of_permission.rules(),
        world_of_permission.rules("orders"),
        world_of_permission.catalog.databases["orders"].rows.bindings,
    )
    second = await world_of_permission.run(script, is_declared=True)

    assert before == (
        world_of_permission.rules(),
        world_of_permission.rules("orders"),
        world_of_permission.catalog.databases["orders"].rows.bindings,
    )
    assert ("SEND on s to a granted", "SEND on s to a unchanged") == (first[0], second[0])
    assert ("remote service binding b created", "remote service binding b replaced") == (first[-2], second[-2])


@pytest.mark.parametrize(
    ("where", "script", "number", "problem"),
    [
        (MSDB, "GRANT CONNECT ON ENDPOINT::other TO a", 15151, "it is called [gw] here"),
        ("orders", "GRANT CONNECT ON ENDPOINT::gw TO a", 4621, "say it in msdb"),
        ("orders", "GRANT SEND ON SERVICE::[//shop/Order] TO a", 15151, "did you mean [//shop/Orders]?"),
        ("orders", "DENY SEND ON SERVICE::[far] TO a", 15151, "CREATE SERVICE [far] first"),
        ("orders", "CREATE REMOTE SERVICE BINDING b TO SERVICE '//f' WITH USER = public", 15151, "means several"),
        ("orders", "CREATE REMOTE SERVICE BINDING b TO SERVICE '//f' WITH USER = [C*]", 15151, "means several"),
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
    world_of_permission: PermissionWorld, where: str, script: str, number: int, problem: str
) -> None:
    await world_of_permission.run(
        SERVICE + "CREATE REMOTE SERVICE BINDING had TO SERVICE '//had' WITH USER = had", database="orders"
    )
    before = list(world_of_permission.orders.iterdump())

    error = await world_of_permission.refusal(script, database=where)

    assert (number, True) == (error.number, problem in error.problem)
    assert error.span is not None
    assert before == list(world_of_permission.orders.iterdump())


async def test_service_that_is_dropped_takes_its_permissions_with_it_and_patterns_stay(
    world_of_permission: PermissionWorld,
) -> None:
    grants = "GRANT SEND ON SERVICE::[//shop/Orders] TO a; GRANT SEND ON SERVICE::[//shop/O*] TO a; "
    await world_of_permission.run(SERVICE + grants, database="orders")

    await world_of_permission.run("DROP SERVICE [//shop/Orders]", database="orders")

    assert {"GRANT SEND ON SERVICE::[//shop/O*] TO [a]"} == world_of_permission.rules("orders")


async def test_binding_is_created_altered_and_dropped(world_of_permission: PermissionWorld) -> None:
    create = "CREATE REMOTE SERVICE BINDING b TO SERVICE '//far' WITH USER = [cn=far], ANONYMOUS = ON"
    await world_of_permission.run(create, database="orders")
    first = dict(world_of_permission.catalog.databases["orders"].rows.bindings)
    await world_of_permission.run("ALTER REMOTE SERVICE BINDING b WITH ANONYMOUS = OFF", database="orders")
    await world_of_permission.run("ALTER REMOTE SERVICE BINDING b WITH USER = other", database="orders")
    second = dict(world_of_permission.catalog.databases["orders"].rows.bindings)
    await world_of_permission.run("DROP REMOTE SERVICE BINDING b", database="orders")

    assert {"b": RemoteServiceBinding("b", "//far", "CN=far", is_anonymous_on=True)} == first
    assert {"b": RemoteServiceBinding("b", "//far", "other")} == second
    assert {} == world_of_permission.catalog.databases["orders"].rows.bindings


@pytest.mark.parametrize(("authentication", "is_permitted"), [("none", True), ("certificate", False)])
def test_neighbours_who_prove_who_they_are_need_a_grant(authentication: str, *, is_permitted: bool) -> None:
    settings = Settings.read({"endpoint": {"authentication": authentication}, "instance": {"name": "gw"}})

    grants = grants_of(settings, ())

    assert is_permitted == grants.connect(NOBODY).is_permitted == grants.is_open(Permission.SEND)
