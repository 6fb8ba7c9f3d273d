"""
Poison messages: what is kept of a message that makes its reader fail.

One row of `broker_failure` for each dialog whose next message failed: how often in a row, when first and last, with
which exception. Between two attempts the conversation group rests, longer each time. After the last attempt the dialog
is put in *quarantine*: its messages stay in their queue, in order, with status 4, so they are not received, and all
other dialogs go on. A queue that asks for it (`POISON_MESSAGE_HANDLING (STATUS = ON)`) is turned off instead after
ROLLBACKS_MAX failures in a row, as in the original.

Every function that writes is called inside a transaction of its caller's; the connection may be an application's own.

Source: Service Broker documentation, "Removing Poison Messages".
"""

from __future__ import annotations

import sqlite3
import traceback as traceback_module
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from broker.store.sqlite.transaction import ask

ATTEMPTS = 5  # failures after which a dialog is put in quarantine; the original's number of rollbacks
ROLLBACKS_MAX = 5  # failures in a row that turn a queue off which asks for that; the original's
REST_FIRST = 1.0  # seconds of rest after the first failure; doubled by each further one
REST_MAX = 300.0  # ... and no longer than this
ERROR_MAX = 1000  # characters kept of an exception's text
TRACEBACK_MAX = 16_000  # characters kept of a traceback, its end: there it was raised
READY, UNCONFIRMED, IN_QUARANTINE = 1, 2, 4  # broker_message.status

_FREE = (
    "DELETE FROM broker_group_lock WHERE reader IS NULL AND conversation_group_id ="
    " (SELECT conversation_group_id FROM broker_conversation WHERE endpoint_id = ?)"
)
_FORGET_HANDLED = (
    "DELETE FROM broker_failure AS f WHERE endpoint_id = ? AND quarantine_time IS NULL AND NOT EXISTS"
    " (SELECT 1 FROM broker_message m WHERE m.endpoint_id = f.endpoint_id"
    " AND m.message_sequence_number = f.message_sequence_number AND m.message_enqueue_time <= f.last_failure_time)"
)


class Blame(NamedTuple):
    """A failure as it is reported: type and text of an exception, and its traceback as Python prints it, if any."""

    endpoint_id: int
    message_sequence_number: int
    error: str
    traceback: str = ""


class Verdict(NamedTuple):
    """The result of a failure: the number of failures in a row, and seconds until the next attempt, 0 for none."""

    failures: int
    rest_s: float
    is_quarantined: bool
    is_queue_disabled: bool

    def retry_at(self, now: float) -> str | None:
        """Time of the next attempt after a failure at `now`, ISO 8601; None when an operator has to act first."""
        if self.is_quarantined or self.is_queue_disabled:
            return None
        return datetime.fromtimestamp(now + self.rest_s, UTC).isoformat(timespec="milliseconds")


def blame(endpoint_id: int, sequence: int, error: BaseException) -> Blame:
    """An exception as it is kept: bounded, with the end of its traceback."""
    text = _storable("".join(traceback_module.format_exception(error)))
    if len(text) > TRACEBACK_MAX:
        text = f"... {len(text) - TRACEBACK_MAX} characters left out ...\n{text[-TRACEBACK_MAX:]}"
    sentence = _storable("".join(traceback_module.format_exception_only(error))).strip()
    return Blame(endpoint_id, sequence, sentence[:ERROR_MAX], text)


