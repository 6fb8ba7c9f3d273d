"""What each statement does to its database: what is stored, what is said about it, and every mistake."""

import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path

import pytest

from broker.catalog.catalog import MSDB, ScriptMessages
from broker.catalog.handlers import Session, carry_out, grants_of
from broker.client.dialog import Dialog, begin_dialog
from broker.config.settings import Settings
from broker.conversation.message_types import SentBy, Validation
from broker.ddl.statements import AlterRoute, CreateRoute, DropRoute
from broker.errors import StatementError
from broker.protocol.layout import show_guid
from broker.routing.address import LOCAL
from broker.routing.route import AUTO_CREATED_LOCAL, Route, RouteProperties
from broker.routing.table import RouteChange
from broker.security.grants import Permission, RemoteServiceBinding, render_rule
from broker.security.principal import NOBODY
from broker.store.sqlite import database, metadata
from broker.store.sqlite.metadata import Priority
from tests.support import agreement_errors, route_errors
from tests.support.catalog_world import World
from tests.support.route_errors import ACCEPTED, NUMBERS, Case, cases_of

NOTHING_IS_READ_BEHIND = {105, 113}
NOBODY_HERE = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


@pytest.fixture
async def agreed(world: World) -> World:
    """With message types, contracts, services and priorities."""
    await world.run(agreement_errors.EXISTING)
    return world


@pytest.fixture
async def routed() -> AsyncIterator[World]:
    """In memory, with routes in msdb."""
    world = World()
    await world.run(route_errors.EXISTING, database=MSDB)
    yield world
    world.close()


FOUND = [(metadata.find_message_type, "T"), (metadata.find_contract, "C"), (metadata.find_priority, "P")]


def begun(world: World, contract: str) -> Dialog:
    return begin_dialog(world.db, from_service="Orders", to_service="//far", contract=contract)


# --- mistakes ---


@pytest.mark.parametrize("case", agreement_errors.CASES, ids=str)
async def test_a_mistake_about_an_agreement_has_its_number_and_its_place(agreed: World, case: Case) -> None:
    """A script of the configuration is refused as well, unless it may say that again."""
    error = await agreed.refusal(case.script)

    assert (case.number, case.caret) == (error.number, "\n".join(str(error).splitlines()[-2:]))
    if case.is_declared_too:
        assert case.number == (await agreed.refusal(case.script, declared=True)).number
    else:
        assert await agreed.run(case.script, declared=True)


@pytest.mark.parametrize("number", sorted(NUMBERS))
@pytest.mark.promise("R1.2")
async def test_a_mistake_about_a_route_has_its_number_and_its_place(routed: World, number: int) -> None:
    expected, told = [], []
    for case in cases_of(number):
        error = await routed.refusal(case.script, database=MSDB)
        expected.append(f"Msg {number}, Level 16, -:{case.line}:{case.column}\n{error.problem}\n{case.caret}")
        told.append(str(error))
        if case.is_declared_too:
            assert str(error) == str(await routed.refusal(case.script, database=MSDB, declared=True))
        else:
            assert await routed.run(case.script, database=MSDB, declared=True)
            await routed.run(route_errors.EXISTING, database=MSDB, declared=True)
            await routed.run("DROP ROUTE r", database=MSDB, declared=True)

    assert expected == told


@pytest.mark.promise("R1.2")
async def test_what_is_just_legal_about_a_route_is_carried_out(routed: World) -> None:
    before = routed.dump()

    for script in ACCEPTED:
        await routed.run(script, database=MSDB)
        assert before != routed.dump()
        await routed.run("DROP ROUTE r", database=MSDB)

    assert before == routed.dump()


async def test_of_several_mistakes_the_first_one_is_told(routed: World) -> None:
    """Whatever finds them: the grammar, the rules of a route, or the database."""
    one_each = [cases_of(number)[0] for number in sorted(NUMBERS - NOTHING_IS_READ_BEHIND)]

    for first, second in permutations(one_each, 2):
        error = await routed.refusal(f"{first.script};\n{second.script};", database=MSDB)
        assert (first.number, first.line) == (error.number, error.span and error.span.line), second


