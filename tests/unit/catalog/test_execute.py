"""Scripts: executed whole or not at all, one after another, previewed on copies, and every refusal with its place."""

import asyncio
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from broker.catalog import handlers
from broker.catalog.catalog import MSDB, ScriptProgress, ScriptStage
from broker.catalog.execute import ScriptStoppedError, execute, preview
from broker.client.dialog import Dialog, begin_dialog
from broker.ddl import statements as ddl
from broker.ddl.parser import parse_script
from broker.ddl.statements import Statement, UseDatabase
from broker.errors import DemotedError, StatementError, StoreUnavailableError
from broker.protocol.layout import show_guid
from broker.store.sqlite import transaction
from tests.support.catalog_world import World

FAR = "tcp://far:4022"
NOBODY = uuid.UUID(int=7)


def test_every_statement_has_a_way_to_be_carried_out() -> None:
    kinds = {kind for kind in vars(ddl).values() if isinstance(kind, type) and issubclass(kind, Statement)}
    leaves = {kind for kind in kinds if not kind.__subclasses__()}

    apart = {kind for kind in leaves if handlers.carry_out.dispatch(kind) is handlers.carry_out.dispatch(Statement)}

    assert {UseDatabase} == apart  # it only says where


# --- routes -----------------------------------------------------------------------------------------------------


async def test_routes_queues_and_services_are_created_altered_and_dropped(world: World) -> None:
    told = await world.run(
        f"CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = '{FAR}'; CREATE QUEUE q;"
        " CREATE QUEUE dbo.other WITH STATUS = OFF; CREATE SERVICE s ON QUEUE q (A, B)"
    )
    created = world.route("r").address_text, world.queues(), world.services()
    told += await world.run(
        "ALTER ROUTE r WITH ADDRESS = 'tcp://other:1'; ALTER QUEUE q WITH STATUS = OFF;"
        " ALTER SERVICE s (ADD CONTRACT C, DROP CONTRACT A); ALTER SERVICE s ON QUEUE other"
    )
    altered = world.route("r"), world.queues(), world.services()
    told += await world.run("DROP ROUTE r; DROP SERVICE s; DROP QUEUE q; DROP QUEUE other")

    assert told == [
        *(f"{name} created" for name in ("route r", "queue q", "queue other", "service s")),
        *(f"{name} altered" for name in ("route r", "queue q", "service s", "service s")),
        *(f"{name} dropped" for name in ("route r", "service s", "queue q", "queue other")),
    ]
    assert (FAR, {"q": True, "other": False}, {"s": ("q", {"A", "B"})}) == created
    assert ("S", "tcp://other:1") == (altered[0].remote_service_name, altered[0].address_text)
    assert ({"q": False, "other": False}, {"s": ("other", {"B", "C"})}) == altered[1:]
    assert ([], {}, {}, 3) == (world.routes(), world.queues(), world.services(), world.changes)


async def test_what_is_under_if_exists_is_executed_where_that_holds(world: World) -> None:
    create = f"CREATE ROUTE r WITH ADDRESS = '{FAR}'"
    unless = "IF NOT EXISTS (SELECT * FROM sys.routes WHERE name = 'r')"
    only = "IF EXISTS (SELECT * FROM sys.routes WHERE name = 'r')"
    absent = "statement about {} skipped: it is not there"

    assert ["route r created"] == await world.run(f"{unless} {create}")
    assert ["statement about r skipped: it exists"] == await world.run(f"{unless} {create}, LIFETIME = 60")
    other = f"{create[:-1]}1', WEIGHT = 2"
    assert ["statement about r skipped: it exists, with other properties"] == await world.run(f"{unless} {other}")
    assert ["route r dropped", absent.format("r")] == await world.run(f"{only} DROP ROUTE r; {only} DROP ROUTE r")
    block = f"{unless} BEGIN {create} CREATE ROUTE s WITH ADDRESS = '{FAR}' END DROP ROUTE r; DROP ROUTE s"
    assert ["route r created", "route s created", "route r dropped", "route s dropped"] == await world.run(block)
    names = ("services", "service_queues", "service_contracts", "service_message_types", "conversation_priorities")
    for view in (*names, "remote_service_bindings"):
        script = f"IF EXISTS (SELECT * FROM sys.{view} WHERE name = 'nix') {create}"
        assert [absent.format("nix")] == await world.run(script)
    assert [] == world.routes()


