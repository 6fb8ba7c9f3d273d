"""
What applications do: begin a dialog, send, receive, end, on their own connection and in their own transaction.

Nothing is sent unless the transaction commits, and nothing is consumed unless it commits; the daemon that has opened
the same file does the network. A connection in autocommit mode (`isolation_level=None`) commits each call by itself.
A call begins its transaction IMMEDIATE, so a busy database makes it wait, not fail with "database is locked".

Source: Service Broker documentation, "BEGIN DIALOG CONVERSATION", "SEND", "RECEIVE", "END CONVERSATION".
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from xml.sax.saxutils import escape

from broker.dialog.conversation import CAN_SEND, State
from broker.dialog.store import BUSY_SECONDS, has_schema
from broker.errors import ConversationError, StoreUnavailableError
from broker.wire.layout import NAME_MAX_BYTES, Flag

DEFAULT = "DEFAULT"  # the message type and the contract that exist everywhere
END_DIALOG = "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"
ERROR = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"
DEFAULT_LIFETIME = timedelta(days=7)  # the original's 68 years make leaks invisible
POLL_SECONDS = (0.002, 0.05)  # between two looks of a waiting receive: first, and at most

_SEND = (
    "UPDATE broker_conversation"
    " SET send_sequence = send_sequence + 1, state = CASE state WHEN 'SO' THEN 'CO' ELSE state END"
    " WHERE endpoint_id = ? AND state IN ('SO', 'CO') AND lifetime > ? RETURNING send_sequence - 1"
)
_TRANSMIT = (
    "INSERT INTO broker_transmission"
    " (endpoint_id, message_sequence_number, flags, message_type_name, enqueue_time, message_body)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
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

    def send(self, body: bytes | str, *, type: str = DEFAULT) -> int:  # noqa: A002 - the original's word
        """
        SEND ON CONVERSATION: queue one message behind all that were sent before it.

        Returns:
            Its message_sequence_number.

        Raises:
            ConversationError: 8429 the dialog cannot send any more; 8489 its lifetime is over; 8426 unknown handle.
            StoreUnavailableError: the database stayed locked.
        """
        data = body.encode() if isinstance(body, str) else bytes(body)
        now = time.time()
        with _transaction(self._db):
            row = self._db.execute(_SEND, (self._endpoint_id, now)).fetchone()
            if row is None:
                raise self._refusal("SEND")
            self._db.execute(_TRANSMIT, (self._endpoint_id, row[0], 0, type, now, data))
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
        with _transaction(self._db):
            state = self._state()
            if state in (State.DISCONNECTED_OUTBOUND, State.CLOSED):
                raise ConversationError(8462, f"conversation {self.conversation_handle} has ended already")
            self._db.execute("DELETE FROM broker_message WHERE endpoint_id = ?", (self._endpoint_id,))
            if state in (State.CONVERSING, State.STARTED_INBOUND):
                self._say_end(error, description)
            else:
                # Nobody heard of it, or the far side has ended: nothing is left to say.
                self._db.execute("DELETE FROM broker_transmission WHERE endpoint_id = ?", (self._endpoint_id,))
                self._set_state(State.CLOSED)

    def _say_end(self, error: int | None, description: str) -> None:
        flags, type_name, body = int(Flag.END_DIALOG), END_DIALOG, b""
        if error is not None:
            flags, type_name, body = int(Flag.ERROR), ERROR, error_body(error, description)
        (sequence,) = self._db.execute(
            "UPDATE broker_conversation SET state = 'DO', send_sequence = send_sequence + 1,"
            " end_dialog_sequence = send_sequence WHERE endpoint_id = ? RETURNING end_dialog_sequence",
            (self._endpoint_id,),
        ).fetchone()
        self._db.execute(_TRANSMIT, (self._endpoint_id, sequence, flags, type_name, time.time(), body))

    def _state(self) -> State:
        row = self._db.execute(
            "SELECT state FROM broker_conversation WHERE endpoint_id = ?", (self._endpoint_id,)
        ).fetchone()
        if row is None:
            raise ConversationError(8426, f"the conversation handle {self.conversation_handle} is not found")
        return State(row[0])

    def _set_state(self, state: State) -> None:
        self._db.execute(
            "UPDATE broker_conversation SET state = ? WHERE endpoint_id = ?", (str(state), self._endpoint_id)
        )

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
        ConversationError: 15151 no such service here; 8412 a name that does not fit; 8413 no GUID; 8489 a lifetime
            that is over before it begins.
        StoreUnavailableError: this file is no database of the broker, or stayed locked.
    """
    _check_schema(db)
    seconds = lifetime.total_seconds() if isinstance(lifetime, timedelta) else float(lifetime)
    if seconds <= 0:
        raise ConversationError(8489, f"a lifetime of {seconds:g} seconds is over before it begins")
    if not 1 <= len(to_service.encode()) <= NAME_MAX_BYTES:
        raise ConversationError(8412, f"the target's name {to_service!r} does not have 1 .. {NAME_MAX_BYTES} bytes")
    far = _guid(broker_instance)
    handle, conversation = uuid.uuid4(), uuid.uuid4()
    now = time.time()
    with _transaction(db):
        if db.execute("SELECT 1 FROM broker_service WHERE name = ?", (from_service,)).fetchone() is None:
            raise ConversationError(15151, f"the service {from_service!r} does not exist in this database")
        cursor = db.execute(
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
    _check_schema(db)
    handle = _guid(conversation_handle)
    row = db.execute(
        "SELECT endpoint_id, conversation_id FROM broker_conversation WHERE conversation_handle = ?",
        (handle.bytes if handle else b"",),
    ).fetchone()
    if row is None or handle is None:
        raise ConversationError(8426, f"the conversation handle {conversation_handle} is not found")
    return Dialog(db, row[0], handle, uuid.UUID(bytes=row[1]))


def receive(db: sqlite3.Connection, *, queue: str, top: int = 100, wait: float = 0.0) -> list[Message]:
    """
    RECEIVE: take messages from a queue, in order within each conversation.

    Args:
        db: The application's connection; its transaction holds what is taken until it commits or rolls back.
        queue: Its name.
        top: At most so many messages.
        wait: Seconds to wait for the first one; 0 looks once.

    Returns:
        The messages, none when the wait was over.

    Raises:
        ConversationError: 208 no such queue; 9617 the queue is disabled.
        StoreUnavailableError: this file is no database of the broker, or stayed locked.
    """
    _check_schema(db)
    queue_id = _queue_id(db, queue)
    deadline = time.monotonic() + wait
    pause, longest = POLL_SECONDS
    while db.execute("SELECT 1 FROM broker_message WHERE queue_id = ? LIMIT 1", (queue_id,)).fetchone() is None:
        left = deadline - time.monotonic()
        if left <= 0:
            return []
        time.sleep(min(pause, left))
        pause = min(longest, pause * 1.5)
    with _transaction(db):
        rows = db.execute(_RECEIVE, (queue_id, top)).fetchall()
        db.executemany("DELETE FROM broker_message WHERE queuing_order = ?", [(row[0],) for row in rows])
    dialogs = {row[1]: Dialog(db, row[1], uuid.UUID(bytes=row[6]), uuid.UUID(bytes=row[7])) for row in rows}
    return [
        Message(dialogs[endpoint], type_name, body, contract, service, sequence, datetime.fromtimestamp(at, UTC))
        for _, endpoint, sequence, type_name, body, at, _, _, service, contract in rows
    ]


def error_body(code: int, description: str) -> bytes:
    """The documented XML of an Error message."""
    namespace = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"
    text = f"<Code>{code}</Code><Description>{escape(description)}</Description>"
    return f'<?xml version="1.0"?><Error xmlns="{namespace}">{text}</Error>'.encode()


def _queue_id(db: sqlite3.Connection, name: str) -> int:
    row = db.execute("SELECT queue_id, is_receive_enabled FROM broker_queue WHERE name = ?", (name,)).fetchone()
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


def _check_schema(db: sqlite3.Connection) -> None:
    if not has_schema(db):
        path = db.execute("PRAGMA database_list").fetchone()[2] or ":memory:"
        problem = "no database of the broker; name it in a daemon's configuration and start that once"
        raise StoreUnavailableError(path, problem)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """The application's transaction, begun when there is none; committed here only in autocommit mode."""
    if db.in_transaction:
        yield
        return
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                path = db.execute("PRAGMA database_list").fetchone()[2]
                raise StoreUnavailableError(path, str(error)) from error
    is_autocommit = db.isolation_level is None
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    if is_autocommit:
        db.execute("COMMIT")
