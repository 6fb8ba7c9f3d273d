"""
The admin socket as a file: for its owner and a group at most, taken over from a dead process, removed at the end.

Who may open the file may steer the instance, so its mode is set before anybody could connect. A file that a killed
process left behind is known by nobody answering on it; one that somebody answers on is never touched.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from broker.control.socket_place import socket_problem
from broker.errors import ListenFailedError

MODE = 0o600
GROUP_MODE = 0o660
BACKLOG = 128


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

    def regroup(self, group: int | None) -> None:
        """
        Another group may open the file from now on, or none.

        Raises:
            ListenFailedError: it cannot be given to that group; what held before may hold no more.
        """
        try:
            self._path.chmod(MODE)
            os.chown(self._path, -1, os.getegid() if group is None else group)
            self._path.chmod(MODE if group is None else GROUP_MODE)
        except OSError as error:
            raise ListenFailedError(str(self._path), error.strerror or str(error)) from error

    def close(self) -> None:
        """Stop listening; remove the file if it is still this one."""
        with contextlib.suppress(OSError):  # removed by somebody else, and that is all right
            if _identity(self._path) == self._identity:
                self._path.unlink()
        self.sock.close()


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a process that is no more."""
    problem = socket_problem(path)
    if problem is not None:
        raise ListenFailedError(str(path), problem)
    path.unlink(missing_ok=True)


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
