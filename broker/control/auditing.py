"""
Seeing statements change things, for whoever writes it down.

A script is seen by an `Auditing` while its transactions are open: what each statement is about, before it and after it.
Before anything is committed `seal` is called; where it raises, all of the script is rolled back, so nothing happens of
which nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.control.definition import Auditing, Change, definition_of
from broker.control.effect import Session, carry_out
from broker.control.route_batch import create_routes
from broker.ddl.statements import CreateRoute, Statement


def carry_out_seen(statement: Statement, session: Session, seen_by: Auditing | None) -> None:
    """
    Carry out a statement, and let it be seen.

    Raises:
        StatementError: it cannot be done; nothing was changed.
    """
    if seen_by is None or not seen_by.room:
        carry_out(statement, session)
        return
    before = definition_of(statement, session.db)
    carry_out(statement, session)
    seen_by.note(Change(session.database, statement, before, definition_of(statement, session.db)))


def create_routes_seen(batch: Sequence[CreateRoute], session: Session, seen_by: Auditing | None) -> None:
    """
    Make these routes, and let as many of them be seen as are asked for.

    Raises:
        StatementError: as `create_routes`.
    """
    seen = list(batch[: seen_by.room]) if seen_by is not None else []
    before = [definition_of(statement, session.db) for statement in seen]
    create_routes(batch, session)
    for statement, was in zip(seen, before, strict=True):
        assert seen_by is not None, "it has room"
        seen_by.note(Change(session.database, statement, was, definition_of(statement, session.db)))