@pytest.mark.promise("R1.4")
async def test_lifetime_counts_from_now_and_altering_brings_an_expired_route_back(world: World) -> None:
    await world.run(f"CREATE ROUTE r WITH ADDRESS = '{FAR}', LIFETIME = 60")
    world.catalog.tables()
    first = world.catalog.next_expiry
    past = (datetime.now(UTC) - timedelta(hours=1)).timestamp()
    world.db.execute("UPDATE broker_route SET lifetime = ? WHERE name = 'r'", (past,))
    await world.catalog.load()
    assert world.catalog.tables()["orders"].next_expiry is None
    assert [route.name for route in world.catalog.tables()["orders"].routes(None)] == ["AutoCreatedLocal"]

    await world.run("ALTER ROUTE r WITH LIFETIME = 600")

    assert first is not None
    assert timedelta(seconds=50) < first - datetime.now(UTC) <= timedelta(seconds=60)
    again = world.catalog.tables()["orders"]
    assert {route.name for route in again.routes(None)} == {"AutoCreatedLocal", "r"}
    assert again.next_expiry is not None
    assert world.catalog.next_expiry == again.next_expiry


# --- queues and services ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "verb", "after"),
    [("", "unchanged", False), (" WITH STATUS = ON", "replaced", True), (" WITH STATUS = OFF", "unchanged", False)],
)
async def test_queue_that_was_turned_off_is_turned_on_at_a_start_only_by_a_script_that_says_so(
    world: World, *, says: str, verb: str, after: bool
) -> None:
    await world.run("CREATE QUEUE q", declared=True)
    await world.run("ALTER QUEUE q WITH STATUS = OFF")

    assert [f"queue q {verb}"] == await world.run(f"CREATE QUEUE q{says}", declared=True)
    assert {"q": after} == world.queues()


# --- conversations ----------------------------------------------------------------------------------------------


@pytest.fixture
async def dialog(world: World) -> Dialog:
    """A dialog of orders that has sent one message."""
    await world.run("CREATE QUEUE q; CREATE SERVICE Orders ON QUEUE q")
    dialog = begin_dialog(world.db, from_service="Orders", to_service="Far")
    dialog.send(b"body")
    return dialog


@pytest.mark.parametrize(
    ("how", "states", "sent"),
    [
        ("", ["DO"], [(0, b"body"), (8, b"")]),
        (" WITH ERROR = 50001 DESCRIPTION = N'it''s over'", ["DO"], [(0, b"body"), (16, b"<Code>50001</Code>")]),
        (" WITH CLEANUP", [], []),
    ],
)
@pytest.mark.promise("statements 3")
async def test_conversation_is_ended(
    world: World, dialog: Dialog, how: str, states: list[str], sent: list[tuple[int, bytes]]
) -> None:
    handle = show_guid(dialog.conversation_handle)

    assert await world.run(f"END CONVERSATION '{handle}'{how}") == [f"conversation {handle} ended"]

    assert states == [row[0] for row in world.db.execute("SELECT state FROM broker_conversation")]
    query = "SELECT flags, message_body FROM broker_transmission ORDER BY transmission_id"
    found = world.db.execute(query).fetchall()
    assert [flags for flags, _ in sent] == [flags for flags, _ in found]
    assert all(part in body for (_, part), (_, body) in zip(sent, found, strict=True))
    assert "ERROR" not in how or b"<Description>it's over</Description>" in found[1][1]


@pytest.mark.parametrize(("how", "number"), [("", 8462), (" WITH ERROR = 0 DESCRIPTION = ''", 8403)])
async def test_conversation_that_cannot_be_ended_so_is_left_alone(
    world: World, dialog: Dialog, how: str, number: int
) -> None:
    if not how:
        dialog.end()

    assert number == (await world.refusal(f"END CONVERSATION '{dialog.conversation_handle}'{how}")).number


# --- scripts ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("R1.6")
async def test_mistake_in_the_middle_changes_nothing_and_shows_its_place(world: World) -> None:
    script = f"CREATE QUEUE q;\nCREATE ROUTE r WITH\n\tADDRESS = 'nonsense';\nCREATE ROUTE t WITH ADDRESS = '{FAR}'"

    head, _, line, caret = str(await world.refusal(script)).split("\n")

    assert head == "Msg 9744, Level 16, -:3:12"
    assert (line, caret) == ("\tADDRESS = 'nonsense';", "\t          ^^^^^^^^^^")
    assert (world.queues(), world.routes(), world.changes) == ({}, [], 0)


