"""
A small file of JSON, replaced as a whole: whoever reads it finds what was written before, or what is written now.

Beside databases there are two kinds: what an instance has seen of its files (`fence`), and who is the principal of a
file (`role_file`). Who changes a part of one reads and writes it inside `changing`, so that nothing another wrote
meanwhile is lost.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker.errors import StoreUnavailableError

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
