"""
What is left of a database whose file is gone: from it follows that no new one may be made in its place.

A new, empty database with the identity of a lost one would acknowledge what the lost one had, and begin its sequence
numbers anew. So a file is only made where nothing tells that there was one: no log (`-wal`, `-shm`) without its file,
nobody who took it over (`role_file`), and nobody of whom this instance was told.
"""

from __future__ import annotations

import os
from pathlib import Path

from broker.errors import StoreUnavailableError
from broker.store.role_file import role_path


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