# --- USE --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mistake", ["DROP QUEUE nix", "CREATE QEUE x", f"CREATE ROUTE r WITH ADDRESS = 'x'; USE {MSDB}"]
)
async def test_mistake_in_a_later_segment_undoes_those_in_other_databases(world: World, mistake: str) -> None:
    error = await world.refusal(
        f"CREATE QUEUE one; USE billing; CREATE QUEUE two; USE msdb; CREATE ROUTE m WITH ADDRESS = '{FAR}';\n"
        f"USE orders; CREATE ROUTE t WITH ADDRESS = '{FAR}';\n{mistake}"
    )

    assert (3, 0) == (error.span and error.span.line, world.changes)
    assert (world.queues(), world.queues("billing"), world.routes(), world.routes(MSDB)) == ({}, {}, [], [])


async def test_full_disk_in_the_second_database_undoes_the_first(world: World, tmp_path: Path) -> None:
    (pages,) = world.dbs["billing"].execute("PRAGMA page_count").fetchone()
    world.dbs["billing"].execute(f"PRAGMA max_page_count = {pages}")
    before = world.dump()
    routes = "".join(f"CREATE ROUTE r{number} WITH ADDRESS = '{FAR}';\n" for number in range(1000))

    with pytest.raises(StoreUnavailableError, match="the disk is full: free some space") as caught:
        await world.run(f"CREATE QUEUE one; USE billing;\n{routes}")

    assert str(tmp_path / "billing.db") == caught.value.path
    assert (world.dump(), world.changes, world.queues()) == (before, 0, {})


