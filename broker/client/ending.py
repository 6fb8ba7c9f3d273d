"""
END CONVERSATION: plain, with an error, or with cleanup; and for many that an application forgot to end.

Source: Service Broker documentation, "END CONVERSATION".
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from broker import conversation
from broker.client.arguments import check_count, check_text, unknown_handle
from broker.client.transaction import look, transaction, whole
from broker.conversation.message_types import END_DIALOG, ERROR
from broker.conversation.state import TRANSITIONS, ConversationState, Happening
from broker.errors import ConversationError
from broker.protocol.layout import Flag, show_guid
from broker.store.sqlite.ledger import FailureReason, close, fail, forget_unread, remove
from broker.store.sqlite.schema import NEXT_TRANSMISSION
from broker.store.sqlite.session_keys import forget_key
from broker.store.sqlite.transaction import ask, plain

DESCRIPTION_MAX = 3000  # characters of an error's description; the original's nvarchar(3000)

_TRANSMIT = (
    "INSERT INTO broker_transmission (transmission_id,"  # noqa: S608 - a literal of that module
    " endpoint_id, message_sequence_number, flags, message_type_name, enqueue_time, message_body)"
    f" SELECT {NEXT_TRANSMISSION}, endpoint_id, send_sequence, ?, ?, ?, ?"
    " FROM broker_conversation WHERE endpoint_id = ?"
)
_ENDED = (
    "UPDATE broker_conversation SET state = 'DO', end_dialog_sequence = send_sequence,"
    " send_sequence = send_sequence + 1, dialog_timer = NULL WHERE endpoint_id = ?"
)
# An administrator's error is being sent (`broker.store.sqlite.file_identity`): acknowledged, it closes the dialog.
_STILL_SENDING = (
    "UPDATE broker_conversation SET state = 'DO', dialog_timer = NULL"
    " WHERE endpoint_id = ? AND state = 'ER' AND end_dialog_sequence >= acknowledged_sequence"
)
_KEEP_LARGE = (
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
            8424, "a description is sent with an error only: give the error's code, or leave out the description"
        )
    flags, type_name, body = int(Flag.END_DIALOG), END_DIALOG, b""
    if error is not None:
        flags, type_name, body = int(Flag.ERROR), ERROR, conversation.body_check.error_body(error, description)
    endpoint, now = (endpoint_id,), time.time()
    with whole(db), plain(db):
        row = ask(db, "SELECT state FROM broker_conversation WHERE endpoint_id = ?", endpoint).fetchone()
        if row is None:
            raise unknown_handle(handle)
        before = ConversationState(row[0])
        state = TRANSITIONS.get((before, Happening.ENDED_HERE))
        if state is None:
            raise ConversationError(8462, f"conversation {show_guid(handle)} has ended already")
        if ask(db, _STILL_SENDING, endpoint).rowcount:
            _forget_unread(db, endpoint_id)
        elif state is ConversationState.DISCONNECTED_OUTBOUND:
            _forget_unread(db, endpoint_id)
            ask(db, _TRANSMIT, (flags, type_name, now, body, *endpoint))
            ask(db, _ENDED, endpoint)
        else:
            # The far side does not know the dialog yet, or has ended: there is nothing to send.
            close(db, endpoint_id, now, _REASONS.get(before, FailureReason.FAILED_HERE))


def end_with_cleanup(db: sqlite3.Connection, endpoint_id: int, handle: uuid.UUID) -> None:
    """
    Forget one side and send nothing. The daemon removes the fragments of large messages.

    Raises:
        ConversationError: 8426 unknown handle.
        StoreBusyError: the database stayed locked.
    """
    with whole(db), plain(db):
        row = ask(db, "SELECT 1 FROM broker_conversation WHERE endpoint_id = ?", (endpoint_id,)).fetchone()
        if row is None:
            raise unknown_handle(handle)
        _forget_unread(db, endpoint_id)
        fail(db, endpoint_id, FailureReason.CLEANUP)
        forget_key(db, endpoint_id)
        remove(db, endpoint_id)


def _forget_unread(db: sqlite3.Connection, endpoint_id: int) -> None:
    """Delete the messages that wait to be received; the daemon removes the fragments of large messages later."""
    ask(db, _KEEP_LARGE, (endpoint_id,))
    forget_unread(db, endpoint_id)


# --- many at once, for administrators ---

# They are selected by state, service, far database and age, a slice in a transaction; between slices the file is free
# for others. A conversation that has changed since it was selected is judged again.

SLICE = 500  # conversations ended in one transaction: some tens of milliseconds
ENDABLE = tuple(state for state in ConversationState if (state, Happening.ENDED_HERE) in TRANSITIONS)

_WHERE = (
    " FROM broker_conversation c WHERE c.endpoint_id > ?1 AND c.create_date <= ?2"
    " AND (?3 IS NULL OR c.service_name = ?3) AND instr(?4, c.state || ' ')"
    " AND (?5 IS NULL OR c.far_broker_instance = ?5)"
)
_UNREAD = "(SELECT count(*) FROM broker_message m WHERE m.endpoint_id = c.endpoint_id)"
_UNSENT = "(SELECT count(*) FROM broker_transmission t WHERE t.endpoint_id = c.endpoint_id)"
_COUNT = f"SELECT c.service_name, c.state, count(*), sum({_UNREAD}), sum({_UNSENT}){_WHERE} GROUP BY 1, 2 ORDER BY 1, 2"
_NEXT = f"SELECT c.endpoint_id, c.conversation_handle{_WHERE} ORDER BY c.endpoint_id LIMIT {SLICE}"


class DialogSelection(NamedTuple):
    """Which conversations, by this side of them."""

    states: tuple[ConversationState, ...]
    service: str | None  # None: any
    before: float  # UTC seconds at which they were begun at the latest
    far_broker_instance: uuid.UUID | None = None  # likewise

    def after(self, endpoint_id: int) -> tuple[object, ...]:
        """The parameters of a query for those created after this one."""
        far = self.far_broker_instance and self.far_broker_instance.bytes
        return endpoint_id, self.before, self.service, "".join(f"{state.value} " for state in self.states), far


class Members(NamedTuple):
    """How many conversations of one service and state."""

    service_name: str
    state: str
    conversations: int
    unread: int  # messages of theirs
    unsent: int  # likewise


class EndMode(NamedTuple):
    """How they end."""

    error: int | None = None  # the application's code; None for a plain end
    description: str = ""
    is_cleanup: bool = False  # the far side is not notified


def count_selected(db: sqlite3.Connection, selection: DialogSelection) -> list[Members]:
    """How many would end. Raises: StoreUnavailableError."""
    return [Members(*row) for row in look(db, lambda: ask(db, _COUNT, selection.after(0)).fetchall())]


def end_selected(db: sqlite3.Connection, selection: DialogSelection, mode: EndMode) -> Iterator[int]:
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
            ended += sum(_end_one(db, endpoint_id, uuid.UUID(bytes=handle), mode) for endpoint_id, handle in rows)
        is_over = len(rows) < SLICE
        after = rows[-1][0] if rows else after
        yield ended


def _end_one(db: sqlite3.Connection, endpoint_id: int, handle: uuid.UUID, mode: EndMode) -> bool:
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
