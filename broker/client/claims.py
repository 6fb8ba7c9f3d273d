"""
The claims by which readers lock the next messages of a queue.

A claim is a row of `broker_group_lock` with the reader's slot, written in the short transaction that reads the queue.
From then on no other reader gets messages of that group. The messages stay in the queue, so none is lost, whatever
happens to the reader. `finish_claim` removes the messages and the lock in the reader's own transaction. A failure and
its pause are written in the transaction that removes the lock, and only by the owner of the lock.

Functions about claims are called inside a write transaction of the caller. `now` has to be read inside that
transaction. A pause that another connection began after `now` counts as one that began before the clock was set back,
and therefore as over.

Source: Service Broker documentation, "Conversation Group Locks".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from broker.client.queue import WHOLE_QUEUE, Scope, first_group, next_messages, queue_of
from broker.store.sqlite.failure import (
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
from broker.store.sqlite.reader_slots import GroupLock, rows_of_dead_slots
from broker.store.sqlite.transaction import ask, open_watch, path_of

BATCH_MAX_BYTES = 16 * 1024 * 1024  # of bodies in one claim, unless its first message alone is larger


@dataclass(frozen=True, slots=True)
class Claim:
    """A conversation group that a reader has locked."""

    lock: GroupLock
    queue_id: int
    queuing_orders: tuple[int, ...]  # the messages, in the order in which they are received; never empty


class RetryRule(NamedTuple):
    """How often a message is tried, and how long the first pause between two attempts is."""

    attempts: int = ATTEMPTS  # until quarantine
    rest_first: float = REST_FIRST  # seconds, see `note_failure`


class ClaimLostError(Exception):
    """The lock on the group is gone, or messages of it are: what was done with them must be rolled back."""

    def __str__(self) -> str:
        return "another reader got the messages, or their dialog has ended: nothing of the work was committed"


def claim_group(db: sqlite3.Connection, queue_name: str, *, slot: int, top: int, now: float) -> Claim | None:
    """
    Lock the next group, and choose its messages; None when there is nothing to do.

    Of a group with a failed message only the first message is chosen, so that it is known which one fails. A lock is
    never taken over: the group of a reader that died is free after `record_crashes`, which counts the failure.
    """
    queue = queue_of(db, queue_name, WHOLE_QUEUE)
    if queue is None or not queue.is_receive_enabled:
        return None
    group = first_group(db, queue, now)
    if group is None:
        return None
    weight = "m.queuing_order, coalesce(length(m.message_body), 0)"
    waiting = next_messages(db, queue, Scope(group=group), weight, top, now=now)
    lock = GroupLock(group, slot, now)
    locked = ask(
        db,
        "INSERT INTO broker_group_lock (conversation_group_id, reader, lock_time) VALUES (?1, ?2, ?3)"
        " ON CONFLICT (conversation_group_id) DO UPDATE SET reader = ?2, lock_time = ?3, retry_time = NULL"
        " WHERE reader IS NULL",
        lock,
    )
    if not locked.rowcount:
        return None  # its reader has died since `record_crashes`
    return Claim(lock, queue.queue_id, _batch(waiting[:1] if is_failing(db, group) else waiting))


def _batch(waiting: list[tuple[Any, ...]]) -> tuple[int, ...]:
    """The messages that are handled together: at most BATCH_MAX_BYTES of bodies; large ones are streams."""
    sizes = accumulate(length for _, length in waiting)
    fitting = (order for (order, _), size in zip(waiting, sizes, strict=True) if size <= BATCH_MAX_BYTES)
    return tuple(fitting) or (waiting[0][0],)


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
    if not release_claim(db, claim.lock):
        raise ClaimLostError


def are_there(db: sqlite3.Connection, queuing_orders: Iterable[int]) -> bool:
    """Whether all of these messages are in their queue."""
    query = "SELECT 1 FROM broker_message WHERE queuing_order = ?"
    return all(ask(db, query, (order,)).fetchone() is not None for order in queuing_orders)


def release_claim(db: sqlite3.Connection, lock: GroupLock) -> bool:
    """Remove the lock of a group, its messages untouched; False when this lock is gone."""
    statement = "DELETE FROM broker_group_lock WHERE conversation_group_id = ? AND reader = ? AND lock_time = ?"
    return ask(db, statement, lock).rowcount > 0


def record_crashes(
    db: sqlite3.Connection, *, own: int | None, rules: Mapping[int, RetryRule], now: float
) -> list[tuple[Blame, Verdict]]:
    """
    Count the death of readers as a failure of the messages they had, so that one that kills its reader ends somewhere.

    Returns each of those messages, and what follows.

    Args:
        db: A connection inside a write transaction.
        own: The caller's slot, which lives.
        rules: By queue_id; those of other queues are the defaults.
        now: UTC seconds since 1970.
    """
    crashes = []
    for lock in rows_of_dead_slots(db, own):
        release_claim(db, lock)
        # The message that the dead reader had, as far as is known: the first that was there when it locked the group.
        message = ask(
            db,
            "SELECT m.endpoint_id, m.message_sequence_number, m.queue_id FROM broker_conversation c"
            " CROSS JOIN broker_message m USING (endpoint_id) WHERE c.conversation_group_id = ? AND m.status = ?"
            " AND m.message_enqueue_time <= ? ORDER BY m.priority DESC, m.queuing_order LIMIT 1",
            (lock.conversation_group_id, READY, lock.lock_time),
        ).fetchone()
        if message is not None:
            endpoint_id, sequence, queue_id = message
            what = Blame(endpoint_id, sequence, "the process of its reader died while it had it")
            attempts, rest_first = rules.get(queue_id, RetryRule())
            crashes.append((what, note_failure(db, what, now=now, attempts=attempts, rest_first=rest_first)))
    return crashes
