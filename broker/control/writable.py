"""Whether files can be made in a directory, found out by making one; and that the ones made there stay."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_problem(directory: Path) -> str | None:
    """What keeps files from being made in a directory, or in the one above it that it would be created in."""
    existing = next(one for one in (directory, *directory.parents) if one.exists())
    if not existing.is_dir():
        return f'"{existing}" is no directory'
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return f'"{existing}" cannot be written: {error.strerror}'


def keep_names(directory: Path) -> None:
    """Have the names of the files in a directory on the disk. Blocking; raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
