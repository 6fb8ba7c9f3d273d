"""
Poison messages of applications that call `receive` themselves: a message that is received again was rolled back.

This test is certain and cheap. A connection that receives holds the write lock, so a message that was handed out before
and is in the queue again was rolled back, or its process died. Which exception it was, or which of several messages is
to blame, is not known. So from the third rollback in a row on, the messages of a queue are handed out in batches half
as large each time, until a batch has one message. Only failures of a message alone in its batch count against it.

There is no pause between the attempts: an application that rolls back and receives again gets the same messages. While
the disk is full no transaction can commit, whatever it received, so rollbacks are not counted then.

The memory of a process is bounded. The next process reads the last receive of each queue from `<file>.receives`. The
file has one record for each queue, written inside the write transaction; a database has one such transaction at a time,
so the file needs no lock. The record is written to the page cache alone, which outlives the process; when the power
fails no message is to blame. If the file cannot be used, nothing is recorded or known. It may be removed at any time.

Source: Service Broker documentation, "Removing Poison Messages" (five rollbacks in a row of a RECEIVE).
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from broker.store.sqlite.failure import ROLLBACKS_MAX, Blame, note_failure
from broker.store.sqlite.transaction import ask, path_of

DISK_MIN_BYTES = 16 << 20  # free on the disk; with less, a transaction may have failed for want of it
REMEMBERED_MAX = 4096  # receives whose first message is remembered: far more than are open at once
QUEUES_MAX = 4096  # queues of one database that have a record
RECORD_BYTES = 128  # some are spare

_RECORD = struct.Struct("<qqqdIIdI")  # as `LastReceive`, the identity spread
_SUM = struct.Struct("<I")
_IDENTITY = (
    "SELECT endpoint_id, message_sequence_number, message_enqueue_time FROM broker_message WHERE queuing_order = ?"
)

Rows: TypeAlias = list[tuple[Any, ...]]
"""Messages, as `broker.client.receiving.COLUMNS` has them."""


class RedeliveryVerdict(Enum):
    """The decision about messages that are about to be handed out."""

    YES = "hand them out"
    LOOK_AGAIN = "one was put in quarantine: look again"
    NONE = "the queue was turned off: hand out nothing"


class LastReceive(NamedTuple):
    """A batch that was handed out of a queue."""

    queuing_order: int  # of the first message
    identity: tuple[int, int, float]  # its endpoint_id, message_sequence_number, message_enqueue_time; unique
    size: int  # messages
    failures: int  # of the first message, alone so far
    since: float  # the first of them, UTC seconds
    rollbacks: int  # of the queue in a row, when it was recorded


_lock = threading.Lock()
_handed_out: OrderedDict[tuple[str, int], LastReceive] = OrderedDict()  # by file and queuing_order
_rollbacks: dict[tuple[str, int], int] = {}  # in a row, by file and queue_id
_adopted: set[tuple[str, int]] = set()  # whose record was read, by file and queue_id


def next_admitted(
    db: sqlite3.Connection, queue_id: int, select: Callable[[int], Rows], top: int, *, poison: int, may_commit: bool
) -> Rows:
    """
    The messages that may be handed out, inside the write transaction in which they leave the queue.

    Args:
        db: The application's connection.
        queue_id: The queue.
        select: Returns the next messages, at most so many.
        top: At most so many.
        poison: See `admit`; 0 judges nothing.
        may_commit: See `admit`.
    """
    path = path_of(db) if poison else ""
    if not path:  # a database in memory has no name to remember it by
        return select(top)
    _adopt(db, path, queue_id)
    while rows := select(allowance(path, queue_id, top)):
        verdict = admit(db, path, queue_id, rows, poison=poison, may_commit=may_commit)
        if verdict is RedeliveryVerdict.YES:
            break
        if verdict is RedeliveryVerdict.NONE:
            return []
    return rows


def allowance(path: str, queue_id: int, top: int) -> int:
    """How many messages may be handed out at most, to find out which one makes transactions fail."""
    return max(1, top >> max(0, _rollbacks.get((path, queue_id), 0) - 1)) if _rollbacks else top


def admit(
    db: sqlite3.Connection, path: str, queue_id: int, rows: Rows, *, poison: int, may_commit: bool
) -> RedeliveryVerdict:
    """
    Judge messages before they are handed out; inside the write transaction, before they leave the queue.

    Args:
        db: The application's connection.
        path: The file of the database.
        queue_id: The queue.
        rows: The messages, at least one.
        poison: Failures alone after which a message's dialog is put in quarantine, at least 1.
        may_commit: The transaction was begun for this call and holds nothing yet: the outcome is committed, and another
            transaction begun, so that no later rollback undoes it.

    Cost: in the database nothing is written unless something was put in quarantine or turned off.
    """
    order, endpoint_id, sequence, _, _, enqueued, *_ = rows[0]
    now = time.time()
    key, queue = (path, order), (path, queue_id)
    identity = (int(endpoint_id), int(sequence), float(enqueued))
    message = LastReceive(order, identity, len(rows), 0, now, 0)
    known = _known_again(key, queue, message)
    is_off = known is not None and _rollbacks.get(queue, 0) >= ROLLBACKS_MAX and _turn_off(db, queue_id)
    if not is_off and (known is None or known.failures < poison):
        write_last(*queue, (known or message)._replace(rollbacks=_rollbacks.get(queue, 0)))
        return RedeliveryVerdict.YES
    verdict = RedeliveryVerdict.NONE
    if not is_off:
        assert known is not None
        error = (
            f"rolled back, or its process died, {known.failures} times in a row after it was received alone; the"
            f" exception is not known here (process {os.getpid()} came next)"
        )
        what = Blame(endpoint_id, sequence, error)
        note_failure(db, what, now=now, attempts=1, times=known.failures, since=known.since)
        verdict = RedeliveryVerdict.LOOK_AGAIN
    if may_commit:
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
    # After an administrator's decision the next receive counts from 0 again, in whichever process.
    forget_last(*queue)
    with _lock:
        _handed_out.pop(key, None)
        _rollbacks.pop(queue, None)
    return verdict


def forget_handed_out(path: str) -> None:
    """Forget messages handed out that the application did not see (asyncio: cancelled); they may be received again."""
    forget_last(path)
    with _lock:
        for key in [key for key in _handed_out if key[0] == path]:
            del _handed_out[key]


def is_disk_full(path: str) -> bool:
    """Whether the disk of a file has too little space for a transaction; False when that cannot be known."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < DISK_MIN_BYTES


