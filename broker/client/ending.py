"""
END CONVERSATION: plain, with an error, or with cleanup.

Source: Service Broker documentation, "END CONVERSATION".
"""

from __future__ import annotations

import sqlite3
import time
import uuid

from broker import conversation
from broker.client.arguments import check_count, check_text, unknown_handle
from broker.client.transaction import whole
from broker.conversation.message_types import END_DIALOG, ERROR
from broker.conversation.state import TRANSITIONS, ConversationState, Happening
from broker.errors import ConversationError
from broker.protocol.layout import Flag
from broker.store.sqlite.ledger import FailureReason, close, fail, remove
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
            raise ConversationError(8462, f"conversation {handle} has ended already")
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
    for table in ("broker_message", "broker_failure"):
        ask(db, f"DELETE FROM {table} WHERE endpoint_id = ?", (endpoint_id,))  # noqa: S608 - names listed above
