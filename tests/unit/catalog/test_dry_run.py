""""""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

import pytest

from broker.catalog.catalog import MSDB
from broker.catalog.dry_run import (
    KEPT_MAX,
    Kind,
    Played,
    Rehearsal,
    begin_to_play,
    first_of_each,
    play,
    read_contents,
    rehearse,
)
from broker.config.settings import Settings
from broker.conversation.message_types import SentBy, Validation
from broker.daemon.instance import serve
from broker.ddl.parser import parse_script
from broker.errors import StatementError
from broker.routing.address import LOCAL
from broker.routing.route import AUTO_CREATED_LOCAL, Route, row_of
from broker.store.sqlite import database, metadata, transaction
from broker.store.sqlite.metadata import Priority

INSTANCE = UUID(int=7)
EXPIRED = Route("Old", LOCAL, "S", lifetime=datetime(2020, 1, 1, tzinfo=UTC))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a queue, a service and an expired route."""
    path = tmp_path / "a.db"
    with closing(database.open_store(path, broker_instance=INSTANCE)) as db:
        metadata.put_queue(db, "Q", is_receive_enabled=True)
        metadata.put_service(db, "S", metadata.queues(db)["Q"].queue_id, frozenset())
        metadata.put_routes(db, [row_of(EXPIRED)])
    return path


def test_everything_a_check_needs_is_read(path: Path) -> None:
    found = read_contents(path)

    assert found is not None
    assert INSTANCE.bytes == found.broker_instance
    assert ({"Q"}, {"S": "Q"}) == (set(found.queues), dict(found.services))
    assert {AUTO_CREATED_LOCAL, EXPIRED} == set(found.routes)


def test_a_database_in_use_is_read(path: Path) -> None:
    with closing(database.open_store(path)) as db, transaction.writing(db):
        metadata.put_queue(db, "R", is_receive_enabled=True)
        found = read_contents(path)

    assert found is not None
    assert {"Q"} == found.queues


def test_reading_changes_nothing(path: Path) -> None:
    before = path.read_bytes()

    read_contents(path)

    assert before == path.read_bytes()


def test_what_is_no_database_of_the_broker_tells_nothing(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE t (x)")
    (tmp_path / "text.db").write_text("this is no database, and longer than a hundred characters" * 4)

    assert [None] * 4 == [read_contents(tmp_path / name) for name in ("other.db", "text.db", "none.db", ".")]


# --- test_played ---
# One database of a configuration in memory; what a whole configuration comes to is shown in test_rehearsal.


NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
MADE = """
CREATE MESSAGE TYPE T; CREATE CONTRACT C (T SENT BY ANY, [DEFAULT] SENT BY ANY); CREATE QUEUE Q;
CREATE SERVICE S ON QUEUE Q (C, D); CREATE BROKER PRIORITY P FOR CONVERSATION SET (LOCAL_SERVICE_NAME = S);
"""


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return begin_to_play("a", tmp_path / "a.db", is_known=True)


def run(played: Played, script: str) -> None:
    for statement in parse_script(script):
        play(played, statement, NOW)


def test_database_without_a_file_begins_with_the_automatic_route_and_a_made_up_identity(played: Played) -> None:
    assert {AUTO_CREATED_LOCAL.name: AUTO_CREATED_LOCAL} == played.routes
    assert (16, False) == (len(played.broker_instance), played.is_identified)


def test_database_begins_with_what_its_file_holds(tmp_path: Path) -> None:
    with closing(database.open_store(tmp_path / "a.db")) as db:
        metadata.put_message_type(db, "T", Validation.JSON)
        metadata.put_contract(db, "C", {"T": SentBy.ANY})
        metadata.put_queue(db, "Q", is_receive_enabled=True)
        metadata.put_service(db, "S", metadata.queues(db)["Q"].queue_id, frozenset({"C"}))
        metadata.put_priority(db, Priority("P", "C"))
        instance = database.broker_instance(db)

    played = begin_to_play("a", tmp_path / "a.db", is_known=False)

    assert (instance, True, True) == (played.broker_instance, played.is_identified, played.is_known)
    assert ({"S": "Q"}, {"S": frozenset({"C"})}) == (played.services, played.service_contracts)
    assert ({"T"}, {"C": frozenset({"T"})}, {"P": Priority("P", "C")}) == (
        played.message_types,
        played.contracts,
        played.priorities,
    )


def test_what_statements_make_is_kept_by_name(played: Played) -> None:
    run(played, MADE)

    assert ({"T"}, {"C": frozenset({"T", "DEFAULT"})}) == (played.message_types, played.contracts)
    assert ({"S": frozenset({"C", "D"})}, Priority("P", None, "S")) == (
        played.service_contracts,
        played.priorities["P"],
    )


def test_statements_may_be_made_again(played: Played) -> None:
    run(played, MADE)
    run(played, MADE)

    assert {"P"} == set(played.priorities)


def test_what_is_dropped_is_gone_and_what_is_not_there_may_be_dropped(played: Played) -> None:
    run(played, MADE)

    for _ in range(2):
        run(played, "DROP BROKER PRIORITY P; DROP SERVICE S; DROP QUEUE Q; DROP CONTRACT C; DROP MESSAGE TYPE T;")

    left = (played.priorities, played.services, played.service_contracts, played.queues, played.contracts)
    assert [] == [one for one in (*left, played.message_types) if one]


def test_contracts_of_a_service_are_altered(played: Played) -> None:
    run(played, f"{MADE} ALTER SERVICE S (ADD CONTRACT E, DROP CONTRACT D);")

    assert {"C", "E"} == played.service_contracts["S"]


def test_mistake_has_its_place(played: Played) -> None:
    with pytest.raises(StatementError) as caught:
        run(played, "CREATE MESSAGE TYPE T;\nCREATE CONTRACT C (U SENT BY ANY)")

    assert caught.value.span is not None
    assert (15151, 2, 20) == (caught.value.number, caught.value.span.line, caught.value.span.column)


def test_msdb_holds_routes_only(tmp_path: Path) -> None:
    with pytest.raises(StatementError, match="msdb holds routes and permissions only"):
        run(begin_to_play("msdb", tmp_path / "msdb.db", is_known=True), "CREATE MESSAGE TYPE T")


def test_a_file_that_another_daemon_has_is_not_read(tmp_path: Path) -> None:
    database.open_store(tmp_path / "a.db").close()

    read, unread = (begin_to_play("a", tmp_path / "a.db", is_known=False, is_elsewhere=one) for one in (False, True))

    assert (True, False) == (read.is_identified, unread.is_identified)


# --- test_quota ---
# The first of each kind, and the count of the others.


def kind_of(one: tuple[str, str | None, int]) -> Kind:
    return one[0], one[1]


def test_the_first_of_each_kind_are_kept_in_their_order_and_the_others_counted() -> None:
    found = [("a", "x", 1), ("b", "x", 2), ("a", "y", 3), ("a", "x", 4), ("a", "x", 5), ("a", None, 6), ("a", "x", 7)]

    kept, more = first_of_each(found, kind_of, most=2)

    assert [1, 2, 3, 4, 6] == [number for _, _, number in kept]
    assert {("a", "x"): 2} == more


def test_nothing_found_is_nothing_kept() -> None:
    assert ([], {}) == first_of_each([], kind_of, most=2)


# --- test_rehearsal ---
# What scripts come to without a database, and every mistake in them.


QUIET = "[instance]\nstate_dir = '.'\n[endpoint]\nlisten = []\n[observe]\nlisten = ''\n"
Play: TypeAlias = Callable[..., Rehearsal]


@pytest.fixture
def play_of_rehearsal(load: Callable[[str], Settings], tmp_path: Path) -> Play:
    """The rehearsal of an instance with the databases `a` and `b`, their scripts and msdb's."""

    def playing(msdb: str = "", a: str = "", b: str = "") -> Rehearsal:
        for name, text in (("msdb", msdb), ("a", a), ("b", b)):
            (tmp_path / f"{name}.sql").write_text(text)
        databases = "".join(f"[databases.{one}]\npath = '{one}.db'\nscripts = ['{one}.sql']\n" for one in "ab")
        return rehearse(load(f"{QUIET}[routes]\nfiles = ['msdb.sql']\n{databases}"), now=NOW)

    return playing


