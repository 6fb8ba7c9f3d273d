"""
Dialogs for applications: begin a dialog, send and end, on the application's connection and in its transaction.

Messages are sent and consumed only if the transaction commits; the daemon that has opened the same file does the
network. A connection in autocommit mode (`isolation_level=None`) commits each call separately. A call begins its
transaction IMMEDIATE, so a busy database makes it wait, not fail with "database is locked". A call that fails leaves a
transaction it did not begin as it was. The connection is the application's: its row factory is never used here, and
none of its settings is changed. An argument that is not a connection, dialog or body at all raises TypeError.

A remote service binding forces security. Without one a dialog with ENCRYPTION = ON may not leave its instance: the
daemon ends it with error 9727 when it would have to. The original's default is ON. Here it is ON in a database that has
a certificate, so a database without one behaves as it did before security was added.

Source: Service Broker documentation, "BEGIN DIALOG CONVERSATION", "SEND", "END CONVERSATION", "MOVE CONVERSATION",
"BEGIN CONVERSATION TIMER", "GET TRANSMISSION STATUS", "Determining the Dialog Security Type".
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from broker.client import ending, sending
from broker.client.arguments import (
    CURRENT_DATABASE,
    check_connection,
    check_dialog,
    check_name,
    check_seconds,
    check_text,
    guid_of,
    unknown_handle,
)
from broker.client.body import Body, Headers
from broker.client.sending import Item
from broker.client.transaction import check_durable, check_schema, check_version, look, transaction
from broker.conversation.message_types import DEFAULT, DEFAULT_LIFETIME, LIFETIME_MAX
from broker.conversation.state import ON_ITS_WAY, ConversationState
from broker.errors import ConversationError
from broker.protocol.layout import show_guid
from broker.security.secured import SECRET_BYTES, Mode, Secured
from broker.store.sqlite.dialog_rules import priority_for
from broker.store.sqlite.session_keys import put_secured
from broker.store.sqlite.transaction import ask, open_watch, path_of, plain

_TIMED = frozenset({ConversationState.DISCONNECTED_OUTBOUND, ConversationState.CLOSED})  # ended here: no timer is set
_STATUS = (
    "SELECT c.transmission_status, c.send_sequence, c.state,"
    " (SELECT count(*) FROM broker_transmission t WHERE t.endpoint_id = c.endpoint_id)"
    " FROM broker_conversation c WHERE c.endpoint_id = ?"
)
_LOCKS = "/proc/locks"
_NAMESPACE = "/proc/self/ns/pid"
_ALL_PROCESSES = "pid:[4026531836]"  # the kernel's PROC_PID_INIT_INO
_BINDING = "SELECT remote_principal, is_anonymous_on FROM broker_remote_service_binding WHERE remote_service_name = ?"
_HAS_CERTIFICATE = "SELECT 1 FROM broker_database WHERE certificate IS NOT NULL"
_FIND = (
    "SELECT schema_version, endpoint_id, conversation_id FROM broker_database"
    " LEFT JOIN broker_conversation ON conversation_handle = ?"
)
_BEGIN = (
    "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator, conversation_group_id,"
    " state, service_name, far_service, far_broker_instance, contract, priority, lifetime, create_date)"
    " VALUES (?, ?, 1, ?, 'SO', ?, ?, ?, ?, ?, ?, ?)"
)


class Dialog:
    """
    One side of a dialog, on the connection that it was made or found on. Properties read the database each time.

    Attributes:
        conversation_handle: GUID of this side.
        conversation_id: GUID that both sides have in common.
        endpoint_id: Key of this side in the database.
    """

    __slots__ = ("_db", "_is_durable", "conversation_handle", "conversation_id", "endpoint_id")
    conversation_handle: uuid.UUID
    conversation_id: uuid.UUID
    endpoint_id: int

    def __init__(self, db: sqlite3.Connection, endpoint_id: int, handle: uuid.UUID, conversation: uuid.UUID) -> None:
        self._db = db
        self._is_durable = False  # checked when something is sent
        self.endpoint_id = endpoint_id
        self.conversation_handle = handle
        self.conversation_id = conversation

    def __repr__(self) -> str:
        return f"<Dialog {show_guid(self.conversation_handle)}>"

    @property
    def state(self) -> ConversationState:
        """State of this side; CLOSED also if the database has no record of the dialog left."""
        return ConversationState(self._find("state") or ConversationState.CLOSED)

    @property
    def conversation_group_id(self) -> uuid.UUID:
        """Conversation group; one reader at a time handles its messages. Raises ConversationError 8426."""
        return uuid.UUID(bytes=self._get("conversation_group_id"))

    @property
    def priority(self) -> int:
        """Priority from 1 to 10, fixed when the dialog began. Raises ConversationError 8426."""
        return int(self._get("priority"))

    @property
    def lifetime(self) -> datetime:
        """Time (UTC) when the dialog fails at this side unless it has ended. Raises ConversationError 8426."""
        return datetime.fromtimestamp(self._get("lifetime"), UTC)

    @property
    def far_broker_instance(self) -> uuid.UUID | None:
        """GUID of the far database; None while any may answer, or if the database has no record of the dialog."""
        far = self._find("far_broker_instance")
        return None if far is None else uuid.UUID(bytes=far)

    @property
    def transmission_status(self) -> str:
        """
        GET TRANSMISSION STATUS: the reason why sent messages are not acknowledged yet; blank without a problem.

        While messages wait it is the status in `sys.transmission_queue`, unless no daemon serves the file, or this
        transaction has sent some of them. If none waits, the text is about that.
        """
        return look(self._db, lambda: transmission_status(self._db, self.endpoint_id))

    def send(self, body: Body, *, type: str = DEFAULT, headers: Headers | None = None) -> int:  # noqa: A002 - original's
        """
        SEND ON CONVERSATION: queue one message after all that were sent before it.

        Args:
            body: Bytes, text (as UTF-8), a binary file, or an iterable of bytes; the last two are read piece by piece.
                A generator, pipe or socket is read before the database is locked, above 1 MiB into a temporary file. A
                file on disk above 1 MiB is read while the database is locked.
            type: Name of the message type, 1 to 512 bytes.
            headers: Names and texts that travel along with the body, at most 32 with 4096 bytes together. The current
                span of OpenTelemetry is added unless they have a `traceparent`.

        Returns:
            The message_sequence_number.

        Raises:
            ConversationError: 8429 the dialog has ended or failed; 8489 its lifetime is over; 8426 unknown handle; 8412
                the type name or the headers exceed their limits; 8433 no body, or text that is not UTF-8; 8428 the
                contract is declared here, and the type does not exist; 8431 the contract does not have the type; 8432
                the type is for the target only; 8434 the type is for the initiator only; 8430 the validation of the
                type refuses the body; 9616 the body is not the XML that its type requires.
            StoreBusyError: the database stayed locked.
            StoreUnavailableError: the connection has `PRAGMA synchronous` below FULL (checked once for each dialog
                object), or the disk of temporary files is full.
        """
        self._check_durable()
        return sending.send_one(self._db, (self.endpoint_id, self.conversation_handle), body, type, headers)

    def send_many(self, bodies: Iterable[Item], *, type: str = DEFAULT, headers: Headers | None = None) -> range:  # noqa: A002
        """
        SEND for many messages in one pass: all are queued, in order, or none is.

        Args:
            bodies: Bodies as for `send`, or pairs of a type and a body. All are read before the first is queued, above
                1 MiB into a temporary file.
            type: Type of the bodies that are given without one.
            headers: Headers of each message, as for `send`.

        Returns:
            The message_sequence_numbers.

        Raises:
            BrokerError: as `send`.
        """
        self._check_durable()
        return sending.send_many(self._db, (self.endpoint_id, self.conversation_handle), bodies, type, headers)

    def end(self, *, error: int | None = None, description: str = "", cleanup: bool = False) -> None:
        """
        END CONVERSATION: end this side; the far side is notified after it has received everything sent.

        Args:
            error: Positive code (WITH ERROR): the far side receives an Error message instead of EndDialog.
            description: Text that the far side receives with the code, at most 3000 characters.
            cleanup: Forget the dialog at this side without notice to the far side (WITH CLEANUP); for administrators.

        Raises:
            ConversationError: 8426 unknown handle; 8462 this side has ended already; 8403 the error code is not a
                positive whole number; 8424 the description is too long, is not UTF-8, or is given without `error`.
            StoreBusyError: the database stayed locked.
            StoreUnavailableError: as `send`; not with `cleanup`.
        """
        if cleanup:
            if error is not None or description:
                raise ConversationError(8424, "WITH CLEANUP notifies no peer: leave out the error and its description")
            ending.end_with_cleanup(self._db, self.endpoint_id, self.conversation_handle)
        else:
            self._check_durable()
            ending.end(self._db, self.endpoint_id, self.conversation_handle, error, description)

    def set_timer(self, seconds: float | timedelta) -> None:
        """
        BEGIN CONVERSATION TIMER: put one DialogTimer message into the queue of this side after some time.

        It replaces a timer set before; `cancel_timer` ends one.

        Args:
            seconds: Seconds from now, or a timedelta.

        Raises:
            ConversationError: 8410 the time is not a number, is not above 0, or is after the end of the lifetime; 8426
                unknown handle; 8429 this side has ended.
            StoreBusyError: the database stayed locked.
        """
        delay = check_seconds(seconds, "a conversation timer's seconds", 8410)
        self._set_timer(time.time() + delay)

    def cancel_timer(self) -> None:
        """
        End a conversation timer that has not fired; a DialogTimer message that is queued already stays.

        Raises:
            ConversationError: 8426 unknown handle; 8429 this side has ended.
            StoreBusyError: the database stayed locked.
        """
        self._set_timer(None)

    def _set_timer(self, due: float | None) -> None:
        query = "SELECT state, lifetime FROM broker_conversation WHERE endpoint_id = ?"
        with transaction(self._db), plain(self._db):
            row = ask(self._db, query, (self.endpoint_id,)).fetchone()
            if row is None:
                raise unknown_handle(self.conversation_handle)
            if row[0] in _TIMED:
                raise sending.refusal(self._db, (self.endpoint_id, self.conversation_handle), "a timer")
            if due is not None and due > row[1]:
                problem = f"the timer is due {due - row[1]:g} seconds after the lifetime of"
                raise ConversationError(8410, f"{problem} {show_guid(self.conversation_handle)}")
            change = "UPDATE broker_conversation SET dialog_timer = ? WHERE endpoint_id = ?"
            ask(self._db, change, (due, self.endpoint_id))

    def _check_durable(self) -> None:
        if not self._is_durable:
            check_durable(self._db)
            self._is_durable = True

    def _find(self, column: str) -> Any:
        """A column of the conversation's row; None when there is no row."""
        query = f"SELECT {column} FROM broker_conversation WHERE endpoint_id = ?"  # noqa: S608 - a literal above
        with plain(self._db):
            row = look(self._db, lambda: ask(self._db, query, (self.endpoint_id,)).fetchone())
        return None if row is None else row[0]

    def _get(self, column: str) -> Any:
        value = self._find(column)
        if value is None:
            raise unknown_handle(self.conversation_handle)
        return value


