"""
What can be seen of a mirrored database without opening it: whether somebody has its lock, and what is told beside it.

A mirror looks many times a second at each of its databases, so a look is a few calls of the system: the lock file stays
open, and what is told is read when its file is another one. Once a second everything is looked up anew, for storage on
which a change shows late.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from broker.errors import StoreUnavailableError
from broker.store.database import lock_path
from broker.store.role_file import PrincipalRecord, read_reign, role_path

REFRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Sight:
    """
    What was seen.

    Shape: `is_held` whether somebody has the lock; `reign` what the principal tells, None when nothing is told, or when
    `problem` says why it cannot be read.
    """

    is_held: bool
    reign: PrincipalRecord | None
    problem: str = ""


class RoleWatch:
    """
    Args:
        path: The database file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1  # of the lock file
        self._lock_file = self._role_file = path
        self._refresh_at = float("-inf")
        self._mark: tuple[int, ...] = ()
        self._reign: PrincipalRecord | None = None
        self._problem = ""

    def look(self, *, asks_lock: bool) -> Sight:
        """
        Look once. For any thread, one at a time: storage may be slow.

        Args:
            asks_lock: Else nobody tries the lock, so that nobody is in the way of a partner who does.
        """
        now = time.monotonic()
        is_due = now >= self._refresh_at
        if is_due:
            self._refresh_at = now + REFRESH_SECONDS
            self._lock_file, self._role_file = Path(lock_path(self._path)), role_path(self._path)
        mark = _mark(self._role_file)
        if is_due or mark != self._mark:
            self._mark = mark
            self._read()
        return Sight(asks_lock and self._is_held(), self._reign, self._problem)

    def close(self) -> None:
        """Keep no file open."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _read(self) -> None:
        try:
            self._reign, self._problem = read_reign(self._path), ""
        except StoreUnavailableError as error:
            self._reign, self._problem = None, str(error)

    def _is_held(self) -> bool:
        """False as well when it cannot be told: whoever takes the lock then finds out why."""
        try:
            there = self._lock_file.stat()
            if self._descriptor < 0 or not os.path.samestat(there, os.fstat(self._descriptor)):
                self.close()  # it was removed, or there is another one by this name
                self._descriptor = os.open(self._lock_file, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def _mark(file: Path) -> tuple[int, ...]:
    """What tells one state of a file from the next; empty when there is none to be seen."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
