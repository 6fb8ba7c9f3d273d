"""What the scripts of a configuration make of copies of its databases, and every mistake in them."""

import shutil
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

import pytest
from msgspec.structs import astuple

from broker.catalog.dry_run import MISTAKES_MAX, DryRun, dry_run
from broker.config.settings import Settings
from broker.daemon.instance import serve
from broker.routing.address import LOCAL
from broker.routing.route import Route, RouteRow
from broker.store.sqlite import database, metadata
from broker.store.sqlite.transaction import open_watch

INSTANCE = UUID(int=7)
NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)

QUIET = "[instance]\nstate_dir = '.'\n[endpoint]\nlisten = []\n[observe]\nlisten = ''\n"
Run: TypeAlias = Callable[..., DryRun]


@pytest.fixture
def run(load: Callable[[str], Settings], tmp_path: Path) -> Run:
    """The found of an instance with the databases `a` and `b`, their scripts and msdb's."""

    def playing(msdb: str = "", a: str = "", b: str = "") -> DryRun:
        for name, text in (("msdb", msdb), ("a", a), ("b", b)):
            (tmp_path / f"{name}.sql").write_text(text)
        databases = "".join(f"[databases.{one}]\npath = '{one}.db'\nscripts = ['{one}.sql']\n" for one in "ab")
        return dry_run(load(f"{QUIET}[routes]\nfiles = ['msdb.sql']\n{databases}"), now=NOW)

    return playing


def errors(found: DryRun) -> list[str]:
    return [
        f"{Path(one.span.source).name}:{one.span.line}:{one.span.column} {one.problem}"
        for one in found.errors
        if one.span
    ]


@pytest.mark.parametrize(
    ("count", "script", "is_told"),
    [
        (MISTAKES_MAX, "x; ", False),
        (MISTAKES_MAX + 1, "x; ", True),  # what is not a script of statements has a mistake at every word of it
        (MISTAKES_MAX + 5, "ALTER ROUTE none WITH ADDRESS = 'LOCAL';\n", True),
    ],
)
def test_a_script_is_read_up_to_so_many_mistakes(
    run: Run, tmp_path: Path, count: int, script: str, *, is_told: bool
) -> None:
    found = run(a=script * count, b="DROP QUEUE;")

    of_a = [one for one in found.errors if one.span and one.span.source.endswith("a.sql")]
    ended = [one.problem for one in found.errors if one.span and one.span.source.endswith("broker.toml")]
    assert MISTAKES_MAX == len(of_a)
    assert [f'"{tmp_path}/a.sql" has 1,000 mistakes, and the rest of it is not read'] * is_told == ended
    assert "b.sql" in errors(found)[-1]


def test_routes_are_created_altered_and_dropped(run: Run) -> None:
    found = run(
        "CREATE ROUTE r WITH ADDRESS = 'tcp://x', LIFETIME = 60;\n"
        "ALTER ROUTE r WITH SERVICE_NAME = 'S';\n"
        "DROP ROUTE AutoCreatedLocal;\n"
    )

    (route,) = found.msdb.routes.values()
    assert ("r", "S", NOW + timedelta(seconds=60)) == (route.name, route.remote_service_name, route.lifetime)
    statement = found.msdb.statements["r"]
    assert statement.origin is not None
    assert 2 == statement.origin.line
    assert [] == found.errors


def test_every_mistake_is_told_at_its_place_and_what_follows_a_use_that_fails_is_not_run(run: Run) -> None:
    script = (
        "USE c;\nCREATE ROUT r;\nCREATE QUEUE Q;\nUSE msdb;\nCREATE QUEUE Q;\nUSE a;\n"
        "ALTER ROUTE r WITH ADDRESS = 'tcp://x';\nCREATE ROUTE r WITH ADDRESS = 'nonsense';\n"
        "END CONVERSATION '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11';"
    )

    found = run(a=script)

    assert [
        "a.sql:1:5 error 911: the database 'c' does not exist here; there are: a, b, msdb",
        "a.sql:2:8 error 102",
        "a.sql:5:14 error 15151: msdb holds routes and permissions only; name a database with USE",
        "a.sql:7:13 error 15151: cannot alter the route 'r', because it does not exist",
        "a.sql:8:31 error 9744",
    ] == [line.partition(": incorrect")[0].partition(": ADDRESS")[0] for line in errors(found)]
    assert {} == found.databases["a"].rows.queues


def test_what_a_refused_create_would_have_made_is_no_second_mistake(run: Run) -> None:
    script = (
        "CREATE QUEUE Q WITH ACTIVATION (STATUS = ON);\nCREATE SERVICE S ON QUEUE [dbo].Q;\n"
        "GRANT SEND ON SERVICE::S TO a;\nCREATE MESSAGE TYPE T VALIDATION = VALID_XML;\n"
        "CREATE CONTRACT C (T SENT BY ANY);\nALTER QUEUE R WITH STATUS = ON;"
    )

    found = run(a=script, b="CREATE SERVICE S ON QUEUE Q;\nUSE [Master];")

    assert ["a.sql:1:21", "a.sql:4:36", "a.sql:6:13", "b.sql:1:27", "b.sql:2:5"] == [
        line.partition(" ")[0] for line in errors(found)
    ]
    assert "the database 'Master' does not exist here; leave the statement that names it out" in errors(found)[-1]


