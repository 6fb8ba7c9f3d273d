"""
Who is the principal of a database, told beside its file to those that must not open it.

A mirror answers for a database whose file somebody else has open, on storage that both see. SQLite allows one machine
at a time to have the file open, so what a mirror has to know stands in a small file of its own, which the principal
writes whenever it has taken the database over. It is told, never believed: the epoch that counts is in the database.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from broker.errors import StoreUnavailableError
from broker.store.record import write_record

_MAX_BYTES = 64 * 1024  # a file that is longer is not ours


@dataclass(frozen=True, slots=True)
class Reign:
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


def write_reign(path: Path, reign: Reign) -> None:
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


def read_reign(path: Path) -> Reign | None:
    """
    Who took over the database of this file last; None when nobody has.

    Raises:
        StoreUnavailableError: it cannot be read.
    """
    file = role_path(path)
    try:
        with file.open("rb") as stream:
            found = json.loads(stream.read(_MAX_BYTES))
        instance, epoch = uuid.UUID(found["broker_instance"]).bytes, int(found["epoch"])
        return Reign(instance, epoch, str(found["principal"]), float(found["since"]))
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
