"""
What each statement does to its database, inside the transaction of its script.

Scripts named in the configuration are *declared*: they run at every start, so there CREATE of something that exists
makes it what the script says, and DROP of something that is gone is done already. Only whether a queue is ON is left as
it is where the script does not say it, for that is no part of its making: it is turned off while it is in use.

CREATE ROUTE has a file of its own, `broker.control.route_batch`, because there may be a million of them; message types,
contracts and priorities are in `broker.control.agreement`, permissions in `broker.control.permission`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import singledispatch
from typing import TypeVar

from msgspec import Struct, field

from broker.control.progress import ScriptMessages
from broker.control.stored import stored_route
from broker.ddl.statements import (
    AlterDatabase,
    AlterQueue,
    AlterRoute,
    AlterService,
    BeginConversationTimer,
    CreateQueue,
    CreateService,
    DatabaseOption,
    DropQueue,
    DropRoute,
    DropService,
    EndConversation,
    MoveConversation,
    QueueName,
    Statement,
)
from broker.errors import ConversationError, DuplicateNameError, StatementError, UnknownNameError
from broker.routing.route import PropertyError, Route, alter_route, row_of
from broker.routing.table import RouteChange
from broker.security.grants import ENDPOINT_NAME
from broker.store import metadata
from broker.store.identity import error_conversations
from broker.store.permission import drop_permissions_on

NOT_SUPPORTED = 50000  # what the original numbers a message with that has no number of its own
BOUND = 3716  # the original's number for the DROP of what something else names
CHANGES_MAX = 10_000  # kept one by one; for more, reading all routes anew costs less memory and about the same time

_T = TypeVar("_T")


class RouteChanges(Struct):
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


class Session(Struct):
    """
    Where a statement runs.

    Shape: `now` UTC; `is_declared` for scripts of the configuration; `database` its name; `endpoint` the name of that
    of the instance.
    """

    db: sqlite3.Connection
    now: datetime
    is_declared: bool
    messages: ScriptMessages
    database: str = ""
    endpoint: str = ENDPOINT_NAME
    changes: RouteChanges = field(default_factory=RouteChanges)


@singledispatch
def carry_out(statement: Statement, _session: Session) -> None:
    """
    Do what a statement says.

    Raises:
        StatementError: it cannot be done; nothing was changed.
    """
    raise AssertionError(f"no way to carry out {type(statement).__name__}")


@carry_out.register(AlterRoute)
def _(statement: AlterRoute, session: Session) -> None:
    row = metadata.find_route(session.db, statement.name)
    if row is None:
        raise UnknownNameError(15151, f"cannot alter the route {statement.name!r}, because it does not exist")
    old = stored_route(row)
    if old is None:
        problem = f"another program has stored what is no route under the name {statement.name!r}; DROP it first"
        raise StatementError(9744, problem)
    new = alter_route(old, statement.properties, now=session.now)
    metadata.put_routes(session.db, [row_of(new)])
    session.changes.add(old, new)
    session.messages.add("route", statement.name, "altered")


@carry_out.register(DropRoute)
def _(statement: DropRoute, session: Session) -> None:
    row = metadata.find_route(session.db, statement.name)
    if may_drop("route", statement.name, session, exists=row is not None):
        metadata.drop_route(session.db, statement.name)
        session.changes.add(stored_route(row), None)
    session.messages.add("route", statement.name, "dropped")


@carry_out.register(CreateQueue)
def _(statement: CreateQueue, session: Session) -> None:
    old = metadata.find_queue(session.db, statement.queue.name)
    expect_absent("queue", statement.queue.name, session, exists=old is not None)
    # A poison message or an administrator may have turned it off: no start undoes that unless the script says so.
    as_it_is = True if old is None else old.is_receive_enabled
    metadata.put_queue(
        session.db,
        statement.queue.name,
        is_receive_enabled=as_it_is if statement.status is None else statement.status,
        is_poison_message_handling_enabled=statement.poison_message_handling,
    )
    session.messages.add("queue", statement.queue.name, "created" if old is None else "replaced")


@carry_out.register(AlterQueue)
def _(statement: AlterQueue, session: Session) -> None:
    old = expect_present("queue", statement.queue.name, metadata.find_queue(session.db, statement.queue.name))
    status, poison = statement.status, statement.poison_message_handling
    metadata.put_queue(
        session.db,
        statement.queue.name,
        is_receive_enabled=old.is_receive_enabled if status is None else status,
        is_poison_message_handling_enabled=old.is_poison_message_handling_enabled if poison is None else poison,
    )
    session.messages.add("queue", statement.queue.name, "altered")


@carry_out.register(DropQueue)
def _(statement: DropQueue, session: Session) -> None:
    name = statement.queue.name
    queue = metadata.find_queue(session.db, name)
    if may_drop("queue", name, session, exists=queue is not None) and queue is not None:
        used = metadata.find_service_of(session.db, queue.queue_id)
        if used is not None:
            raise StatementError(3729, f"cannot drop the queue {name!r}: the service {used!r} uses it")
        metadata.drop_queue(session.db, name)
    session.messages.add("queue", name, "dropped")


@carry_out.register(CreateService)
def _(statement: CreateService, session: Session) -> None:
    exists = metadata.find_service(session.db, statement.name) is not None
    expect_absent("service", statement.name, session, exists=exists)
    queue = _queue(session, statement.queue)
    metadata.put_service(session.db, statement.name, queue.queue_id, frozenset(statement.contracts))
    session.messages.add("service", statement.name, "replaced" if exists else "created")


@carry_out.register(AlterService)
def _(statement: AlterService, session: Session) -> None:
    service = expect_present("service", statement.name, metadata.find_service(session.db, statement.name))
    queue_id = _queue(session, statement.queue).queue_id if statement.queue else service.queue_id
    absent = set(statement.drop_contracts) - service.contracts
    if absent:
        raise UnknownNameError(15151, f"the service {statement.name!r} has no contract {min(absent)!r} to drop")
    contracts = (service.contracts - set(statement.drop_contracts)) | set(statement.add_contracts)
    metadata.put_service(session.db, statement.name, queue_id, frozenset(contracts))
    session.messages.add("service", statement.name, "altered")


@carry_out.register(DropService)
def _(statement: DropService, session: Session) -> None:
    exists = metadata.find_service(session.db, statement.name) is not None
    if may_drop("service", statement.name, session, exists=exists):
        priority = metadata.find_priority_for(session.db, statement.name)
        if priority is not None:
            raise bound("service", statement.name, "conversation priority", priority)
        metadata.drop_service(session.db, statement.name)
        drop_permissions_on(session.db, statement.name)
    session.messages.add("service", statement.name, "dropped")


# --- conversations and databases ----------------------------------------------------------------------------


@contextmanager
def _refusing() -> Iterator[None]:
    """What an application would be told is told about the statement."""
    try:
        yield
    except ConversationError as error:
        raise StatementError(error.number, error.problem) from error


@carry_out.register(EndConversation)
def _(statement: EndConversation, session: Session) -> None:
    from broker.application.dialog import end_with_cleanup, get_dialog  # noqa: PLC0415 - see broker.cli.group

    with _refusing():
        dialog = get_dialog(session.db, statement.conversation_handle)
        if statement.cleanup:
            end_with_cleanup(session.db, dialog)
        else:
            dialog.end(error=statement.error_code, description=statement.description or "")
    session.messages.add("conversation", statement.conversation_handle, "ended")


@carry_out.register(MoveConversation)
def _(statement: MoveConversation, session: Session) -> None:
    from broker.application.dialog import get_dialog, move_conversation  # noqa: PLC0415 - as above

    with _refusing():
        move_conversation(get_dialog(session.db, statement.conversation_handle), statement.conversation_group_id)
    session.messages.add("conversation", statement.conversation_handle, "moved")


@carry_out.register(BeginConversationTimer)
def _(statement: BeginConversationTimer, session: Session) -> None:
    from broker.application.dialog import get_dialog  # noqa: PLC0415 - as above

    with _refusing():
        get_dialog(session.db, statement.conversation_handle).set_timer(statement.timeout)
    session.messages.add("conversation timer", statement.conversation_handle, "set")


@carry_out.register(AlterDatabase)
def _(statement: AlterDatabase, session: Session) -> None:
    refuse_option(statement, is_declared=session.is_declared)
    if statement.option is DatabaseOption.ERROR_BROKER_CONVERSATIONS:
        text = "all conversations of the database were ended with an error by an administrator"
        count = error_conversations(session.db, session.now.timestamp(), text=text)
        session.messages.add("open conversations", count, "ended with error 9719")
    else:
        session.messages.add("database", session.database, "enabled")


def refuse_option(statement: AlterDatabase, *, is_declared: bool) -> None:
    """
    Refuse what cannot be set here.

    Raises:
        StatementError: what takes the daemon off the file, or what a script of the configuration must not repeat.
    """
    option, problem = statement.option, ""
    if option is DatabaseOption.NEW_BROKER:
        problem = "NEW_BROKER takes the file for itself: stop the daemon, then use broker database"
    elif option is DatabaseOption.DISABLE_BROKER:
        problem = "DISABLE_BROKER is not supported: take the database out of the configuration, or set its queues OFF"
    elif option is DatabaseOption.PARTNER_FAILOVER and is_declared:
        problem = "PARTNER FAILOVER would hand the database over at each start; give it to the running daemon"
    elif option is DatabaseOption.ERROR_BROKER_CONVERSATIONS and is_declared:
        problem = "ERROR_BROKER_CONVERSATIONS would end every conversation at each start; give it to the running daemon"
    if problem:
        raise PropertyError(NOT_SUPPORTED, problem, properties=("OPTION",))


# --- names --------------------------------------------------------------------------------------------------


def expect_present(what: str, name: str, found: _T | None) -> _T:
    """The object that an ALTER names."""
    if found is None:
        raise UnknownNameError(15151, f"cannot alter the {what} {name!r}, because it does not exist")
    return found


def _queue(session: Session, name: QueueName) -> metadata.QueueRow:
    queue = metadata.find_queue(session.db, name.name)
    if queue is None:
        raise UnknownNameError(208, f"the queue {name.name!r} does not exist; CREATE QUEUE [{name.name}] first")
    return queue


def expect_absent(what: str, name: str, session: Session, *, exists: bool) -> None:
    """Refuse a CREATE of what exists, unless the script is declared."""
    if exists and not session.is_declared:
        raise DuplicateNameError(2714, f"there is already a {what} named {name!r} in the database")


def may_drop(what: str, name: str, session: Session, *, exists: bool) -> bool:
    """Whether there is something to drop."""
    if not exists and not session.is_declared:
        raise UnknownNameError(15151, f"cannot drop the {what} {name!r}, because it does not exist")
    return exists


def bound(what: str, name: str, other: str, other_name: str) -> StatementError:
    """The error for the DROP of what something else names."""
    return StatementError(BOUND, f"the {what} {name!r} cannot be dropped because the {other} {other_name!r} names it")
