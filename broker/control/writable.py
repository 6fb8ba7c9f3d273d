"""Whether files can be made in a directory, found out by making one; and that the ones made there stay."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ROOM_BYTES = 1 << 20  # a new database and its log take 400 KiB, and something has to be left


def write_problem(directory: Path) -> str | None:
    """What keeps files from being made in a directory, or in the one above it that it would be created in."""
    existing = next(one for one in (directory, *directory.parents) if os.path.exists(one))  # noqa: PTH110 - raises nothing
    if not existing.is_dir():
        return f'"{existing}" is no directory'
    with suppress(OSError):
        os.close(os.open(existing, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC))
        return None
    import tempfile  # noqa: PLC0415 - tries that too, and knows what to do where it is not possible; a slow import

    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return f'"{existing}" cannot be written: {error.strerror}'


def room_problem(directory: Path) -> str | None:
    """What tells that the disk of a directory, or of the one above it that it would be created in, is full."""
    existing = next(one for one in (directory, *directory.parents) if os.path.exists(one))  # noqa: PTH110 - as above
    try:
        disk = os.statvfs(existing)
    except OSError:
        return None  # whoever writes there tells
    free = disk.f_frsize * (disk.f_bavail if os.geteuid() else disk.f_bfree)
    if free >= ROOM_BYTES or not disk.f_blocks:  # some file systems tell nothing
        return None
    return f'the disk of "{existing}" has {free >> 10} KiB left, and {ROOM_BYTES >> 10} KiB are needed'


def keep_names(directory: Path) -> None:
    """Have the names of the files in a directory on the disk. Blocking; raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
