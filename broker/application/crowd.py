"""
Ending many conversations that are alike: those that an application has forgotten to end.

Chosen by state, service and age, a slice in a transaction, each with END CONVERSATION as an application would say it;
between slices the file is everybody's. A conversation that has changed since it was chosen is judged anew.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from broker.application.ending import end, end_with_cleanup
from broker.application.transaction import look, transaction
from broker.conversation.state import TRANSITIONS, ConversationState, Happening
from broker.errors import ConversationError
from broker.store.rows import ask

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
    """
    Which conversations.

    Shape: `states` of this side; `service` of this side, None for any; `before` UTC seconds when they were begun at the
    latest.
    """

    states: tuple[ConversationState, ...]
    service: str | None
    before: float

    def behind(self, endpoint_id: int) -> tuple[object, ...]:
        """The parameters of a query for those made after one."""
        return endpoint_id, self.before, self.service, "".join(f"{state.value} " for state in self.states)


@dataclass(frozen=True, slots=True)
class Members:
    """How many of one service and state. Shape: `unread` and `unsent` messages of theirs."""

    service_name: str
    state: str
    conversations: int
    unread: int
    unsent: int


@dataclass(frozen=True, slots=True)
class EndMode:
    """How they end. Shape: `error` the application's code, None for a plain end; `is_cleanup` tells nobody."""

    error: int | None = None
    description: str = ""
    is_cleanup: bool = False


def count(db: sqlite3.Connection, crowd: DialogSelection) -> list[Members]:
    """Who would end. Raises: StoreUnavailableError."""
    return [Members(*row) for row in look(db, lambda: ask(db, _COUNT, crowd.behind(0)).fetchall())]


def end_crowd(db: sqlite3.Connection, crowd: DialogSelection, farewell: EndMode) -> Iterator[int]:
    """
    End them; how many so far, after each slice.

    Args:
        db: A connection of its own, in autocommit mode.
        crowd: Whom.
        farewell: How.

    Raises:
        ConversationError: the error or its description cannot be sent.
        StoreUnavailableError: the database stayed locked, cannot be written or is full; earlier slices have ended.
    """
    ended, after, is_over = 0, 0, False
    while not is_over:
        with transaction(db):
            rows = ask(db, _NEXT, crowd.behind(after)).fetchall()
            ended += sum(_end(db, endpoint_id, uuid.UUID(bytes=handle), farewell) for endpoint_id, handle in rows)
        is_over = len(rows) < SLICE
        after = rows[-1][0] if rows else after
        yield ended


def _end(db: sqlite3.Connection, endpoint_id: int, handle: uuid.UUID, farewell: EndMode) -> bool:
    if farewell.is_cleanup:
        end_with_cleanup(db, endpoint_id, handle)
        return True
    try:
        end(db, endpoint_id, handle, farewell.error, farewell.description)
    except ConversationError as error:
        if error.number == 8462:  # it has ended, and still tells the far side
            return False
        raise
    return True
