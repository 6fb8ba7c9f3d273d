"""Whether the file of the admin socket can be made: looked at by a check, and before an instance makes it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

ANSWER_SECONDS = 1.0  # for a process on this machine to take a connection
ANSWERED = "another instance answers there"


def socket_problem(path: Path) -> str | None:
    """
    What keeps a socket from being made at this path; None when nothing does. Nothing is changed.

    A file that a killed process left behind is known by nobody answering on it, and is no problem.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None if path.parent.is_dir() else f'the directory "{path.parent}" does not exist'
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISSOCK(mode):
        return "the file exists and is no socket"
    import socket  # noqa: PLC0415 - slow to import: see broker.cli.group

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return None
        except OSError as error:
            return error.strerror or str(error)
    return ANSWERED
