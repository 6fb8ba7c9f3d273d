"""
Hints between the processes that use a database, so that none of them has to poll it often.

A hint says that a check of the database may be worth while, and nothing else. It may be lost, late, doubled or stale:
the database decides, and a process without hints polls. They need Linux: elsewhere, where the kernel has no
more to give, and with BROKER_HINTS=off, there are none.

Source: inotify(7).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from typing import Any

HINTS_VARIABLE = "BROKER_HINTS"  # off: as if the system had none
_IN_MODIFY, _IN_ONESHOT = 0x2, 0x80000000
_EVENTS = 4096  # bytes read at a time; an event has 16


@cache
def libc() -> Any:
    """The C library, for calls that Python lacks; None where there are no hints."""
    if sys.platform != "linux" or os.environ.get(HINTS_VARIABLE) == "off":
        return None
    import ctypes  # noqa: PLC0415 - takes milliseconds, and most applications never wait

    return ctypes.CDLL(None, use_errno=True)


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