def errors(rehearsal: Rehearsal) -> list[str]:
    return [
        f"{Path(one.span.source).name}:{one.span.line}:{one.span.column} {one.problem}"
        for one in rehearsal.errors
        if one.span
    ]


def test_a_database_begins_with_the_automatic_route(play_of_rehearsal: Play) -> None:
    rehearsal = play_of_rehearsal()

    assert [MSDB, "a", "b"] == list(rehearsal.databases)
    assert all({"AutoCreatedLocal": AUTO_CREATED_LOCAL} == one.routes for one in rehearsal.databases.values())
    assert [] == rehearsal.errors


@pytest.mark.parametrize(("count", "is_told"), [(KEPT_MAX, False), (KEPT_MAX + 1, True)])
def test_a_script_is_read_up_to_so_many_mistakes(
    play_of_rehearsal: Play, tmp_path: Path, count: int, *, is_told: bool
) -> None:
    """What is no script of statements, on one line, has a mistake at every word of it."""
    rehearsal = play_of_rehearsal(a="x; " * count, b="DROP QUEUE;")

    of_a = [one for one in rehearsal.errors if one.span and one.span.source.endswith("a.sql")]
    ended = [one.problem for one in rehearsal.errors if one.span and one.span.source.endswith("broker.toml")]
    assert KEPT_MAX == len(of_a)
    assert [f'"{tmp_path}/a.sql" has 1,000 mistakes, and what comes after them is not read'] * is_told == ended
    assert "b.sql" in errors(rehearsal)[-1]


