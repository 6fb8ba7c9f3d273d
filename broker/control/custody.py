"""
The database files of an instance, each taken for as long as it runs.

Taking one is: its lock, so that no other daemon has it; its schema, made or brought up to this release's; the fence,
which refuses a copy of another file; and one more start noted, which of a mirrored database is a takeover and raises
its epoch. Giving it back is the same in reverse.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from broker.control.catalog import MSDB
from broker.control.place import KeyPath
from broker.errors import SettingError, StoreUnavailableError
from broker.store.database import (
    SCHEMA_VERSION,
    Connection,
    check_links,
    has_schema,
    is_locked,
    lock_store,
    open_store,
    open_watch,
    schema_version,
)
from broker.store.fault import sentence
from broker.store.fence import Sighting, look, note_start, note_stop
from broker.store.remains import check_remains, may_make
from broker.store.role_file import check_reign

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator

    from broker.control.config import Settings

log = structlog.get_logger(__name__)


class Stack(Protocol):
    """What gives everything back in reverse: an exit stack of either kind."""

    def callback(self, call: Callable[..., object], /, *arguments: object) -> object:
        """Call this at the end."""


def path_of(settings: Settings, name: str) -> Path:
    """The file of a database of the configuration, or of msdb."""
    return settings.instance.state_dir / "msdb.db" if name == MSDB else settings.databases[name].path


def take(settings: Settings, name: str, stack: Stack, *, least_epoch: int | None = None, told: int = 0) -> Connection:
    """
    Take a database of the configuration, or msdb. Whoever has taken it over since commits, and we do not.

    Args:
        settings: As `load_settings` gives them, with absolute paths.
        name: Which one.
        stack: Gives it back.
        least_epoch: As `note_start`.
        told: The epoch of the last takeover of which this instance was told, 0 = of none; the new one is higher.

    Raises:
        StoreUnavailableError: another daemon has it (`HELD`), it cannot be used, is gone (`check_remains`), or nobody
            could be told of the takeover; its epoch is as it was.
        SettingError: the file is a copy of what it should be.
    """
    path, state_dir = path_of(settings, name), settings.instance.state_dir
    configured: uuid.UUID | None = None if name == MSDB else settings.databases[name].broker_instance
    if least_epoch is None:  # else it is shared storage, and a directory that is missing is not mounted
        make_directory(path.parent)
    with ExitStack() as taken:
        taken.callback(os.close, lock_store(path))
        check_remains(path, told=told)
        is_new = may_make(path, told=told)
        db = taken.enter_context(closing(open_store(path, broker_instance=configured, may_make=is_new)))
        try:
            problem = sighted(settings, name, db, told=told).problem
            if problem:
                raise copy_error(settings, name, problem)
            if least_epoch is not None:
                check_reign(path)
                least_epoch = max(least_epoch, told + 1)
            db.epoch = note_start(db, path, state_dir, least_epoch=least_epoch)
        except sqlite3.Error as error:
            raise StoreUnavailableError(str(path), sentence(error)) from error
        except OSError as error:
            raise StoreUnavailableError(str(path), error.strerror or str(error)) from error
        kept = taken.pop_all()
    stack.callback(_give_back, kept, path, state_dir, db.epoch)
    return db


def sighted(settings: Settings, name: str, db: sqlite3.Connection, *, told: int = 0) -> Sighting:
    """
    What tells the file of a database from its copies.

    Where a command tells the role, copies are what there is to fail over to, each with a number of its own.
    """
    sighting = look(db, path_of(settings, name), settings.instance.state_dir, told=told)
    is_copied_on_purpose = name != MSDB and settings.databases[name].mirroring == "command"
    return replace(sighting, known_number=None) if is_copied_on_purpose else sighting


def is_elsewhere(settings: Settings, name: str) -> bool:
    """Whether a daemon has a mirrored database, so that nobody else may open its file, not even to look."""
    is_mirrored = name != MSDB and settings.databases[name].mirroring != "off"
    return is_mirrored and is_locked(path_of(settings, name))


def file_errors(settings: Settings) -> list[SettingError]:
    """What keeps the files of the configuration from being taken, by what is in them; for a check, which takes none."""
    errors: list[SettingError] = []
    for name in (MSDB, *settings.databases):
        path = path_of(settings, name)
        if is_elsewhere(settings, name):
            continue
        try:
            check_remains(path)
            if not path.is_file():
                continue
            check_links(path)
        except StoreUnavailableError as error:
            errors.append(settings.error(_key(name), str(error)))
            continue
        try:
            with closing(open_watch(path)) as db:
                errors += _file_errors(settings, name, db)
        except (sqlite3.Error, OSError):
            continue  # told as what it is by others
        except StoreUnavailableError as error:
            errors.append(settings.error(("instance", "state_dir"), str(error)))
    return errors


def _file_errors(settings: Settings, name: str, db: sqlite3.Connection) -> Iterator[SettingError]:
    if not has_schema(db):
        return
    path, version = path_of(settings, name), schema_version(db)
    if version > SCHEMA_VERSION:
        problem = f"{path}: its schema has version {version}, this release knows {SCHEMA_VERSION}"
        yield settings.error(_key(name), problem, "use a newer release, or put back a backup from before")
    elif version == SCHEMA_VERSION:
        problem = sighted(settings, name, db).problem
        if problem:
            yield copy_error(settings, name, problem)


def copy_error(settings: Settings, name: str, problem: str) -> SettingError:
    """That the file of this database is not what it should be."""
    hint = (
        f"if it is the one to go on with, moved or restored: broker database keep {name}; if it shall live beside the"
        f" original: broker database new {name}; --dry-run tells what that means"
    )
    return settings.error(_key(name), f"{problem} ({path_of(settings, name)})", hint)


def _key(name: str) -> KeyPath:
    return ("instance", "state_dir") if name == MSDB else ("databases", name, "path")


def make_directory(directory: Path) -> None:
    """Make a directory of the instance where it is missing; raises StoreUnavailableError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailableError(str(directory), error.strerror or str(error)) from error


def _give_back(kept: ExitStack, path: Path, state_dir: Path, epoch: int) -> None:
    with kept:
        try:
            note_stop(path, state_dir, epoch)
        except (sqlite3.Error, OSError, StoreUnavailableError) as error:
            log.warning("stop not noted", path=str(path), reason=str(error))