Related: TypeAlias = Dialog | uuid.UUID | str
"""A dialog, or its conversation handle."""


def begin_dialog(
    db: sqlite3.Connection,
    *,
    from_service: str,
    to_service: str,
    contract: str = DEFAULT,
    broker_instance: uuid.UUID | str | None = None,
    lifetime: float | timedelta = DEFAULT_LIFETIME,
    related_conversation: Related | None = None,
    related_conversation_group: uuid.UUID | str | None = None,
    encryption: bool | None = None,
) -> Dialog:
    """
    BEGIN DIALOG CONVERSATION: begin a dialog. It is local: nothing crosses the network before the first send.

    Args:
        db: The application's connection to a database of the broker.
        from_service: Name of the initiator, a service of this database.
        to_service: Name of the target, 1 to 512 bytes, in this database or any other.
        contract: Name of the contract. The target receives it with the first message; if it is declared in this
            database, it is enforced at each send.
        broker_instance: GUID of the database that must answer, or 'CURRENT DATABASE'; None lets routing choose.
        lifetime: Seconds, or a timedelta, after which the dialog fails at both sides.
        related_conversation: Dialog whose conversation group the new one joins.
        related_conversation_group: Conversation group to join, which may be new. Without either argument the dialog
            gets a new group.
        encryption: Whether the dialog must be sealed when it leaves the instance; None is yes if this database has a
            certificate. A remote service binding for the target seals it in any case. Without one, a dialog that must
            be sealed ends with error 9727 when it would leave.

    Raises:
        ConversationError: 15151 no such service here; 8412 a name is empty or too long; 8413 not a GUID, or the zero
            GUID; 8489 the lifetime is not a number, is not above 0, or exceeds 2147483647 seconds; 8426 the related
            conversation is unknown; 8414 its group belongs to another queue, or is the zero GUID; 102 both relations
            are given.
        StoreUnavailableError: this file is not a database of the broker, or stayed locked.
    """
    check_connection(db)
    seconds = check_seconds(lifetime, "lifetime", 8489, most=LIFETIME_MAX)
    check_text(from_service, "the initiator's name")
    check_name(to_service, "target")
    check_name(contract, "contract")
    is_here = isinstance(broker_instance, str) and broker_instance.upper() == CURRENT_DATABASE
    far = None if broker_instance is None or is_here else guid_of(broker_instance)
    if far is not None and not far.int:
        raise ConversationError(8413, "the zero GUID is not a broker instance: leave it out, and routing chooses one")
    if related_conversation is not None and related_conversation_group is not None:
        raise ConversationError(102, "give related_conversation or related_conversation_group, not both")
    if not db.in_transaction:
        check_schema(db)
    handle, conversation, now = uuid.uuid4(), uuid.uuid4(), time.time()
    with transaction(db), plain(db):
        if ask(db, "SELECT 1 FROM broker_service WHERE name = ?", (from_service,)).fetchone() is None:
            raise ConversationError(15151, f"the service {from_service!r} does not exist in this database")
        group = _group(db, related_conversation, related_conversation_group)
        _check_queue(db, group, from_service, 8414)
        priority = priority_for(db, contract, from_service, to_service)
        instance = (
            ask(db, "SELECT broker_instance FROM broker_database").fetchone()[0] if is_here else far and far.bytes
        )
        names = (from_service, to_service, instance, contract)
        values = (handle.bytes, conversation.bytes, group.bytes, *names, priority, now + seconds, now)
        cursor = ask(db, _BEGIN, values)
        secure(db, conversation.bytes, to_service, now, encryption=encryption)
    assert cursor.lastrowid is not None
    return Dialog(db, cursor.lastrowid, handle, conversation)


