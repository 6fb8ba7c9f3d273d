"""
What the last RECEIVE of each queue handed out, beside the database, so that the death of its process is seen.

A transaction whose process has died was rolled back as any other, but what that process knew of it died, too. So what
is handed out stands in `<file>.receives`: one record for each queue, written inside the write transaction, of which a
database has one at a time, so that nothing is locked for it. It is written to the page cache alone: that outlives the
process, and when the power fails no message is to blame. Where the file cannot be used nothing is told and nothing
known; it may be removed at any time.
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
from dataclasses import dataclass
from enum import Enum
from typing import Any

from broker.store.sqlite.quarantine import ROLLBACKS_MAX, Blame, note_failure
from broker.store.sqlite.transaction import ask, path_of

QUEUES_MAX = 4096  # queues of one database that have a record
_RECORD = struct.Struct("<qqqdIIdI")  # as in `LastReceive`, the identity spread
_SUM = struct.Struct("<I")
RECORD_BYTES = 128  # room for more


@dataclass(frozen=True, slots=True)
class LastReceive:
    """
    One record.

    Shape: `queuing_order` and `identity` (endpoint_id, message_sequence_number, message_enqueue_time) of the first
    message; `size` messages were handed out; `failures` alone so far, the first `since` UTC seconds; `rollbacks` of the
    queue in a row.
    """

    queuing_order: int
    identity: tuple[int, int, float]
    size: int
    failures: int
    since: float
    rollbacks: int


def read_last(path: str, queue_id: int) -> LastReceive | None:
    """What was handed out last; None when nothing is known. Cost: one `pread`."""
    descriptor = _opened.descriptor_of(path) if queue_id < QUEUES_MAX else -1
    if descriptor < 0:
        return None
    try:
        told = os.pread(descriptor, RECORD_BYTES, queue_id * RECORD_BYTES)
    except OSError:
        return None
    end = _RECORD.size
    if len(told) < end + _SUM.size or _SUM.unpack_from(told, end)[0] != zlib.crc32(told[:end]):
        return None  # nothing yet, or it was written by halves
    order, endpoint_id, sequence, enqueued, *rest = _RECORD.unpack_from(told)
    return LastReceive(order, (endpoint_id, sequence, enqueued), *rest)


def write_last(path: str, queue_id: int, last: LastReceive) -> None:
    """Note what is handed out. Cost: one `pwrite`."""
    descriptor = _opened.descriptor_of(path) if queue_id < QUEUES_MAX else -1
    if descriptor < 0:
        return
    told = _RECORD.pack(last.queuing_order, *last.identity, last.size, last.failures, last.since, last.rollbacks)
    with suppress(OSError):  # a full disk
        os.pwrite(descriptor, told + _SUM.pack(zlib.crc32(told)), queue_id * RECORD_BYTES)


def forget_last(path: str, queue_id: int | None = None) -> None:
    """Nothing is known of a queue any more; None = of the whole database."""
    descriptor = _opened.descriptor_of(path)
    if descriptor < 0 or (queue_id is not None and queue_id >= QUEUES_MAX):
        return
    with suppress(OSError):
        if queue_id is None:
            os.ftruncate(descriptor, 0)
        else:
            os.pwrite(descriptor, bytes(RECORD_BYTES), queue_id * RECORD_BYTES)


class _Descriptor:
    """An open file; closed with the thread that has it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class _Opened(threading.local):
    """The file of the database that this thread received from last: mostly it is the next one, too."""

    def __init__(self) -> None:
        self._path = ""
        self._descriptor = _Descriptor(-1)

    def descriptor_of(self, path: str) -> int:
        """The file of a database, made with its rights when it is missing; -1 when it cannot be used."""
        if path != self._path:
            self._descriptor, self._path = _Descriptor(_open(path)), path
        return self._descriptor.number


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode) & 0o666  # noqa: PTH116 - a text, as SQLite gives it
        return os.open(f"{os.path.realpath(path)}.receives", flags, mode)
    except OSError:
        return -1


_opened = _Opened()


