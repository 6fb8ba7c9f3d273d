"""
What each statement does to its database, inside the transaction of its script.

Scripts named in the configuration are *declared*: they run at every start, so there CREATE of something that exists
makes it what the script says, and DROP of something that is gone is done already.

CREATE ROUTE has a file of its own, `broker.control.route_batch`, because there may be a million of them.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from datetime import datetime
from functools import singledispatch
from typing import TypeVar

from broker.control.progress import Messages
from broker.control.stored import stored_route
from broker.ddl.statements import (
    AlterQueue,
    AlterRoute,
    AlterService,
    CreateQueue,
    CreateService,
    DropQueue,
    DropRoute,
    DropService,
    EndConversation,
    QueueName,
    Statement,
)
from broker.dialog import store
from broker.dialog.application import end_with_cleanup, get_dialog
from broker.errors import ConversationError, DuplicateNameError, StatementError, UnknownNameError
from broker.routing.route import BROKER_CONFIGURATION, Route, alter_route, row_of
from broker.routing.table import RouteChange

NOT_SUPPORTED = 50000  # what the original numbers a message with that has no number of its own
CHANGES_MAX = 10_000  # kept one by one; for more, reading all routes anew costs less memory and about the same time

_T = TypeVar("_T")


@dataclass(slots=True)
class RouteChanges:
    """What became of the routes of one database. Shape: `are_many` when there were more than `CHANGES_MAX`."""

    kept: list[RouteChange] = field(default_factory=list)
    are_many: bool = False

    def add(self, old: Route | None, new: Route | None) -> None:
        """A route was made (no `old`), dropped (no `new`) or altered."""
        if self.are_many or len(self.kept) == CHANGES_MAX:
            self.are_many = True
            self.kept.clear()
        else:
            self.kept.append(RouteChange(old, new))


@dataclass(slots=True)
class Session:
    """
    Where a statement runs.

    Shape: `now` UTC; `is_declared` for scripts of the configuration; `may_ask` as of the database.
    """

    db: sqlite3.Connection
    now: datetime
    is_declared: bool
    messages: Messages
    may_ask: bool = True
    changes: RouteChanges = field(default_factory=RouteChanges)


@singledispatch
def carry_out(statement: Statement, _session: Session) -> None:
    """
    Do what a statement says.

    Raises:
        StatementError: it cannot be done; nothing was changed.
    """
    raise AssertionError(f"no way to carry out {type(statement).__name__}")


@carry_out.register
def _(statement: AlterRoute, session: Session) -> None:
    row = store.find_route(session.db, statement.name)
    if row is None:
        raise UnknownNameError(15151, f"cannot alter the route {statement.name!r}, because it does not exist")
    old = stored_route(row)
    if old is None:
        problem = f"another program has stored what is no route under the name {statement.name!r}; DROP it first"
        raise StatementError(9744, problem)
    new = alter_route(old, statement.properties, now=session.now)
    refuse_asking(new, session)
    store.put_routes(session.db, [row_of(new)])
    session.changes.add(old, new)
    session.messages.add("route", statement.name, "altered")


@carry_out.register
def _(statement: DropRoute, session: Session) -> None:
    row = store.find_route(session.db, statement.name)
    if _may_drop("route", statement.name, session, exists=row is not None):
        store.drop_route(session.db, statement.name)
        session.changes.add(stored_route(row), None)
    session.messages.add("route", statement.name, "dropped")


@carry_out.register
def _(statement: CreateQueue, session: Session) -> None:
    exists = store.find_queue(session.db, statement.queue.name) is not None
    expect_absent("queue", statement.queue.name, session, exists=exists)
    store.put_queue(session.db, statement.queue.name, is_receive_enabled=statement.status)
    session.messages.add("queue", statement.queue.name, "replaced" if exists else "created")


@carry_out.register
def _(statement: AlterQueue, session: Session) -> None:
    _expect_present("queue", statement.queue.name, store.find_queue(session.db, statement.queue.name))
    store.put_queue(session.db, statement.queue.name, is_receive_enabled=statement.status)
    session.messages.add("queue", statement.queue.name, "altered")


@carry_out.register
def _(statement: DropQueue, session: Session) -> None:
    name = statement.queue.name
    queue = store.find_queue(session.db, name)
    if _may_drop("queue", name, session, exists=queue is not None) and queue is not None:
        used = store.find_service_of(session.db, queue.queue_id)
        if used is not None:
            raise StatementError(3729, f"cannot drop the queue {name!r}: the service {used!r} uses it")
        store.drop_queue(session.db, name)
    session.messages.add("queue", name, "dropped")


@carry_out.register
def _(statement: CreateService, session: Session) -> None:
    exists = store.find_service(session.db, statement.name) is not None
    expect_absent("service", statement.name, session, exists=exists)
    queue = _queue(session, statement.queue)
    store.put_service(session.db, statement.name, queue.queue_id, frozenset(statement.contracts))
    session.messages.add("service", statement.name, "replaced" if exists else "created")


@carry_out.register
def _(statement: AlterService, session: Session) -> None:
    service = _expect_present("service", statement.name, store.find_service(session.db, statement.name))
    queue_id = _queue(session, statement.queue).queue_id if statement.queue else service.queue_id
    absent = set(statement.drop_contracts) - service.contracts
    if absent:
        raise UnknownNameError(15151, f"the service {statement.name!r} has no contract {min(absent)!r} to drop")
    contracts = (service.contracts - set(statement.drop_contracts)) | set(statement.add_contracts)
    store.put_service(session.db, statement.name, queue_id, frozenset(contracts))
    session.messages.add("service", statement.name, "altered")


@carry_out.register
def _(statement: DropService, session: Session) -> None:
    if _may_drop("service", statement.name, session, exists=store.find_service(session.db, statement.name) is not None):
        store.drop_service(session.db, statement.name)
    session.messages.add("service", statement.name, "dropped")


@carry_out.register
def _(statement: EndConversation, session: Session) -> None:
    try:
        dialog = get_dialog(session.db, statement.conversation_handle)
        if statement.cleanup:
            end_with_cleanup(session.db, dialog)
        else:
            dialog.end(error=statement.error_code, description=statement.description or "")
    except ConversationError as error:
        raise StatementError(error.number, error.problem) from error
    session.messages.add("conversation", statement.conversation_handle, "ended")


# --- names --------------------------------------------------------------------------------------------------


def _expect_present(what: str, name: str, found: _T | None) -> _T:
    """The object that an ALTER names."""
    if found is None:
        raise UnknownNameError(15151, f"cannot alter the {what} {name!r}, because it does not exist")
    return found


def _queue(session: Session, name: QueueName) -> store.Queue:
    queue = store.find_queue(session.db, name.name)
    if queue is None:
        raise UnknownNameError(208, f"the queue {name.name!r} does not exist; CREATE QUEUE [{name.name}] first")
    return queue


def expect_absent(what: str, name: str, session: Session, *, exists: bool) -> None:
    """Refuse a CREATE of what exists, unless the script is declared."""
    if exists and not session.is_declared:
        raise DuplicateNameError(2714, f"there is already a {what} named {name!r} in the database")


def refuse_asking(route: Route, session: Session) -> None:
    """Refuse a route by which the database would ask for other routes, where it may not."""
    if route.remote_service_name == BROKER_CONFIGURATION and not session.may_ask:
        problem = f"the route {route.name!r} would ask for other routes, which takes endpoint.workers = 1"
        raise StatementError(NOT_SUPPORTED, problem)


def _may_drop(what: str, name: str, session: Session, *, exists: bool) -> bool:
    """Whether there is something to drop."""
    if not exists and not session.is_declared:
        raise UnknownNameError(15151, f"cannot drop the {what} {name!r}, because it does not exist")
    return exists
