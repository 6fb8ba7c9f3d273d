"""
What applications do: begin a dialog, send, receive, end, on their own connection and in their own transaction.

Nothing is sent unless the transaction commits, and nothing is consumed unless it commits; the daemon that has opened
the same file does the network. A connection in autocommit mode (`isolation_level=None`) commits each call by itself.
A call begins its transaction IMMEDIATE, so a busy database makes it wait, not fail with "database is locked"; a call
that fails leaves a transaction it did not begin as it was. The connection is the application's: its row factory is
never used here, and nothing of its settings is changed.

Source: Service Broker documentation, "BEGIN DIALOG CONVERSATION", "SEND", "RECEIVE", "END CONVERSATION".
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any

from broker.dialog.conversation import CAN_SEND, TRANSITIONS, Happening, State
from broker.dialog.transaction import ask, check_schema, transaction
from broker.errors import ConversationError
from broker.wire.layout import NAME_MAX_BYTES, Flag

DEFAULT = "DEFAULT"  # the message type and the contract that exist everywhere
END_DIALOG = "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"
ERROR = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"
DEFAULT_LIFETIME = timedelta(days=7)  # the original's 68 years make leaks invisible
LIFETIME_MAX = 2**31 - 1  # seconds; what the original's type holds
POLL_SECONDS = (0.002, 0.05)  # between two looks of a waiting receive: first, and at most

# The row comes first: when it does not fit (a body too large, a name that is no text) nothing has changed.
_TRANSMIT = (
    "INSERT INTO broker_transmission"
    " (endpoint_id, message_sequence_number, flags, message_type_name, enqueue_time, message_body)"
    " SELECT endpoint_id, send_sequence, ?, ?, ?, ? FROM broker_conversation WHERE endpoint_id = ?"
)
_SEND = f"{_TRANSMIT} AND state IN ('SO', 'CO') AND lifetime > ? RETURNING message_sequence_number"
_SENT = (
    "UPDATE broker_conversation SET send_sequence = send_sequence + 1,"
    " state = CASE state WHEN 'SO' THEN 'CO' ELSE state END WHERE endpoint_id = ?"
)
_ENDED = (
    "UPDATE broker_conversation SET state = ?, end_dialog_sequence = send_sequence,"
    " send_sequence = send_sequence + 1 WHERE endpoint_id = ?"
)
_HAS_MESSAGE = "SELECT 1 FROM broker_message WHERE queue_id = ? LIMIT 1"
_RECEIVE = (
    "SELECT m.queuing_order, m.endpoint_id, m.message_sequence_number, m.message_type_name, m.message_body,"
    " m.message_enqueue_time, c.conversation_handle, c.conversation_id, c.service_name, c.contract"
    " FROM broker_message m JOIN broker_conversation c USING (endpoint_id)"
    " WHERE m.queue_id = ? ORDER BY m.queuing_order LIMIT ?"
)


class Dialog:
    """
    One side of a dialog, on the connection it was got from.

    Shape: `conversation_handle` names this side, `conversation_id` both; neither changes.
    """

    __slots__ = ("_db", "_endpoint_id", "conversation_handle", "conversation_id")

    def __init__(self, db: sqlite3.Connection, endpoint_id: int, handle: uuid.UUID, conversation: uuid.UUID) -> None:
        self._db = db
        self._endpoint_id = endpoint_id
        self.conversation_handle = handle
        self.conversation_id = conversation

    @property
    def far_broker_instance(self) -> uuid.UUID | None:
        """The database of the far side; None while any may answer, or when nothing is known of the dialog any more."""
        query = "SELECT far_broker_instance FROM broker_conversation WHERE endpoint_id = ?"
        row = ask(self._db, query, (self._endpoint_id,)).fetchone()
        return None if row is None or row[0] is None else uuid.UUID(bytes=row[0])

    def send(self, body: bytes | str, *, type: str = DEFAULT) -> int:  # noqa: A002 - the original's word
        """
        SEND ON CONVERSATION: queue one message behind all that were sent before it.

        Returns:
            Its message_sequence_number.

        Raises:
            ConversationError: 8429 the dialog cannot send any more; 8489 its lifetime is over; 8426 unknown handle;
                8412 a type whose name does not fit.
            StoreUnavailableError: the database stayed locked.
        """
        _check_name(type, "message type")
        data = body.encode() if isinstance(body, str) else bytes(body)
        now = time.time()
        with transaction(self._db):
            row = ask(self._db, _SEND, (0, type, now, data, self._endpoint_id, now)).fetchone()
            if row is None:
                raise self._refusal("SEND")
            ask(self._db, _SENT, (self._endpoint_id,))
        sequence: int = row[0]
        return sequence

    def end(self, *, error: int | None = None, description: str = "") -> None:
        """
        END CONVERSATION: no more sending or receiving here; the far side hears of it behind everything sent.

        Args:
            error: A positive code: END .. WITH ERROR; the far side reads an Error message behind everything sent.
            description: What the far side reads beside the code.

        Raises:
            ConversationError: 8426 unknown handle; 8462 ended before; 8403 an error code that is not positive.
            StoreUnavailableError: the database stayed locked.
        """
        if error is not None and error <= 0:
            raise ConversationError(8403, f"the error code {error} is not positive; negative codes are the broker's")
        flags, type_name, body = int(Flag.END_DIALOG), END_DIALOG, b""
        if error is not None:
            flags, type_name, body = int(Flag.ERROR), ERROR, error_body(error, description)
        endpoint = (self._endpoint_id,)
        with transaction(self._db):
            state = TRANSITIONS.get((self._state(), Happening.ENDED_HERE))
            if state is None:
                raise ConversationError(8462, f"conversation {self.conversation_handle} has ended already")
            ask(self._db, "DELETE FROM broker_message WHERE endpoint_id = ?", endpoint)
            if state is State.DISCONNECTED_OUTBOUND:
                ask(self._db, _TRANSMIT, (flags, type_name, time.time(), body, *endpoint))
                ask(self._db, _ENDED, (str(state), *endpoint))
            else:
                # Nobody heard of it, or the far side has ended: nothing is left to say.
                ask(self._db, "DELETE FROM broker_transmission WHERE endpoint_id = ?", endpoint)
                ask(self._db, "UPDATE broker_conversation SET state = ? WHERE endpoint_id = ?", (str(state), *endpoint))

    def _state(self) -> State:
        query = "SELECT state FROM broker_conversation WHERE endpoint_id = ?"
        row = ask(self._db, query, (self._endpoint_id,)).fetchone()
        if row is None:
            raise ConversationError(8426, f"the conversation handle {self.conversation_handle} is not found")
        return State(row[0])

    def _refusal(self, what: str) -> ConversationError:
        state = self._state()
        if state in CAN_SEND:
            return ConversationError(8489, f"the lifetime of conversation {self.conversation_handle} is over")
        return ConversationError(
            8429,
            f"conversation {self.conversation_handle} is not in a valid state for {what}; it is {state} ({state.name})",
        )


@dataclass(frozen=True, slots=True)
class Message:
    """
    One received message.

    Shape: `type` message type name; `message_enqueue_time` UTC, when it was stored here.
    """

    dialog: Dialog
    type: str
    body: bytes
    contract: str
    service_name: str
    message_sequence_number: int
    message_enqueue_time: datetime

    @property
    def is_end(self) -> bool:
        """Whether the far side has ended the dialog."""
        return self.type == END_DIALOG

    @property
    def is_error(self) -> bool:
        """Whether the dialog has failed; `body` is the documented XML with Code and Description."""
        return self.type == ERROR


def begin_dialog(
    db: sqlite3.Connection,
    *,
    from_service: str,
    to_service: str,
    contract: str = DEFAULT,
    broker_instance: uuid.UUID | str | None = None,
    lifetime: float | timedelta = DEFAULT_LIFETIME,
) -> Dialog:
    """
    BEGIN DIALOG CONVERSATION: local state only; nothing crosses the network before the first send.

    Args:
        db: The application's connection to a database of the broker.
        from_service: A service of this database.
        to_service: The target's name, 1 .. 512 bytes, wherever it lives.
        contract: Told to the target with the first message.
        broker_instance: The one database that shall answer; None lets routing choose.
        lifetime: Seconds, or a timedelta, after which the dialog fails at both sides.

    Raises:
        ConversationError: 15151 no such service here; 8412 a name that does not fit; 8413 no GUID, or the zero GUID;
            8489 a lifetime that is over before it begins, or is longer than LIFETIME_MAX seconds.
        StoreUnavailableError: this file is no database of the broker, or stayed locked.
    """
    check_schema(db)
    seconds = lifetime.total_seconds() if isinstance(lifetime, timedelta) else float(lifetime)
    if not 0 < seconds <= LIFETIME_MAX:
        raise ConversationError(8489, f"a lifetime of {seconds:g} seconds is not above 0 and at most {LIFETIME_MAX}")
    _check_name(to_service, "target")
    _check_name(contract, "contract")
    far = _guid(broker_instance)
    if far is not None and not far.int:
        raise ConversationError(8413, "the zero GUID is no broker instance: leave it out, and routing chooses one")
    handle, conversation = uuid.uuid4(), uuid.uuid4()
    now = time.time()
    with transaction(db):
        if ask(db, "SELECT 1 FROM broker_service WHERE name = ?", (from_service,)).fetchone() is None:
            raise ConversationError(15151, f"the service {from_service!r} does not exist in this database")
        cursor = ask(
            db,
            "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator,"
            " conversation_group_id, state, service_name, far_service, far_broker_instance, contract, lifetime,"
            " create_date) VALUES (?, ?, 1, ?, 'SO', ?, ?, ?, ?, ?, ?)",
            (
                handle.bytes,
                conversation.bytes,
                uuid.uuid4().bytes,
                from_service,
                to_service,
                far.bytes if far else None,
                contract,
                now + seconds,
                now,
            ),
        )
    assert cursor.lastrowid is not None
    return Dialog(db, cursor.lastrowid, handle, conversation)


def get_dialog(db: sqlite3.Connection, conversation_handle: uuid.UUID | str) -> Dialog:
    """
    The dialog of a conversation handle kept from earlier.

    Raises:
        ConversationError: 8426 unknown handle; 8413 no GUID.
    """
    check_schema(db)
    handle = _guid(conversation_handle)
    query = "SELECT endpoint_id, conversation_id FROM broker_conversation WHERE conversation_handle = ?"
    row = ask(db, query, (handle.bytes if handle else b"",)).fetchone()
    if row is None or handle is None:
        raise ConversationError(8426, f"the conversation handle {conversation_handle} is not found")
    return Dialog(db, row[0], handle, uuid.UUID(bytes=row[1]))


def end_with_cleanup(db: sqlite3.Connection, dialog: Dialog) -> None:
    """END CONVERSATION WITH CLEANUP: this side forgets everything and tells nobody; for administrators."""
    key = "SELECT endpoint_id FROM broker_conversation WHERE conversation_handle = ?"
    handle = (dialog.conversation_handle.bytes,)
    with transaction(db):
        for table in ("broker_transmission", "broker_message", "broker_fragment", "broker_conversation"):
            db.execute(f"DELETE FROM {table} WHERE endpoint_id = ({key})", handle)  # noqa: S608 - names listed above


def receive(db: sqlite3.Connection, *, queue: str, top: int = 100, wait: float = 0.0) -> list[Message]:
    """
    RECEIVE: take messages from a queue, in order within each conversation.

    Args:
        db: The application's connection; its transaction holds what is taken until it commits or rolls back.
        queue: Its name.
        top: At most so many messages, at least 1.
        wait: Seconds to wait for the first one; 0 looks once, and so does a call inside a transaction that is open
            already, where nothing new can be seen.

    Returns:
        The messages, none when the wait was over.

    Raises:
        ConversationError: 127 `top` is not positive; 208 no such queue; 9617 the queue is disabled.
        StoreUnavailableError: this file is no database of the broker, or stayed locked.
    """
    check_schema(db)
    if top < 1:
        raise ConversationError(127, f"TOP {top} is not positive")
    deadline = time.monotonic() + (0.0 if db.in_transaction else wait)
    pause, longest = POLL_SECONDS
    while not (rows := _take(db, queue, top)):
        left = deadline - time.monotonic()
        if left <= 0:
            return []
        time.sleep(min(pause, left))
        pause = min(longest, pause * 1.5)
    dialogs = {row[1]: Dialog(db, row[1], uuid.UUID(bytes=row[6]), uuid.UUID(bytes=row[7])) for row in rows}
    return [
        Message(dialogs[endpoint], type_name, body, contract, service, sequence, datetime.fromtimestamp(at, UTC))
        for _, endpoint, sequence, type_name, body, at, _, _, service, contract in rows
    ]


def _take(db: sqlite3.Connection, queue: str, top: int) -> list[tuple[Any, ...]]:
    """Take what waits in a queue. With nothing taken, no transaction is left open."""
    queue_id = _queue_id(db, queue)
    if ask(db, _HAS_MESSAGE, (queue_id,)).fetchone() is None:
        return []
    is_joined = db.in_transaction
    with transaction(db):
        rows = ask(db, _RECEIVE, (queue_id, top)).fetchall()
        db.executemany("DELETE FROM broker_message WHERE queuing_order = ?", [(row[0],) for row in rows])
    if not rows and not is_joined and db.in_transaction:
        db.execute("ROLLBACK")  # another reader was faster
    return rows


def error_body(code: int, description: str) -> bytes:
    """The documented XML of an Error message."""
    namespace = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"
    text = f"<Code>{code}</Code><Description>{escape(description, quote=False)}</Description>"
    return f'<?xml version="1.0"?><Error xmlns="{namespace}">{text}</Error>'.encode()


def _queue_id(db: sqlite3.Connection, name: str) -> int:
    row = ask(db, "SELECT queue_id, is_receive_enabled FROM broker_queue WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise ConversationError(208, f"the queue {name!r} does not exist in this database")
    if not row[1]:
        raise ConversationError(9617, f"the queue {name!r} is disabled: ALTER QUEUE [{name}] WITH STATUS = ON")
    queue_id: int = row[0]
    return queue_id


def _guid(text: uuid.UUID | str | None) -> uuid.UUID | None:
    if text is None or isinstance(text, uuid.UUID):
        return text
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ConversationError(8413, f"{text!r} is no GUID") from None


def _check_name(name: str, whose: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConversationError(8412, f"the {whose}'s name {name!r} cannot be written as UTF-8") from None
    if not 1 <= size <= NAME_MAX_BYTES:
        raise ConversationError(8412, f"the {whose}'s name {name!r} does not have 1 .. {NAME_MAX_BYTES} bytes")
