"""
The write lock of a database: which process has it, how long others wait for it, and which of them tries to take it.

SQLite locks one byte of the shared-memory file for as long as a transaction writes. Linux lists such locks with their
process, so the file does not have to be opened: to open and close it would end the locks of the reading process.

Sources: SQLite documentation, "WAL-mode File Format", section 2.3, "WAL Locks"; proc_locks(5).
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from broker.store.sqlite.hints import LINE, Bell

PAUSE_FIRST, PAUSE = 0.0002, 0.004  # seconds between two attempts to take the lock, least and most
PAUSE_PART = 1 / 64  # of the time tried so far: only one tries, and who writes without a pause lets go for microseconds
LINE_SECONDS = 0.1  # in line at most, as the first in it may have been stopped
WAKE_SECONDS = 0.02  # after which one in line checks whether it is the first, should nothing have woken it
NOTICE_SECONDS = 2.0  # a wait that takes longer is reported
RECENT_SECONDS = 600.0  # waits that ended within are counted as recurring
_LOCKS = "/proc/locks"
_PROCESSES = "/proc"
_WRITE_LOCK_AT = 120  # byte of the shared-memory file; WAL_WRITE_LOCK
logger = logging.getLogger("broker.client.transaction")  # of applications, which may not use structlog
_FIELDS = 8  # number, kind, mode, access, process, file, first byte, last byte


class LockHolder(NamedTuple):
    """A process that writes to a database; `name` is empty when it cannot be read."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"process {self.pid}{f' ({self.name})' if self.name else ''}"


class LockWait(NamedTuple):
    """
    A wait for the write transaction of another connection that took longer than two seconds.

    Attributes:
        began: UTC seconds since 1970.
        seconds: How long it has taken so far, or took.
        holder: The process that wrote then; None when it could not be seen.
        number: How many long waits there were within ten minutes, this one included.
        is_over: Whether it has ended.
    """

    began: float
    seconds: float
    holder: LockHolder | None
    number: int = 1
    is_over: bool = False


class WriteWaits(NamedTuple):
    """
    How the writer of a database has waited for the write transactions of other connections.

    Attributes:
        seconds: In all.
        present: The wait that goes on, once it is long.
        recent: The long waits that ended within ten minutes, oldest first.
    """

    seconds: float = 0.0
    present: LockWait | None = None
    recent: tuple[LockWait, ...] = ()


class WriteLockWaits:
    """
    The waits of one connection for the write lock. One thread writes it; all others may read it.

    Args:
        path: Returns the file of the database.
        notice: Called with each long wait when it has taken `NOTICE_SECONDS`, and when it is over.
    """

    def __init__(self, path: Callable[[], str], notice: Callable[[LockWait], None]) -> None:
        self._path = path
        self._notice = notice
        self._total = 0.0  # seconds, of waits that are over
        self._since: float | None = None  # monotonic
        self._long: LockWait | None = None
        self._recent: deque[LockWait] = deque(maxlen=100)

    def go_on(self) -> None:
        """The lock was asked for, and another connection has it."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif self._long is None and now - self._since >= NOTICE_SECONDS:
            seconds, utc = now - self._since, time.time()
            count = 1 + len(self._still_recent())
            self._long = LockWait(utc - seconds, seconds, holder_of(self._path()), count)
            self._notice(self._long)

    def end(self) -> None:
        """The lock was taken, or is not asked for any longer."""
        if self._since is None:
            return
        seconds = time.monotonic() - self._since
        self._total += seconds
        self._since = None
        if self._long is not None:
            ended, self._long = self._long._replace(seconds=seconds, is_over=True), None
            self._recent.append(ended)
            self._notice(ended)

    def now(self) -> WriteWaits:
        """The waits until now."""
        since, wait, now = self._since, self._long, time.monotonic()
        return WriteWaits(
            self._total + (0.0 if since is None else now - since),
            None if wait is None or since is None else wait._replace(seconds=now - since),
            self._still_recent(),
        )

    def _still_recent(self) -> tuple[LockWait, ...]:
        limit = time.time() - RECENT_SECONDS
        return tuple(wait for wait in tuple(self._recent) if wait.began + wait.seconds > limit)


class WriteLockLine:
    """
    The connections that wait for the write lock of a database: the first tries to take it, and the others sleep.

    Each attempt costs CPU time that the connection that writes lacks. One that leaves the line wakes the one that has
    slept longest. That is a hint (`broker.store.sqlite.hints`): one that is not woken goes on by itself, and without
    hints all try.
    """

    def __init__(self, path: str) -> None:
        """Stand in line for this database; empty for one in memory."""
        self._bell = Bell.open(path)
        self._joined = time.monotonic()
        self._tries_since: float | None = None  # None while others are in front

    def pause(self) -> None:
        """Wait until the lock may be tried, once more."""
        while self._tries_since is None:
            now = time.monotonic()
            if self._bell is None or self._bell.try_lock() or now > self._joined + LINE_SECONDS:
                self._tries_since = now
            else:
                self._bell.wait(LINE, self._bell.count(LINE), WAKE_SECONDS)
        tried = time.monotonic() - self._tries_since
        time.sleep(min(PAUSE, max(PAUSE_FIRST, tried * PAUSE_PART)))

    def close(self) -> None:
        """Leave the line, with the lock or without it."""
        if self._bell is not None:
            self._bell.unlock()
            self._bell.wake(LINE, most=1)
            self._bell.close()


def warned_waits(path: str) -> WriteLockWaits:
    """The waits of an application's connection, which logs a long one at level WARNING."""

    def warn(wait: LockWait) -> None:
        if not wait.is_over:
            logger.warning("%s: waiting for %.0f s to write: %s", path, wait.seconds, who_writes(wait.holder))

    return WriteLockWaits(lambda: path, warn)


def who_writes(holder: LockHolder | None) -> str:
    """Say which process has a write transaction open."""
    if holder is None:
        return "which process has a write transaction open cannot be seen here"
    if holder.pid == os.getpid():
        return "another connection of this process has a write transaction open"
    return f"{holder} has a write transaction open"


def holder_of(path: str) -> LockHolder | None:
    """
    The process that has the write lock of this database now; None when there is none, or it cannot be seen.

    A container shows its own processes only.
    """
    try:
        inode = os.stat(f"{path}-shm").st_ino  # noqa: PTH116 - a name next to the file, not below it
        with open(_LOCKS, encoding="ascii") as locks:  # noqa: PTH123 - pathlib takes longer to import than this module
            lines = locks.readlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        fields = line.split()
        if len(fields) != _FIELDS or (fields[1], fields[3]) != ("POSIX", "WRITE"):
            continue  # among them those that wait, which have a "->" in front
        _, _, _, _, pid, file, first, last = fields
        is_there = file.rpartition(":")[2] == str(inode)
        if is_there and int(first) <= _WRITE_LOCK_AT and (last == "EOF" or int(last) >= _WRITE_LOCK_AT):
            return LockHolder(int(pid), _name(int(pid))) if int(pid) > 0 else None
    return None


def _name(pid: int) -> str:
    """Of a program, without its arguments: those may contain secrets."""
    try:
        with open(f"{_PROCESSES}/{pid}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - likewise
            return file.read().strip()
    except OSError:
        return ""
