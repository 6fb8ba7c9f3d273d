"""
Whether the files of the databases can be where the settings say: found out by looking, and by making a file there.

What is wrong with the state directory is told once, for itself, and not again of each file in it.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from broker.control.catalog import MSDB
from broker.control.custody import check_mounted, is_elsewhere, key_of, path_of
from broker.control.writable import room_problem, write_problem
from broker.errors import SettingError, StoreUnavailableError
from broker.store.database import is_sqlite, lock_path
from broker.store.fence import RECORD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.control.config import Settings

MAKE_ROOM = "make room there, or name a directory on another disk"
_DIRECTORY = "create it for the user that runs the instance, or name another directory"
_FILE = "name an SQLite file, or one to be created in a directory that exists"
_RIGHTS = "give {} to the user that runs the instance, mode 0600"
_BESIDE = ("", "-wal", "-shm")  # of SQLite


def place_errors(settings: Settings) -> dict[str, SettingError]:
    """
    What keeps the files from being opened or made, by database; of msdb what is wrong with the state directory.

    A file in a state directory that cannot be used is not told of. Nothing that the system refuses is raised.
    """
    state_dir = settings.instance.state_dir
    found: dict[str, SettingError] = {}
    told = _state_problem(settings)
    if told is not None:
        found[MSDB] = settings.error(key_of(MSDB), *told)
    for name in (MSDB, *settings.databases):
        path = path_of(settings, name)
        if (told is not None and path.is_relative_to(state_dir)) or is_elsewhere(settings, name):
            continue
        problem = _database_problem(path, state_dir)
        if problem is not None:
            found[name] = settings.error(key_of(name), *problem)
    return found


def out_of_reach(settings: Settings, told: Mapping[str, SettingError]) -> set[str]:
    """Databases in a state directory that cannot be used, so that nothing else can be said of their files."""
    if MSDB not in told or _state_problem(settings) is None:
        return set()
    state_dir = settings.instance.state_dir
    return {name for name in (MSDB, *settings.databases) if path_of(settings, name).is_relative_to(state_dir)}


def _state_problem(settings: Settings) -> tuple[str, str] | None:
    """What is wrong with the state directory, and what to do; None when nothing is."""
    try:
        check_mounted(path_of(settings, MSDB))
    except StoreUnavailableError as error:
        return error.problem, _DIRECTORY
    return _directory_problem(settings.instance.state_dir)


def _directory_problem(directory: Path) -> tuple[str, str] | None:
    problem = write_problem(directory)
    if problem is not None:
        return problem, _DIRECTORY
    problem = room_problem(directory)
    return None if problem is None else (problem, MAKE_ROOM)


def _database_problem(path: Path, state_dir: Path) -> tuple[str, str] | None:
    """What keeps this file from being opened or created as a database, and what to do."""
    directory = path.parent
    # Directories in the state directory are created at start; it is reported for itself.
    if directory.is_relative_to(state_dir) and not os.path.exists(path):  # noqa: PTH110 - the other raises what is refused
        return None if directory == state_dir else _directory_problem(directory)
    if not os.path.isdir(directory):  # noqa: PTH112 - as above
        return f'the directory "{directory}" does not exist', _FILE
    problem = _directory_problem(directory)  # SQLite writes its journal beside the file
    is_there = os.path.exists(path)  # noqa: PTH110 - as above
    return _file_problem(path, state_dir) if problem is None and is_there else problem


def _file_problem(path: Path, state_dir: Path) -> tuple[str, str] | None:
    closed = _closed_files(path, state_dir)
    if closed:
        names = ", ".join(f'"{one}"' for one in closed)
        return f"{names} may not be read and written", _RIGHTS.format("them" if len(closed) > 1 else "it")
    hint = "move it away" if path == state_dir / "msdb.db" else _FILE
    if not os.path.isfile(path):  # noqa: PTH113 - as above
        return f'"{path}" is no plain file', hint
    try:
        is_database = is_sqlite(path)
    except sqlite3.Error as error:
        return f'"{path}" cannot be read: {error}', _FILE
    return None if is_database else (f'"{path}" is no SQLite file', f"{hint}; if it was one, put back a backup")


def _closed_files(path: Path, state_dir: Path) -> list[str]:
    """Which files of a database, and with msdb of the instance, are there and belong to somebody else."""
    needed = dict.fromkeys([*(f"{path}{end}" for end in _BESIDE), lock_path(path)], os.R_OK | os.W_OK)
    if path == state_dir / "msdb.db":
        record = f"{state_dir / RECORD}"
        needed |= {record: os.R_OK, f"{record}.lock": os.R_OK | os.W_OK}  # the record is replaced, not written
    may = {one: os.access(one, rights, effective_ids=True) for one, rights in needed.items()}
    return [one for one, is_open in may.items() if not is_open and os.path.lexists(one)]
