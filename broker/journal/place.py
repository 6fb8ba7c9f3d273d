"""
Where files of a journal are and what they are called.

    DIRECTORY/date=YYYY-MM-DD/hour=HH/<instance>-<sequence>-<random>.parquet

Date and hour are UTC, of the moment at which the file was begun. Its rows left then or up to `file_age` later, and
those of frames that were held entered before: whoever looks for an hour by its name looks into those around it as well.
A file that is being written stands in DIRECTORY itself, under its name with a dot before it, and is locked (flock), so
that what a crash has left is told from what another process writes.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

INSTANCE_MAX_BYTES = 160  # of a name in a file's name, which has at most 255
_SAFE_BYTE = re.compile(rb"[A-Za-z0-9.-]")
_REST = re.compile(r"[0-9]{6,}-[0-9a-f]{8}\.parquet")


def file_name(instance: str, sequence: int, identity: str) -> str:
    """
    The name of a file.

    Shape: `sequence` of this process, from 1; `identity` hexadecimal, its first eight digits are the random part.
    """
    return f"{instance_part(instance)}-{sequence:06d}-{identity[:8]}.parquet"


def instance_part(instance: str) -> str:
    """
    What an instance is called in names of files: letters, digits, dots, hyphens; any other byte as `_` and two digits.

    Two instances that differ may be called the same when their names are very long. It does not begin with a dot or an
    underscore, which readers take for what is to be left out.
    """
    spelt = "".join(
        chr(byte) if _SAFE_BYTE.match(bytes((byte,))) else f"_{byte:02x}"
        for byte in instance.encode("utf-8", "replace")
    )[:INSTANCE_MAX_BYTES]
    return spelt if spelt[:1].isalnum() else f"x{spelt}"


def hour_directory(directory: Path, begun_at: float) -> Path:
    """Where a file stands that was begun then, in seconds since 1970."""
    begun = datetime.fromtimestamp(begun_at, UTC)
    return directory / f"date={begun:%Y-%m-%d}" / f"hour={begun:%H}"


def files_of(directory: Path, instance: str) -> Iterator[Path]:
    """The whole files of an instance, in no order; none of anybody else."""
    prefix = f"{instance_part(instance)}-"
    for path in directory.glob("date=*/hour=*/*.parquet"):
        if path.name.startswith(prefix) and _REST.fullmatch(path.name, len(prefix)):
            yield path


def remove_leftovers(directory: Path, instance: str) -> int:
    """
    Remove what a crash has left half written; how many files.

    Raises:
        OSError: the directory cannot be read.
    """
    prefix = f".{instance_part(instance)}-"
    removed = 0
    for path in directory.glob(".*.parquet"):
        if path.name.startswith(prefix) and _REST.fullmatch(path.name, len(prefix)) and _is_abandoned(path):
            with suppress(FileNotFoundError):
                path.unlink()
                removed += 1
    return removed


def lock(descriptor: int) -> bool:
    """Lock an open file until its descriptor is closed; False when somebody else has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_abandoned(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return lock(descriptor)
    finally:
        os.close(descriptor)
