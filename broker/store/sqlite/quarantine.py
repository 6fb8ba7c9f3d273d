"""
Dialogs whose next message makes its reader fail, and what an operator can do about them: look, resume, skip.

They are tried again, or are in quarantine (`failure`). Every function that writes is called inside a transaction of its
caller's; the connection may be an application's own.

Source: Service Broker documentation, "Removing Poison Messages".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from broker.protocol.frame import decode_envelope
from broker.store.sqlite.failure import IN_QUARANTINE, READY, forget, remove_message
from broker.store.sqlite.reassembly import envelope_bytes
from broker.store.sqlite.transaction import ask

_BY_SERVICE = """
    SELECT s.name, (SELECT count(*) FROM broker_failure f JOIN broker_conversation c USING (endpoint_id)
     WHERE f.quarantine_time IS NOT NULL AND c.service_name = s.name)
    FROM broker_service s
"""
_FAILURES = (
    "SELECT f.endpoint_id, c.conversation_handle, c.conversation_id, c.service_name, c.far_service, q.name,"
    " f.message_sequence_number, m.message_type_name, m.queuing_order,"
    " (SELECT count(*) FROM broker_message w WHERE w.endpoint_id = f.endpoint_id),"
    " f.failures, f.first_failure_time, f.last_failure_time, f.quarantine_time, f.error, f.traceback"
    " FROM broker_failure f JOIN broker_conversation c USING (endpoint_id)"
    " LEFT JOIN broker_message m ON m.queuing_order = "
    "(SELECT n.queuing_order FROM broker_message n WHERE n.endpoint_id = f.endpoint_id"
    " AND n.message_sequence_number = f.message_sequence_number ORDER BY n.priority DESC, n.queuing_order LIMIT 1)"
    " LEFT JOIN broker_queue q ON q.queue_id = m.queue_id"
)
_LARGE = (  # the bytes of the fragments of a message, and the beginning of the first one
    "SELECT coalesce(sum(length(body)), 0), max(iif(fragment_number = 0, substr(body, 1, 4), NULL))"
    " FROM broker_fragment WHERE endpoint_id = ? AND message_sequence_number = ?"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """
    A dialog whose next message failed. Times are UTC seconds since 1970.

    Attributes:
        queuing_order: None when the message is gone.
        messages_behind: The number of messages in the same dialog that wait after the failed one.
        quarantine_time: None while it is tried again.
    """

    endpoint_id: int
    conversation_handle: bytes
    conversation_id: bytes
    service_name: str
    far_service: str
    queue_name: str | None
    message_sequence_number: int
    message_type_name: str | None
    queuing_order: int | None
    body_bytes: int
    messages_behind: int
    failures: int
    first_failure_time: float
    last_failure_time: float
    quarantine_time: float | None
    error: str
    traceback: str


def failures(db: sqlite3.Connection, endpoint_id: int | None = None) -> Iterator[Failure]:
    """All dialogs in quarantine and all that are tried again, those that began to fail first; or one of them."""
    return _failures(db, "") if endpoint_id is None else _failures(db, "WHERE f.endpoint_id = ?", endpoint_id)


def quarantined_dialogs(db: sqlite3.Connection) -> int:
    """How many dialogs are in quarantine."""
    return int(db.execute("SELECT count(*) FROM broker_failure WHERE quarantine_time IS NOT NULL").fetchone()[0])


def quarantined_by_service(db: sqlite3.Connection) -> list[tuple[str, int]]:
    """(service, its dialogs in quarantine), of every service here."""
    return db.execute(_BY_SERVICE).fetchall()


def find(db: sqlite3.Connection, guid: bytes) -> Failure | None:
    """The failed dialog with this conversation_handle or conversation_id."""
    return next(_failures(db, "WHERE ? IN (c.conversation_handle, c.conversation_id)", guid), None)


def resume(db: sqlite3.Connection, endpoint_id: int) -> int:
    """Try again, from the failed message on; gives how many messages are ready now."""
    forget(db, endpoint_id)
    ready = "UPDATE broker_message SET status = ? WHERE endpoint_id = ? AND status = ?"
    return ask(db, ready, (READY, endpoint_id, IN_QUARANTINE)).rowcount


def skip(db: sqlite3.Connection, failure: Failure) -> int:
    """Drop the failed message alone, as if it had been received, and go on with the next."""
    if failure.queuing_order is not None:
        remove_message(db, failure.queuing_order)
    return resume(db, failure.endpoint_id)


def body_pieces(db: sqlite3.Connection, queuing_order: int) -> Iterator[bytes]:
    """The body of a message, in pieces; of a large one, one fragment at a time."""
    query = "SELECT endpoint_id, message_sequence_number, message_body FROM broker_message WHERE queuing_order = ?"
    row = ask(db, query, (queuing_order,)).fetchone()
    if row is None:
        return
    endpoint_id, sequence, body = row
    if body is not None:
        yield body
        return
    fragments = (
        "SELECT fragment_number, body FROM broker_fragment WHERE endpoint_id = ? AND message_sequence_number = ?"
        " ORDER BY fragment_number"
    )
    for number, piece in ask(db, fragments, (endpoint_id, sequence)):
        yield decode_envelope(piece)[1] if number == 0 else piece


def _failures(db: sqlite3.Connection, where: str, *parameters: object) -> Iterator[Failure]:
    for row in ask(db, f"{_FAILURES} {where} ORDER BY f.first_failure_time, f.endpoint_id", parameters).fetchall():
        order, held_up = row[8:10]
        size = 0 if order is None else _body_bytes(db, order)
        yield Failure(*row[:9], size, max(0, held_up - (order is not None)), *row[10:])  # type: ignore[call-arg]


def _body_bytes(db: sqlite3.Connection, queuing_order: int) -> int:
    query = "SELECT length(message_body), endpoint_id, message_sequence_number FROM broker_message"
    size, *message = ask(db, f"{query} WHERE queuing_order = ?", (queuing_order,)).fetchone()
    if size is None:
        size, first = ask(db, _LARGE, tuple(message)).fetchone()
        size -= 0 if first is None else envelope_bytes(first)
    return int(size)
