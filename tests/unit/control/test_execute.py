"""Carrying out statements: every kind, each refusal with its place, and nothing half done."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from broker.control.catalog import MSDB, Catalog, Database
from broker.control.execute import _run, execute
from broker.ddl.parser import parse_script
from broker.ddl.statements import DropRoute, Statement
from broker.dialog import store
from broker.dialog.application import Dialog, begin_dialog
from broker.errors import DuplicateNameError, StatementError, StoreUnavailableError, UnknownNameError

_T = TypeVar("_T")
FAR = "tcp://far:4022"
NOBODY = uuid.UUID(int=7)


class Writer:
    """The thread that owns a connection; here it is nobody's."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    async def __call__(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        return work(self._db)


class World:
    """An instance's catalog over files: msdb, orders, billing; `changes` how often it was told of a change."""

    def __init__(self, directory: Path) -> None:
        self.changes = 0
        self.dbs = {name: store.open_store(directory / f"{name}.db") for name in (MSDB, "orders", "billing")}
        databases = {
            name: Database(name, store.broker_instance(db), directory / f"{name}.db", Writer(db))
            for name, db in self.dbs.items()
        }
        self.catalog = Catalog(databases, self._on_change)

    async def run(self, script: str, *, database: str = "orders", declared: bool = False) -> list[str]:
        statements = parse_script(script, source="a.sql")
        return await execute(self.catalog, statements, database=database, is_declared=declared)

    async def refuse(self, script: str, **more: object) -> str:
        """The report about a script that is not carried out."""
        with pytest.raises(StatementError) as caught:
            await self.run(script, **more)  # type: ignore[arg-type]
        return str(caught.value)

    def routes(self, database: str = "orders") -> list[str]:
        """Names of the routes, the one that exists everywhere left out."""
        return [name for name in self.catalog.databases[database].rows.routes if name != "AutoCreatedLocal"]

    def queues(self, database: str = "orders") -> dict[str, bool]:
        known = self.catalog.databases[database].rows.queues
        return {name: queue.is_receive_enabled for name, queue in known.items()}

    def services(self) -> dict[str, tuple[str, set[str]]]:
        """Queue and contracts of the services of orders."""
        rows = self.catalog.databases["orders"].rows
        names = {queue.queue_id: name for name, queue in rows.queues.items()}
        return {name: (names[known.queue_id], set(known.contracts)) for name, known in rows.services.items()}

    def close(self) -> None:
        for db in self.dbs.values():
            db.close()

    def _on_change(self) -> None:
        self.changes += 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


# --- routes -----------------------------------------------------------------------------------------------------


async def test_route_is_created_altered_and_dropped(world: World) -> None:
    assert await world.run(f"CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = '{FAR}'") == ["route r created"]
    assert await world.run("ALTER ROUTE r WITH ADDRESS = 'tcp://other:1'") == ["route r altered"]
    ((_, route),) = [world.catalog.databases["orders"].rows.routes["r"]]
    assert (route.remote_service_name, route.address_text) == ("S", "tcp://other:1")

    assert await world.run("DROP ROUTE r") == ["route r dropped"]

    assert world.routes() == []
    assert world.changes == 3