def test_every_number_has_a_case_and_is_on_the_page_of_statements() -> None:
    page = (Path(__file__).parents[3] / "docs" / "statements.md").read_text(encoding="utf-8")
    on_page = {int(number) for number in re.findall(r"^\| \[(\d+)\]", page, re.MULTILINE)}
    cases = route_errors.CASES

    assert NUMBERS == {case.number for case in cases}
    assert len(cases) == len({case.marked for case in cases})
    assert on_page >= NUMBERS | {case.number for case in agreement_errors.CASES}


async def test_remote_service_that_is_no_text_is_refused(agreed: World) -> None:
    """JSON can bring half of a pair of surrogates."""
    script = "CREATE BROKER PRIORITY P FOR CONVERSATION SET (REMOTE_SERVICE_NAME = N'\ud800')"

    assert (await agreed.refusal(script)).number == 33301


# --- message types and contracts --------------------------------------------------------------------------------


async def test_message_types_contracts_and_priorities_are_created_altered_and_dropped(agreed: World) -> None:
    """What names another one goes first."""
    told = await agreed.run(
        "CREATE MESSAGE TYPE T VALIDATION = JSON; CREATE CONTRACT C (T SENT BY TARGET, [DEFAULT] SENT BY INITIATOR);"
        "CREATE BROKER PRIORITY P FOR CONVERSATION SET (CONTRACT_NAME = Nothing, LOCAL_SERVICE_NAME = Billing)"
    )
    created = [find(agreed.db, name) for find, name in FOUND]
    told += await agreed.run(
        "ALTER MESSAGE TYPE T VALIDATION = EMPTY; ALTER BROKER PRIORITY P FOR CONVERSATION SET"
        " (CONTRACT_NAME = ANY, REMOTE_SERVICE_NAME = 'r', PRIORITY_LEVEL = 10)"
    )
    altered = [find(agreed.db, name) for find, name in FOUND]
    told += await agreed.run("DROP CONTRACT C; DROP MESSAGE TYPE T; DROP BROKER PRIORITY P; DROP SERVICE Billing")

    assert told[:-1] == [
        *("message type T created", "contract C created", "priority P created"),
        *("message type T altered", "priority P altered"),
        *("contract C dropped", "message type T dropped", "priority P dropped"),
    ]
    sent_by = {"T": SentBy.TARGET, "DEFAULT": SentBy.INITIATOR}
    assert created == [Validation.JSON, sent_by, Priority("P", "Nothing", "Billing", None, 5)]
    assert altered == [Validation.EMPTY, sent_by, Priority("P", None, "Billing", "r", 10)]
    assert [None] * 3 == [find(agreed.db, name) for find, name in FOUND]


async def test_dropped_contract_ends_its_open_conversations_with_an_error(agreed: World) -> None:
    mine, other = begun(agreed, "Free"), begun(agreed, "Invoicing")
    for dialog in (mine, other):
        dialog.send("<a/>", type="Invoice")

    await agreed.run("DROP CONTRACT Free")

    assert (mine.state, other.state) == ("ER", "CO")
    (body,) = agreed.db.execute("SELECT message_body FROM broker_message").fetchone()
    assert b"<Code>-8487</Code>" in body


# --- priorities -------------------------------------------------------------------------------------------------


async def test_priority_counts_for_conversations_begun_later(agreed: World) -> None:
    before = begun(agreed, "Invoicing")
    await agreed.run("CREATE BROKER PRIORITY P FOR CONVERSATION SET (CONTRACT_NAME = Invoicing, PRIORITY_LEVEL = 8)")

    assert (before.priority, begun(agreed, "Invoicing").priority, begun(agreed, "Ranked").priority) == (5, 8, 9)


# --- queues, conversations, databases ---------------------------------------------------------------------------


async def test_queue_keeps_the_option_that_is_not_named(agreed: World) -> None:
    seen = []
    for options in ("STATUS = OFF", "POISON_MESSAGE_HANDLING (STATUS = ON)", "STATUS = ON"):
        await agreed.run(f"ALTER QUEUE Q WITH {options}")
        queue = metadata.queues(agreed.db)["Q"]
        seen.append((queue.is_receive_enabled, queue.is_poison_message_handling_enabled))

    assert seen == [(False, False), (False, True), (True, True)]