def get_dialog(db: sqlite3.Connection, conversation_handle: uuid.UUID | str) -> Dialog:
    """
    Find the dialog of a conversation handle that was kept.

    Args:
        db: The application's connection to the database of the dialog.
        conversation_handle: Handle, a GUID or its text.

    Raises:
        ConversationError: 8426 unknown handle; 8413 not a GUID.
        StoreUnavailableError: this file is not a database of the broker.
    """
    check_connection(db)
    handle = guid_of(conversation_handle)
    row = look(db, lambda: ask(db, _FIND, (handle.bytes,)).fetchone())
    version, endpoint_id, conversation = row or (None, None, b"")
    check_version(db, version)
    if endpoint_id is None:
        raise unknown_handle(handle)
    return Dialog(db, endpoint_id, handle, uuid.UUID(bytes=conversation))


def send(
    dialogs: Iterable[Dialog],
    body: Body,
    *,
    type: str = DEFAULT,  # noqa: A002 - the original's word
    headers: Headers | None = None,
) -> list[int]:
    """
    SEND ON CONVERSATION (h1, h2, ...): queue one message on each of several dialogs, or on none.

    Args:
        dialogs: Dialogs of one connection.
        body: As for `Dialog.send`.
        type: Name of the message type.
        headers: As for `Dialog.send`.

    Returns:
        The message_sequence_number on each dialog.

    Raises:
        ConversationError: 8418 a dialog is given twice, or belongs to another connection.
        BrokerError: as `Dialog.send`.
    """
    chosen = list(dialogs)
    for dialog in chosen:
        check_dialog(dialog, Dialog)
    if not chosen:
        return []
    db = chosen[0]._db  # noqa: SLF001 - likewise
    if any(dialog._db is not db for dialog in chosen):  # noqa: SLF001 - likewise
        raise ConversationError(8418, "the dialogs are not all on one connection, so they have no common transaction")
    endpoints = [(dialog.endpoint_id, dialog.conversation_handle) for dialog in chosen]
    if len(set(endpoints)) < len(endpoints):
        raise ConversationError(8418, "a conversation handle is given more than once")
    check_durable(db)
    return sending.send_to_all(db, endpoints, body, type, headers)