async def test_lifetime_counts_from_now_and_altering_brings_an_expired_route_back(world: World) -> None:
    await world.run(f"CREATE ROUTE r WITH ADDRESS = '{FAR}', LIFETIME = 60")
    world.catalog.tables()
    first = world.catalog.next_expiry
    past = (datetime.now(UTC) - timedelta(hours=1)).timestamp()
    world.dbs["orders"].execute("UPDATE broker_route SET lifetime = ? WHERE name = 'r'", (past,))
    await world.run("ALTER ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'")
    assert world.catalog.tables()["orders"].next_expiry is None
    assert [route.name for route in world.catalog.tables()["orders"].routes(None)] == ["AutoCreatedLocal"]

    await world.run("ALTER ROUTE r WITH LIFETIME = 600")

    assert first is not None
    assert timedelta(seconds=50) < first - datetime.now(UTC) <= timedelta(seconds=60)
    again = world.catalog.tables()["orders"]
    assert {route.name for route in again.routes(None)} == {"AutoCreatedLocal", "r"}
    assert again.next_expiry is not None
    assert world.catalog.next_expiry == again.next_expiry


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        (f"CREATE ROUTE AutoCreatedLocal WITH ADDRESS = '{FAR}'", 2714),
        (f"ALTER ROUTE nix WITH ADDRESS = '{FAR}'", 15151),
        ("DROP ROUTE nix", 15151),
        ("CREATE ROUTE r WITH ADDRESS = 'nonsense'", 9744),
        ("ALTER ROUTE AutoCreatedLocal WITH MIRROR_ADDRESS = 'tcp://a:1'", 9743),
        ("ALTER QUEUE nix WITH STATUS = ON", 15151),
        ("DROP QUEUE nix", 15151),
        ("CREATE QUEUE Taken", 2714),
        ("DROP QUEUE Taken", 3729),
        ("CREATE SERVICE S ON QUEUE nix", 208),
        ("CREATE SERVICE Known ON QUEUE Taken", 2714),
        ("ALTER SERVICE nix ON QUEUE Taken", 15151),
        ("ALTER SERVICE Known ON QUEUE nix", 208),
        ("ALTER SERVICE Known (DROP CONTRACT C)", 15151),
        ("DROP SERVICE nix", 15151),
        (f"END CONVERSATION '{NOBODY}'", 8426),
        (f"END CONVERSATION '{NOBODY}' WITH CLEANUP", 8426),
    ],
)
async def test_refusal_has_its_number_and_changes_nothing(world: World, statement: str, number: int) -> None:
    await world.run("CREATE QUEUE Taken; CREATE SERVICE Known ON QUEUE Taken")
    before = {name: "\n".join(db.iterdump()) for name, db in world.dbs.items()}

    report = await world.refuse(statement)

    assert report.startswith(f"Msg {number}, Level 16, a.sql:1:")
    assert before == {name: "\n".join(db.iterdump()) for name, db in world.dbs.items()}
    assert world.changes == 1


# --- queues and services ----------------------------------------------------------------------------------------


async def test_queue_is_created_altered_and_dropped(world: World) -> None:
    messages = await world.run("CREATE QUEUE q; CREATE QUEUE dbo.closed WITH STATUS = OFF")
    assert (messages, world.queues()) == (["queue q created", "queue closed created"], {"q": True, "closed": False})

    assert await world.run("ALTER QUEUE q WITH STATUS = OFF") == ["queue q altered"]
    assert world.queues()["q"] is False

    assert await world.run("DROP QUEUE q; DROP QUEUE closed") == ["queue q dropped", "queue closed dropped"]
    assert world.queues() == {}


async def test_service_is_created_altered_and_dropped(world: World) -> None:
    assert await world.run("CREATE QUEUE q; CREATE QUEUE other; CREATE SERVICE s ON QUEUE q (A, B)") == [
        "queue q created",
        "queue other created",
        "service s created",
    ]
    assert world.services() == {"s": ("q", {"A", "B"})}

    assert await world.run("ALTER SERVICE s (ADD CONTRACT C, DROP CONTRACT A)") == ["service s altered"]
    assert world.services() == {"s": ("q", {"B", "C"})}
    await world.run("ALTER SERVICE s ON QUEUE other")
    assert world.services() == {"s": ("other", {"B", "C"})}

    assert await world.run("DROP SERVICE s; DROP QUEUE other") == ["service s dropped", "queue other dropped"]
    assert (world.services(), world.queues()) == ({}, {"q": True})


async def test_names_keep_their_case(world: World) -> None:
    await world.run("CREATE QUEUE q; CREATE QUEUE Q; CREATE SERVICE s ON QUEUE q; CREATE SERVICE S ON QUEUE Q")

    assert world.services() == {"s": ("q", set()), "S": ("Q", set())}


# --- conversations ----------------------------------------------------------------------------------------------


@pytest.fixture
async def dialog(world: World) -> Dialog:
    """A dialog of orders that has sent one message."""
    await world.run("CREATE QUEUE q; CREATE SERVICE Orders ON QUEUE q")
    dialog = begin_dialog(world.dbs["orders"], from_service="Orders", to_service="Far")
    dialog.send(b"body")
    return dialog


def conversations(world: World) -> list[str]:
    return [row[0] for row in world.dbs["orders"].execute("SELECT state FROM broker_conversation")]


def sent(world: World) -> list[tuple[int, bytes]]:
    query = "SELECT flags, message_body FROM broker_transmission ORDER BY transmission_id"
    return world.dbs["orders"].execute(query).fetchall()


async def test_conversation_is_ended(world: World, dialog: Dialog) -> None:
    handle = dialog.conversation_handle

    assert await world.run(f"END CONVERSATION '{handle}'") == [f"conversation {handle} ended"]

    assert (conversations(world), sent(world)) == (["DO"], [(0, b"body"), (8, b"")])


