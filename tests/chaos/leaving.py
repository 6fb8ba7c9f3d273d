"""How processes of a fault run end that are asked to: in time, and with the exit code of a good end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection

from broker.errors import BrokerError
from examples.demo.topology import Daemon

LEAVE_SECONDS = 60.0  # until a daemon has ended: a drain takes 5, and the machine may be busy
TELL_SECONDS = 10.0  # for its last words
DRAINED = 0
LEFT_BEHIND = 7  # what could not be handed on in time; its sender has it


class BadEndError(BrokerError):
    """A process did not end as it should."""


def leave(name: str, daemon: Daemon, *, codes: Collection[int]) -> None:
    """
    Wait for the end of a daemon; one that does not end gets SIGABRT, and tells in its log where it is.

    Args:
        name: Of its host.
        daemon: Was sent SIGTERM.
        codes: Exit codes that are allowed.

    Raises:
        BadEndError: it had another exit code, or did not end within LEAVE_SECONDS; it has ended all the same.
    """
    try:
        code = daemon.wait(LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        os.kill(daemon.pid, signal.SIGABRT)
        try:
            daemon.wait(TELL_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
        raise BadEndError(
            f"{name} has not ended {LEAVE_SECONDS:g} s after SIGTERM; its log tells where it is"
        ) from None
    if code not in codes:
        raise BadEndError(f"{name} has ended with exit code {code} after SIGTERM")


def bad_ends(daemons: dict[str, Daemon]) -> list[str]:
    """End these, which have nothing to do any more: a sentence for each that does not end in good order."""
    for daemon in daemons.values():
        daemon.terminate()
    found = []
    for name, daemon in daemons.items():  # a second SIGTERM would end a drain, and journals with it
        try:
            leave(name, daemon, codes=[DRAINED])
        except BadEndError as error:
            found.append(str(error))
    return found