def move_conversation(dialog: Dialog, group: uuid.UUID | str) -> None:
    """
    MOVE CONVERSATION: put a dialog into another conversation group.

    Args:
        dialog: The dialog to move.
        group: Conversation group, which may be new.

    Raises:
        ConversationError: 8426 unknown handle; 8413 not a GUID; 8439 the group belongs to another queue, or is the zero
            GUID; 8438 this side has ended.
        StoreBusyError: the database stayed locked.
    """
    check_dialog(dialog, Dialog)
    db, group = dialog._db, guid_of(group)  # noqa: SLF001 - of the class above
    query = "SELECT endpoint_id, service_name, state FROM broker_conversation WHERE conversation_handle = ?"
    with transaction(db), plain(db):
        row = ask(db, query, (dialog.conversation_handle.bytes,)).fetchone()
        if row is None:
            raise unknown_handle(dialog.conversation_handle)
        endpoint_id, service, state = row
        if state in _TIMED:
            handle = show_guid(dialog.conversation_handle)
            raise ConversationError(8438, f"conversation {handle} has ended here ({state})")
        _check_queue(db, group, service, 8439)
        change = "UPDATE broker_conversation SET conversation_group_id = ? WHERE endpoint_id = ?"
        ask(db, change, (group.bytes, endpoint_id))


