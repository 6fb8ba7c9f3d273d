"""
Reader processes of a database: which of them live, which conversation groups are locked, and what they report.

A row of `broker_group_lock` names the *slot* of the reader process that works on the group. Whether that process still
lives is not in the file but in the kernel: next to the database is a lock file (`<file>.readers`), in which every
reader process holds an open-file-description lock on the one byte of its slot for as long as it lives, however it ends.
So every process sees which slots live, nothing has to be renewed, and what a crashed reader had is free at once. A slot
is used again by a later process, which first disowns what the slot's last owner left. A program that calls `receive` by
itself has no slot, so it is not seen here.

Source: fcntl(2), "Open file description locks"; Service Broker documentation, "Conversation Group Locks",
"sys.dm_broker_queue_monitors", "Understanding When Activation Occurs".
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from broker.errors import StoreUnavailableError
from broker.files import reported
from broker.store.sqlite.group_locks import RECORD_BYTES, SLOTS_MAX, is_locked, live_slots, lock_file, lock_of
from broker.store.sqlite.transaction import ask, open_watch, path_of

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Instant = Annotated[float, msgspec.Meta(ge=0.0, lt=253_402_300_800.0)]  # before the year 10000


class QueueRecord(msgspec.Struct, array_like=True):
    """
    The record in which a reader process reports one queue, for the views. Times are UTC seconds.

    Attributes:
        tasks_waiting: So many of its workers have nothing to do.
        last_empty_time: When one of them last found nothing.
        process_id: 0 of an older version, which does not write what follows.
        procedure_name: The function that reads the queue, with its module.
        tasks: Its workers.
    """

    queue_name: str
    tasks_waiting: _Count
    activated_time: _Instant
    last_empty_time: _Instant | None
    process_id: _Count = 0
    procedure_name: str = ""
    tasks: _Count = 0


class GroupLock(NamedTuple):
    """The lock of a reader on a conversation group."""

    conversation_group_id: bytes
    reader: int  # the slot of the reader's process
    lock_time: float  # UTC seconds; distinguishes this lock from a later one of the same process


class ReaderSlot:
    """The slot of this process on one database, as long as it is open; `number` is 0 .. SLOTS_MAX - 1."""

    def __init__(self, path: str) -> None:
        """
        Take the first free slot.

        Raises:
            StoreUnavailableError: the lock file cannot be made or written, or SLOTS_MAX readers live.
        """
        file = lock_file(path)
        with reported(file):
            self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _open_slots.add(self)
        for number in range(SLOTS_MAX):
            with suppress(BlockingIOError, PermissionError):
                fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, lock_of(number))
                self.number = number
                self.record(())
                return
        self.close()
        raise StoreUnavailableError(path, f"{SLOTS_MAX} reader processes work on it: stop some, or share them")

    def record(self, queues: Iterable[QueueRecord]) -> None:
        """Report what this process does, for readers of `records`; what does not fit is left out."""
        lines = list(queues)
        while len(text := msgspec.json.encode(lines)) > RECORD_BYTES:
            lines.pop()
        with suppress(OSError):  # a full disk: the views show less, the readers do their work
            os.pwrite(self._descriptor, text.ljust(RECORD_BYTES), self.number * RECORD_BYTES)

    def close(self) -> None:
        """Release the slot: what it still has locked counts as left by a crash."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        _open_slots.discard(self)


_open_slots: set[ReaderSlot] = set()


def _close_in_child() -> None:
    """A forked child shares the descriptions and would keep the slots alive when its parent has died."""
    for slot in list(_open_slots):
        slot.close()


os.register_at_fork(after_in_child=_close_in_child)


def rows_of_dead_slots(db: sqlite3.Connection, own: int | None = None) -> list[GroupLock]:
    """
    The locks of readers that have died; `own` is a slot that lives because the caller has it.

    Inside a write transaction, so that what is true now stays true until the caller has acted on it.
    """
    readers = {row[0] for row in ask(db, "SELECT DISTINCT reader FROM broker_group_lock WHERE reader IS NOT NULL")}
    readers.discard(own)
    if not readers:
        return []
    dead = readers - live_slots(path_of(db), readers)
    query = "SELECT conversation_group_id, reader, lock_time FROM broker_group_lock WHERE reader = ?"
    return [GroupLock(*row) for reader in sorted(dead) for row in ask(db, query, (reader,))]


def disown(db: sqlite3.Connection, slot: int) -> None:
    """
    Give what the last owner of a slot left a number that never lives.

    The new owner calls it before its first claim.
    """
    ask(db, "UPDATE broker_group_lock SET reader = ~reader WHERE reader = ?", (slot,))


def records(path: str) -> list[QueueRecord]:
    """Return the records in which the live reader processes report their queues."""
    try:
        descriptor = os.open(lock_file(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    found: list[QueueRecord] = []
    try:
        for slot in range(os.fstat(descriptor).st_size // RECORD_BYTES):
            text = os.pread(descriptor, RECORD_BYTES, slot * RECORD_BYTES)
            with suppress(msgspec.MsgspecError, ValueError, RecursionError):  # half written, or of another version
                if is_locked(descriptor, slot):
                    found += msgspec.json.decode(text, type=list[QueueRecord])
    finally:
        os.close(descriptor)
    return found


# --- queue monitors ---------------------------------------------------------------------------------------------


class MonitorState(StrEnum):
    """The documented states."""

    INACTIVE = "INACTIVE"  # nothing waits, and no reader lives
    NOTIFIED = "NOTIFIED"  # messages wait, and no reader lives
    RECEIVES_OCCURRING = "RECEIVES_OCCURRING"  # a reader lives


@dataclass(frozen=True, slots=True)
class Monitor:
    """
    One queue.

    Attributes:
        last_empty_rowset_time: UTC seconds, None when no reader that lives has reported one.
        last_activated_time: Likewise.
        tasks_waiting: Workers that have nothing to do.
        readers: Processes.
    """

    queue_id: int
    queue_name: str
    state: MonitorState
    last_empty_rowset_time: float | None
    last_activated_time: float | None
    tasks_waiting: int
    readers: int


def queue_monitors(path: Path) -> list[Monitor]:
    """
    The queues of a database. Blocking, so for a thread.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    reported = records(str(path))
    query = (
        "SELECT q.queue_id, q.name,"
        " EXISTS (SELECT 1 FROM broker_message m WHERE m.queue_id = q.queue_id AND m.status = 1)"
        " FROM broker_queue q ORDER BY q.queue_id"
    )
    with closing(open_watch(path)) as db:
        queues = db.execute(query).fetchall()
    monitors = []
    for queue_id, name, is_waiting in queues:
        readers = [record for record in reported if record.queue_name == name]
        idle = MonitorState.NOTIFIED if is_waiting else MonitorState.INACTIVE
        state = MonitorState.RECEIVES_OCCURRING if readers else idle
        empty = max((one.last_empty_time for one in readers if one.last_empty_time is not None), default=None)
        activated = max((one.activated_time for one in readers), default=None)
        waiting = sum(one.tasks_waiting for one in readers)
        monitors.append(Monitor(queue_id, name, state, empty, activated, waiting, len(readers)))
    return monitors


def activated_tasks(path: Path) -> list[tuple[int, QueueRecord]]:
    """
    The readers at work on the queues of a database, each with the number of its queue. Blocking.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    with closing(open_watch(path)) as db:
        queues = dict(db.execute("SELECT name, queue_id FROM broker_queue"))
    return [(queues[one.queue_name], one) for one in records(str(path)) if one.queue_name in queues]
