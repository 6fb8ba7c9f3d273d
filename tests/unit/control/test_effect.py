"""What is special to statements one by one; what they do is shown through the door, in test_execute."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.catalog import handlers as effect
from broker.catalog.catalog import ScriptMessages
from broker.catalog.handlers import RouteChanges, Session, carry_out
from broker.ddl.statements import AlterRoute, DropRoute, Statement
from broker.errors import StatementError
from broker.routing.address import LOCAL
from broker.routing.route import AUTO_CREATED_LOCAL, Route, RouteProperties
from broker.routing.table import RouteChange
from broker.store.sqlite import database, metadata

R, S = Route("r", LOCAL), Route("s", LOCAL)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    db: sqlite3.Connection = database.open_store(tmp_path / "a.db")
    db.execute("INSERT INTO broker_route (name, address) VALUES ('odd', 'nonsense')")
    yield Session(db, datetime.now(UTC), is_declared=False, messages=ScriptMessages())
    db.close()


def test_kind_of_statement_that_nobody_carries_out_is_a_bug(session: Session) -> None:
    with pytest.raises(AssertionError, match="no way to carry out Statement"):
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


def test_row_that_is_no_route_cannot_be_altered(session: Session) -> None:
    with pytest.raises(StatementError, match="what is no route under the name 'odd'; DROP it first"):
        carry_out(AlterRoute("odd", RouteProperties(address="LOCAL")), session)


def test_row_that_is_no_route_can_be_dropped(session: Session) -> None:
    """It was in no table, so nothing has gone from there."""
    carry_out(DropRoute("odd"), session)

    assert metadata.find_route(session.db, "odd") is None
    assert session.changes.kept == [RouteChange(None, None)]
