"""A small disk of a host: a tmpfs that is filled and freed on command."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.chaos.network.command import run

BALLAST = "ballast"
LARGEST_STEP = 1 << 20  # bytes


class Disk:
    """Shape: `directory` where it is mounted, hiding what was there; `count` bytes it has, in whole pages."""

    def __init__(self, directory: Path, count: int, *, source: str) -> None:
        """
        Args:
            directory: Exists.
            count: Bytes that fit.
            source: What /proc/mounts shall call it; begins with the tag of the network.

        Raises:
            NetworkError: it could not be mounted.
        """
        self.directory = directory
        run("mount", "-t", "tmpfs", "-o", f"size={count},mode=755", source, str(directory))

    @property
    def free_bytes(self) -> int:
        """What is left."""
        told = os.statvfs(self.directory)
        return told.f_bavail * told.f_frsize

    def fill(self, *, leave: int = 0) -> None:
        """Fill it, but for `leave` bytes: a write of more is ENOSPC. Again: takes what has become free since."""
        with (self.directory / BALLAST).open("ab") as ballast:
            while (room := self.free_bytes - leave) > 0:
                size = min(room, LARGEST_STEP)
                try:
                    os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, size)
                except OSError as error:  # somebody was faster
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Give back what was filled."""
        (self.directory / BALLAST).unlink(missing_ok=True)
