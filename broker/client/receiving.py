"""
RECEIVE and GET CONVERSATION GROUP: messages removed from a queue inside the application's own transaction.

By priority, then in the order in which they were queued; so in order within each conversation, and one call may return
messages of several conversation groups. What is in quarantine is passed over, and so are the groups that a reader has
locked (`broker.store.sqlite.reader_slots`); those that rest after a failure are returned where just that group or
conversation is asked for. SQLite has one writer at a time: from the first message removed until the transaction ends,
no other connection receives anything from this database, which is more than the original's lock of the conversation
group.

A call that waits is a generator that yields before each pause, so that the asynchronous call can give its loop back
(`broker.client.waiting`). Between two pauses it reads `PRAGMA data_version`, which changes with every commit of another
connection and costs a few microseconds; only after a change, and every RELOOK_SECONDS, does it look into the queue: the
end of a rest or of a reader process changes nothing in the file.

Source: Service Broker documentation, "RECEIVE", "GET CONVERSATION GROUP", "Conversation Priorities".
"""

from __future__ import annotations

import io
import sqlite3
import time
import uuid
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar

from broker import conversation as conversation_rules
from broker.client.arguments import check_connection, check_count, check_seconds, check_text, guid_of, unknown_handle
from broker.client.body import LargeBody, context_of, headers_of
from broker.client.dialog import Dialog, Related
from broker.client.poison import next_admitted
from broker.client.queue import WHOLE_QUEUE, QueueState, Scope, first_group, next_messages, queue_of
from broker.client.transaction import check_schema, check_version, is_always_open, is_autocommit, look, transaction
from broker.client.waiting import Doorbell
from broker.conversation.message_types import DIALOG_TIMER, END_DIALOG, ERROR
from broker.errors import ConversationError
from broker.protocol.layout import show_guid
from broker.store.sqlite.failure import ATTEMPTS, note_success
from broker.store.sqlite.hints import endpoint_slot, queue_slot
from broker.store.sqlite.transaction import ask, open_watch, path_of, plain

RELOOK_SECONDS = 0.25  # between two queries of the queue when nothing has changed in the file
COLUMNS = (
    "m.queuing_order, m.endpoint_id, m.message_sequence_number, m.message_type_name, m.message_body,"
    " m.message_enqueue_time, m.body_fragments, c.conversation_handle, c.conversation_id, c.service_name, c.contract,"
    " c.conversation_group_id, c.priority, m.headers"
)

_REMOVE = "DELETE FROM broker_message WHERE queuing_order = ?"
_REMOVE_RUN = "DELETE FROM broker_message WHERE queuing_order BETWEEN ? AND ?"
_RECEIVED_LARGE = "INSERT OR IGNORE INTO broker_received VALUES (?, ?)"
_T = TypeVar("_T")

Row: TypeAlias = tuple[Any, ...]
"""A message by COLUMNS."""
Waiting: TypeAlias = Generator[Doorbell, None, _T]


