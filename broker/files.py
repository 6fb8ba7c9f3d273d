"""
Whether what is to be written would land beside the disk that it belongs on.

Where a disk is not mounted, its mount point is an empty directory like any other: an instance would begin there anew,
with another identity and without its messages. `/etc/fstab` names what should be mounted; whatever is mounted by other
means (units of systemd, a container's volumes) has to be waited for by those, as with `RequiresMountsFor=`.

Source: fstab(5), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from broker.errors import StoreUnavailableError

FSTAB, MOUNTINFO = Path("/etc/fstab"), Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def mount_problem(path: Path, *, fstab: Path = FSTAB, mountinfo: Path = MOUNTINFO) -> str | None:
    """
    What is wrong where a path belongs on a disk that is not there; None where nothing is, or nobody can tell.

    Args:
        path: A file or directory, which need not exist.
        fstab: What should be mounted.
        mountinfo: What is.
    """
    real = Path(os.path.realpath(path))
    points = [point for point in _points(fstab, column=1) if point != Path("/") and real.is_relative_to(point)]
    mounted = set(_points(mountinfo, column=4)) if points else set()
    missing = [point for point in points if point not in mounted]
    if not missing or not mounted:
        return None
    return f'"{missing[0]}" is not mounted, as {fstab} says it should be, and "{path}" is below it'


def _points(table: Path, *, column: int) -> list[Path]:
    """The mount points in a table of the system; none when it cannot be read."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    names = (_ESCAPE.sub(lambda code: chr(int(code[1], 8)), row[column]) for row in rows if len(row) > column)
    return [Path(name) for name in names if name.startswith("/")]


# --- socket_place ---
# Whether the file of the admin socket can be made: looked at by a check, and before an instance makes it.


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


# --- writable ---
# Whether files can be made in a directory, found out by making one; and that the ones made there stay.


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
    existing = next(one for one in (directory, *directory.parents) if os.path.exists(one))  # noqa: PTH110 - raises nothing
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


# --- record ---
# A small file of JSON, replaced as a whole: whoever reads it finds what was written before, or what is written now.
#
# Beside databases there are two kinds: what an instance has seen of its files (`fence`), and who is the principal of
# a
# file (`role_file`). Who changes a part of one reads and writes it inside `changing`, so that nothing another wrote
# meanwhile is lost.


_threads = threading.Lock()  # for file systems on which `flock` tells processes apart, and not their threads


def write_record(file: Path, values: Mapping[str, Any]) -> None:
    """
    Put these values in place of what the file says; it is on the disk before this returns.

    Raises:
        StoreUnavailableError: it cannot be written.
    """
    try:
        beside = _write_beside(file, values)
        try:
            beside.replace(file)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreUnavailableError(str(file), error.strerror or str(error)) from error


def check_record(file: Path) -> None:
    """
    See that the file can be written; nothing of that is left.

    Raises:
        StoreUnavailableError: it cannot be written.
    """
    try:
        if file.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        _write_beside(file, {}).unlink()
    except OSError as error:
        raise StoreUnavailableError(str(file), error.strerror or str(error)) from error


@contextmanager
def changing(file: Path) -> Iterator[None]:
    """
    Be the only one, of all threads and processes, that changes this file; others wait.

    Raises:
        StoreUnavailableError: the lock file beside it cannot be made or locked.
    """
    with _threads:
        try:
            descriptor = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailableError(str(file), error.strerror or str(error)) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                raise StoreUnavailableError(str(file), error.strerror or str(error)) from error
            yield
        finally:
            os.close(descriptor)


def _write_beside(file: Path, values: Mapping[str, Any]) -> Path:
    """These values on the disk, in a file that nobody else writes."""
    beside = file.with_name(f"{file.name}.{uuid.uuid4().hex}.new")
    with beside.open("x", encoding="utf-8") as stream:
        try:
            json.dump(values, stream, indent=2, sort_keys=True)
            stream.flush()
            os.fsync(stream.fileno())
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    return beside