def _group(db: sqlite3.Connection, conversation: Related | None, group: uuid.UUID | str | None) -> uuid.UUID:
    """The conversation group of a new dialog."""
    if group is not None:
        return guid_of(group)
    if conversation is None:
        return uuid.uuid4()
    handle = conversation.conversation_handle if isinstance(conversation, Dialog) else guid_of(conversation)
    query = "SELECT conversation_group_id FROM broker_conversation WHERE conversation_handle = ?"
    row = ask(db, query, (handle.bytes,)).fetchone()
    if row is None:
        raise unknown_handle(handle)
    return uuid.UUID(bytes=row[0])


def _check_queue(db: sqlite3.Connection, group: uuid.UUID, service: str, number: int) -> None:
    """A group is received from one queue, so its conversations belong to services of one queue; zeros name none."""
    if not group.int:
        raise ConversationError(number, "the zero GUID is not a conversation group: draw one, or leave it out")
    query = (
        "SELECT s.name FROM broker_conversation c JOIN broker_service s ON s.name = c.service_name"
        " WHERE c.conversation_group_id = ? AND s.queue_id <>"
        " (SELECT queue_id FROM broker_service WHERE name = ?) LIMIT 1"
    )
    row = ask(db, query, (group.bytes, service)).fetchone()
    if row is not None:
        problem = f"the conversation group {show_guid(group)} has a conversation of {row[0]!r}"
        raise ConversationError(number, f"{problem}, whose queue is not that of {service!r}")


