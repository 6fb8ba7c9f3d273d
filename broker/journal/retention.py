"""
Which files of a journal are kept: none older than so long, all together no larger than so much; the oldest go first.

Only whole files of this very instance are looked at, by their names: a directory may be shared, and others remove
their own. A file is as old as its last change, which is when it appeared.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from broker.journal.place import files_of


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is there. Shape: `appeared_at` UTC seconds since 1970; `size` bytes."""

    path: Path
    appeared_at: float
    size: int


def too_old_or_too_many(
    files: Iterable[StoredFile], *, now: float, most_bytes: int, most_seconds: float
) -> list[StoredFile]:
    """
    What is to be removed, the oldest first; 0 is no bound.

    Shape: `now` UTC seconds since 1970.
    """
    oldest_first = sorted(files, key=lambda file: (file.appeared_at, file.path.name))
    total = sum(file.size for file in oldest_first)
    removed = []
    for file in oldest_first:
        is_too_old = bool(most_seconds) and file.appeared_at < now - most_seconds
        if not is_too_old and not (most_bytes and total > most_bytes):
            break
        total -= file.size
        removed.append(file)
    return removed


def read_files(directory: Path, instance: str) -> list[StoredFile]:
    """The whole files of an instance; one that vanishes meanwhile is left out."""
    files = []
    for path in files_of(directory, instance):
        with suppress(OSError):
            told = path.stat()
            files.append(StoredFile(path, told.st_mtime, told.st_size))
    return files


def remove(directory: Path, files: Iterable[StoredFile]) -> int:
    """
    Remove these files, and the directories that are empty then; how many.

    Raises:
        OSError: one of them cannot be removed; those before it are.
    """
    count = 0
    for file in files:
        with suppress(FileNotFoundError):  # another program was faster
            file.path.unlink()
            count += 1
        for above in file.path.parents:
            if above == directory:
                break
            with suppress(OSError):
                above.rmdir()
    return count
