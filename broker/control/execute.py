"""
Carrying out statements: the one door for every change, from file, command line or HTTP.

A script is cut at USE into segments, one database each; a segment is one transaction, so a mistake in its middle
changes nothing of it and names the place. Statements run in the writer thread of their database; afterwards the
catalog is read back and swapped.

Scripts named in the configuration are *declared*: they run at every start, so there CREATE of something that exists
makes it what the script says, and DROP of something that is gone is done already.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, singledispatch
from itertools import groupby
from typing import TypeVar

from broker.control.catalog import MSDB, Catalog, Database, Rows, read_rows
from broker.ddl.statements import (
    AlterQueue,
    AlterRoute,
    AlterService,
    CreateQueue,
    CreateRoute,
    CreateService,
    DropQueue,
    DropRoute,
    DropService,
    EndConversation,
    QueueName,
    Statement,
    UseDatabase,
    blaming,
)
from broker.dialog import store
from broker.dialog.application import end_with_cleanup, get_dialog
from broker.errors import ConversationError, DuplicateNameError, StatementError, StoreUnavailableError, UnknownNameError
from broker.routing.route import alter_route, create_route

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Session:
    """Where a statement runs. Shape: `is_declared` for scripts of the configuration."""

    db: sqlite3.Connection
    now: datetime
    is_declared: bool


async def execute(
    catalog: Catalog, statements: Iterable[Statement], *, database: str, is_declared: bool = False
) -> list[str]:
    """
    Carry out statements, segment by segment; every database that USE names is known before the first one runs.

    Args:
        catalog: Brought up to date before this returns.
        statements: In order.
        database: Where the first segment runs; USE changes it.
        is_declared: Whether this is a script of the configuration.

    Returns:
        One message for each statement but USE.

    Raises:
        StatementError: with the place; segments before it are done, its own is undone.
        StoreUnavailableError: the file could not be written; likewise.
    """
    messages: list[str] = []
    changed = False
    try:
        for target, segment in list(_segments(catalog, statements, database)):
            work = partial(_run_in_writer, segment=segment, is_msdb=target.name == MSDB, is_declared=is_declared)
            try:
                done, target.rows = await target.in_writer(work)
            except sqlite3.Error as error:
                raise StoreUnavailableError(str(target.path), str(error)) from error
            messages += done
            changed = True
    finally:
        if changed:
            catalog.changed()
    return messages


def _segments(
    catalog: Catalog, statements: Iterable[Statement], database: str
) -> Iterator[tuple[Database, list[Statement]]]:
    """Runs of statements for one database."""
    current = database

    def target(statement: Statement) -> str:
        nonlocal current
        if isinstance(statement, UseDatabase):
            current = statement.name
            with blaming(statement):
                _database(catalog, current)
        return current

    for name, run in groupby(list(statements), key=target):
        yield _database(catalog, name), [statement for statement in run if not isinstance(statement, UseDatabase)]


def _database(catalog: Catalog, name: str) -> Database:
    found = catalog.databases.get(name)
    if found is None:
        known = ", ".join(sorted(catalog.databases))
        raise UnknownNameError(911, f"the database {name!r} does not exist here; there are: {known}")
    return found


def _run_in_writer(
    db: sqlite3.Connection, *, segment: list[Statement], is_msdb: bool, is_declared: bool
) -> tuple[list[str], Rows]:
    session = Session(db, datetime.now(UTC), is_declared)
    messages = []
    with store.writing(db):
        for statement in segment:
            with blaming(statement):
                if is_msdb and not isinstance(statement, CreateRoute | AlterRoute | DropRoute):
                    raise StatementError(15151, "msdb holds routes only; name a database with USE")
                messages.append(_run(statement, session))
    return messages, read_rows(db)


# --- one statement ------------------------------------------------------------------------------------------


@singledispatch
def _run(statement: Statement, _session: Session) -> str:
    raise AssertionError(f"no way to carry out {type(statement).__name__}")


@_run.register
def _(statement: CreateRoute, session: Session) -> str:
    exists = store.find_route(session.db, statement.name) is not None
    _expect_absent("route", statement.name, session, exists=exists)
    store.put_route(session.db, create_route(statement.name, statement.properties, now=session.now))
    return f"route {statement.name} {'replaced' if exists else 'created'}"


@_run.register
def _(statement: AlterRoute, session: Session) -> str:
    route = store.find_route(session.db, statement.name)
    if route is None:
        raise UnknownNameError(15151, f"cannot alter the route {statement.name!r}, because it does not exist")
    store.put_route(session.db, alter_route(route, statement.properties, now=session.now))
    return f"route {statement.name} altered"


@_run.register
def _(statement: DropRoute, session: Session) -> str:
    if _may_drop("route", statement.name, session, exists=store.find_route(session.db, statement.name) is not None):
        store.drop_route(session.db, statement.name)
    return f"route {statement.name} dropped"


@_run.register
def _(statement: CreateQueue, session: Session) -> str:
    exists = statement.queue.name in store.queues(session.db)
    _expect_absent("queue", statement.queue.name, session, exists=exists)
    store.put_queue(session.db, statement.queue.name, is_receive_enabled=statement.status)
    return f"queue {statement.queue.name} {'replaced' if exists else 'created'}"


@_run.register
def _(statement: AlterQueue, session: Session) -> str:
    _find(store.queues(session.db), "queue", statement.queue.name)
    store.put_queue(session.db, statement.queue.name, is_receive_enabled=statement.status)
    return f"queue {statement.queue.name} altered"


@_run.register
def _(statement: DropQueue, session: Session) -> str:
    name = statement.queue.name
    queue = store.queues(session.db).get(name)
    if not _may_drop("queue", name, session, exists=queue is not None) or queue is None:
        return f"queue {name} dropped"
    used = [service.name for service in store.services(session.db).values() if service.queue_id == queue.queue_id]
    if used:
        raise StatementError(3729, f"cannot drop the queue {name!r}: the service {used[0]!r} uses it")
    store.drop_queue(session.db, name)
    return f"queue {name} dropped"


@_run.register
def _(statement: CreateService, session: Session) -> str:
    exists = statement.name in store.services(session.db)
    _expect_absent("service", statement.name, session, exists=exists)
    queue = _queue(session, statement.queue)
    store.put_service(session.db, statement.name, queue.queue_id, frozenset(statement.contracts))
    return f"service {statement.name} {'replaced' if exists else 'created'}"


@_run.register
def _(statement: AlterService, session: Session) -> str:
    service = _find(store.services(session.db), "service", statement.name)
    queue_id = _queue(session, statement.queue).queue_id if statement.queue else service.queue_id
    absent = set(statement.drop_contracts) - service.contracts
    if absent:
        raise UnknownNameError(15151, f"the service {statement.name!r} has no contract {min(absent)!r} to drop")
    contracts = (service.contracts - set(statement.drop_contracts)) | set(statement.add_contracts)
    store.put_service(session.db, statement.name, queue_id, frozenset(contracts))
    return f"service {statement.name} altered"


@_run.register
def _(statement: DropService, session: Session) -> str:
    if _may_drop("service", statement.name, session, exists=statement.name in store.services(session.db)):
        store.drop_service(session.db, statement.name)
    return f"service {statement.name} dropped"


@_run.register
def _(statement: EndConversation, session: Session) -> str:
    try:
        dialog = get_dialog(session.db, statement.conversation_handle)
        if statement.cleanup:
            end_with_cleanup(session.db, dialog)
        else:
            dialog.end(error=statement.error_code, description=statement.description or "")
    except ConversationError as error:
        raise StatementError(error.number, error.problem) from error
    return f"conversation {statement.conversation_handle} ended"


# --- names --------------------------------------------------------------------------------------------------


def _find(objects: Mapping[str, _T], what: str, name: str) -> _T:
    """The object that an ALTER names."""
    if name not in objects:
        raise UnknownNameError(15151, f"cannot alter the {what} {name!r}, because it does not exist")
    return objects[name]


def _queue(session: Session, name: QueueName) -> store.Queue:
    queue = store.queues(session.db).get(name.name)
    if queue is None:
        raise UnknownNameError(208, f"the queue {name.name!r} does not exist; CREATE QUEUE [{name.name}] first")
    return queue


def _expect_absent(what: str, name: str, session: Session, *, exists: bool) -> None:
    if exists and not session.is_declared:
        raise DuplicateNameError(2714, f"there is already a {what} named {name!r} in the database")


def _may_drop(what: str, name: str, session: Session, *, exists: bool) -> bool:
    """Whether there is something to drop."""
    if not exists and not session.is_declared:
        raise UnknownNameError(15151, f"cannot drop the {what} {name!r}, because it does not exist")
    return exists
