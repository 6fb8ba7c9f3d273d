"""
END CONVERSATION: plain, with an error, or with cleanup.

Source: Service Broker documentation, "END CONVERSATION".
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from broker.client.arguments import check_count, check_text
from broker.client.transaction import look, transaction, whole
from broker.conversation.message_types import END_DIALOG, ERROR, error_body
from broker.conversation.state import TRANSITIONS, ConversationState, Happening
from broker.errors import ConversationError
from broker.protocol.layout import Flag
from broker.store.sqlite.side import FailureReason, close, fail, forget_key, remove
from broker.store.sqlite.transaction import ask, plain

DESCRIPTION_MAX = 3000  # characters of an error's description; the original's nvarchar(3000)

_TRANSMIT = (
    "INSERT INTO broker_transmission"
    " (endpoint_id, message_sequence_number, flags, message_type_name, enqueue_time, message_body)"
    " SELECT endpoint_id, send_sequence, ?, ?, ?, ? FROM broker_conversation WHERE endpoint_id = ?"
)
_ENDED = (
    "UPDATE broker_conversation SET state = 'DO', end_dialog_sequence = send_sequence,"
    " send_sequence = send_sequence + 1, dialog_timer = NULL WHERE endpoint_id = ?"
)
# An administrator's error is on its way (`broker.store.sqlite.file_identity`); the dialog closes when the far side has
# it.
_STILL_TELLING = (
    "UPDATE broker_conversation SET state = 'DO', dialog_timer = NULL"
    " WHERE endpoint_id = ? AND state = 'ER' AND end_dialog_sequence >= acknowledged_sequence"
)
_LEAVE_LARGE = (
    "INSERT OR IGNORE INTO broker_received SELECT endpoint_id, message_sequence_number FROM broker_message"
    " WHERE endpoint_id = ? AND message_body IS NULL"
)
_REASONS = {ConversationState.DISCONNECTED_INBOUND: FailureReason.FAR_SIDE_ENDED}


def end(db: sqlite3.Connection, endpoint_id: int, handle: uuid.UUID, error: int | None, description: str) -> None:
    """End one side. Raises: see `Dialog.end`."""
    if error is not None:
        error = check_count(error, "error, the application's code,", 8403, least=1)
    check_text(description, "the description", 8424)
    if len(description) > DESCRIPTION_MAX:
        raise ConversationError(8424, f"a description of {len(description)} characters is above {DESCRIPTION_MAX}")
    if error is None and description:
        raise ConversationError(
            8424, "a description is told with an error only: give the error's code, or leave out the description"
        )
    flags, type_name, body = int(Flag.END_DIALOG), END_DIALOG, b""
    if error is not None:
        flags, type_name, body = int(Flag.ERROR), ERROR, error_body(error, description)
    endpoint, now = (endpoint_id,), time.time()
    with whole(db), plain(db):
        row = ask(db, "SELECT state FROM broker_conversation WHERE endpoint_id = ?", endpoint).fetchone()
        if row is None:
            raise ConversationError(8426, f"the conversation handle {handle} is not found")
        before = ConversationState(row[0])
        state = TRANSITIONS.get((before, Happening.ENDED_HERE))
        if state is None:
            raise ConversationError(8462, f"conversation {handle} has ended already")
        if ask(db, _STILL_TELLING, endpoint).rowcount:
            _forget_unread(db, endpoint_id)
        elif state is ConversationState.DISCONNECTED_OUTBOUND:
            _forget_unread(db, endpoint_id)
            ask(db, _TRANSMIT, (flags, type_name, now, body, *endpoint))
            ask(db, _ENDED, endpoint)
        else:
            # Nobody heard of it, or the far side has ended: nothing is left to say.
            close(db, endpoint_id, now, _REASONS.get(before, FailureReason.FAILED_HERE))


def end_with_cleanup(db: sqlite3.Connection, endpoint_id: int, handle: uuid.UUID) -> None:
    """
    Forget one side and tell nobody. The daemon removes what large messages leave behind.

    Raises:
        ConversationError: 8426 unknown handle.
        StoreBusyError: the database stayed locked.
    """
    with whole(db), plain(db):
        row = ask(db, "SELECT 1 FROM broker_conversation WHERE endpoint_id = ?", (endpoint_id,)).fetchone()
        if row is None:
            raise ConversationError(8426, f"the conversation handle {handle} is not found")
        _forget_unread(db, endpoint_id)
        fail(db, endpoint_id, FailureReason.CLEANUP)
        forget_key(db, endpoint_id)
        remove(db, endpoint_id)


def _forget_unread(db: sqlite3.Connection, endpoint_id: int) -> None:
    """Nobody will receive what waits; of a large message the daemon removes the body by and by."""
    ask(db, _LEAVE_LARGE, (endpoint_id,))
    for table in ("broker_message", "broker_failure"):
        ask(db, f"DELETE FROM {table} WHERE endpoint_id = ?", (endpoint_id,))  # noqa: S608 - names listed above


# --- crowd ---
# Ending many conversations that are alike: those that an application has forgotten to end.
#
# Chosen by state, service and age, a slice in a transaction, each with END CONVERSATION as an application would say
# it;
# between slices the file is everybody's. A conversation that has changed since it was chosen is judged anew.


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
