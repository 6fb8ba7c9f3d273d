"""
Who is the principal of a database, told beside its file to those that must not open it.

A mirror answers for a database whose file somebody else has open, on storage that both see. SQLite allows one machine
at a time to have the file open, so what a mirror has to know stands in a small file of its own, which the principal
writes whenever it has taken the database over. The epoch that counts is in the database; but a database with a lower
one than is told here is an older copy (`fence`), and where there is none any more, none is made (`remains`).
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from broker.errors import StoreUnavailableError
from broker.files import check_record, write_record
from broker.routing.mirrored import EPOCH_MAX

_MAX_BYTES = 64 * 1024  # a file that is longer is not ours
_EPOCH_TOLD_MAX = EPOCH_MAX // 4 * 3  # takeovers go on from there, and nobody has ever come so far
_SINCE_MAX = 253_402_300_799.0  # the end of the year 9999: later is no time that could be told


class PrincipalRecord(NamedTuple):
    """
    Who is, or was, the principal.

    Shape: `broker_instance` 16 bytes; `principal` the name of the instance; `since` UTC seconds since 1970.
    """

    broker_instance: bytes
    epoch: int
    principal: str
    since: float


def role_path(path: Path) -> Path:
    """Where it is told, by whichever name the database file is known."""
    return Path(f"{os.path.realpath(path)}.role")


def write_reign(path: Path, reign: PrincipalRecord) -> None:
    """
    Tell the mirrors who has taken over the database of this file.

    Raises:
        StoreUnavailableError: it cannot be written.
    """
    values = {
        "broker_instance": str(uuid.UUID(bytes=reign.broker_instance)),
        "epoch": reign.epoch,
        "principal": reign.principal,
        "since": reign.since,
    }
    write_record(role_path(path), values)


def check_reign(path: Path) -> None:
    """
    See that it can be told who takes the database of this file over; for what nobody is told of must not happen.

    Raises:
        StoreUnavailableError: it cannot be written.
    """
    check_record(role_path(path))


def told_epoch(path: Path) -> int:
    """
    The epoch of the last takeover, as it is told; 0 when nobody tells one that can be understood.

    Raises:
        StoreUnavailableError: it cannot be read.
    """
    try:
        reign = read_reign(path)
    except StoreUnavailableError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return 0  # damaged: the next one who takes it over writes it anew
    return 0 if reign is None else reign.epoch


def read_reign(path: Path) -> PrincipalRecord | None:
    """
    Who took over the database of this file last; None when nobody has.

    Raises:
        StoreUnavailableError: it cannot be read.
    """
    file = role_path(path)
    try:
        with file.open("rb") as stream:
            return _reign(json.loads(stream.read(_MAX_BYTES)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailableError(str(file), error.strerror or str(error)) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        problem = (
            "it does not hold what the principal wrote into it: remove it; the next one who takes the database over"
            " writes it anew"
        )
        raise StoreUnavailableError(str(file), problem) from error


def _reign(found: Any) -> PrincipalRecord:
    """What the file says. Raises ValueError, TypeError, KeyError or AttributeError."""
    instance, epoch, principal, since = (found[one] for one in ("broker_instance", "epoch", "principal", "since"))
    is_epoch = type(epoch) is int and 0 <= epoch <= _EPOCH_TOLD_MAX
    is_time = type(since) in {int, float} and 0 <= since <= _SINCE_MAX
    if not (is_epoch and is_time and isinstance(principal, str)):
        raise ValueError
    return PrincipalRecord(uuid.UUID(instance).bytes, epoch, principal, float(since))


# --- remains ---
# What is left of a database whose file is gone: from it follows that no new one may be made in its place.
#
# A new, empty database with the identity of a lost one would acknowledge what the lost one had, and begin its
# sequence
# numbers anew. So a file is only made where nothing tells that there was one: no log (`-wal`, `-shm`) without its
# file,
# nobody who took it over (`role_file`), and nobody of whom this instance was told.


def may_make(path: Path, *, told: int = 0) -> bool:
    """
    Whether a database may be made in this file when it has none.

    Args:
        path: The file.
        told: The epoch of the last takeover of which this instance was told, 0 = of none.
    """
    return not told and not os.path.lexists(role_path(path))


def check_remains(path: Path, *, told: int = 0) -> None:
    """
    See that a file that is missing or empty may be made; nothing is changed.

    Args:
        path: The file.
        told: As for `may_make`.

    Raises:
        StoreUnavailableError: it must not be.
    """
    file = os.path.realpath(path)
    try:
        if Path(file).stat().st_size:
            return
    except OSError:
        pass  # there is none; else whoever opens it tells
    for log in (f"{file}-wal", f"{file}-shm"):
        if os.path.lexists(log):
            problem = (
                f"the database file is missing or empty, and its {log} is there: the two belong together, so put the"
                " file back beside it; where it is lost, remove the -wal and the -shm, and put back a backup"
            )
            raise StoreUnavailableError(str(path), problem)
    if not may_make(path, told=told):
        raise lost(path)


def lost(path: Path) -> StoreUnavailableError:
    """That there is no database where one was."""
    problem = (
        f"there is no database in it, but one was taken over here, as {role_path(path)} or this instance knows: put the"
        " file or a backup back; to begin anew with an empty database, stop all instances that share it and remove"
        " the file ending in .role"
    )
    return StoreUnavailableError(str(path), problem)