async def test_service_keeps_its_option_unless_a_statement_names_it(agreed: World) -> None:
    seen = []
    for statement in (
        "CREATE SERVICE [//new] ON QUEUE Q",
        "ALTER SERVICE [//new] WITH (EXCLUSIVE_TARGET = ON)",
        "CREATE SERVICE [//new] ON QUEUE Q",
        "ALTER SERVICE [//new] (ADD CONTRACT C)",
        "CREATE SERVICE [//new] ON QUEUE Q WITH (EXCLUSIVE_TARGET = OFF)",
    ):
        await agreed.run(statement, declared=True)
        seen.append(metadata.services(agreed.db)["//new"].is_exclusive_target)

    assert seen == [False, True, True, True, False]


@pytest.mark.promise("statements 3")
async def test_conversation_is_moved_to_another_group(agreed: World) -> None:
    first, second = begun(agreed, "C"), begun(agreed, "C")

    told = await agreed.run(f"MOVE CONVERSATION '{first.conversation_handle}' TO '{second.conversation_group_id}'")

    assert told == [f"conversation {show_guid(first.conversation_handle)} moved"]
    assert first.conversation_group_id == second.conversation_group_id


async def test_conversation_timer_is_set_within_the_lifetime(agreed: World) -> None:
    handle = begun(agreed, "C").conversation_handle
    begin = "BEGIN CONVERSATION TIMER ('{}') TIMEOUT = {}"

    await agreed.run(begin.format(handle, 60))

    (due,) = agreed.db.execute("SELECT dialog_timer > create_date + 50 FROM broker_conversation").fetchone()
    assert due == 1
    for statement, number in (
        (begin.format(handle, 0), 8410),
        (begin.format(handle, 10**9), 8410),
        (begin.format(NOBODY_HERE, 1), 8426),
        (f"MOVE CONVERSATION '{NOBODY_HERE}' TO '{NOBODY_HERE}'", 8426),
    ):
        assert number == (await agreed.refusal(statement)).number


@pytest.mark.parametrize("declared", [True, False])
async def test_broker_is_enabled_already(agreed: World, *, declared: bool) -> None:
    for name, told in (("msdb", "msdb"), ("CURRENT", "orders")):
        script = f"ALTER DATABASE {name} SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE"
        assert [f"database {told} enabled"] == await agreed.run(script, declared=declared)


async def test_all_conversations_are_ended_with_an_error_by_a_statement_but_not_at_each_start(agreed: World) -> None:
    dialogs = [begun(agreed, "C"), begun(agreed, "D")]
    script = "ALTER DATABASE orders SET ERROR_BROKER_CONVERSATIONS"

    refused = await agreed.refusal(script, declared=True)
    await agreed.preview(script)
    untouched = [dialog.state for dialog in dialogs]
    told = await agreed.run(script)

    assert (50000, "at each start" in refused.problem) == (refused.number, True)
    assert (untouched, [dialog.state for dialog in dialogs]) == (["SO", "SO"], ["ER", "ER"])
    assert told == ["open conversations 2 ended with error 9719"]


# --- one statement by itself ---


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    db: sqlite3.Connection = database.open_store(tmp_path / "a.db")
    db.execute("INSERT INTO broker_route (name, address) VALUES ('odd', 'nonsense')")
    yield Session(db, datetime.now(UTC), is_declared=False, messages=ScriptMessages())
    db.close()


def test_declared_route_is_written_when_it_is_another_one(session: Session) -> None:
    session.is_declared = True
    before = session.db.total_changes

    for weight in (1, 2, 3):
        carry_out(CreateRoute("AutoCreatedLocal", RouteProperties(address="LOCAL", weight=weight)), session)

    second, third = (Route("AutoCreatedLocal", LOCAL, weight=weight) for weight in (2, 3))
    assert session.db.total_changes == before + 2
    assert session.changes.kept == [RouteChange(AUTO_CREATED_LOCAL, second), RouteChange(second, third)]
    done = [f"route AutoCreatedLocal {verb}" for verb in ("unchanged", "replaced", "replaced")]
    assert session.messages.take() == done


def test_a_declared_route_that_leads_elsewhere_is_told_with_both_addresses(session: Session) -> None:
    session.is_declared = True

    for address in ("tcp://a:1", "tcp://b:1"):
        carry_out(CreateRoute("r", RouteProperties(address=address)), session)

    assert ["route r created", "route r (tcp://a:1 -> tcp://b:1) replaced"] == session.messages.take()