async def test_conversation_is_ended_with_an_error(world: World, dialog: Dialog) -> None:
    await world.run(f"END CONVERSATION '{dialog.conversation_handle}' WITH ERROR = 50001 DESCRIPTION = N'it''s over'")

    ((_, _), (flags, body)) = sent(world)
    assert (conversations(world), flags) == (["DO"], 16)
    assert b"<Code>50001</Code><Description>it's over</Description>" in body


async def test_conversation_is_cleaned_up_without_a_word(world: World, dialog: Dialog) -> None:
    await world.run(f"END CONVERSATION '{dialog.conversation_handle}' WITH CLEANUP")

    assert (conversations(world), sent(world)) == ([], [])


@pytest.mark.parametrize(("how", "number"), [("", 8462), (" WITH ERROR = 0 DESCRIPTION = ''", 8403)])
async def test_conversation_that_cannot_be_ended_so_is_left_alone(
    world: World, dialog: Dialog, how: str, number: int
) -> None:
    if not how:
        dialog.end()
    before = conversations(world)

    report = await world.refuse(f"END CONVERSATION '{dialog.conversation_handle}'{how}")

    assert report.startswith(f"Msg {number}, ")
    assert conversations(world) == before


# --- scripts ----------------------------------------------------------------------------------------------------


async def test_mistake_in_the_middle_changes_nothing_and_shows_its_place(world: World) -> None:
    script = f"CREATE QUEUE q;\nCREATE ROUTE r WITH\n\tADDRESS = 'nonsense';\nCREATE ROUTE t WITH ADDRESS = '{FAR}'"

    report = await world.refuse(script)

    head, _, line, caret = report.split("\n")
    assert head == "Msg 9744, Level 16, a.sql:3:12"
    assert (line, caret) == ("\tADDRESS = 'nonsense';", "\t          ^^^^^^^^^^")
    assert (world.queues(), world.routes(), world.changes) == ({}, [], 0)


async def test_mistake_about_a_name_points_at_the_name(world: World) -> None:
    report = await world.refuse("CREATE QUEUE q;\n  DROP ROUTE [no such]")

    head, problem, line, caret = report.split("\n")
    assert head == "Msg 15151, Level 16, a.sql:2:14"
    assert problem == "cannot drop the route 'no such', because it does not exist"
    assert (line, caret) == ("  DROP ROUTE [no such]", "             ^^^^^^^^^")


async def test_later_statements_see_what_earlier_ones_did(world: World) -> None:
    await world.run("CREATE QUEUE q; CREATE SERVICE s ON QUEUE q; DROP SERVICE s; DROP QUEUE q; CREATE QUEUE q")

    assert world.queues() == {"q": True}


async def test_statements_that_were_made_need_no_place(world: World) -> None:
    with pytest.raises(UnknownNameError) as caught:
        await execute(world.catalog, iter([DropRoute("nix")]), database="orders")

    assert (caught.value.span, caught.value.number) == (None, 15151)


async def test_empty_script_changes_nothing(world: World) -> None:
    assert (await world.run(""), world.changes) == ([], 0)


# --- USE --------------------------------------------------------------------------------------------------------


async def test_use_leads_to_another_database_and_says_nothing(world: World) -> None:
    script = "CREATE QUEUE one; USE billing; CREATE QUEUE two; USE orders; CREATE QUEUE three; USE billing"

    messages = await world.run(script)

    assert messages == ["queue one created", "queue two created", "queue three created"]
    assert (set(world.queues()), set(world.queues("billing"))) == ({"one", "three"}, {"two"})


async def test_segments_before_a_mistake_are_done_and_the_catalog_knows(world: World) -> None:
    await world.refuse("CREATE QUEUE one; USE billing; CREATE QUEUE two; DROP QUEUE nix; USE orders; CREATE QUEUE x")

    assert (world.queues(), world.queues("billing"), world.changes) == ({"one": True}, {}, 1)


@pytest.mark.parametrize("script", ["CREATE QUEUE q;\nUSE nowhere", "CREATE QUEUE q; USE billing;\nUSE nowhere"])
async def test_database_that_is_not_here_is_refused_before_anything_is_done(world: World, script: str) -> None:
    report = await world.refuse(script)

    assert report.startswith(
        "Msg 911, Level 16, a.sql:2:5\nthe database 'nowhere' does not exist here; there are: billing, msdb, orders\n"
    )
    assert (world.queues(), world.changes) == ({}, 0)


