"""Whether files can be made in a directory, found out by making one."""

from __future__ import annotations

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
