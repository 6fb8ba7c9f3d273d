"""
What signals do to the process of an instance before its loop handles them, and after it no longer does.

By default each of them ends a process, or, for the first process of a container, SIGTERM is ignored. Nothing that takes
long to import may be in this file: it is used before anything else.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

HARMLESS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def end_on_signal() -> None:
    """From now on SIGTERM ends this process, which has not begun anything: exit code 0. The others do nothing."""
    endure()
    signal.signal(signal.SIGTERM, _end)


def endure() -> None:
    """From now on SIGHUP, SIGUSR1 and SIGUSR2 do nothing; programs that this process starts do not inherit that."""
    for number in HARMLESS:
        signal.signal(number, _do_nothing)


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """The configuration is about to be read, or was read for the last time."""