# --- rollback ---
# Poison messages of applications that call `receive` themselves: a message that comes back after a rollback has
# failed.
#
# That is certain and costs little: whoever takes messages holds the write lock, so a message that was handed out
# before
# and is found in the queue again was rolled back; by the death of its process, too, which would otherwise be for
# ever.
# Nobody knows with which exception, or which message of several is to blame; so from the third rollback in a row on a
# queue is handed out in batches half as large each time, until a message stands alone, and only failures alone count
# against it. There is no rest between the attempts: an application that rolls back and looks again
# finds what was there before. While the disk is full no transaction can commit, whatever it received, so nothing is
# counted then.
#
# The memory is the process's own and bounded; what was handed out last is known to the next process as well
# (`broker.client.poison`).
#
# Source: Service Broker documentation, "Removing Poison Messages" (five rollbacks in a row of a RECEIVE).


_IDENTITY = (
    "SELECT endpoint_id, message_sequence_number, message_enqueue_time FROM broker_message WHERE queuing_order = ?"
)
ROOM_BYTES = 16 << 20  # free beside the file; with less, a transaction may have failed for want of it
REMEMBERED_MAX = 4096  # receives whose first message is remembered: far more than are open at once


class RedeliveryVerdict(Enum):
    """What becomes of messages that are about to be handed out."""

    YES = "hand them out"
    LOOK_AGAIN = "one was put in quarantine: look again"
    NONE = "the queue was turned off: hand out nothing"


@dataclass(slots=True)
class _HandedOut:
    """Shape: `identity` of the message, which no other has; `size` messages of the batch that it was the first of."""

    identity: tuple[Any, ...]
    size: int
    failures: int = 0
    since: float = 0.0


_lock = threading.Lock()
_handed_out: OrderedDict[tuple[str, int], _HandedOut] = OrderedDict()  # by file and queuing_order
_rollbacks: dict[tuple[str, int], int] = {}  # in a row, by file and queue_id
_adopted: set[tuple[str, int]] = set()  # of which it is known what was handed out before, by file and queue_id


def next_admitted(
    db: sqlite3.Connection,
    queue_id: int,
    select: Callable[[int], list[tuple[Any, ...]]],
    top: int,
    *,
    poison: int,
    may_commit: bool,
) -> list[tuple[Any, ...]]:
    """
    The messages that may be handed out, inside the write transaction in which they leave the queue.

    Args:
        db: The application's connection.
        queue_id: The queue.
        select: Gives the next messages, at most so many: rows as `broker.client.receiving.COLUMNS` has them.
        top: At most so many.
        poison: See `admit`; 0 judges nothing.
        may_commit: See `admit`.
    """
    path = path_of(db) if poison else ""
    if path:
        _adopt(db, path, queue_id)
    rows = select(allowance(db, queue_id, top) if poison else top)
    while poison and rows:
        order, endpoint_id, sequence, _, _, enqueued, *_ = rows[0]
        first = (endpoint_id, sequence, enqueued)
        answer = admit(db, queue_id, order, len(rows), poison=poison, may_commit=may_commit, identity=first, path=path)
        if answer is RedeliveryVerdict.YES:
            break
        rows = [] if answer is RedeliveryVerdict.NONE else select(allowance(db, queue_id, top))
    return rows


def allowance(db: sqlite3.Connection, queue_id: int, top: int) -> int:
    """How many messages may be handed out at most, so that it can be found out which one makes transactions fail."""
    if not _rollbacks:
        return top
    return max(1, top >> max(0, _rollbacks.get((path_of(db), queue_id), 0) - 1))


