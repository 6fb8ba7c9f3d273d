"""
The admin socket as a file: for its owner and a group at most, taken over from a dead process, removed at the end.

Who may open the file may steer the instance, so its mode is set before anybody could connect. A file that a killed
process left behind is known by nobody answering on it; one that somebody answers on is never touched.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from broker.errors import ListenFailedError

MODE = 0o600
GROUP_MODE = 0o660
BACKLOG = 128
ANSWER_SECONDS = 1.0  # for a process on this machine to take a connection


class SocketFile:
    """
    A listening Unix socket and its file. Shape: `sock` listens until `close`.

    Args:
        path: The file.
        group: Number of the group that may open it as well; None for none.

    Raises:
        ListenFailedError: somebody answers there, it is something else than a socket, or it cannot be made.
    """

    def __init__(self, path: Path, *, group: int | None = None) -> None:
        self._path = path
        try:
            _remove_stale(path)
            self.sock = _listen(path, group)
            self._identity = _identity(path)
        except OSError as error:
            raise ListenFailedError(str(path), error.strerror or str(error)) from error

    def close(self) -> None:
        """Stop listening; remove the file if it is still this one."""
        with contextlib.suppress(OSError):  # removed by somebody else, and that is all right
            if _identity(self._path) == self._identity:
                self._path.unlink()
        self.sock.close()


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a process that is no more."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenFailedError(str(path), "the file exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ListenFailedError(str(path), "another instance answers there")


def _listen(path: Path, group: int | None) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), MODE)  # Linux makes the file with this mode, so it is never open to others
        sock.bind(str(path))
        if group is not None:
            os.chown(path, -1, group)  # before the mode, so that no other group gets in
        path.chmod(MODE if group is None else GROUP_MODE)
        sock.setblocking(False)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino
