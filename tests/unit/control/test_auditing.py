from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.control.auditing import carry_out_seen, create_routes_seen
from broker.control.definition import Change
from broker.control.effect import Session
from broker.control.progress import Messages
from broker.ddl.parser import parse_script
from broker.ddl.statements import CreateRoute
from broker.errors import UnknownNameError
from broker.store import metadata
from broker.store.database import open_store
from broker.store.transaction import writing

NOW = datetime(2026, 11, 22, tzinfo=UTC)


class Seen:
    """Keeps what it sees, up to its room."""

    def __init__(self, most: int = 100) -> None:
        self.changes: list[Change] = []
        self.most = most

    @property
    def room(self) -> int:
        return self.most - len(self.changes)

    def note(self, change: Change) -> None:
        self.changes.append(change)

    def seal(self, statements: int) -> None:
        raise AssertionError(f"nothing is committed here, not even {statements}")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with closing(open_store(tmp_path / "orders.db")) as db, writing(db):
        yield Session(db, NOW, is_declared=False, messages=Messages(), database="orders")


def _queue_names(db: sqlite3.Connection) -> set[str]:
    return set(metadata.queues(db))


def test_a_change_is_seen_with_what_was_before_it_and_after(session: Session) -> None:
    seen = Seen()
    create, drop = parse_script("CREATE QUEUE q; DROP QUEUE q")

    carry_out_seen(create, session, seen)
    carry_out_seen(drop, session, seen)

    queue = {"STATUS": "ON", "POISON_MESSAGE_HANDLING": "OFF"}
    assert [Change("orders", create, None, queue), Change("orders", drop, queue, None)] == seen.changes


def test_what_is_refused_is_not_seen(session: Session) -> None:
    seen = Seen()
    [drop] = parse_script("DROP QUEUE q")

    with pytest.raises(UnknownNameError):
        carry_out_seen(drop, session, seen)

    assert [] == seen.changes


@pytest.mark.parametrize("seen", [None, Seen(0)])
def test_a_statement_is_carried_out_whoever_looks(session: Session, seen: Seen | None) -> None:
    [create] = parse_script("CREATE QUEUE q")

    carry_out_seen(create, session, seen)

    assert "q" in _queue_names(session.db)
    assert seen is None or seen.changes == []


def test_of_many_routes_as_many_are_seen_as_there_is_room_for(session: Session) -> None:
    seen = Seen(2)
    batch = [
        statement
        for statement in parse_script("".join(f"CREATE ROUTE r{number} WITH ADDRESS = 'LOCAL';" for number in range(5)))
        if isinstance(statement, CreateRoute)
    ]

    create_routes_seen(batch, session, seen)

    assert [("r0", None, "LOCAL"), ("r1", None, "LOCAL")] == [
        (change.statement.name, change.before, (change.after or {})["ADDRESS"])  # type: ignore[attr-defined]
        for change in seen.changes
    ]
    assert 5 == sum(name.startswith("r") for name, *_ in metadata.routes(session.db))


def test_routes_are_made_when_nobody_looks(session: Session) -> None:
    [route] = parse_script("CREATE ROUTE r WITH ADDRESS = 'LOCAL'")
    assert isinstance(route, CreateRoute)

    create_routes_seen([route], session, None)

    assert metadata.find_route(session.db, "r") is not None