def test_statements_that_cannot_be_carried_out_count_as_mistakes(play_of_rehearsal: Play) -> None:
    rehearsal = play_of_rehearsal(a="ALTER ROUTE none WITH ADDRESS = 'LOCAL';\n" * (KEPT_MAX + 5))

    assert KEPT_MAX + 1 == len(rehearsal.errors)


def test_routes_are_created_altered_and_dropped(play_of_rehearsal: Play) -> None:
    rehearsal = play_of_rehearsal(
        "CREATE ROUTE r WITH ADDRESS = 'tcp://x', LIFETIME = 60;\n"
        "ALTER ROUTE r WITH SERVICE_NAME = 'S';\n"
        "DROP ROUTE AutoCreatedLocal;\n"
    )

    (route,) = rehearsal.msdb.routes.values()
    assert ("r", "S", NOW + timedelta(seconds=60)) == (route.name, route.remote_service_name, route.lifetime)
    statement = rehearsal.msdb.statements["r"]
    assert statement.origin is not None
    assert 2 == statement.origin.line
    assert [] == rehearsal.errors


def test_a_declared_create_replaces_and_a_declared_drop_finds_nothing(play_of_rehearsal: Play) -> None:
    rehearsal = play_of_rehearsal(
        "CREATE ROUTE r WITH ADDRESS = 'tcp://x';\nCREATE ROUTE r WITH ADDRESS = 'tcp://y';\nDROP ROUTE s;\n"
    )

    assert "tcp://y:4022" == str(rehearsal.msdb.routes["r"].address)
    assert ["s"] == [statement.name for statement in rehearsal.msdb.missed_drops]
    assert [] == rehearsal.errors


def test_queues_and_services_come_and_go(play_of_rehearsal: Play) -> None:
    rehearsal = play_of_rehearsal(
        a="CREATE QUEUE Q;\nCREATE QUEUE R;\nCREATE SERVICE S ON QUEUE Q;\nCREATE SERVICE T ON QUEUE Q;\n"
        "ALTER SERVICE T ON QUEUE R (ADD CONTRACT C);\nALTER SERVICE T (DROP CONTRACT C);\n"
        "DROP SERVICE S;\nDROP QUEUE Q;\n"
    )

    played = rehearsal.databases["a"]
    assert ({"T": "R"}, {"R"}, ["T"]) == (played.services, played.queues, list(played.service_statements))
    assert [] == rehearsal.errors