def admit(
    db: sqlite3.Connection,
    queue_id: int,
    queuing_order: int,
    size: int,
    *,
    poison: int,
    may_commit: bool,
    identity: tuple[Any, ...] | None = None,
    path: str | None = None,
) -> RedeliveryVerdict:
    """
    Judge messages before they are handed out; inside the write transaction, before they are taken from the queue.

    Args:
        db: The application's connection.
        queue_id: The queue.
        queuing_order: The first of the messages.
        size: How many they are.
        poison: Failures alone after which a message's dialog is put in quarantine, at least 1.
        may_commit: The transaction was begun for this call and holds nothing yet: what is found out is committed, and
            another transaction begun, so that no later rollback takes it back.
        identity: Of the first: its endpoint_id, message_sequence_number and message_enqueue_time; None = look.
        path: The file of the database; None = look.

    Cost: at most one row read by its key; in the database nothing is written unless something was put in quarantine or
    turned off.
    """
    path = path_of(db) if path is None else path
    if not path:
        return RedeliveryVerdict.YES  # a database in memory: there is no name to remember it by
    identity = identity or ask(db, _IDENTITY, (queuing_order,)).fetchone()
    now = time.time()
    key, queue = (path, queuing_order), (path, queue_id)
    message = _HandedOut(identity, size, since=now)
    known = _known_again(key, queue, message)
    if known is None:
        _note(key, queue, message)
        return RedeliveryVerdict.YES
    if _rollbacks.get(queue, 0) >= ROLLBACKS_MAX and _turn_off(db, queue_id):
        answer = RedeliveryVerdict.NONE
    elif known.failures >= poison:
        error = (
            f"rolled back, or its process died, {known.failures} times in a row after it was received alone; the"
            f" exception is not known here (process {os.getpid()} came next)"
        )
        what = Blame(identity[0], identity[1], error)
        note_failure(db, what, now=now, attempts=1, times=known.failures, since=known.since)
        answer = RedeliveryVerdict.LOOK_AGAIN
    else:
        _note(key, queue, known)
        return RedeliveryVerdict.YES
    if may_commit:
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
    # Once somebody has decided, whoever receives it next begins to count anew, in whichever process.
    forget_last(*queue)
    with _lock:
        _handed_out.pop(key, None)
        _rollbacks.pop(queue, None)
    return answer


def pardon(path: str) -> None:
    """What was handed out of this database just now was seen by nobody (asyncio: cancelled); it may come again."""
    forget_last(path)
    with _lock:
        for key in [key for key in _handed_out if key[0] == path]:
            del _handed_out[key]


def has_room(path: str) -> bool:
    """Whether the disk of a file has room for a transaction; also when nobody can tell."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return True
    return disk.f_bavail * disk.f_frsize >= ROOM_BYTES


def _adopt(db: sqlite3.Connection, path: str, queue_id: int) -> None:
    """
    What was handed out before this process began to receive, and is in the queue again, was rolled back.

    Looked at once: whoever dies with a message is followed by a process that begins.
    """
    queue = path, queue_id
    if queue in _adopted:
        return
    with _lock:
        _adopted.add(queue)
    last = read_last(path, queue_id)
    if last is None or ask(db, _IDENTITY, (last.queuing_order,)).fetchone() != last.identity:
        return  # nothing is known, or it was committed
    with _lock:
        _remember((path, last.queuing_order), _HandedOut(last.identity, last.size, last.failures, last.since))
        _rollbacks[queue] = last.rollbacks


def _note(key: tuple[str, int], queue: tuple[str, int], message: _HandedOut) -> None:
    """Whoever receives next, here or in another process, shall know what is handed out now."""
    endpoint_id, sequence, enqueued = message.identity
    identity = (int(endpoint_id), int(sequence), float(enqueued))
    rollbacks = _rollbacks.get(queue, 0)
    write_last(*queue, LastReceive(key[1], identity, message.size, message.failures, message.since, rollbacks))


def _known_again(key: tuple[str, int], queue: tuple[str, int], message: _HandedOut) -> _HandedOut | None:
    """Remember what is handed out; when it was before, it was rolled back, and what is known of it is given."""
    with _lock:
        known = _handed_out.pop(key, None)
        if known is None or known.identity != message.identity:
            _forgive(queue)
            _remember(key, message)
            return None
        if has_room(key[0]):
            _rollbacks[queue] = _rollbacks.get(queue, 0) + 1
            if known.size == 1:
                known.failures += 1
                known.since = known.since if known.failures > 1 else message.since
        known.size = message.size
        _remember(key, known)
        return known


def _remember(key: tuple[str, int], message: _HandedOut) -> None:
    _handed_out[key] = message
    if len(_handed_out) > REMEMBERED_MAX:
        _handed_out.popitem(last=False)


def _forgive(queue: tuple[str, int]) -> None:
    """Something was handed out for the first time, so what came before was not rolled back: batches grow again."""
    rollbacks = _rollbacks.pop(queue, 0) // 2
    if rollbacks:
        _rollbacks[queue] = rollbacks


def _turn_off(db: sqlite3.Connection, queue_id: int) -> bool:
    """Turn the queue off if it asks for that, as the original does."""
    cursor = ask(
        db,
        "UPDATE broker_queue SET is_receive_enabled = 0, rollbacks = ?"
        " WHERE queue_id = ? AND is_poison_message_handling_enabled",
        (ROLLBACKS_MAX, queue_id),
    )
    return cursor.rowcount > 0
