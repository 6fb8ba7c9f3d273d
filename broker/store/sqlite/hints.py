"""
Hints between the processes that use a database, so that none of them has to poll it often.

A hint says that a check of the database may be worth while, and nothing else. It may be lost, late, doubled or stale:
the database decides, and a process without hints polls. They need Linux: elsewhere, where the kernel has no
more to give, and with BROKER_HINTS=off, there are none.

`WriteHint` reports the writes to a file to a daemon; `Bell` reports what a daemon has put into queues to readers.

Sources: inotify(7), futex(2).
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any, Self

HINTS_VARIABLE = "BROKER_HINTS"  # off: as if the system had none
_IN_MODIFY, _IN_ONESHOT = 0x2, 0x80000000
_EVENTS = 4096  # bytes read at a time; an event has 16
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(os.uname().machine)  # the number of the system call
_FUTEX_WAIT, _FUTEX_WAKE, _ALL = 0, 1, 2**31 - 1
_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = 2**64 - 1  # of mmap
_WORD = 4  # bytes of a counter
_QUEUES, _SLOTS = 256, 1024  # counters: slot 0, those of queues, those of endpoints, the last
ANY = 0  # the slot of all queues together
LINE = _SLOTS - 1  # that of those that wait for the write lock


@cache
def libc() -> Any:
    """The C library, for calls that Python lacks; None where there are no hints."""
    if sys.platform != "linux" or os.environ.get(HINTS_VARIABLE) == "off":
        return None
    import ctypes  # noqa: PLC0415 - takes milliseconds, and most applications never wait

    made: Any = ctypes.CDLL(None, use_errno=True)
    address, size = ctypes.c_void_p, ctypes.c_size_t
    made.mmap.restype, made.mmap.argtypes = address, (address, size, *[ctypes.c_int] * 3, ctypes.c_long)
    made.munmap.argtypes = (address, size)
    made.syscall.restype = ctypes.c_long
    made.syscall.argtypes = (ctypes.c_long, address, ctypes.c_long, ctypes.c_long, address)
    made.timespec = ctypes.c_long * 2
    return made


class WriteHint:
    """
    Says when a file is written next.

    Attributes:
        descriptor: Readable once the file was written after `arm`; None when there are no hints.
    """

    def __init__(self, path: str) -> None:
        self._path = os.fsencode(path)
        made = -1 if libc() is None else int(libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self.descriptor = None if made < 0 else made

    def arm(self) -> None:
        """Wait for the next write: one hint, however many follow. A file that was replaced is the new one."""
        if self.descriptor is not None:
            libc().inotify_add_watch(self.descriptor, self._path, _IN_MODIFY | _IN_ONESHOT)

    def clear(self) -> bool:
        """Forget the writes so far; whether there were any."""
        with suppress(BlockingIOError):
            return self.descriptor is not None and bool(os.read(self.descriptor, _EVENTS))
        return False

    def close(self) -> None:
        """Release it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class Bell:
    """
    Counters of what was put into the queues of a database, in a file next to it, for readers that wait.

    The daemon counts and rings; a reader waits while the counter has the value that it had before the last check, so
    nothing is missed in between. Slots are shared by some queues or endpoints, so a ring may be for another reader.
    Counters are read and written as a file, never as memory: a file that was cut short does no harm then.
    """

    def __init__(self, descriptor: int, address: int) -> None:
        self._descriptor = descriptor
        self._address = address

    @classmethod
    def open(cls, path: str, *, is_made: bool = False) -> Self | None:
        """
        The bell of a database, made where a daemon asks for it; None when there is none, or there are no hints.

        A daemon without hints removes the file, so that no reader waits for its rings.
        """
        if not path:
            return None
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        if is_made:
            path, flags = os.path.realpath(path), flags | os.O_RDWR | os.O_CREAT  # as SQLite has it for a connection
        with suppress(OSError):
            if libc() is None or _FUTEX is None:
                if is_made:
                    os.unlink(f"{path}-bell")  # noqa: PTH108 - an application does without pathlib
                return None
            descriptor, address = os.open(f"{path}-bell", flags, 0o600), _FAILED
            try:
                if is_made:
                    _share_like(descriptor, path)
                    os.ftruncate(descriptor, _SLOTS * _WORD)
                address = libc().mmap(None, _SLOTS * _WORD, _PROT_READ, _MAP_SHARED, descriptor, 0)
            finally:
                if address == _FAILED:
                    os.close(descriptor)
            if address != _FAILED:
                return cls(descriptor, address)
        return None

    def count(self, slot: int) -> int:
        """The counter now."""
        return int.from_bytes(os.pread(self._descriptor, _WORD, slot * _WORD), sys.byteorder)

    def wait(self, slot: int, count: int, seconds: float) -> None:
        """Wait until the counter is not `count`, or it is rung in any case, and so many seconds at most."""
        limit = libc().timespec(int(seconds), int(seconds % 1 * 1e9))
        began = time.monotonic()
        if self._futex(slot, _FUTEX_WAIT, count, limit) < 0 and self.count(slot) == count:
            left = began + seconds - time.monotonic()  # the time is over, a signal, or a file that was cut short
            time.sleep(max(0.0, left))

    def ring(self, slots: Iterable[int]) -> None:
        """Count in these slots, and wake their readers, in this order. For one thread of one process."""
        for slot in dict.fromkeys(slots):
            number = (self.count(slot) + 1) % 2**32
            with suppress(OSError):  # the disk is full
                os.pwrite(self._descriptor, number.to_bytes(_WORD, sys.byteorder), slot * _WORD)
            self.wake(slot)

    def wake(self, slot: int, most: int = _ALL) -> None:
        """Wake those that wait now, without counting; so many at most, who has waited longest first."""
        self._futex(slot, _FUTEX_WAKE, most, None)

    def try_lock(self) -> bool:
        """Take the lock of this file, which one at a time has; False when another one has it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without such locks
            pass
        return True

    def unlock(self) -> None:
        """Give it back."""
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release it; no thread may be waiting. Closing twice does nothing."""
        if self._descriptor >= 0:
            libc().munmap(self._address, _SLOTS * _WORD)
            os.close(self._descriptor)
            self._descriptor = -1

    def _futex(self, slot: int, operation: int, value: int, limit: Any) -> int:
        return int(libc().syscall(_FUTEX, self._address + slot * _WORD, operation, value, limit))


def queue_slot(queue_id: int) -> int:
    """The slot of a queue."""
    return 1 + queue_id % (_QUEUES - 1)


def endpoint_slot(endpoint_id: int) -> int:
    """The slot of one side of a dialog."""
    return _QUEUES + endpoint_id % (LINE - _QUEUES)


def _share_like(descriptor: int, path: str) -> None:
    """Who may read the database may wait for it, as SQLite does with its log."""
    status = os.stat(path)  # noqa: PTH116 - an application does without pathlib
    with suppress(OSError):
        os.fchown(descriptor, status.st_uid, status.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