def test_lifetime_that_is_declared_counts_anew(session: Session) -> None:
    session.is_declared = True
    create = CreateRoute("a", RouteProperties(address="LOCAL", lifetime=60))
    carry_out(create, session)
    session.now += timedelta(days=1)

    carry_out(create, session)

    row = metadata.find_route(session.db, "a")
    assert row is not None
    assert row[3] == session.now.timestamp() + 60


def test_row_that_is_no_route_can_only_be_dropped(session: Session) -> None:
    """It was in no table, so nothing has gone from there."""
    with pytest.raises(StatementError, match="something that is not a route under the name 'odd'; DROP it first"):
        carry_out(AlterRoute("odd", RouteProperties(address="LOCAL")), session)
    carry_out(DropRoute("odd"), session)

    assert metadata.find_route(session.db, "odd") is None
    assert session.changes.kept == [RouteChange(None, None)]


# --- permissions and bindings ---


SERVICE = "CREATE QUEUE Q; CREATE SERVICE [//shop/Orders] ON QUEUE Q; "
BINDING = "REMOTE SERVICE BINDING"


def rules(world: World, database: str = MSDB) -> set[str]:
    return {
        render_rule(rule.state, rule.permission, rule.securable, rule.principal.text)
        for rule in world.catalog.databases[database].rows.permissions
    }


async def test_what_is_said_of_a_principal_takes_the_place_of_what_was_said_before(world: World) -> None:
    """What is revoked is gone, in whatever spelling; twice is no mistake."""
    script = "GRANT SEND ON SERVICE::[//shop/*] TO [cn = orders], public; DENY SEND ON SERVICE::[//shop/*] TO public;"

    told = await world.run(script + "GRANT CONNECT ON ENDPOINT::GW TO orders", database=MSDB)

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
    } == rules(world)
    revoke = "REVOKE SEND ON SERVICE::[//shop/*] FROM [cn=orders], [PUBLIC];"
    told = await world.run(f"{revoke} REVOKE CONNECT ON ENDPOINT::[*] TO orders CASCADE; {revoke}", database=MSDB)
    endings = Counter(line.rpartition(" ")[2] for line in told)
    assert ({"revoked": 3, "unchanged": 2}, set()) == (endings, rules(world))


async def test_same_script_may_run_at_every_start(world: World) -> None:
    script = (
        "GRANT SEND ON SERVICE::s TO a; DROP ROUTE AutoCreatedLocal; USE orders; "
        "CREATE ROUTE r WITH ADDRESS = 'tcp://far:4022'; DROP QUEUE old; DROP SERVICE old; "
        "CREATE QUEUE p WITH STATUS = OFF; CREATE SERVICE s ON QUEUE p (A); "
        + SERVICE
        + "CREATE MESSAGE TYPE t VALIDATION = NONE; CREATE CONTRACT c (t SENT BY ANY); "
        + "CREATE BROKER PRIORITY p FOR CONVERSATION SET (PRIORITY_LEVEL = 7); "
        + "GRANT SEND ON SERVICE::[//shop/Orders] TO [public]; "
        + "CREATE REMOTE SERVICE BINDING b TO SERVICE '//far' WITH USER = far; DROP REMOTE SERVICE BINDING gone"
    )

    first = await world.run(script, database=MSDB, declared=True)
    before = world.dump()
    second = await world.run(script, database=MSDB, declared=True)

    assert before == world.dump()
    assert ("SEND on s to a granted", "SEND on s to a unchanged") == (first[0], second[0])
    assert ("remote service binding b created", "remote service binding b unchanged") == (first[-2], second[-2])
    assert {"queue p unchanged", "service s unchanged", "route r unchanged", "queue old dropped"} <= set(second)
    assert not [line for line in second if line.endswith(("created", "replaced"))]
    assert {"p": False, "Q": True} == world.queues()


