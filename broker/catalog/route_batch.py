"""
CREATE ROUTE, many at once: one question to the database and one insertion for hundreds of them.

The statements have their effects, and their mistakes, in their order, as if each had run by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.catalog.catalog import stored_route
from broker.catalog.handlers import Session, expect_absent
from broker.ddl.statements import CreateRoute, blaming
from broker.errors import StatementError
from broker.routing.route import RouteRow, create_route, row_of
from broker.store.sqlite import metadata

BATCH_MAX = 500  # statements; SQLite takes at most 999 values in one question where it is old


def create_routes(batch: Sequence[CreateRoute], session: Session) -> None:
    """
    Make these routes; one that is declared as it is stored already is not written.

    Args:
        batch: At most `BATCH_MAX`.
        session: Of their database.

    Raises:
        StatementError: with the place of the first mistake; the transaction is then to be rolled back.
    """
    rows = metadata.find_routes(session.db, [statement.name for statement in batch])
    written: dict[str, RouteRow] = {}
    messages, changes = session.messages, session.changes
    statement = None
    try:
        for statement in batch:
            old = rows.get(statement.name)
            if old is not None:
                expect_absent("route", statement.name, session, exists=True)
            route = create_route(statement.name, statement.properties, now=session.now)
            row = row_of(route)
            if row == old:
                messages.add("route", statement.name, "unchanged")
                continue
            messages.add("route", statement.name, "created" if old is None else "replaced")
            changes.add(None if old is None or changes.are_many else stored_route(old), route)
            rows[statement.name] = written[statement.name] = row
    except StatementError:
        assert statement is not None, "no statement, no mistake"
        with blaming(statement):
            raise
    metadata.put_routes(session.db, written.values())
