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
import stat
import struct
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass

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