def test_use_leads_to_another_database(play_of_rehearsal: Play) -> None:
    rehearsal = play_of_rehearsal(
        a="CREATE QUEUE Q;\nUSE b;\nCREATE QUEUE R;\nUSE msdb;\nDROP ROUTE AutoCreatedLocal;\n"
    )

    assert ({"Q"}, {"R"}) == (rehearsal.databases["a"].queues, rehearsal.databases["b"].queues)
    assert {} == rehearsal.msdb.routes


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("CREATE ROUT r;", ["a.sql:1:8 error 102: incorrect syntax"]),
        (
            "ALTER ROUTE r WITH ADDRESS = 'tcp://x';",
            ["a.sql:1:13 error 15151: cannot alter the route 'r', because it does not exist"],
        ),
        (
            "CREATE ROUTE r WITH BROKER_INSTANCE = '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11', ADDRESS = 'LOCAL';",
            ["a.sql:1:39 error 9662: BROKER_INSTANCE needs SERVICE_NAME beside it"],
        ),
        (
            "ALTER SERVICE S ON QUEUE Q;",
            ["a.sql:1:15 error 15151: cannot alter the service 'S', because it does not exist"],
        ),
        (
            "CREATE SERVICE S ON QUEUE Q;",
            ["a.sql:1:16 error 208: the queue 'Q' does not exist; CREATE QUEUE [Q] first"],
        ),
        (
            "CREATE QUEUE Q;\nCREATE SERVICE S ON QUEUE Q;\nDROP QUEUE Q;",
            ["a.sql:3:12 error 3729: cannot drop the queue 'Q': the service 'S' uses it"],
        ),
        (
            "USE c;\nCREATE ROUT r;\nCREATE QUEUE Q;\nUSE msdb;\nCREATE QUEUE Q;",
            [
                "a.sql:1:5 error 911: the database 'c' does not exist here; there are: a, b, msdb",
                "a.sql:2:8 error 102: incorrect syntax",
                "a.sql:5:14 error 15151: msdb holds routes and permissions only; name a database with USE",
            ],
        ),
    ],
)
def test_every_mistake_is_told_at_its_place(play_of_rehearsal: Play, script: str, expected: list[str]) -> None:
    found = errors(play_of_rehearsal(a=script))

    assert expected == [line[: len(start)] for line, start in zip(found, expected, strict=True)]


def test_statements_about_other_things_pass(play_of_rehearsal: Play) -> None:
    rehearsal = play_of_rehearsal(
        a="CREATE QUEUE Q;\nALTER QUEUE Q WITH STATUS = OFF;\n"
        "END CONVERSATION '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11';\n"
    )

    assert [] == rehearsal.errors


def test_scripts_run_over_what_the_file_holds(play_of_rehearsal: Play, tmp_path: Path) -> None:
    with closing(database.open_store(tmp_path / "a.db", broker_instance=INSTANCE)) as db:
        metadata.put_queue(db, "Q", is_receive_enabled=True)
        metadata.put_routes(db, [row_of(Route("Old", LOCAL))])

    played = play_of_rehearsal(a="CREATE SERVICE S ON QUEUE Q;\nDROP ROUTE AutoCreatedLocal;\n").databases["a"]

    assert ({"S": "Q"}, ["Old"], INSTANCE.bytes) == (played.services, list(played.routes), played.broker_instance)
    assert (True, True, {}) == (played.is_known, played.is_identified, played.statements)


def test_a_rehearsal_leaves_no_trace(play_of_rehearsal: Play, tmp_path: Path) -> None:
    play_of_rehearsal("CREATE ROUTE r WITH ADDRESS = 'LOCAL';", "CREATE QUEUE Q;")

    assert {"broker.toml", "msdb.sql", "a.sql", "b.sql"} == {path.name for path in tmp_path.iterdir()}