class Refusing(transaction.DaemonConnection):
    """Fails at the end of a transaction, as a disk may."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *parameters)


@pytest.mark.parametrize(("first", "second", "done"), [("billing", "orders", False), ("orders", "billing", True)])
async def test_commit_that_fails_says_what_was_committed_before_it(
    world: World, tmp_path: Path, first: str, second: str, *, done: bool
) -> None:
    """Two files cannot be committed as one: what is known must then be what is stored."""
    world.dbs["billing"].close()
    world.dbs["billing"] = sqlite3.connect(
        tmp_path / "billing.db", factory=Refusing, isolation_level=None, check_same_thread=False
    )

    with pytest.raises(StoreUnavailableError) as caught:
        await world.run(f"CREATE QUEUE q; USE {second}; CREATE QUEUE q", database=first)

    already = "; the script is already committed in: orders" if done else ""
    assert str(caught.value) == f"store {tmp_path / 'billing.db'}: disk I/O error{already}"
    assert (bool(world.queues()), world.queues("billing"), world.changes) == (done, {}, int(done))


class Held:
    """The statements of a script, which is stopped between its parts until it `may_go_on`."""

    def __init__(self, *parts: str) -> None:
        self.started, self.may_go_on = threading.Event(), threading.Event()
        self._parts = parts

    def __iter__(self) -> Iterator[Statement]:
        for number, part in enumerate(self._parts):
            if number:
                self.started.set()
                self.may_go_on.wait()
            yield from parse_script(part)


async def test_cancelled_script_changes_nothing_and_lets_go(world: World) -> None:
    before, held = world.dump(), Held("CREATE QUEUE one; USE billing; CREATE QUEUE two", "CREATE QUEUE three")

    running = asyncio.create_task(execute(world.catalog, iter(held), database="orders"))
    await asyncio.to_thread(held.started.wait)
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()  # whoever is impatient changes nothing
    held.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (world.dump(), world.changes) == (before, 0)
    assert await world.run("CREATE QUEUE four") == ["queue four created"]


async def test_scripts_run_one_after_another(world: World) -> None:
    """Two that name the same databases in opposite order would else wait for each other."""
    one, other = "USE orders; CREATE QUEUE a; USE billing; CREATE QUEUE a", "CREATE QUEUE b; USE orders; CREATE QUEUE b"

    async with asyncio.timeout(20):
        await asyncio.gather(*(world.run(script, database="billing") for script in (one, other)))

    assert world.queues() == world.queues("billing") == {"a": True, "b": True}


async def test_statements_are_read_as_they_are_carried_out(world: World) -> None:
    """So that memory does not grow with the script."""
    progress = ScriptProgress()
    seen: list[int] = []

    def statements() -> Iterator[Statement]:
        for number in range(300):
            seen.append(progress.statements)
            yield from parse_script(f"CREATE ROUTE r{number} WITH ADDRESS = '{FAR}';")

    messages = await execute(world.catalog, statements(), database="orders", progress=progress)

    assert seen == list(range(300))
    assert (len(messages), messages[-1]) == (101, "200 more: route created 200")
    assert (progress.statements, progress.stage) == (300, ScriptStage.FINISHING)


async def test_many_changes_are_read_back_as_few_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "CHANGES_MAX", 2)
    script = "".join(f"CREATE ROUTE r{number} WITH ADDRESS = '{FAR}';" for number in range(5))

    await world.run(f"{script} DROP ROUTE r1")

    assert sorted(world.routes()) == ["r0", "r2", "r3", "r4"]


@pytest.mark.parametrize("script", ["CREATE QUEUE q;\nUSE nowhere", "CREATE QUEUE q; USE billing;\nUSE nowhere"])
async def test_database_that_is_not_here_is_refused_before_anything_is_done(world: World, script: str) -> None:
    report = str(await world.refusal(script))

    assert report.startswith("Msg 911, Level 16, -:2:5\n")
    assert "there are: billing, msdb, orders" in report
    assert (world.queues(), world.changes) == ({}, 0)
    assert 911 == (await world.refusal("CREATE QUEUE q", database="nowhere")).number


# --- what a script would do -------------------------------------------------------------------------------------


async def test_preview_tells_what_every_database_would_hold_and_changes_none(world: World) -> None:
    await world.run(f"CREATE ROUTE old WITH ADDRESS = '{FAR}'")
    before, tables = world.dump(), {name: database.table for name, database in world.catalog.databases.items()}
    world.changes = 0

    outcomes = await world.preview(
        f"CREATE QUEUE q; CREATE SERVICE s ON QUEUE q; DROP ROUTE old; CREATE ROUTE new WITH ADDRESS = '{FAR}';"
        "USE msdb; DROP ROUTE AutoCreatedLocal; USE orders; ALTER ROUTE new WITH LIFETIME = 60"
    )

    orders, msdb = outcomes["orders"], outcomes[MSDB]
    assert {"orders", MSDB} == outcomes.keys()
    assert (["q"], ["s"]) == (list(orders.rows.queues), list(orders.rows.services))
    assert ({"AutoCreatedLocal", "new"}, []) == ({route.name for route in orders.table}, list(msdb.table))
    changes = [(old and old.name, new and new.name) for old, new in orders.changes.kept]
    assert [("old", None), (None, "new"), ("new", "new")] == changes
    assert (before, 0) == (world.dump(), world.changes)
    assert tables == {name: database.table for name, database in world.catalog.databases.items()}
    assert {} == await world.preview("USE billing; USE msdb;")
    assert (await world.preview("CREATE QUEUE q"))["orders"].table is tables["orders"]


async def test_preview_takes_its_turn_and_is_seen_like_any_script(world: World) -> None:
    """It borrows the databases, so whoever stops the instance has to be able to stop it."""
    held, progress = Held("CREATE QUEUE one", "CREATE QUEUE two"), ScriptProgress()

    looking = asyncio.create_task(preview(world.catalog, iter(held), database="orders", progress=progress))
    await asyncio.to_thread(held.started.wait)
    changing = asyncio.create_task(world.run("CREATE QUEUE one"))
    closing = asyncio.create_task(world.catalog.close())
    await asyncio.sleep(0)
    seen = list(world.catalog.scripts)
    held.may_go_on.set()

    for ended in (looking, changing):
        with pytest.raises(ScriptStoppedError, match="it has changed nothing"):
            await ended
    await closing
    assert (progress, {}) == (seen[0], world.queues())


# --- msdb -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [False, True])
async def test_msdb_takes_routes_and_ends_of_requests_and_nothing_else(world: World, *, declared: bool) -> None:
    for statement in ("CREATE QUEUE q", "ALTER SERVICE s ON QUEUE q", "DROP SERVICE s"):
        error = await world.refusal(statement, database=MSDB, declared=declared)
        assert error.problem == "msdb holds routes and permissions only; name a database with USE"
    assert 8426 == (await world.refusal(f"END CONVERSATION '{NOBODY}'", database=MSDB)).number


# --- scripts of the configuration -------------------------------------------------------------------------------


async def test_declared_create_makes_what_exists_what_the_script_says(world: World) -> None:
    await world.run("CREATE QUEUE q; CREATE QUEUE p; CREATE SERVICE s ON QUEUE q (A)")
    await world.run(f"CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = '{FAR}', WEIGHT = 3")
    number = "SELECT route_id FROM broker_route WHERE name = 'r'"
    before = world.db.execute(number).fetchone()

    await world.run("CREATE SERVICE s ON QUEUE p; CREATE ROUTE r WITH ADDRESS = 'LOCAL'", declared=True)

    assert world.services() == {"s": ("p", set())}
    route = world.route("r")
    assert before == world.db.execute(number).fetchone()
    assert (None, "LOCAL", 1) == (route.remote_service_name, route.address_text, route.weight)


# --- what is no mistake of the caller ---------------------------------------------------------------------------


async def test_preview_of_a_store_that_fails_names_the_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "broker.catalog.execute.read_rows", Mock(side_effect=sqlite3.OperationalError("disk I/O error"))
    )

    with pytest.raises(StoreUnavailableError, match=r"orders\.db: disk I/O error"):
        await world.preview("CREATE QUEUE q")


async def test_a_database_that_another_program_keeps_locked_holds_up_one_script_for_a_bounded_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.catalog.execute.LOCK_SECONDS", 0.05)
    path = world.catalog.databases["orders"].path
    other = sqlite3.connect(str(path), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailableError, match="locked"):
        await world.run(f"USE msdb; CREATE ROUTE r WITH ADDRESS = '{FAR}'; USE orders; CREATE QUEUE q;")
    await world.run(f"CREATE ROUTE other WITH ADDRESS = '{FAR}'", database=MSDB)
    other.close()

    assert world.routes(MSDB) == ["other"]
    assert world.db.execute("PRAGMA busy_timeout").fetchone() == (int(transaction.BUSY_SECONDS * 1000),)


# --- mirrors ------------------------------------------------------------------------------------------------


class Partner:
    """Somebody to hand databases over to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.handed_over: list[str] = []
        self.error: StatementError | None = None

    def check(self, name: str) -> None:
        if name != "orders":
            raise StatementError(1416, f"the database {name!r} is not mirrored")

    async def carry_out(self, name: str) -> str:
        assert not self.world.catalog.lock.locked()
        if self.error is not None:
            raise self.error
        self.handed_over.append(name)
        return f"{name} handed over"


