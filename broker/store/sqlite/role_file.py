"""
The record of the principal of a database, in a file next to it, for instances that must not open the database.

A mirror answers for a database whose file another machine has open, on storage that both see. SQLite allows one machine
at a time to have the file open, so what a mirror has to know is in a small separate file, which the principal writes
whenever it has taken the database over. The epoch that counts is in the database; but a database with a lower one than
is recorded here is an older copy (`file_identity`). Where the recorded database no longer exists,
none is made.

A new, empty database with the identity of a lost one would acknowledge what the lost one had, and start its sequence
numbers again. So a file is only made where nothing shows that there was one: no log (`-wal`, `-shm`) without its file,
no role file, and no takeover that was reported to this instance.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from broker.errors import StoreUnavailableError
from broker.files import check_record, read_record, write_record
from broker.routing.mirrored import EPOCH_MAX

_MAX_BYTES = 64 * 1024  # a file that is longer is not ours
_EPOCH_MAX = EPOCH_MAX // 4 * 3  # takeovers go on from there, and none has ever come so far
_DAMAGED = "it does not hold what the principal wrote into it: remove it; the next takeover writes it again"
_SINCE_MAX = 253_402_300_799.0  # the end of the year 9999


class PrincipalRecord(msgspec.Struct, frozen=True):
    """
    The present or former principal of a database: the content of the file.

    Attributes:
        epoch: The epoch of its takeover.
        principal: The name of the instance.
        since: UTC seconds since 1970.
    """

    broker_instance: uuid.UUID
    epoch: Annotated[int, Meta(ge=0, le=_EPOCH_MAX)]
    principal: str
    since: Annotated[float, Meta(ge=0, le=_SINCE_MAX)]


def role_path(path: Path) -> Path:
    """The role file, by whichever name the database file is known."""
    return Path(f"{os.path.realpath(path)}.role")


def write_principal(path: Path, record: PrincipalRecord) -> None:
    """
    Record for the mirrors which instance has taken over the database of this file.

    Raises:
        StoreUnavailableError: it cannot be written.
    """
    write_record(role_path(path), msgspec.to_builtins(record))


def check_writable(path: Path) -> None:
    """
    Check that a takeover can be recorded; one that cannot be recorded must not happen.

    Raises:
        StoreUnavailableError: it cannot be written.
    """
    check_record(role_path(path))


def recorded_epoch(path: Path) -> int:
    """
    The epoch of the last takeover as recorded; 0 when there is none that can be read.

    Raises:
        StoreUnavailableError: it cannot be read.
    """
    try:
        record = read_principal(path)
    except StoreUnavailableError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return 0  # damaged: the next takeover writes it again
    return 0 if record is None else record.epoch


def read_principal(path: Path) -> PrincipalRecord | None:
    """
    Return the record of the last takeover of the database of this file; None when there was none.

    Raises:
        StoreUnavailableError: it cannot be read.
    """
    return read_record(role_path(path), PrincipalRecord, _DAMAGED, most=_MAX_BYTES)


# --- whether a database may be made ------------------------------------------------------------------------------


def may_make(path: Path, *, reported_epoch: int = 0) -> bool:
    """
    True if a database may be made in this file when it has none.

    Args:
        path: The file.
        reported_epoch: The epoch of the last takeover that was reported to this instance, 0 = none.
    """
    return not reported_epoch and not os.path.lexists(role_path(path))


def check_remains(path: Path, *, reported_epoch: int = 0) -> None:
    """
    Check that a file that is missing or empty may be made; nothing is changed.

    Args:
        path: The file.
        reported_epoch: As for `may_make`.

    Raises:
        StoreUnavailableError: it must not be.
    """
    file = os.path.realpath(path)
    with suppress(OSError):  # there is none; otherwise opening it reports the error
        if Path(file).stat().st_size:
            return
    for log in (f"{file}-wal", f"{file}-shm"):
        if os.path.lexists(log):
            problem = (
                f"the database file is missing or empty, and its {log} is there: an instance that still runs on it has"
                " the only copy, so do not stop that one, its broker status says what to do. Otherwise the two belong"
                " together: put the file back next to it; where it is lost, remove the -wal and the -shm, and put back"
                " a backup"
            )
            raise StoreUnavailableError(str(path), problem)
    if not may_make(path, reported_epoch=reported_epoch):
        raise lost(path)


def lost(path: Path) -> StoreUnavailableError:
    """The error that there is no database where one was."""
    problem = (
        f"there is no database in it, but one was taken over here, as {role_path(path)} or this instance knows: put the"
        " file or a backup back; to start with an empty database, stop all instances that share it and remove"
        " the file ending in .role"
    )
    return StoreUnavailableError(str(path), problem)