# --- security and status ---


def secure(
    db: sqlite3.Connection, conversation_id: bytes, far_service: str, now: float, *, encryption: bool | None
) -> None:
    """
    Record how a dialog is secured, from its beginning on.

    Args:
        db: Inside a transaction; an application's own connection.
        conversation_id: Of the new dialog.
        far_service: Its target.
        now: UTC seconds since 1970.
        encryption: As the application says; None = whether this database has a certificate.
    """
    binding = ask(db, _BINDING, (far_service,)).fetchone()
    if encryption is None:
        encryption = ask(db, _HAS_CERTIFICATE).fetchone() is not None
    if binding is None and not encryption:
        return
    secured = Secured(None)
    if binding is not None:
        principal, is_anonymous = binding
        secured = Secured(Mode.FULL, principal)
        if is_anonymous:
            secured = Secured(Mode.ANONYMOUS, principal, os.urandom(SECRET_BYTES))
    put_secured(db, conversation_id, secured, now, is_initiator=True)


def transmission_status(db: sqlite3.Connection, endpoint_id: int) -> str:
    """
    GET TRANSMISSION STATUS: why what one side sent is not acknowledged yet; blank while it is simply on its way.

    The daemon writes why it waits into the conversation's row; what can be seen without it is added here: that nothing
    waits, that it is not committed, or that there is no daemon.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    with plain(db):
        row = ask(db, _STATUS, (endpoint_id,)).fetchone()
    if row is None:
        return "the conversation is over: no message of it waits"
    status, sent, state, waiting = row
    status = _shown_status(status)
    if not waiting:
        if state == "ER":
            return "the conversation has failed: no message of it will be sent; receive its Error message"
        count = "1 message" if sent == 1 else f"{sent} messages"
        return f"everything sent is acknowledged ({count})" if sent else "nothing has been sent yet"
    what = "1 message waits" if waiting == 1 else f"{waiting} messages wait"
    if has_daemon(path_of(db)) is False:
        before = f"; before that: {status}" if status else ""
        return f"{what}: no daemon has this database open, start broker serve{before}"
    if db.in_transaction:
        with closing(open_watch(path_of(db))) as watch:
            committed = watch.execute(_STATUS, (endpoint_id,)).fetchone()
        if committed is None or committed[1] != sent:
            until = f"; until then: {status}" if status else ""
            return f"{what}: nothing leaves before the transaction commits{until}"
        status = _shown_status(committed[0])
    return status


def _shown_status(written: str | None) -> str:
    """Return the status that the daemon has written as `sys.transmission_queue` shows it."""
    return "" if written is None or written.startswith(ON_ITS_WAY) else written


def has_daemon(path: str) -> bool | None:
    """Whether a daemon has this database open, by the lock that it holds; None when that cannot be seen here."""
    try:
        inode = os.stat(f"{path}.lock").st_ino  # noqa: PTH116 - a name next to the file, not below it
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        with open(_LOCKS, encoding="ascii") as file:  # noqa: PTH123 - pathlib takes longer to import than this module
            locks = file.read()
    except OSError:
        return None
    if any(f":{inode} " in line and " FLOCK " in line for line in locks.splitlines()):
        return True
    return False if _sees_all_processes() else None


def _sees_all_processes() -> bool:
    """Whether /proc/locks has the locks of all processes; in a container it has those of the container."""
    try:
        return os.readlink(_NAMESPACE) == _ALL_PROCESSES  # noqa: PTH115 - pathlib takes longer to import than this module
    except OSError:
        return False