@pytest.fixture
def partner(world: World) -> Partner:
    world.catalog.fail_over = partner = Partner(world)
    return partner


async def test_a_database_is_handed_over_behind_the_script(world: World, partner: Partner) -> None:
    script = "USE orders;\nALTER DATABASE CURRENT SET PARTNER FAILOVER"
    await world.preview(script)
    assert [] == partner.handed_over

    assert ["orders handed over"] == await world.run(script, database="billing")
    assert (["orders"], []) == (partner.handed_over, world.borrowed)
    partner.error = StatementError(1470, "a failover is under way")
    assert str(await world.refusal(script, database="billing")).startswith("Msg 1470, Level 16, -:2:16\n")


@pytest.mark.parametrize(
    ("script", "number", "declared"),
    [
        ("CREATE QUEUE q; ALTER DATABASE orders SET PARTNER FAILOVER", 226, False),
        ("ALTER DATABASE orders SET PARTNER FAILOVER; CREATE QUEUE q", 226, False),
        ("ALTER DATABASE billing SET PARTNER FAILOVER", 1416, False),
        ("ALTER DATABASE nothing SET PARTNER FAILOVER", 911, False),
        ("ALTER DATABASE orders SET PARTNER FAILOVER", 50000, True),
    ],
)
async def test_what_cannot_be_handed_over_is_refused_and_nothing_is_changed(
    world: World, partner: Partner, script: str, number: int, *, declared: bool
) -> None:
    error = await world.refusal(script, declared=declared)

    assert (number, []) == (error.number, partner.handed_over)


async def test_a_mirror_is_told_nothing(world: World) -> None:
    del world.catalog.databases["billing"]
    world.catalog.mirrors["billing"] = None

    for script in ("USE billing", "ALTER DATABASE billing SET ENABLE_BROKER"):
        assert 954 == (await world.refusal(script)).number


async def test_whoever_is_not_the_principal_any_more_changes_nothing(world: World) -> None:
    world.db.epoch = 4

    with pytest.raises(DemotedError, match="its epoch is 0, ours was 4"):
        await world.run("CREATE QUEUE q")

    assert {} == world.queues()
