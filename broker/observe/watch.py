"""
Watching a statement while SQLite carries it out: that it ends in time, stays small, and is still wanted.

SQLite asks a `Watch` every so many steps, in the thread that carries the statement out. What it sorts or gathers goes
to temporary files when it is much; Linux tells how large they are, though they have no names any more.

Source: SQLite documentation, "Query Progress Callbacks", "Temporary Files Used By SQLite"; proc(5), /proc/PID/fd.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Wanted = Callable[[], bool]

OUT_OF_TIME, TOO_LARGE = 8649, 1105  # the original's: the query was cancelled; no room in tempdb
_LOOK_SECONDS = 0.05  # between two questions whether it is wanted
_SPILL_SECONDS, _SPILL_SHARE = 0.25, 20  # between two looks at the files, and times as long as the last one took
_DESCRIPTORS = Path("/proc/self/fd")
_SPILLED = "/etilqs_"  # how SQLite names its temporary files


class Watch:
    """
    One statement, from now on.

    Args:
        seconds: It may take.
        spill_bytes: That temporary files may have, those of all statements of this process together.
        is_wanted: Whether who asked still waits.

    Shape: `problem` why it was ended, "" while it was not; `number` of that error.
    """

    __slots__ = ("_deadline", "_is_wanted", "_look_at", "_seconds", "_spill_at", "_spill_bytes", "number", "problem")

    def __init__(self, seconds: float, spill_bytes: int, is_wanted: Wanted) -> None:
        now = time.monotonic()
        self.number = OUT_OF_TIME
        self.problem = ""
        self._seconds = seconds
        self._spill_bytes = spill_bytes
        self._is_wanted = is_wanted
        self._deadline = now + seconds
        self._look_at = now
        self._spill_at = now + _SPILL_SECONDS

    def __call__(self) -> bool:
        """Whether the statement is to end."""
        now = time.monotonic()
        if now > self._deadline:
            self.problem = f"the query was cancelled: it took longer than {self._seconds:g} s; ask for less"
        elif now > self._look_at:
            self._look_at = now + _LOOK_SECONDS
            if not self._is_wanted():
                self.problem = "the query was cancelled: who asked has gone"
            elif now > self._spill_at:
                self._look_at_files(now)
        return bool(self.problem)

    def _look_at_files(self, now: float) -> None:
        spilled = spilled_bytes()
        if spilled > self._spill_bytes:
            self.number = TOO_LARGE
            self.problem = f"what is sorted and gathered has more than {self._spill_bytes >> 20} MiB; ask for less"
        self._spill_at = now + max(_SPILL_SECONDS, _SPILL_SHARE * (time.monotonic() - now))


def spilled_bytes() -> int:
    """What the temporary files of SQLite in this process hold; 0 where the system does not tell."""
    size = 0
    with suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - a Path for each descriptor would cost more than the look
            with suppress(OSError):
                path = f"{_DESCRIPTORS}/{name}"
                if _SPILLED in os.readlink(path):  # noqa: PTH115 - likewise
                    size += os.stat(path).st_size  # noqa: PTH116 - likewise
    return size


class ResultTooLargeError(Exception):
    """More text in a result than may be."""


class Texts:
    """Makes text of what SQLite holds, of so many bytes in all. What is no UTF-8 is replaced."""

    __slots__ = ("_left", "_most")

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def __call__(self, data: bytes) -> str:
        """Raises ResultTooLargeError."""
        self._left -= len(data)
        if self._left < 0:
            raise ResultTooLargeError(f"one row has more than {self._most >> 20} MiB; ask for fewer columns")
        return data.decode(errors="replace")