def test_what_is_hosted_is_told_by_broker_instance(play_of_rehearsal: Play) -> None:
    rehearsal = play_of_rehearsal(a="CREATE QUEUE Q;\nCREATE SERVICE S ON QUEUE Q;\n")

    assert (rehearsal.users[0].broker_instance,) == rehearsal.hosted().databases_with["S"]
    assert ["a", "b"] == [played.name for played in rehearsal.users]


@pytest.mark.parametrize(
    ("more", "is_known", "is_identified"),
    [("", False, False), ("scripts = ['x.sql']", True, False), (f"broker_instance = '{INSTANCE}'", False, True)],
)
def test_what_nothing_tells_is_not_known(
    load: Callable[[str], Settings], tmp_path: Path, more: str, *, is_known: bool, is_identified: bool
) -> None:
    (tmp_path / "x.sql").touch()
    (played,) = rehearse(load(f"[databases.a]\npath = '/nowhere/a.db'\n{more}\n"), now=NOW).users

    assert (is_known, is_identified) == (played.is_known, played.is_identified)


@pytest.mark.parametrize("original", ["msdb.db", "a.db"])
def test_a_copied_file_is_told(play_of_rehearsal: Play, tmp_path: Path, original: str) -> None:
    """9772; two databases of one identity cannot be told apart."""
    database.open_store(tmp_path / original).close()
    shutil.copy(tmp_path / original, tmp_path / "b.db")

    (error,) = play_of_rehearsal().errors

    assert ("databases.b.path", True) == (error.key, error.problem.startswith("error 9772: "))


def test_one_identity_given_twice_is_not_told_again(load: Callable[[str], Settings]) -> None:
    more = f"broker_instance = '{INSTANCE}'"
    settings = load(f"[databases.a]\npath = 'a.db'\n{more}\n[databases.b]\npath = 'b.db'\n")
    databases = {name: one.with_values({"broker_instance": INSTANCE}) for name, one in settings.databases.items()}

    assert [] == rehearse(settings.with_values({"databases": databases}), now=NOW).errors


def test_made_up_identities_differ(load: Callable[[str], Settings]) -> None:
    text = "[databases.a]\npath = '/nowhere/a.db'\n[databases.b]\npath = '/nowhere/b.db'\n"

    assert 2 == len({played.broker_instance for played in rehearse(load(text), now=NOW).users})


async def test_scripts_come_to_what_the_daemon_makes_of_them(play_of_rehearsal: Play, tmp_path: Path) -> None:
    """The same scripts through the one door for changes, at a start and again at the next one."""
    rehearsal = play_of_rehearsal(
        "CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://x';\nALTER ROUTE r WITH WEIGHT = 3;\n"
        "DROP ROUTE AutoCreatedLocal;\nCREATE ROUTE t WITH ADDRESS = 'tcp://y';\nDROP ROUTE s;\n",
        "CREATE QUEUE Q;\nCREATE QUEUE R;\nCREATE SERVICE S ON QUEUE Q;\nCREATE SERVICE T ON QUEUE Q;\n"
        "USE b;\nCREATE QUEUE Q;\nUSE a;\nALTER SERVICE S ON QUEUE R;\nDROP SERVICE T;\nDROP QUEUE Q;\n",
    )
    assert [] == rehearsal.errors

    for _ in range(2):
        async with serve(rehearsal.settings):
            pass
        for name, played in rehearsal.databases.items():
            contents = read_contents(tmp_path / f"{name}.db")
            assert contents is not None
            assert set(played.routes.values()) == set(contents.routes)
            assert (played.queues, played.services) == (set(contents.queues), dict(contents.services))


def test_a_file_that_is_no_database_is_left_to_the_other_checks(play_of_rehearsal: Play, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("no database" * 100)
    with closing(sqlite3.connect(tmp_path / "b.db")) as db:
        db.execute("CREATE TABLE t (x)")

    assert [False, False] == [played.is_identified for played in play_of_rehearsal().users]


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

    found = errors(rehearse(load(f"{QUIET}{alone}{mirrored}"), now=NOW))

    assert expected == [one.partition(", and may be")[0] for one in found]
