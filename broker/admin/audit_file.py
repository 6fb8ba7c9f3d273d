"""
The file of changes: lines are added at its end and never touched again, and it is put aside when it is full.

A line is on the disk when `append` returns. Several processes may write: each opens the file anew, under a lock, so the
command that makes tokens and the instance that runs do not get in each other's way, and a file that somebody moved
away is begun anew. What cannot be written whole is taken back.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.control.writable import keep_names
from broker.errors import ResourceError

MODE = 0o600
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass
class AuditUnavailableError(ResourceError):
    """A change cannot be written down, so it is not made."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"audit {self.path}: {self.problem}; nothing is changed as long as no change can be written down"


@dataclass(frozen=True, slots=True)
class AuditFile:
    """Shape: `size_bytes` at which the file is put aside; `keep` of those put aside are kept."""

    path: Path
    size_bytes: int
    keep: int

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """
        Add lines, all of them or none. Blocking.

        Raises:
            AuditUnavailableError: they cannot be written.
        """
        data = b"".join(json.dumps(line, ensure_ascii=True).encode() + b"\n" for line in lines)
        try:
            descriptor = self._open()
            try:
                if os.fstat(descriptor).st_size + len(data) > self.size_bytes and os.fstat(descriptor).st_size:
                    self._put_aside()
                    full, descriptor = descriptor, self._open()
                    os.close(full)
                _write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise AuditUnavailableError(str(self.path), error.strerror or str(error)) from error

    def problem(self) -> str:
        """What keeps lines from being added, as far as opening tells; "" for nothing. Makes no file. Blocking."""
        try:
            os.close(os.open(self.path, _FLAGS))
        except FileNotFoundError:
            return self._problem_of_making()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _problem_of_making(self) -> str:
        directory = self.path.parent
        if not directory.is_dir():
            return f"there is no directory {directory}"
        return "" if os.access(directory, os.W_OK | os.X_OK) else f"no file can be made in {directory}"

    def _open(self) -> int:
        """The file that has the name, locked; made with its mode where there is none."""
        while True:
            try:
                descriptor, is_new = self._open_or_make()
            except FileNotFoundError:
                if self.path.parent.is_dir():
                    continue  # put aside by somebody else, between two looks
                raise
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                    if is_new:
                        keep_names(self.path.parent)
                    return descriptor
            except FileNotFoundError:
                pass  # put aside by somebody else, while the lock was waited for
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _open_or_make(self) -> tuple[int, bool]:
        """The file, and whether it was made; one that root makes belongs to whom the directory does: the instance."""
        try:
            descriptor = os.open(self.path, _FLAGS | os.O_CREAT | os.O_EXCL, MODE)
        except FileExistsError:
            return os.open(self.path, _FLAGS), False
        if os.geteuid() == 0:
            owner = self.path.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        return descriptor, True

    def _put_aside(self) -> None:
        """Give the file and those before it the next number; those above `keep` go."""
        if not self.keep:
            self.path.unlink()
            return
        for number in range(self.keep - 1, 0, -1):
            older = aside(self.path, number)
            if older.exists():
                older.replace(aside(self.path, number + 1))
        self.path.replace(aside(self.path, 1))
        keep_names(self.path.parent)


def aside(path: Path, number: int) -> Path:
    """What a file is called that was put aside; 1 is the newest."""
    return path.with_name(f"{path.name}.{number}")


def _write(descriptor: int, data: bytes) -> None:
    begin = os.fstat(descriptor).st_size
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, begin)
        raise
