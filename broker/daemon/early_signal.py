"""
Signal handlers of the process of an instance, for the time before and after its loop handles signals.

By default each of these signals ends a process; in the first process of a container, SIGTERM is ignored. This file must
not import modules that load slowly: it is used before any other module.
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
