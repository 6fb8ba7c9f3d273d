"""
Many conversations that an application forgot to end, ended at once, for administrators.

They are selected by state, service and age, a slice in a transaction, each with END CONVERSATION as an application does
it; between slices the file is free for others. A conversation that has changed since it was selected is judged again.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from broker.client.ending import end, end_with_cleanup
from broker.client.transaction import look, transaction
from broker.conversation.state import TRANSITIONS, ConversationState, Happening
from broker.errors import ConversationError
from broker.store.sqlite.transaction import ask

SLICE = 500  # conversations ended in one transaction: some tens of milliseconds
ENDABLE = tuple(state for state in ConversationState if (state, Happening.ENDED_HERE) in TRANSITIONS)

_WHERE = (
    " FROM broker_conversation c WHERE c.endpoint_id > ?1 AND c.create_date <= ?2"
    " AND (?3 IS NULL OR c.service_name = ?3) AND instr(?4, c.state || ' ')"
)
_UNREAD = "(SELECT count(*) FROM broker_message m WHERE m.endpoint_id = c.endpoint_id)"
_UNSENT = "(SELECT count(*) FROM broker_transmission t WHERE t.endpoint_id = c.endpoint_id)"
_COUNT = f"SELECT c.service_name, c.state, count(*), sum({_UNREAD}), sum({_UNSENT}){_WHERE} GROUP BY 1, 2 ORDER BY 1, 2"
_NEXT = f"SELECT c.endpoint_id, c.conversation_handle{_WHERE} ORDER BY c.endpoint_id LIMIT {SLICE}"


@dataclass(frozen=True, slots=True)
class DialogSelection:
    """Which conversations, by this side of them."""

    states: tuple[ConversationState, ...]
    service: str | None  # None: any
    before: float  # UTC seconds at which they were begun at the latest

    def after(self, endpoint_id: int) -> tuple[object, ...]:
        """The parameters of a query for those created after this one."""
        return endpoint_id, self.before, self.service, "".join(f"{state.value} " for state in self.states)


@dataclass(frozen=True, slots=True)
class Members:
    """How many conversations of one service and state."""

    service_name: str
    state: str
    conversations: int
    unread: int  # messages of theirs
    unsent: int  # likewise


@dataclass(frozen=True, slots=True)
class EndMode:
    """How they end."""

    error: int | None = None  # the application's code; None for a plain end
    description: str = ""
    is_cleanup: bool = False  # the far side is not notified


def count(db: sqlite3.Connection, selection: DialogSelection) -> list[Members]:
    """How many would end. Raises: StoreUnavailableError."""
    return [Members(*row) for row in look(db, lambda: ask(db, _COUNT, selection.after(0)).fetchall())]


def end_crowd(db: sqlite3.Connection, selection: DialogSelection, mode: EndMode) -> Iterator[int]:
    """
    End them; yields how many so far, after each slice.

    Args:
        db: A separate connection, in autocommit mode.
        selection: Which.
        mode: How.

    Raises:
        ConversationError: the error or its description cannot be sent.
        StoreUnavailableError: the database stayed locked, cannot be written or is full; earlier slices have ended.
    """
    ended, after, is_over = 0, 0, False
    while not is_over:
        with transaction(db):
            rows = ask(db, _NEXT, selection.after(after)).fetchall()
            ended += sum(_end(db, endpoint_id, uuid.UUID(bytes=handle), mode) for endpoint_id, handle in rows)
        is_over = len(rows) < SLICE
        after = rows[-1][0] if rows else after
        yield ended


def _end(db: sqlite3.Connection, endpoint_id: int, handle: uuid.UUID, mode: EndMode) -> bool:
    if mode.is_cleanup:
        end_with_cleanup(db, endpoint_id, handle)
        return True
    try:
        end(db, endpoint_id, handle, mode.error, mode.description)
    except ConversationError as error:
        if error.number == 8462:  # it has ended, and the far side has not acknowledged it yet
            return False
        raise
    return True