def _storable(text: str) -> str:
    """With half characters, which a JSON body can bring into an exception, as Python writes them: SQLite takes none."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def note_failure(
    db: sqlite3.Connection,
    what: Blame,
    *,
    now: float,
    attempts: int = ATTEMPTS,
    rest_first: float = REST_FIRST,
    times: int = 1,
    since: float | None = None,
) -> Verdict:
    """
    Count a failure: the group rests until its next attempt, or the dialog goes into quarantine, or its queue is off.

    Args:
        db: Any connection to the database, in a write transaction.
        what: The message and why; another one than failed before begins at one. Nothing is kept, and no failure is in
            the verdict, where its dialog is gone.
        now: UTC seconds since 1970.
        attempts: Failures in a row after which there is no other attempt, at least 1.
        rest_first: Seconds of rest after the first failure.
        times: Failures noted at once.
        since: When the first of them was; None is now.
    """
    message = (what.endpoint_id, what.message_sequence_number)
    kept = ask(
        db,
        "INSERT INTO broker_failure (endpoint_id, message_sequence_number, failures, first_failure_time,"
        " last_failure_time, error, traceback)"
        " SELECT endpoint_id, ?2, ?6, ?7, ?3, ?4, ?5 FROM broker_conversation WHERE endpoint_id = ?1"
        " ON CONFLICT (endpoint_id) DO UPDATE SET"
        " failures = iif(message_sequence_number = ?2, failures, 0) + ?6,"
        " first_failure_time = iif(message_sequence_number = ?2, first_failure_time, ?7),"
        " message_sequence_number = ?2, last_failure_time = ?3, error = ?4, traceback = ?5 RETURNING failures,"
        " (SELECT conversation_group_id FROM broker_conversation WHERE endpoint_id = ?1)",
        (*message, now, what.error, what.traceback, times, now if since is None else since),
    ).fetchall()
    if not kept:
        return Verdict(0, 0.0, is_quarantined=False, is_queue_disabled=False)
    failures, group = kept[0]
    is_disabled = _note_rollback(db, what.endpoint_id)
    is_quarantined = failures >= attempts and not is_disabled
    rest_s = 0.0
    if is_quarantined:
        put_in_quarantine(db, what.endpoint_id, now)
    else:
        rest_s = rest_seconds(failures, group, rest_first)
        rest(db, group, now, rest_s)
    return Verdict(failures, rest_s, is_quarantined, is_disabled)


def note_success(db: sqlite3.Connection, endpoint_ids: Iterable[int]) -> None:
    """
    Messages of these dialogs were handled and have left their queue: forget a failure among them.

    A failure whose message still waits is kept: a conversation timer that fires, or an Error message, goes before the
    message that failed, and proves nothing about it. Such a message has the number of the next one that would come, so
    a message is taken for the failed one by its number only if it was there at the last failure.
    """
    if ask(db, "SELECT 1 FROM broker_failure LIMIT 1").fetchone() is not None:
        db.executemany(_FORGET_HANDLED, [(endpoint_id,) for endpoint_id in endpoint_ids])


def note_queue_success(db: sqlite3.Connection, queue_id: int) -> None:
    """Messages of this queue were handled: end its failures in a row."""
    ask(db, "UPDATE broker_queue SET rollbacks = 0 WHERE queue_id = ? AND rollbacks > 0", (queue_id,))


def rest(db: sqlite3.Connection, conversation_group_id: bytes, now: float, seconds: float) -> None:
    """Let no reader lock this group for so many seconds."""
    ask(
        db,
        "INSERT INTO broker_group_lock (conversation_group_id, reader, lock_time, retry_time) VALUES (?1, NULL, ?2, ?3)"
        " ON CONFLICT (conversation_group_id) DO UPDATE SET reader = NULL, lock_time = ?2, retry_time = ?3",
        (conversation_group_id, now, now + seconds),
    )


def put_in_quarantine(db: sqlite3.Connection, endpoint_id: int, now: float) -> None:
    """Withhold the messages of this dialog; its group no longer rests for it."""
    ask(db, "UPDATE broker_failure SET quarantine_time = ? WHERE endpoint_id = ?", (now, endpoint_id))
    ask(
        db,
        "UPDATE broker_message SET status = ? WHERE endpoint_id = ? AND status = ?",
        (IN_QUARANTINE, endpoint_id, READY),
    )
    ask(db, _FREE, (endpoint_id,))


def is_failing(db: sqlite3.Connection, conversation_group_id: bytes) -> bool:
    """Whether a message of this group failed and is tried again: then alone, so that it is known which one it is."""
    query = (
        "SELECT 1 FROM broker_failure f JOIN broker_conversation c USING (endpoint_id)"
        " WHERE c.conversation_group_id = ? AND f.quarantine_time IS NULL LIMIT 1"
    )
    return ask(db, query, (conversation_group_id,)).fetchone() is not None


def forget(db: sqlite3.Connection, endpoint_id: int) -> None:
    """Forget a failure and the rest of its group; the messages stay as they are."""
    ask(db, "DELETE FROM broker_failure WHERE endpoint_id = ?", (endpoint_id,))
    ask(db, _FREE, (endpoint_id,))


def remove_message(db: sqlite3.Connection, queuing_order: int) -> bool:
    """
    Remove a message that has been received; of a large one, the daemon removes the fragments later.

    Returns:
        False when it was gone already.
    """
    large = (
        "INSERT OR IGNORE INTO broker_received SELECT endpoint_id, message_sequence_number FROM broker_message"
        " WHERE queuing_order = ? AND body_fragments IS NOT NULL"
    )
    ask(db, large, (queuing_order,))
    return ask(db, "DELETE FROM broker_message WHERE queuing_order = ?", (queuing_order,)).rowcount > 0


def _note_rollback(db: sqlite3.Connection, endpoint_id: int) -> bool:
    """Count a failure of the queue, where it asks for that; True when this turned it off."""
    counted = ask(
        db,
        "UPDATE broker_queue SET rollbacks = iif(rollbacks >= ?1, 1, rollbacks + 1),"
        " is_receive_enabled = iif(rollbacks + 1 = ?1, 0, is_receive_enabled)"
        " WHERE is_poison_message_handling_enabled AND queue_id ="
        " (SELECT queue_id FROM broker_message WHERE endpoint_id = ?2 LIMIT 1) RETURNING rollbacks",
        (ROLLBACKS_MAX, endpoint_id),
    ).fetchall()
    return counted == [(ROLLBACKS_MAX,)]


def rest_seconds(count: int, conversation_group_id: bytes, first: float = REST_FIRST) -> float:
    """
    How long a group rests after so many failures in a row: doubled each time, and spread by a quarter to both sides.

    Groups that failed for one reason are not tried again together; the spread is a hash, so it can be repeated.
    """
    spread = 0.75 + 0.5 * zlib.crc32(conversation_group_id, count) / 0xFFFFFFFF
    return float(min(REST_MAX, first * 2.0 ** min(count - 1, 30)) * spread)
