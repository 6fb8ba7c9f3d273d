"""
The next messages of a queue, and the claims by which readers lock them.

Messages are returned by priority, then in the order of arrival; locked and quarantined ones are skipped. The cost of a
query does not grow with the number of waiting messages, because the queue's index has its rows in this order, and so
has that of each conversation. Only if readers have locked all the groups at the head of the queue does the query scan
the conversations that have messages one by one, but not their messages.

A claim is a row of `broker_group_lock` with the reader's slot, written in the short transaction that reads the queue.
From then on no other reader gets messages of that group. The messages stay in the queue, so none is lost, whatever
happens to the reader. `finish_claim` removes the messages and the lock in the reader's own transaction. A failure and
its pause are written in the transaction that removes the lock, and only by the owner of the lock.

Functions about claims are called inside a write transaction of the caller. `now` has to be read inside that
transaction. A pause that another connection began after `now` counts as one that began before the clock was set back,
and therefore as over.

Source: Service Broker documentation, "Conversation Group Locks", "RECEIVE".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker.store.sqlite.database import open_watch
from broker.store.sqlite.quarantine import (
    ATTEMPTS,
    READY,
    REST_FIRST,
    Blame,
    Verdict,
    is_failing,
    note_failure,
    note_queue_success,
    note_success,
    remove_message,
)
from broker.store.sqlite.reader_slots import (
    LOCKED_GROUPS_SQL,
    READ_GROUPS_SQL,
    Abandoned,
    locked_groups,
    rows_of_dead_slots,
)
from broker.store.sqlite.transaction import ask, path_of

HEAD = 1000  # messages at the head of a queue among which one of a free group is looked for first
BATCH_MAX_BYTES = 16 * 1024 * 1024  # of bodies in one claim, unless its first message alone is larger

_QUEUE = (
    "SELECT queue_id, is_receive_enabled, EXISTS (SELECT 1 FROM broker_group_lock),"
    " EXISTS (SELECT 1 FROM broker_message m WHERE m.queue_id = q.queue_id AND m.status = 1)"
    " FROM broker_queue q WHERE name = ?"
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


@dataclass(frozen=True, slots=True)
class Scope:
    """What is asked for: one conversation, by its handle, or one conversation group; neither for the whole queue."""

    handle: bytes | None = None
    group: bytes | None = None


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """Where to look."""

    queue_id: int
    scope: Scope
    now: float  # UTC seconds since 1970, for groups that rest
    has_locks: bool = True  # False when it is known that no group is locked


@dataclass(frozen=True, slots=True)
class Claim:
    """A conversation group that a reader has locked."""

    conversation_group_id: bytes
    reader: int  # the slot of the reader's process
    lock_time: float  # UTC seconds; distinguishes this lock from a later one of the same process
    queue_id: int
    queuing_orders: tuple[int, ...]  # the messages, in the order in which they are received; never empty


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often a message is tried, and how long the first pause between two attempts is."""

    attempts: int = ATTEMPTS  # until quarantine
    rest_first: float = REST_FIRST  # seconds, see `note_failure`


@dataclass(frozen=True, slots=True)
class Crash:
    """A message whose reader died while it had it, and what follows."""

    endpoint_id: int
    message_sequence_number: int
    verdict: Verdict


class ClaimLostError(Exception):
    """The lock on the group is gone, or messages of it are: what was done with them must be rolled back."""

    def __str__(self) -> str:
        return "another reader got the messages, or their dialog has ended: nothing of the work was committed"


# --- the next messages ---


def queue_of(db: sqlite3.Connection, name: str) -> QueueState | None:
    """The queue of this name: all that most calls of RECEIVE have to know before they remove anything."""
    row = ask(db, _QUEUE, (name,)).fetchone()
    return None if row is None else QueueState(*row)


def next_messages(db: sqlite3.Connection, selection: QueueSelection, columns: str, limit: int) -> list[tuple[Any, ...]]:
    """
    Columns of the next messages, at most so many.

    Args:
        db: Any connection to the database.
        selection: Where to look. A group or conversation that is asked for is returned although it rests, as the
            caller knows it; what a live reader has is returned to no other.
        columns: Of the message `m` and its conversation `c`.
        limit: At least 1.
    """
    scope, queue_id = selection.scope, selection.queue_id
    locked = locked_groups(db, selection.now) if selection.has_locks else None
    if scope.handle is not None or scope.group is not None:
        key = "conversation_group_id" if scope.handle is None else "conversation_handle"
        query = _NEXT_OF.format(columns=columns, key=key, free="" if locked is None else _NOT_READ)
        readers = () if locked is None else locked[1:]
        return ask(db, query, (queue_id, limit, scope.handle or scope.group, *readers, limit)).fetchall()
    if locked is None:
        return ask(db, _NEXT.format(columns=columns), (queue_id, limit)).fetchall()
    query = _NEXT_FREE.format(columns=columns, locked=LOCKED_GROUPS_SQL)
    rows = ask(db, query, (queue_id, max(HEAD, limit), *locked, limit)).fetchall()
    if rows:
        return rows
    free = ask(db, _FREE_GROUP.format(locked=LOCKED_GROUPS_SQL), (queue_id, *locked)).fetchone()
    if free is None:
        return []
    return next_messages(db, QueueSelection(queue_id, Scope(group=free[0]), selection.now), columns, limit)


