"""
Which conversation groups are locked: those of readers that live, and those that rest after a failure.

A row of `broker_group_lock` names the *slot* of the reader process that works on the group. Whether that process still
lives is not in the file but in the kernel: next to the database is a lock file (`<file>.readers`), in which every
reader process holds an open-file-description lock on the one byte of its slot (`reader_slots`).

Source: fcntl(2), "Open file description locks"; Service Broker documentation, "Conversation Group Locks".
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import struct
from collections.abc import Iterable

from broker.store.sqlite.transaction import ask, path_of

RECORD_BYTES = 4096  # of a slot's record: some dozens of queues
SLOTS_MAX = 1024  # reader processes on one database: more would only wait for the one writer
_LOCKS_AT = SLOTS_MAX * RECORD_BYTES  # where the bytes that are locked begin: after the records

# The groups that no other reader may lock now; its parameters are those of `locked_groups`. A rest that begins in the
# future does not count: the clock was set back.
LOCKED_GROUPS_SQL = (
    "SELECT conversation_group_id FROM broker_group_lock"
    " WHERE retry_time - ? BETWEEN 0.000001 AND retry_time - lock_time OR reader IN (SELECT value FROM json_each(?))"
)
# Those of them that a reader has; its parameter is the second of `locked_groups`.
READ_GROUPS_SQL = "SELECT conversation_group_id FROM broker_group_lock WHERE reader IN (SELECT value FROM json_each(?))"
_FLOCK = "hhqqi0q"  # struct flock of 64-bit Linux: type, whence, start, length, process


def locked_groups(db: sqlite3.Connection, now: float) -> tuple[float, str] | None:
    """
    The parameters of `LOCKED_GROUPS_SQL` at this moment; None when no group is locked, which costs one SELECT.

    Args:
        db: Any connection to the database.
        now: UTC seconds since 1970.
    """
    readers = ask(db, "SELECT DISTINCT reader FROM broker_group_lock").fetchall()
    if not readers:
        return None
    live = live_slots(path_of(db), (row[0] for row in readers if row[0] is not None))
    return now, json.dumps(sorted(live))


def live_slots(path: str, slots: Iterable[int]) -> set[int]:
    """Which of these slots a living process has; any process may ask, also about itself."""
    try:
        descriptor = os.open(lock_file(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return set()  # no reader was ever here
    except OSError:
        return set(slots)  # without permission to look, assume that they live
    try:
        return {slot for slot in slots if is_locked(descriptor, slot)}
    finally:
        os.close(descriptor)


def lock_file(path: str) -> str:
    """The lock file of the readers of a database: next to the file itself, by whatever link that is reached."""
    return f"{os.path.realpath(path)}.readers"


def lock_of(slot: int) -> bytes:
    """The lock on the byte of a slot, as fcntl(2) takes it."""
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _LOCKS_AT + slot, 1, 0)


def is_locked(descriptor: int, slot: int) -> bool:
    """Whether a living process has a slot, by this descriptor of the lock file."""
    kind: int = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock_of(slot)))[0]
    return kind != fcntl.F_UNLCK