class Received:
    """
    One received message, with the columns of the original's RECEIVE.

    Made from a row, whose columns are converted only when they are asked for: most readers want few of them.
    """

    __slots__ = ("_large", "_row")

    def __init__(self, row: tuple[Any, ...], large: LargeBody | None) -> None:
        self._row = row
        self._large = large

    def __repr__(self) -> str:
        return f"<Message {self.message_sequence_number} {self.type!r} of {show_guid(self._row[7])}>"

    @property
    def type(self) -> str:
        """Name of the message type."""
        return str(self._row[3])

    @property
    def message_sequence_number(self) -> int:
        """Position in the conversation, from 0."""
        return int(self._row[2])

    @property
    def message_enqueue_time(self) -> datetime:
        """Time (UTC) when the message was stored here."""
        return datetime.fromtimestamp(self._row[5], UTC)

    @property
    def contract(self) -> str:
        """Contract of the conversation."""
        return str(self._row[10])

    @property
    def service_name(self) -> str:
        """Service of this database that the message was sent to."""
        return str(self._row[9])

    @property
    def conversation_group_id(self) -> uuid.UUID:
        """Conversation group in which the message was received."""
        return uuid.UUID(bytes=self._row[11])

    @property
    def priority(self) -> int:
        """Priority of the conversation, from 1 to 10."""
        return int(self._row[12])

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the sender sent along with the body; empty without any."""
        return headers_of(self._row[13])

    @property
    def trace_context(self) -> Any:
        """
        Context of the span that sent the message, for `context=` of a span of OpenTelemetry.

        None without one, or if the API of OpenTelemetry is not installed.
        """
        return context_of(self.headers)

    @property
    def is_end(self) -> bool:
        """Whether the far side has ended the dialog."""
        return bool(self._row[3] == END_DIALOG)

    @property
    def is_error(self) -> bool:
        """Whether the dialog has failed; see `error_code` and `error_description`."""
        return bool(self._row[3] == ERROR)

    @property
    def is_timer(self) -> bool:
        """Whether the conversation timer of this side has fired."""
        return bool(self._row[3] == DIALOG_TIMER)

    @property
    def is_large(self) -> bool:
        """Whether the body is above 1 MiB, so that it is better read as a file."""
        return self._large is not None

    @property
    def error_code(self) -> int | None:
        """Code of an Error message: positive from the far application, negative from the broker. None otherwise."""
        return self._error()[0]

    @property
    def error_description(self) -> str:
        """Text of an Error message; empty for all other messages."""
        return self._error()[1]

    def _error(self) -> tuple[int | None, str]:
        """Of a small body; the documented errors are small."""
        return conversation_rules.body_check.error_parts(self._row[4] or b"") if self.is_error else (None, "")


class Message(Received):
    """
    One received message.

    Attributes:
        dialog: The dialog on which to answer.
    """

    __slots__ = ("dialog",)
    dialog: Dialog

    def __init__(self, row: tuple[Any, ...], large: LargeBody | None, dialog: Dialog) -> None:
        super().__init__(row, large)
        self.dialog = dialog

    @property
    def body(self) -> bytes:
        """The whole body. Raises ValueError if `is_large` and the transaction is over."""
        if self._large is not None:
            return self._large.open().read()
        body: bytes = self._row[4]
        return body

    @property
    def body_length(self) -> int:
        """Length of the body in bytes; the body is not read. Raises as `body`."""
        return len(self._row[4]) if self._large is None else self._large.length()

    def open(self) -> io.BufferedIOBase:
        """Return the body as a binary file, read in bounded memory, until the transaction ends. Raises as `body`."""
        return io.BytesIO(self._row[4]) if self._large is None else self._large.open()


# --- the calls ---


def receive(
    db: sqlite3.Connection,
    *,
    queue: str,
    top: int = 100,
    wait: float = 0.0,
    conversation: Related | None = None,
    conversation_group: uuid.UUID | str | None = None,
    poison: int = ATTEMPTS,
) -> list[Message]:
    """
    RECEIVE: remove messages from a queue, in order within each conversation.

    Args:
        db: The application's connection. The messages are removed when its transaction commits.
        queue: Name of the queue.
        top: Maximum number of messages, at least 1.
        wait: Seconds to wait for the first message, `math.inf` for ever. With 0, or inside a transaction that is open
            already, the call checks once.
        conversation: Dialog, or its handle: only its messages; none while a reader has its group.
        conversation_group: GUID of a group: only its messages; none while a reader has it.
        poison: Rollbacks of a message that was received alone until its dialog is put in quarantine. After three
            rollbacks in a row fewer messages than `top` are returned. 0 turns both off.

    Returns:
        The messages; an empty list if none arrived in time.

    Raises:
        ConversationError: 127 `top` or `poison` is not a whole number, or is out of range; 148 `wait` is not a time;
            208 no such queue; 9617 the queue is disabled; 8426 no such conversation; 8413 not a GUID; 102 a
            conversation and a group are given.
        StoreUnavailableError: this file is not a database of the broker, or stayed locked.
    """
    steps = receiving(db, queue, top, wait, conversation=conversation, group=conversation_group, poison=poison)
    return [Message(row, large, dialog) for row, large, dialog in wait_here(steps)]


def get_conversation_group(db: sqlite3.Connection, *, queue: str, wait: float = 0.0) -> uuid.UUID | None:
    """
    GET CONVERSATION GROUP: lock the conversation group of the next message of a queue.

    The whole database is locked with it, until the transaction ends; in autocommit mode that is at once.

    Args:
        db: The application's connection.
        queue: Name of the queue.
        wait: As for `receive`.

    Returns:
        The group; None if no message arrived in time.

    Raises:
        ConversationError: 148 `wait` is not a time; 208 no such queue; 9617 the queue is disabled.
        StoreUnavailableError: this file is not a database of the broker, or stayed locked.
    """
    found = wait_here(getting_group(db, queue, wait))
    return found[0] if found else None


def receiving(
    db: sqlite3.Connection,
    queue: str,
    top: int,
    wait: float,
    *,
    conversation: Related | None,
    group: uuid.UUID | str | None,
    poison: int,
) -> Waiting[list[tuple[Row, LargeBody | None, Dialog]]]:
    """RECEIVE as steps between which nothing is held; see `receive`."""
    check_connection(db)
    top = check_count(top, "top", 127, least=1)
    wait = check_seconds(wait, "wait", 148, may_be_zero=True)
    poison = check_count(poison, "poison", 127, least=0)
    if conversation is not None and group is not None:
        raise ConversationError(102, "give conversation or conversation_group, not both")
    scope = WHOLE_QUEUE
    if conversation is not None:
        handle = conversation.conversation_handle if isinstance(conversation, Dialog) else guid_of(conversation)
        scope = Scope(handle=handle.bytes)
    elif group is not None:
        scope = Scope(group=guid_of(group).bytes)
    take = partial(_take, db, queue, scope, top, poison)
    taken = yield from _wait_for(db, queue, scope, take, wait)
    dialogs = dialogs_of(db, [row for row, _ in taken])
    return [(row, large, dialogs[row[1]]) for row, large in taken]


def getting_group(db: sqlite3.Connection, queue: str, wait: float) -> Waiting[list[uuid.UUID]]:
    """GET CONVERSATION GROUP as steps between which nothing is held; see `get_conversation_group`."""
    check_connection(db)
    wait = check_seconds(wait, "wait", 148, may_be_zero=True)
    return (yield from _wait_for(db, queue, WHOLE_QUEUE, partial(_take_group, db, queue), wait))


def wait_here(steps: Waiting[_T]) -> _T:
    """Run steps to the end, waiting in this thread."""
    while True:
        try:
            doorbell = next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        doorbell.pause()


def dialogs_of(db: sqlite3.Connection, rows: Iterable[Row]) -> dict[int, Dialog]:
    """By endpoint_id, the dialog that the messages of each conversation share."""
    dialogs: dict[int, Dialog] = {}
    for row in rows:
        if row[1] not in dialogs:
            dialogs[row[1]] = Dialog(db, row[1], uuid.UUID(bytes=row[7]), uuid.UUID(bytes=row[8]))
    return dialogs


def large_body(db: sqlite3.Connection, row: Row) -> LargeBody | None:
    """The body of a message whose body is in fragments."""
    return None if row[4] is not None else LargeBody(db, row[1], row[2], row[6])


# --- looking and removing ---


def _wait_for(
    db: sqlite3.Connection, queue: str, scope: Scope, take: Callable[[], list[_T]], wait: float
) -> Waiting[list[_T]]:
    """
    What `take` returns once that is something, or nothing after `wait` seconds.

    While this waits, no transaction is open on the connection that was not open before, and `take` leaves none when
    another reader was faster. Inside a transaction that is open nothing new can be seen, so it looks once; where one is
    always open (`autocommit=False`), the looks are on a separate connection.
    """
    deadline = time.monotonic() + wait
    path = path_of(db) if is_always_open(db) else ""
    if db.in_transaction and not path:
        return take()
    with ExitStack() as stack:
        watch = stack.enter_context(closing(open_watch(path))) if path else db
        doorbell: Doorbell | None = None

        def version_now() -> int:
            return int(ask(watch, "PRAGMA data_version").fetchone()[0])

        version = look_at = None
        while True:
            if doorbell is not None:
                doorbell.mark()
            now = time.monotonic()
            current = look(db, version_now)
            if current != version or look_at is None or now >= look_at:
                version, look_at = current, now + RELOOK_SECONDS
                has_messages, slot = look(db, lambda: _seen(watch, queue, scope))
                if has_messages and (taken := take()):
                    return taken
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return []
            if doorbell is None:  # what is rung from here on, one more check of the version comes after
                doorbell = stack.enter_context(closing(Doorbell(path_of(db), slot)))
                continue
            yield doorbell.within(remaining)


def _seen(db: sqlite3.Connection, queue: str, scope: Scope) -> tuple[bool, int]:
    """
    Whether there is something to receive, on a connection that sees what is committed; and the slot of the bell that is
    rung when there is.
    """
    with plain(db):
        state = _queue(db, queue, scope)
        slot = queue_slot(state.queue_id) if state.endpoint_id is None else endpoint_slot(state.endpoint_id)
        if not state.has_messages or (scope == WHOLE_QUEUE and not state.has_locks):
            return bool(state.has_messages), slot
        return bool(next_messages(db, state, scope, "m.queuing_order", 1, now=time.time())), slot


def _take(
    db: sqlite3.Connection, queue: str, scope: Scope, top: int, poison: int
) -> list[tuple[Row, LargeBody | None]]:
    """Remove the next messages of a queue. With nothing removed, no transaction is left open."""
    is_joined = db.in_transaction
    with transaction(db), plain(db):
        state = _queue(db, queue, scope)

        def select(limit: int) -> list[Row]:
            nonlocal state
            found = next_messages(db, state, scope, COLUMNS, limit, now=time.time())
            state = state._replace(has_locks=1)  # perhaps, when this is called again: there may have been a commit
            return found

        rows = next_admitted(db, state.queue_id, select, top, poison=poison, may_commit=not is_joined)
        is_brief = is_autocommit(db) and not is_joined  # the transaction ends with this call
        taken = [(row, large_body(db, row)) for row in rows]
        if is_brief:
            taken = [(row, None if large is None else large.copied()) for row, large in taken]
        _remove(db, [row[0] for row in rows])
        received = [(row[1], row[2]) for row, large in taken if large is not None]
        if received:
            db.executemany(_RECEIVED_LARGE, received)
        note_success(db, {row[1] for row in rows})
    if not rows and not is_joined and db.in_transaction:
        db.execute("ROLLBACK")  # another reader was faster
    return taken


def _remove(db: sqlite3.Connection, queuing_orders: list[int]) -> None:
    """Remove messages from their queue; where no other is between them, by one statement."""
    if not queuing_orders:
        return
    first, last = min(queuing_orders), max(queuing_orders)
    if last - first < len(queuing_orders):
        ask(db, _REMOVE_RUN, (first, last))
    else:
        db.executemany(_REMOVE, [(order,) for order in queuing_orders])


def _take_group(db: sqlite3.Connection, queue: str) -> list[uuid.UUID]:
    is_joined = db.in_transaction
    with transaction(db), plain(db):
        group = first_group(db, _queue(db, queue, WHOLE_QUEUE), time.time())
    if group is None and not is_joined and db.in_transaction:
        db.execute("ROLLBACK")
    return [] if group is None else [uuid.UUID(bytes=group)]


def _queue(db: sqlite3.Connection, queue: str, scope: Scope) -> QueueState:
    check_text(queue, "the queue's name")
    try:
        state = queue_of(db, queue, scope)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:  # no such table or column
            check_schema(db)
        raise
    if state is None:
        check_schema(db)
        raise ConversationError(208, f"the queue {queue!r} does not exist in this database")
    check_version(db, state.schema_version)
    if not state.is_receive_enabled:
        raise ConversationError(9617, f"the queue {queue!r} is disabled: ALTER QUEUE [{queue}] WITH STATUS = ON")
    if scope.handle is not None and state.endpoint_id is None:
        raise unknown_handle(uuid.UUID(bytes=scope.handle))
    return state
