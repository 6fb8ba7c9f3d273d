"""
A program that ends with the process which started it, however that one ends: a measurement leaves nobody behind.

    python -m broker.bench.tied PARENT COMMAND...

Becomes COMMAND, after it has asked the system (Linux, prctl(2)) for SIGKILL at the end of PARENT, the process id of the
one that starts it; a thread of PARENT that starts it and ends counts as such an end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tied() -> tuple[str, ...]:
    """What stands before the command of a child that ends with this process."""
    return (sys.executable, "-m", "broker.bench.tied", str(os.getpid()))


def main(arguments: list[str]) -> None:
    """Never returns; exits with 1 when the parent has gone already."""
    parent, *command = arguments
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != int(parent):  # it ended before we had asked
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - what the benchmark starts


if __name__ == "__main__":
    main(sys.argv[1:])
