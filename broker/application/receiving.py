"""
RECEIVE and GET CONVERSATION GROUP: messages taken from a queue inside the application's own transaction.

By priority, then in the order in which they were queued; so in order within each conversation, and one call may give
messages of several conversation groups. What is in quarantine is passed over, and so are the groups that a reader has
(`broker.store.group_lock`); those that rest after a failure are given where just that group or conversation is asked
for.

SQLite has one writer at a time: from the first message taken until the transaction ends, nobody else receives anything
from this database, which is more than the original's lock of the conversation group.

Source: Service Broker documentation, "RECEIVE", "GET CONVERSATION GROUP", "Conversation Priorities".
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from broker.application.argument import check_count, check_seconds
from broker.application.connection import check_connection
from broker.application.dialog import Dialog, Related
from broker.application.message import COLUMNS, Message
from broker.application.name import check_text, guid_of
from broker.application.ready import QueueSelection, QueueState, Scope, first_group, next_messages, queue_of
from broker.application.rollback import next_admitted
from broker.application.stream import LargeBody
from broker.application.transaction import check_schema, is_autocommit, transaction
from broker.application.waiting import Waiting, wait_here, waiting
from broker.errors import ConversationError
from broker.store.quarantine import ATTEMPTS, note_success
from broker.store.rows import ask, plain

_TAKEN = "DELETE FROM broker_message WHERE queuing_order = ?"
_TAKEN_RUN = "DELETE FROM broker_message WHERE queuing_order BETWEEN ? AND ?"
_TAKEN_LARGE = "INSERT OR IGNORE INTO broker_received VALUES (?, ?)"

_ANY = Scope()

Row = tuple[Any, ...]


def receive(
    db: sqlite3.Connection,
    *,
    queue: str,
    top: int = 100,
    wait: float = 0.0,
    conversation: Related | None = None,
    conversation_group: uuid.UUID | str | None = None,
    poison: int = ATTEMPTS,
) -> list[Message]:
    """
    RECEIVE: take messages from a queue, in order within each conversation.

    Args:
        db: The application's connection; its transaction holds what is taken until it commits or rolls back.
        queue: Its name.
        top: At most so many messages, at least 1.
        wait: Seconds to wait for the first one, `math.inf` for ever; 0 looks once, and so does a call inside a
            transaction that is open already, where nothing new can be seen.
        conversation: Only messages of this one, a dialog or its handle; none while a reader has its group.
        conversation_group: Only messages of this group; none while a reader has it.
        poison: After so many rollbacks a message that was received alone puts its dialog in quarantine, and after three
            in a row fewer messages than `top` are given; 0 for none of that (see `broker.application.rollback`).

    Returns:
        The messages, none when the wait was over.

    Raises:
        ConversationError: 127 `top` or `poison` is no whole number of its range; 148 `wait` is no time; 208 no such
            queue; 9617 the queue is disabled; 8426 no such conversation; 8413 no GUID; 102 a conversation and a group
            at once.
        StoreUnavailableError: this file is no database of the broker, or stayed locked.
    """
    steps = receiving(
        db,
        queue=queue,
        top=top,
        wait=wait,
        conversation=conversation,
        conversation_group=conversation_group,
        poison=poison,
    )
    return [Message(row, large, dialog) for row, large, dialog in wait_here(steps)]


def get_conversation_group(db: sqlite3.Connection, *, queue: str, wait: float = 0.0) -> uuid.UUID | None:
    """
    GET CONVERSATION GROUP: the group of the message that is next in a queue.

    It is locked until the transaction ends, and the whole database with it: see above. In autocommit mode that is at
    once.

    Args:
        db: The application's connection.
        queue: Its name.
        wait: As for `receive`.

    Returns:
        The group, None when the wait was over.

    Raises:
        ConversationError: 148 `wait` is no time; 208 no such queue; 9617 the queue is disabled.
        StoreUnavailableError: this file is no database of the broker, or stayed locked.
    """
    found = wait_here(getting_group(db, queue, wait))
    return found[0] if found else None


def receiving(
    db: sqlite3.Connection,
    *,
    queue: str,
    top: int,
    wait: float,
    conversation: Related | None,
    conversation_group: uuid.UUID | str | None,
    poison: int = ATTEMPTS,
) -> Waiting[list[tuple[Row, LargeBody | None, Dialog]]]:
    """RECEIVE as steps between which nothing is held; see `receive`."""
    check_connection(db)
    top = check_count(top, "top", 127, least=1)
    wait = check_seconds(wait, "wait", 148, may_be_zero=True)
    poison = check_count(poison, "poison", 127, least=0)
    if conversation is not None and conversation_group is not None:
        raise ConversationError(102, "give conversation or conversation_group, not both")
    if not db.in_transaction:
        check_schema(db)
    scope = _ANY
    if conversation is not None:
        handle = conversation.conversation_handle if isinstance(conversation, Dialog) else guid_of(conversation)
        scope = Scope(handle=handle.bytes)
    elif conversation_group is not None:
        scope = Scope(group=guid_of(conversation_group).bytes)
    is_there = partial(_is_there, queue=queue, scope=scope)
    rows = yield from waiting(db, is_there, partial(_take, db, queue, scope, top, poison), wait)
    return _messages(db, rows)


def getting_group(db: sqlite3.Connection, queue: str, wait: float) -> Waiting[list[uuid.UUID]]:
    """GET CONVERSATION GROUP as steps between which nothing is held; see `get_conversation_group`."""
    check_connection(db)
    wait = check_seconds(wait, "wait", 148, may_be_zero=True)
    if not db.in_transaction:
        check_schema(db)
    is_there = partial(_is_there, queue=queue, scope=_ANY)
    return (yield from waiting(db, is_there, partial(_take_group, db, queue), wait))


def _is_there(db: sqlite3.Connection, *, queue: str, scope: Scope) -> bool:
    with plain(db):
        found = _queue(db, queue, scope)
        if not found.has_messages or (scope == _ANY and not found.has_locks):
            return bool(found.has_messages)
        return bool(next_messages(db, _choice(found, scope), "m.queuing_order", 1))


def _take(
    db: sqlite3.Connection, queue: str, scope: Scope, top: int, poison: int
) -> list[tuple[Row, LargeBody | None]]:
    """Take what waits in a queue. With nothing taken, no transaction is left open."""
    is_joined = db.in_transaction
    with transaction(db), plain(db):
        found = _queue(db, queue, scope)
        select = _selecting(db, found, scope)
        rows = next_admitted(db, found.queue_id, select, top, poison=poison, may_commit=not is_joined)
        is_brief = is_autocommit(db) and not is_joined
        taken = [(row, _large(db, row, is_brief=is_brief)) for row in rows]
        _remove(db, [row[0] for row in rows])
        pieces = [(row[1], row[2]) for row, large in taken if large is not None]
        if pieces:
            db.executemany(_TAKEN_LARGE, pieces)
        note_success(db, {row[1] for row in rows})
    if not rows and not is_joined and db.in_transaction:
        db.execute("ROLLBACK")  # another reader was faster
    return taken


def _selecting(db: sqlite3.Connection, found: QueueState, scope: Scope) -> Callable[[int], list[Row]]:
    """What gives the next messages; `found` is true for the first time, then there may have been a commit."""
    has_locks = bool(found.has_locks)

    def select(limit: int) -> list[Row]:
        nonlocal has_locks
        choice = QueueSelection(found.queue_id, scope, time.time(), has_locks)
        has_locks = True
        return next_messages(db, choice, COLUMNS, limit)

    return select


def _remove(db: sqlite3.Connection, queuing_orders: list[int]) -> None:
    """Messages leave their queue; where no other stands between them, by one statement."""
    if not queuing_orders:
        return
    first, last = min(queuing_orders), max(queuing_orders)
    if last - first < len(queuing_orders):
        ask(db, _TAKEN_RUN, (first, last))
    else:
        db.executemany(_TAKEN, [(order,) for order in queuing_orders])


def _large(db: sqlite3.Connection, row: Row, *, is_brief: bool) -> LargeBody | None:
    """The body of a message in fragments, copied when the transaction is over with this call."""
    if row[4] is not None:
        return None
    large = LargeBody(db, row[1], row[2], row[6])
    return large.copied() if is_brief else large


def _take_group(db: sqlite3.Connection, queue: str) -> list[uuid.UUID]:
    is_joined = db.in_transaction
    with transaction(db), plain(db):
        group = first_group(db, _choice(_queue(db, queue, _ANY), _ANY))
    if group is None and not is_joined and db.in_transaction:
        db.execute("ROLLBACK")
    return [] if group is None else [uuid.UUID(bytes=group)]


def _messages(
    db: sqlite3.Connection, taken: list[tuple[Row, LargeBody | None]]
) -> list[tuple[Row, LargeBody | None, Dialog]]:
    """Each with the dialog that the messages of its conversation share."""
    dialogs: dict[int, Dialog] = {}
    messages = []
    for row, large in taken:
        dialog = dialogs.get(row[1])
        if dialog is None:
            dialog = dialogs[row[1]] = Dialog(db, row[1], uuid.UUID(bytes=row[7]), uuid.UUID(bytes=row[8]))
        messages.append((row, large, dialog))
    return messages


def _queue(db: sqlite3.Connection, queue: str, scope: Scope) -> QueueState:
    check_text(queue, "the queue's name")
    found = queue_of(db, queue)
    if found is None:
        raise ConversationError(208, f"the queue {queue!r} does not exist in this database")
    if not found.is_receive_enabled:
        raise ConversationError(9617, f"the queue {queue!r} is disabled: ALTER QUEUE [{queue}] WITH STATUS = ON")
    if scope.handle is not None:
        query = "SELECT 1 FROM broker_conversation WHERE conversation_handle = ?"
        if ask(db, query, (scope.handle,)).fetchone() is None:
            raise ConversationError(8426, f"the conversation handle {uuid.UUID(bytes=scope.handle)} is not found")
    return found


def _choice(found: QueueState, scope: Scope) -> QueueSelection:
    return QueueSelection(found.queue_id, scope, time.time(), has_locks=bool(found.has_locks))
