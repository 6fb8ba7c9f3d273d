"""
END CONVERSATION: plain, with an error, or with cleanup.

Source: Service Broker documentation, "END CONVERSATION".
"""

from __future__ import annotations

import sqlite3
import time
import uuid

from broker.application.argument import check_count
from broker.application.name import check_text
from broker.application.transaction import whole
from broker.conversation.message_types import END_DIALOG, ERROR, error_body
from broker.conversation.state import TRANSITIONS, ConversationState, Happening
from broker.errors import ConversationError
from broker.protocol.layout import Flag
from broker.store.ledger import FailureReason, fail, remove
from broker.store.rows import ask, plain
from broker.store.tombstone import close, forget_key

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
# An administrator's error (`broker.store.identity`) is on its way; the dialog closes when the far side has it.
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