def test_what_statements_make_may_be_dropped_and_made_again(run: Run) -> None:
    made = """
        CREATE MESSAGE TYPE T; CREATE CONTRACT C (T SENT BY ANY); CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q (C, D);
        CREATE BROKER PRIORITY P FOR CONVERSATION SET (LOCAL_SERVICE_NAME = S); GRANT SEND ON SERVICE::S TO a;
    """
    dropped = "DROP BROKER PRIORITY P; DROP SERVICE S; DROP QUEUE Q; DROP CONTRACT C; DROP MESSAGE TYPE T;"

    one, other = run(a=made * 2, b=f"{made}{dropped * 2}").users

    assert {"C"} == one.contracts
    assert ({"C", "D"}, 1) == (set(one.rows.services["S"].contracts), len(one.permission_statements))
    assert not any((other.contracts, other.rows.services, other.rows.queues, other.rows.permissions))


def test_scripts_run_over_what_the_file_holds(run: Run, tmp_path: Path) -> None:
    with closing(database.open_store(tmp_path / "a.db", broker_instance=INSTANCE)) as db:
        metadata.put_queue(db, "Q", is_receive_enabled=True)
        metadata.put_routes(db, [RouteRow.of(Route("Old", LOCAL))])

    one = run(a="CREATE SERVICE S ON QUEUE Q;\nDROP ROUTE AutoCreatedLocal;\n").databases["a"]

    assert (["S"], ["Old"], INSTANCE.bytes) == (list(one.rows.services), list(one.routes), one.broker_instance)
    assert (True, True, {}) == (one.is_known, one.is_identified, one.statements)


def test_a_file_in_use_is_read(run: Run, tmp_path: Path) -> None:
    with closing(database.open_store(tmp_path / "a.db")) as db:
        db.execute("BEGIN IMMEDIATE")
        metadata.put_queue(db, "Q", is_receive_enabled=True)

        assert (True, {}) == ((one := run().users[0]).is_identified, one.rows.queues)


@pytest.mark.parametrize(
    ("more", "is_known", "is_identified"),
    [("", False, False), ("scripts = ['x.sql']", True, False), (f"broker_instance = '{INSTANCE}'", False, True)],
)
def test_what_nothing_tells_is_not_known(
    load: Callable[[str], Settings], tmp_path: Path, more: str, *, is_known: bool, is_identified: bool
) -> None:
    (tmp_path / "x.sql").touch()
    (one,) = dry_run(load(f"[databases.a]\npath = '/nowhere/a.db'\n{more}\n"), now=NOW).users

    assert (is_known, is_identified) == (one.is_known, one.is_identified)


def test_files_of_one_path_on_two_machines_are_two_databases(load: Callable[[str], Settings]) -> None:
    one, other = (
        dry_run(load(f"[instance]\nname = '{name}'\n[databases.a]\npath = '/nowhere/a.db'\n"), now=NOW).users[0]
        for name in ("near", "far")
    )

    assert one.broker_instance != other.broker_instance


@pytest.mark.parametrize("original", ["msdb.db", "a.db"])
def test_a_copied_file_is_told(run: Run, tmp_path: Path, original: str) -> None:
    """9772; two databases of one identity cannot be told apart."""
    database.open_store(tmp_path / original).close()
    shutil.copy(tmp_path / original, tmp_path / "b.db")

    (error,) = run().errors

    assert ("databases.b.path", True) == (error.key, error.problem.startswith("error 9772: "))


async def test_scripts_come_to_what_the_daemon_makes_of_them(run: Run, tmp_path: Path) -> None:
    """The same scripts through the one door for changes, at a start and again at the next one."""
    found = run(
        "CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://x';\nALTER ROUTE r WITH WEIGHT = 3;\n"
        "DROP ROUTE AutoCreatedLocal;\nCREATE ROUTE t WITH ADDRESS = 'tcp://y';\nDROP ROUTE s;\n",
        "CREATE QUEUE Q;\nCREATE QUEUE R;\nCREATE SERVICE S ON QUEUE Q;\nCREATE SERVICE T ON QUEUE Q;\n"
        "USE b;\nCREATE QUEUE Q;\nUSE a;\nALTER SERVICE S ON QUEUE R;\nDROP SERVICE T;\nDROP QUEUE Q;\n",
    )
    assert [] == found.errors

    for _ in range(2):
        async with serve(found.settings):
            pass
        for name, one in found.databases.items():
            with closing(open_watch(tmp_path / f"{name}.db")) as db:
                assert {astuple(RouteRow.of(route)) for route in one.routes.values()} == set(metadata.routes(db))
                assert (one.rows.queues, one.rows.services) == (metadata.queues(db), metadata.services(db))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("USE b;\nCREATE QUEUE Q;", ["a.sql:1:5 error 954: the database 'b' is mirrored"]),
        ("ALTER DATABASE b SET ENABLE_BROKER;", ["a.sql:1:16 error 954: the database 'b' is mirrored"]),
        ("USE a; CREATE QUEUE Q; ALTER DATABASE a SET ENABLE_BROKER;", []),
    ],
)
def test_a_mirrored_database_is_named_by_its_own_scripts_alone(
    load: Callable[[str], Settings], tmp_path: Path, script: str, expected: list[str]
) -> None:
    (tmp_path / "a.sql").write_text(script)
    (tmp_path / "b.sql").write_text("USE b; CREATE QUEUE Q; USE a; CREATE QUEUE FromB;")
    mirrored = "[databases.b]\npath = 'b.db'\nscripts = ['b.sql']\nmirroring = 'lock'\n"
    alone = "[databases.a]\npath = 'a.db'\nscripts = ['a.sql']\n"

    found = errors(dry_run(load(f"{QUIET}{alone}{mirrored}"), now=NOW))

    assert expected == [one.partition(", and may be")[0] for one in found]
