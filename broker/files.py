"""
Files and directories of an instance: can they be used, and how are they replaced safely.

Three checks that change nothing: `mount_problem`, `socket_problem`, `write_problem` with `room_problem`. A file is
replaced as a whole (`write_file`), so a reader finds the old content or the new; a record is a small one of JSON.

Source: fstab(5), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import stat
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from broker.errors import StoreUnavailableError

FSTAB, MOUNTINFO = Path("/etc/fstab"), Path("/proc/self/mountinfo")
_T = TypeVar("_T")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def mount_problem(path: Path, *, fstab: Path = FSTAB, mountinfo: Path = MOUNTINFO) -> str | None:
    """
    Return why a path would be written beneath an unmounted disk; None if it would not, or if that is not known.

    The mount point of a disk that is not mounted is an empty directory like any other: an instance would start there
    with another identity and without its messages. Only `/etc/fstab` is read. Units of systemd and volumes of
    containers have to be waited for by those, as with `RequiresMountsFor=`.

    Args:
        path: A file or directory, which need not exist.
        fstab: The table of file systems that should be mounted.
        mountinfo: The table of those that are.
    """
    real = Path(os.path.realpath(path))
    points = [point for point in _points(fstab, column=1) if point != Path("/") and real.is_relative_to(point)]
    mounted = set(_points(mountinfo, column=4)) if points else set()
    missing = [point for point in points if point not in mounted]
    if not missing or not mounted:
        return None
    return f'"{missing[0]}" is not mounted, as {fstab} says it should be, and "{path}" is below it'


def _points(table: Path, *, column: int) -> list[Path]:
    """The mount points in a table of the system; none if it cannot be read."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    names = (_ESCAPE.sub(lambda code: chr(int(code[1], 8)), row[column]) for row in rows if len(row) > column)
    return [Path(name) for name in names if name.startswith("/")]


# --- the admin socket ---

ANSWER_SECONDS = 1.0  # for a process on this machine to take a connection
ANSWERED = "another instance answers there"


def socket_problem(path: Path) -> str | None:
    """
    Return why a socket cannot be made at this path, or None. Nothing is changed.

    The socket of a killed process is not a problem: it refuses connections.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None if path.parent.is_dir() else f'the directory "{path.parent}" does not exist'
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISSOCK(mode):
        return "the file exists and is not a socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return None
        except OSError as error:
            return error.strerror or str(error)
    return ANSWERED


# --- directories ---

ROOM_BYTES = 1 << 20  # a new database with its log takes 400 KiB


def write_problem(directory: Path) -> str | None:
    """Return why files cannot be made in a directory, or in its nearest existing parent; None if they can."""
    existing = next(one for one in (directory, *directory.parents) if os.path.exists(one))  # noqa: PTH110 - raises nothing
    if not existing.is_dir():
        return f'"{existing}" is not a directory'
    with suppress(OSError):
        os.close(os.open(existing, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC))
        return None
    try:
        with tempfile.TemporaryFile(dir=existing):  # for file systems without O_TMPFILE
            return None
    except OSError as error:
        why = "no file can be made there" if error.errno == errno.ENOENT else error.strerror
        return f'"{existing}" cannot be written: {why}'


def room_problem(directory: Path) -> str | None:
    """Return that the disk of a directory, or of its nearest existing parent, is full; None if it is not."""
    existing = next(one for one in (directory, *directory.parents) if os.path.exists(one))  # noqa: PTH110 - raises nothing
    try:
        disk = os.statvfs(existing)
    except OSError:
        return None  # writing there will report it
    free = disk.f_frsize * (disk.f_bavail if os.geteuid() else disk.f_bfree)
    if free >= ROOM_BYTES or not disk.f_blocks:  # some file systems report no size
        return None
    return f'the disk of "{existing}" has {free >> 10} KiB left, and {ROOM_BYTES >> 10} KiB are needed'


def mark_of(file: str | Path) -> tuple[int, ...]:
    """A value that changes with the content, mode and owner of a file; empty when there is none. Blocking."""
    try:
        found = Path(file).stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def keep_names(directory: Path) -> None:
    """Sync a directory, so that the names of its files survive a loss of power. Blocking; raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """
    Make or replace a file as a whole; it is on the disk when this returns.

    Raises:
        OSError: it cannot be written; the one before stays.
    """
    new_file = _write_new(path, data, mode)
    try:
        new_file.replace(path)
    except OSError:
        new_file.unlink(missing_ok=True)
        raise
    keep_names(path.parent)


def _write_new(path: Path, data: bytes, mode: int = 0o666) -> Path:
    """Write data to a new file in the same directory, synced."""
    new_file = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")
    with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as stream:
        try:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        except BaseException:
            new_file.unlink(missing_ok=True)
            raise
    return new_file


# --- records ---
# Two kinds are kept next to databases: the files that an instance has seen (`store.sqlite.file_identity`) and the
# principal of a file (`store.sqlite.role_file`). To change part of a record, read and write it inside `changing`.

_threads = threading.Lock()  # `flock` on some file systems excludes processes but not threads


@contextmanager
def reported(file: str | Path) -> Iterator[None]:
    """Raise an error of the operating system as a StoreUnavailableError about this file."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(str(file), error.strerror or str(error)) from error


def read_record(file: Path, kind: type[_T], damaged: str, *, most: int = -1) -> _T | None:
    """
    Return the content of a record; None when there is none.

    Args:
        file: The record.
        kind: The type of its content.
        damaged: The problem to report when the content is not of this type: what to do.
        most: Bytes that are read.

    Raises:
        StoreUnavailableError: it cannot be read, or is damaged.
    """
    with reported(file):
        try:
            with file.open("rb") as stream:
                data = stream.read(most)
        except FileNotFoundError:
            return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise StoreUnavailableError(str(file), damaged) from error


def write_record(file: Path, values: Mapping[str, Any]) -> None:
    """
    Replace the content of a record; it is on the disk when this returns.

    Raises:
        StoreUnavailableError: it cannot be written.
    """
    with reported(file):
        write_file(file, json.dumps(values, indent=2, sort_keys=True).encode())


def check_record(file: Path) -> None:
    """
    Check that a record can be written, and leave nothing.

    Raises:
        StoreUnavailableError: it cannot be written.
    """
    with reported(file):
        if file.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        _write_new(file, b"{}").unlink()


@contextmanager
def changing(file: Path) -> Iterator[None]:
    """
    Hold the exclusive right to change a record, among all threads and processes; others wait.

    Raises:
        StoreUnavailableError: the lock file next to it cannot be made or locked.
    """
    with _threads:
        with reported(file):
            descriptor = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with reported(file):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