def first_group(db: sqlite3.Connection, selection: QueueSelection) -> bytes | None:
    """The conversation group of the next message."""
    rows = next_messages(db, selection, "c.conversation_group_id", 1)
    return rows[0][0] if rows else None


# --- claims ---


def claim_group(db: sqlite3.Connection, queue_name: str, *, slot: int, top: int, now: float) -> Claim | None:
    """
    Lock the next group, and choose its messages; None when there is nothing to do.

    Of a group with a failed message only the first message is chosen, so that it is known which one fails. A lock is
    never taken over: the group of a reader that died is free after `record_crashes`, which counts the failure.
    """
    queue = ask(db, "SELECT queue_id FROM broker_queue WHERE name = ? AND is_receive_enabled", (queue_name,)).fetchone()
    if queue is None:
        return None
    group = first_group(db, QueueSelection(queue[0], Scope(), now))
    if group is None:
        return None
    weight = "m.queuing_order, coalesce(length(m.message_body), 0)"
    waiting = next_messages(db, QueueSelection(queue[0], Scope(group=group), now), weight, top)
    locked = ask(
        db,
        "INSERT INTO broker_group_lock (conversation_group_id, reader, lock_time) VALUES (?1, ?2, ?3)"
        " ON CONFLICT (conversation_group_id) DO UPDATE SET reader = ?2, lock_time = ?3, retry_time = NULL"
        " WHERE reader IS NULL",
        (group, slot, now),
    )
    if not locked.rowcount:
        return None  # its reader has died since `record_crashes`
    return Claim(group, slot, now, queue[0], _batch(waiting[:1] if is_failing(db, group) else waiting))


def _batch(waiting: list[tuple[Any, ...]]) -> tuple[int, ...]:
    """The messages that are handled together: at most BATCH_MAX_BYTES of bodies; large ones are streams."""
    size = 0
    orders: list[int] = []
    for order, length in waiting:
        size += length
        if orders and size > BATCH_MAX_BYTES:
            break
        orders.append(order)
    return tuple(orders)


def next_rest_end(db: sqlite3.Connection, now: float) -> float | None:
    """The instant at which the next group has rested; None when none rests."""
    query = "SELECT min(retry_time) FROM broker_group_lock WHERE retry_time > ?"
    end: float | None = ask(db, query, (now,)).fetchone()[0]
    return end


def finish_claim(db: sqlite3.Connection, claim: Claim, endpoint_ids: Iterable[int]) -> None:
    """
    The messages have been handled: remove them from the queue, and release the group.

    Raises:
        ClaimLostError: this reader no longer owns the group, or another connection removed one of the messages; the
            transaction must be rolled back.
    """
    gone = [order for order in claim.queuing_orders if not remove_message(db, order)]
    if gone:  # by the reader itself, if it ended their dialog: then all others still see them in the queue
        with closing(open_watch(path_of(db))) as watch:
            if not are_there(watch, gone):
                raise ClaimLostError
    note_success(db, endpoint_ids)
    note_queue_success(db, claim.queue_id)
    if not release_claim(db, claim):
        raise ClaimLostError


def are_there(db: sqlite3.Connection, queuing_orders: Iterable[int]) -> bool:
    """Whether all of these messages are in their queue."""
    query = "SELECT 1 FROM broker_message WHERE queuing_order = ?"
    return all(ask(db, query, (order,)).fetchone() is not None for order in queuing_orders)


def release_claim(db: sqlite3.Connection, lock: Claim | Abandoned) -> bool:
    """Remove the lock of a group, its messages untouched; False when this lock is gone."""
    statement = "DELETE FROM broker_group_lock WHERE conversation_group_id = ? AND reader = ? AND lock_time = ?"
    return ask(db, statement, (lock.conversation_group_id, lock.reader, lock.lock_time)).rowcount > 0


def record_crashes(
    db: sqlite3.Connection, *, own: int | None, rules: Mapping[int, RetryRule], now: float
) -> list[Crash]:
    """
    Count the death of readers as a failure of the messages they had, so that one that kills its reader ends somewhere.

    Args:
        db: A connection inside a write transaction.
        own: The caller's slot, which lives.
        rules: By queue_id; those of other queues are the defaults.
        now: UTC seconds since 1970.
    """
    crashes = []
    for group in rows_of_dead_slots(db, own):
        release_claim(db, group)
        # The message that the dead reader had, as far as is known: the first that was there when it locked the group.
        message = ask(
            db,
            "SELECT m.endpoint_id, m.message_sequence_number, m.queue_id FROM broker_conversation c"
            " CROSS JOIN broker_message m USING (endpoint_id) WHERE c.conversation_group_id = ? AND m.status = ?"
            " AND m.message_enqueue_time <= ? ORDER BY m.priority DESC, m.queuing_order LIMIT 1",
            (group.conversation_group_id, READY, group.lock_time),
        ).fetchone()
        if message is not None:
            endpoint_id, sequence, queue_id = message
            what = Blame(endpoint_id, sequence, "the process of its reader died while it had it")
            rule = rules.get(queue_id, RetryRule())
            verdict = note_failure(db, what, now=now, attempts=rule.attempts, rest_first=rule.rest_first)
            crashes.append(Crash(endpoint_id, sequence, verdict))
    return crashes
