"""CREATE ROUTE in a batch does, and refuses, what the same statements do one by one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.catalog.catalog import ScriptMessages
from broker.catalog.handlers import Session
from broker.catalog.route_batch import create_routes
from broker.ddl.parser import parse_script
from broker.ddl.statements import CreateRoute
from broker.errors import StatementError
from broker.routing.address import LOCAL
from broker.routing.route import AUTO_CREATED_LOCAL, Route, row_of
from broker.routing.table import RouteChange
from broker.store.sqlite import database, metadata

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNSOUND = "CREATE ROUTE b WITH ADDRESS = 'x';"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = database.open_store(tmp_path / "a.db")
    yield db
    db.close()


def session(db: sqlite3.Connection, *, is_declared: bool) -> Session:
    return Session(db, NOW, is_declared=is_declared, messages=ScriptMessages())


def batch(script: str) -> list[CreateRoute]:
    statements = parse_script(script, source="a.sql")
    return [statement for statement in statements if isinstance(statement, CreateRoute)]


def test_routes_are_stored_and_told(db: sqlite3.Connection) -> None:
    here = session(db, is_declared=False)

    create_routes(batch("CREATE ROUTE a WITH ADDRESS = 'LOCAL'; CREATE ROUTE b WITH ADDRESS = 'LOCAL';"), here)

    a, b = Route("a", LOCAL), Route("b", LOCAL)
    assert metadata.find_routes(db, ["a", "b"]) == {"a": row_of(a), "b": row_of(b)}
    assert here.changes.kept == [RouteChange(None, a), RouteChange(None, b)]
    assert here.messages.lines() == ["route a created", "route b created"]


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ("CREATE ROUTE a WITH ADDRESS = 'LOCAL';\nCREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL';", "2:14"),
        ("CREATE ROUTE a WITH ADDRESS = 'LOCAL';\nCREATE ROUTE a WITH ADDRESS = 'x';", "2:14"),
        (f"CREATE ROUTE a WITH ADDRESS = 'LOCAL';\n{UNSOUND} CREATE ROUTE a WITH ADDRESS = 'x';", "2:31"),
    ],
)
def test_first_mistake_is_told_at_its_place(db: sqlite3.Connection, script: str, place: str) -> None:
    with pytest.raises(StatementError) as caught:
        create_routes(batch(script), session(db, is_declared=False))

    span = caught.value.span
    assert span is not None
    assert place == f"{span.line}:{span.column}"


def test_declared_route_that_is_stored_so_is_not_written(db: sqlite3.Connection) -> None:
    here = session(db, is_declared=True)
    before = db.total_changes

    create_routes(batch("CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL';"), here)

    assert (db.total_changes, here.changes.kept) == (before, [])
    assert here.messages.lines() == ["route AutoCreatedLocal unchanged"]


def test_declared_route_is_made_what_was_said_last(db: sqlite3.Connection) -> None:
    here = session(db, is_declared=True)
    script = "CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL', WEIGHT = {};"

    create_routes(batch(script.format(2) + script.format(3)), here)

    second, third = (Route("AutoCreatedLocal", LOCAL, weight=weight) for weight in (2, 3))
    assert metadata.find_route(db, "AutoCreatedLocal") == row_of(third)
    assert here.changes.kept == [RouteChange(AUTO_CREATED_LOCAL, second), RouteChange(second, third)]


def test_lifetime_that_is_declared_counts_anew(db: sqlite3.Connection) -> None:
    script = "CREATE ROUTE a WITH LIFETIME = 60, ADDRESS = 'LOCAL';"
    create_routes(
        batch(script), Session(db, datetime(2025, 1, 1, tzinfo=UTC), is_declared=True, messages=ScriptMessages())
    )

    create_routes(batch(script), session(db, is_declared=True))

    row = metadata.find_route(db, "a")
    assert row is not None
    assert row[3] == NOW.timestamp() + 60