def _adopt(db: sqlite3.Connection, path: str, queue_id: int) -> None:
    """Load the record of another process: if its messages are in the queue again, they were rolled back."""
    queue = path, queue_id
    if queue in _adopted:
        return
    with _lock:
        _adopted.add(queue)
    last = read_last(path, queue_id)
    if last is None or ask(db, _IDENTITY, (last.queuing_order,)).fetchone() != last.identity:
        return  # nothing is known, or it was committed
    with _lock:
        _remember((path, last.queuing_order), last)
        _rollbacks[queue] = last.rollbacks


def _known_again(key: tuple[str, int], queue: tuple[str, int], message: LastReceive) -> LastReceive | None:
    """Remember what is handed out; if it was before, it was rolled back, and what is known of it is returned."""
    with _lock:
        known = _handed_out.pop(key, None)
        if known is None or known.identity != message.identity:
            # A message is handed out for the first time, so the one before was committed: batches grow again.
            if rollbacks := _rollbacks.pop(queue, 0) // 2:
                _rollbacks[queue] = rollbacks
            _remember(key, message)
            return None
        if not is_disk_full(key[0]):
            _rollbacks[queue] = _rollbacks.get(queue, 0) + 1
            if known.size == 1:
                since = known.since if known.failures else message.since
                known = known._replace(failures=known.failures + 1, since=since)
        known = known._replace(size=message.size)
        _remember(key, known)
        return known


def _remember(key: tuple[str, int], message: LastReceive) -> None:
    _handed_out[key] = message
    if len(_handed_out) > REMEMBERED_MAX:
        _handed_out.popitem(last=False)


def _turn_off(db: sqlite3.Connection, queue_id: int) -> bool:
    """Turn the queue off if it asks for that, as the original does."""
    statement = (
        "UPDATE broker_queue SET is_receive_enabled = 0, rollbacks = ?"
        " WHERE queue_id = ? AND is_poison_message_handling_enabled"
    )
    return ask(db, statement, (ROLLBACKS_MAX, queue_id)).rowcount > 0


# --- the record for the next process ---


def read_last(path: str, queue_id: int) -> LastReceive | None:
    """Return the last batch handed out; None when it is not known. Cost: one `pread`."""
    descriptor = _descriptor_of(path, queue_id)
    if descriptor < 0:
        return None
    try:
        data = os.pread(descriptor, RECORD_BYTES, queue_id * RECORD_BYTES)
    except OSError:
        return None
    end = _RECORD.size
    if len(data) < end + _SUM.size or _SUM.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
        return None  # nothing yet, or only a part was written
    order, endpoint_id, sequence, enqueued, *rest = _RECORD.unpack_from(data)
    return LastReceive(order, (endpoint_id, sequence, enqueued), *rest)


def write_last(path: str, queue_id: int, last: LastReceive) -> None:
    """Record what is handed out. Cost: one `pwrite`."""
    descriptor = _descriptor_of(path, queue_id)
    if descriptor < 0:
        return
    data = _RECORD.pack(last.queuing_order, *last.identity, last.size, last.failures, last.since, last.rollbacks)
    with suppress(OSError):  # a full disk
        os.pwrite(descriptor, data + _SUM.pack(zlib.crc32(data)), queue_id * RECORD_BYTES)


def forget_last(path: str, queue_id: int | None = None) -> None:
    """Erase the record of a queue; with `queue_id` None, those of all queues of the database."""
    descriptor = _descriptor_of(path, queue_id or 0)
    if descriptor < 0:
        return
    with suppress(OSError):
        if queue_id is None:
            os.ftruncate(descriptor, 0)
        else:
            os.pwrite(descriptor, bytes(RECORD_BYTES), queue_id * RECORD_BYTES)


class _OpenFile:
    """The file of the database that this thread received from last; closed when it is replaced, or with the thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = -1
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with suppress(OSError):
            mode = stat.S_IMODE(os.stat(path).st_mode) & 0o666  # noqa: PTH116 - a text, as SQLite returns it
            self.descriptor = os.open(f"{os.path.realpath(path)}.receives", flags, mode)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


_opened = threading.local()


def _descriptor_of(path: str, queue_id: int) -> int:
    """The file with a queue's record, created with the rights of its database; -1 when it cannot be used."""
    if queue_id >= QUEUES_MAX:
        return -1
    file: _OpenFile | None = getattr(_opened, "file", None)
    if file is None or file.path != path:
        file = _opened.file = _OpenFile(path)
    return file.descriptor