@pytest.mark.parametrize(
    ("where", "script", "number", "problem"),
    [
        ("orders", "ALTER QUEUE nix WITH STATUS = ON", 15151, "does not exist"),
        ("orders", "DROP QUEUE nix", 15151, "does not exist"),
        ("orders", "CREATE QUEUE Taken", 2714, "already a queue"),
        ("orders", "DROP QUEUE Taken", 3729, "the service 'Known' uses it"),
        ("orders", "CREATE SERVICE S ON QUEUE nix", 208, "CREATE QUEUE [nix] first"),
        ("orders", "CREATE SERVICE S ON QUEUE Takken", 208, "did you mean [Taken]? If not, CREATE QUEUE [Takken]"),
        ("orders", "CREATE SERVICE Known ON QUEUE Taken", 2714, "already a service"),
        ("orders", "ALTER SERVICE nix ON QUEUE Taken", 15151, "does not exist"),
        ("orders", "ALTER SERVICE Known ON QUEUE nix", 208, "CREATE QUEUE [nix] first"),
        ("orders", "ALTER SERVICE Known (DROP CONTRACT C)", 15151, "no contract 'C'"),
        ("orders", "DROP SERVICE nix", 15151, "does not exist"),
        ("orders", f"END CONVERSATION '{NOBODY_HERE}'", 8426, "is not found"),
        ("orders", f"END CONVERSATION '{NOBODY_HERE}' WITH CLEANUP", 8426, "is not found"),
        (MSDB, "GRANT CONNECT ON ENDPOINT::other TO a", 15151, "it is called [gw] here"),
        ("orders", "GRANT CONNECT ON ENDPOINT::gw TO a", 4621, "say it in msdb"),
        ("orders", "GRANT SEND ON SERVICE::[//shop/Order] TO a", 15151, "did you mean [//shop/Orders]?"),
        ("orders", "DENY SEND ON SERVICE::[far] TO a", 15151, "CREATE SERVICE [far] first"),
        ("orders", f"CREATE {BINDING} b TO SERVICE '//f' WITH USER = public", 15151, "means several"),
        ("orders", f"CREATE {BINDING} b TO SERVICE '//f' WITH USER = [C*]", 15151, "means several"),
        ("orders", f"CREATE {BINDING} had TO SERVICE '//f' WITH USER = a", 2714, "already a remote service"),
        ("orders", f"CREATE {BINDING} b TO SERVICE '//had' WITH USER = a", 2714, "bound already by [had]"),
        ("orders", f"ALTER {BINDING} b WITH USER = a", 15151, "does not exist"),
        ("orders", f"DROP {BINDING} b", 15151, "does not exist"),
        (MSDB, f"CREATE {BINDING} b TO SERVICE '//f' WITH USER = a", 15151, "routes and permissions only"),
    ],
)
async def test_mistake_is_refused_and_changes_nothing(
    world: World, where: str, script: str, number: int, problem: str
) -> None:
    known = "CREATE QUEUE Taken; CREATE SERVICE Known ON QUEUE Taken; "
    await world.run(f"{SERVICE}{known}CREATE {BINDING} had TO SERVICE '//had' WITH USER = had")

    error = await world.refusal(script, database=where)

    assert (number, 1, 1) == (error.number, error.span and error.span.line, world.changes)
    assert problem in error.problem


async def test_service_that_is_dropped_takes_its_permissions_with_it_and_patterns_stay(world: World) -> None:
    grants = "GRANT SEND ON SERVICE::[//shop/Orders] TO a; GRANT SEND ON SERVICE::[//shop/O*] TO a; "
    await world.run(SERVICE + grants)

    await world.run("DROP SERVICE [//shop/Orders]")

    assert {"GRANT SEND ON SERVICE::[//shop/O*] TO [a]"} == rules(world, "orders")


async def test_binding_is_created_altered_and_dropped(world: World) -> None:
    found = []
    for statement in (
        f"CREATE {BINDING} b TO SERVICE '//far' WITH USER = [cn=far], ANONYMOUS = ON",
        f"ALTER {BINDING} b WITH ANONYMOUS = OFF; ALTER {BINDING} b WITH USER = other",
        f"DROP {BINDING} b",
    ):
        await world.run(statement)
        found.append(list(world.catalog.databases["orders"].rows.bindings.values()))

    created = RemoteServiceBinding("b", "//far", "CN=far", is_anonymous_on=True)
    assert [[created], [RemoteServiceBinding("b", "//far", "other")], []] == found


@pytest.mark.parametrize(("authentication", "is_permitted"), [("none", True), ("certificate", False)])
def test_neighbours_who_prove_who_they_are_need_a_grant(authentication: str, *, is_permitted: bool) -> None:
    settings = Settings.read({"endpoint": {"authentication": authentication}, "instance": {"name": "gw"}})

    grants = grants_of(settings, ())

    assert is_permitted == grants.connect(NOBODY).is_permitted == grants.is_open(Permission.SEND)