async def test_first_database_has_to_be_here_as_well(world: World) -> None:
    report = await world.refuse("CREATE QUEUE q", database="nowhere")

    assert report.startswith("Msg 911, Level 16\nthe database 'nowhere' does not exist here")


# --- msdb -------------------------------------------------------------------------------------------------------


async def test_msdb_takes_routes(world: World) -> None:
    await world.run(f"CREATE ROUTE r WITH ADDRESS = '{FAR}'; ALTER ROUTE r WITH ADDRESS = 'LOCAL'", database=MSDB)
    assert world.routes(MSDB) == ["r"]

    await world.run("USE msdb; DROP ROUTE r")

    assert world.routes(MSDB) == []


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE QUEUE q",
        "ALTER QUEUE q WITH STATUS = ON",
        "DROP QUEUE q",
        "CREATE SERVICE s ON QUEUE q",
        "ALTER SERVICE s ON QUEUE q",
        "DROP SERVICE s",
        f"END CONVERSATION '{NOBODY}'",
    ],
)
@pytest.mark.parametrize("declared", [False, True])
async def test_msdb_takes_nothing_else(world: World, statement: str, *, declared: bool) -> None:
    report = await world.refuse(statement, database=MSDB, declared=declared)

    assert "\nmsdb holds routes only; name a database with USE\n" in report


# --- scripts of the configuration -------------------------------------------------------------------------------


async def test_declared_script_may_run_at_every_start(world: World) -> None:
    script = f"""
        CREATE QUEUE q WITH STATUS = OFF; CREATE SERVICE s ON QUEUE q (A);
        CREATE ROUTE r WITH ADDRESS = '{FAR}'; DROP ROUTE AutoCreatedLocal; DROP QUEUE old; DROP SERVICE old
    """

    first = await world.run(script, declared=True)
    second = await world.run(script, declared=True)

    gone = ["route AutoCreatedLocal dropped", "queue old dropped", "service old dropped"]
    assert first == ["queue q created", "service s created", "route r created", *gone]
    assert second == ["queue q replaced", "service s replaced", "route r replaced", *gone]
    assert (world.queues(), world.services(), world.routes()) == ({"q": False}, {"s": ("q", {"A"})}, ["r"])


async def test_declared_create_makes_what_exists_what_the_script_says(world: World) -> None:
    await world.run("CREATE QUEUE q; CREATE QUEUE p; CREATE SERVICE s ON QUEUE q (A)")
    await world.run(f"CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = '{FAR}', WEIGHT = 3")
    route_id, _ = world.catalog.databases["orders"].rows.routes["r"]

    await world.run("CREATE SERVICE s ON QUEUE p; CREATE ROUTE r WITH ADDRESS = 'LOCAL'", declared=True)

    assert world.services() == {"s": ("p", set())}
    same_id, route = world.catalog.databases["orders"].rows.routes["r"]
    assert (same_id, route.remote_service_name, route.address_text, route.weight) == (route_id, None, "LOCAL", 1)


async def test_declared_alter_still_needs_what_it_alters(world: World) -> None:
    report = await world.refuse("ALTER QUEUE q WITH STATUS = ON", declared=True)

    assert report.startswith("Msg 15151, ")


async def test_declared_drop_of_a_queue_in_use_is_refused(world: World) -> None:
    await world.run("CREATE QUEUE q; CREATE SERVICE s ON QUEUE q")

    report = await world.refuse("DROP QUEUE q", declared=True)

    assert "cannot drop the queue 'q': the service 's' uses it" in report


# --- what is no mistake of the caller ---------------------------------------------------------------------------


async def test_store_that_fails_is_told_as_such(world: World, tmp_path: Path) -> None:
    world.dbs["orders"].execute("PRAGMA query_only = ON")

    with pytest.raises(StoreUnavailableError) as caught:
        await world.run("CREATE QUEUE q")

    assert str(caught.value) == f"store {tmp_path / 'orders.db'}: attempt to write a readonly database"
    assert world.changes == 0


def test_kind_of_statement_that_nobody_carries_out_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="no way to carry out Statement"):
        _run(Statement(), None)  # type: ignore[arg-type]


async def test_errors_say_whose_turn_it_is(world: World) -> None:
    await world.run("CREATE QUEUE q")

    for script, kind in (("CREATE QUEUE q", DuplicateNameError), ("DROP QUEUE nix", UnknownNameError)):
        with pytest.raises(kind):
            await world.run(script)
