"""
The next messages of a queue.

Messages are returned by priority, then in the order of arrival; locked and quarantined ones are skipped. The cost of a
query does not grow with the number of waiting messages, because the queue's index has its rows in this order, and so
has that of each conversation. Only if readers have locked all the groups at the head of the queue does the query scan
the conversations that have messages one by one, but not their messages.

Source: Service Broker documentation, "Conversation Group Locks", "RECEIVE".
"""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

from broker.store.sqlite.group_locks import LOCKED_GROUPS_SQL, READ_GROUPS_SQL, locked_groups
from broker.store.sqlite.transaction import ask

HEAD = 1000  # messages at the head of a queue among which one of a free group is looked for first

_QUEUE = (
    "SELECT queue_id, is_receive_enabled, EXISTS (SELECT 1 FROM broker_group_lock),"
    " EXISTS (SELECT 1 FROM broker_message m WHERE m.queue_id = q.queue_id AND m.status = 1),"
    " (SELECT schema_version FROM broker_database),"
    " (SELECT endpoint_id FROM broker_conversation WHERE conversation_handle = ?) FROM broker_queue q WHERE name = ?"
)
_NEXT = (
    "SELECT {columns} FROM broker_message m CROSS JOIN broker_conversation c ON c.endpoint_id = m.endpoint_id"
    " WHERE m.queue_id = ? AND m.status = 1 ORDER BY m.priority DESC, m.queuing_order LIMIT ?"
)
_NEXT_OF = (
    "SELECT {columns} FROM broker_conversation c CROSS JOIN broker_message m ON m.queuing_order IN"
    " (SELECT n.queuing_order FROM broker_message n WHERE n.endpoint_id = c.endpoint_id AND n.status = 1"
    " AND n.queue_id = ? ORDER BY n.priority DESC, n.queuing_order LIMIT ?)"
    " WHERE c.{key} = ?{free} ORDER BY m.priority DESC, m.queuing_order LIMIT ?"
)
_NOT_READ = f" AND c.conversation_group_id NOT IN ({READ_GROUPS_SQL})"
_NEXT_FREE = (
    "SELECT {columns} FROM (SELECT * FROM broker_message WHERE queue_id = ? AND status = 1"
    " ORDER BY priority DESC, queuing_order LIMIT ?) m"
    " CROSS JOIN broker_conversation c ON c.endpoint_id = m.endpoint_id"
    " WHERE c.conversation_group_id NOT IN ({locked}) ORDER BY m.priority DESC, m.queuing_order LIMIT ?"
)
_FREE_GROUP = (
    "WITH RECURSIVE e (endpoint_id) AS (SELECT min(endpoint_id) FROM broker_message UNION ALL"
    " SELECT (SELECT min(endpoint_id) FROM broker_message WHERE endpoint_id > e.endpoint_id)"
    " FROM e WHERE e.endpoint_id IS NOT NULL)"
    " SELECT c.conversation_group_id FROM e CROSS JOIN broker_conversation c ON c.endpoint_id = e.endpoint_id"
    " CROSS JOIN broker_message m ON m.queuing_order = (SELECT n.queuing_order FROM broker_message n"
    " WHERE n.endpoint_id = c.endpoint_id AND n.status = 1 AND n.queue_id = ?"
    " ORDER BY n.priority DESC, n.queuing_order LIMIT 1)"
    " WHERE c.conversation_group_id NOT IN ({locked}) ORDER BY m.priority DESC, m.queuing_order LIMIT 1"
)


class QueueState(NamedTuple):
    """The state of a queue, as one query returns it."""

    queue_id: int
    is_receive_enabled: int
    has_locks: int  # whether any group of the database is locked
    has_messages: int  # that are not in quarantine
    schema_version: int  # of the database
    endpoint_id: int | None  # of the conversation that is asked for


class Scope(NamedTuple):
    """What is asked for: one conversation, by its handle, or one conversation group; neither for the whole queue."""

    handle: bytes | None = None
    group: bytes | None = None


WHOLE_QUEUE = Scope()


def queue_of(db: sqlite3.Connection, name: str, scope: Scope) -> QueueState | None:
    """The queue of this name: all that most calls of RECEIVE have to know before they remove anything."""
    row = ask(db, _QUEUE, (scope.handle, name)).fetchone()
    return None if row is None else QueueState(*row)


def next_messages(
    db: sqlite3.Connection, queue: QueueState, scope: Scope, columns: str, limit: int, *, now: float
) -> list[tuple[Any, ...]]:
    """
    Columns of the next messages, at most so many.

    Args:
        db: Any connection to the database.
        queue: The queue; where its state says that no group is locked, no lock is looked for.
        scope: A group or conversation that is asked for is returned although it rests, as the caller knows it; what a
            live reader has is returned to no other.
        columns: Of the message `m` and its conversation `c`.
        limit: At least 1.
        now: UTC seconds since 1970, for groups that rest.
    """
    locked = locked_groups(db, now) if queue.has_locks else None
    if scope.handle is not None or scope.group is not None:
        key = "conversation_group_id" if scope.handle is None else "conversation_handle"
        query = _NEXT_OF.format(columns=columns, key=key, free="" if locked is None else _NOT_READ)
        readers = () if locked is None else locked[1:]
        return ask(db, query, (queue.queue_id, limit, scope.handle or scope.group, *readers, limit)).fetchall()
    if locked is None:
        return ask(db, _NEXT.format(columns=columns), (queue.queue_id, limit)).fetchall()
    query = _NEXT_FREE.format(columns=columns, locked=LOCKED_GROUPS_SQL)
    rows = ask(db, query, (queue.queue_id, max(HEAD, limit), *locked, limit)).fetchall()
    if rows:
        return rows
    free = ask(db, _FREE_GROUP.format(locked=LOCKED_GROUPS_SQL), (queue.queue_id, *locked)).fetchone()
    if free is None:
        return []
    return next_messages(db, queue, Scope(group=free[0]), columns, limit, now=now)


def first_group(db: sqlite3.Connection, queue: QueueState, now: float) -> bytes | None:
    """The conversation group of the next message."""
    rows = next_messages(db, queue, WHOLE_QUEUE, "c.conversation_group_id", 1, now=now)
    return rows[0][0] if rows else None
