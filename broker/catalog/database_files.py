"""
Database files: taken by an instance for as long as it runs, and judged by a check without being taken.

Taking a file has four steps. The file is locked, so that no other daemon has it. Its schema is made, or upgraded to
this release's. The fence refuses a copy of another file. One more start is noted; for a mirrored database that is a
takeover and raises its epoch. Giving the file back is the same in reverse.

A check asks a running instance on the admin socket for the settings that it runs by. The files of that instance count
as the check's own only when it runs from the same state directory. An error in the state directory is reported once,
for the directory itself, and not again for each file in it.

A timestamp that an instance wrote lately cannot be in the future. With a clock that is slow, routes live longer than
they should, lifetimes of messages are counted wrongly and certificates are "not valid before". Nothing is lost, so an
instance starts and logs a warning.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import structlog
from msgspec import Struct

from broker.catalog.catalog import MSDB
from broker.config.settings import Settings
from broker.config.toml import KeyPath
from broker.config.values import ListenAddress, clash, parse_listen
from broker.errors import SettingError, StoreUnavailableError
from broker.files import mount_problem, reported, room_problem, write_problem
from broker.protocol.layout import show_guid
from broker.store.sqlite.database import (
    HELD,
    broker_instance,
    check_links,
    is_locked,
    is_sqlite,
    lock_path,
    lock_store,
    open_store,
)
from broker.store.sqlite.file_identity import (
    RECORD,
    Sighting,
    compare_file,
    instances_at,
    lost_sentence,
    note_start,
    note_stop,
    replaced_at,
)
from broker.store.sqlite.role_file import check_remains, check_writable, may_make
from broker.store.sqlite.schema import OLDEST_VERSION, SCHEMA_VERSION, has_schema, schema_version
from broker.store.sqlite.transaction import DaemonConnection, damage, open_watch, sentence, translated

SLACK_SECONDS = 300.0  # machines that share a directory differ by less
LOST_HINT = (
    "put the file or a backup back, or mount its disk, then start again; to go on with a new, empty database: broker"
    " database create {}{}"
)
ONLY_COPY = "a daemon that runs has the only copy open: do not stop it, its broker status says what to do"
CREATED_HINT = (
    "put the file or a backup back before anything uses the new, empty one; to accept it: broker database keep {}{}"
)
STOP_IT = "stop the other instance, or give this one a separate state directory and files"
FREE_SPACE = "free space there, or name a directory on another disk"
_DIRECTORY = "create it for the user that runs the instance, or name another directory"
_FILE = "name an SQLite file, or one to be created in a directory that exists"
_RIGHTS = "give {} to the user that runs the instance, mode 0600"
_BESIDE = ("", "-wal", "-shm")  # of SQLite

log = structlog.get_logger(__name__)


# --- taking and giving back ---


def path_of(settings: Settings, name: str) -> Path:
    """The file of a database of the configuration, or of msdb."""
    return settings.instance.state_dir / "msdb.db" if name == MSDB else settings.databases[name].path


def take(
    settings: Settings,
    name: str,
    stack: ExitStack | AsyncExitStack,
    *,
    least_epoch: int | None = None,
    reported_epoch: int = 0,
) -> DaemonConnection:
    """
    Take a database of the configuration, or msdb. If another instance has taken it over since, that one commits,
    and this one does not.

    Args:
        settings: As `load_settings` gives them, with absolute paths.
        name: Name of the database.
        stack: Gives it back.
        least_epoch: As `note_start`.
        reported_epoch: Of the last takeover that was reported to this instance, 0 = none; the new one is higher.

    Raises:
        StoreUnavailableError: another daemon has it (`HELD`), it cannot be used, is gone (`check_remains`), or the
            takeover could not be reported to any instance; its epoch is as it was.
        SettingError: the file is a copy of what it should be.
    """
    path, state_dir = path_of(settings, name), settings.instance.state_dir
    configured: uuid.UUID | None = None if name == MSDB else settings.databases[name].broker_instance
    check_mounted(path)
    # A directory elsewhere that is missing is a mistake, or a disk that is not there; so is one of shared storage.
    if least_epoch is None and path.parent.is_relative_to(state_dir):
        make_directory(path.parent)
    if name == MSDB and (problem := clock_problem(state_dir, now=time.time())):
        log.warning("clock is behind", problem=problem, hint="set the clock of this machine")
    with ExitStack() as taken:
        taken.callback(os.close, lock_store(path))
        check_remains(path, reported_epoch=reported_epoch)
        is_new = may_make(path, reported_epoch=reported_epoch)
        if not may_create(settings, name):
            _check_not_lost(settings, name, path)
        db = taken.enter_context(closing(open_store(path, broker_instance=configured, may_make=is_new)))
        with translated(path), reported(path):
            sighting = sighted(settings, name, db, reported_epoch=reported_epoch)
            if sighting.problem:
                raise copy_error(settings, name, sighting.problem)
            if least_epoch is not None:
                check_writable(path)
                least_epoch = max(least_epoch, reported_epoch + 1)
            db.epoch = note_start(db, path, state_dir, least_epoch=least_epoch)
        if sighting.lost:
            hint = CREATED_HINT.format(name, settings.config_option)
            log.warning("database made anew", database=name, path=str(path), problem=sighting.lost, hint=hint)
        kept = taken.pop_all()
    stack.callback(_give_back, kept, path, state_dir, db.epoch)
    return db


def sighted(settings: Settings, name: str, db: sqlite3.Connection, *, reported_epoch: int = 0) -> Sighting:
    """
    Compare the file of a database with what is known of it, to distinguish it from its copies.

    Where a command decides the role, the copies are what an instance fails over to, and each has a separate number.
    """
    sighting = compare_file(db, path_of(settings, name), settings.instance.state_dir, reported_epoch=reported_epoch)
    is_copied_on_purpose = name != MSDB and settings.databases[name].mirroring == "command"
    return sighting._replace(known_number=None) if is_copied_on_purpose else sighting


def is_elsewhere(settings: Settings, name: str) -> bool:
    """True if a daemon has a mirrored database, so that no other process may open its file, not even to read."""
    is_mirrored = name != MSDB and settings.databases[name].mirroring != "off"
    return is_mirrored and is_locked(path_of(settings, name))


def _check_not_lost(settings: Settings, name: str, path: Path) -> None:
    problem = ""
    with suppress(sqlite3.Error, OSError):  # opening it reports these
        problem = lost_problem(settings, name)
    if problem:
        raise StoreUnavailableError(str(path), f"{problem}: {LOST_HINT.format(name, settings.config_option)}")


def may_create(settings: Settings, name: str) -> bool:
    """Whether an empty database is made where this instance had one that is gone."""
    return name != MSDB and settings.databases[name].create


def lost_problem(settings: Settings, name: str) -> str:
    """
    A sentence about the database that this instance had in a file and that is gone; empty when there was none.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read.
        sqlite3.Error, OSError: the file cannot be read.
    """
    path = path_of(settings, name)
    what = emptiness(path)
    problem = lost_sentence(instances_at(path, settings.instance.state_dir)) if what else ""
    return problem and f"the file is {what}: {problem}"


def key_of(name: str) -> KeyPath:
    """The setting that names the file of a database."""
    return ("instance", "state_dir") if name == MSDB else ("databases", name, "path")


def check_mounted(path: Path) -> None:
    """Check that the disk that a file belongs on is mounted; raises StoreUnavailableError."""
    problem = mount_problem(path.parent)
    if problem:
        raise StoreUnavailableError(str(path), f"{problem}: mount it, then start again")


def make_directory(directory: Path) -> None:
    """Make a directory of the instance where it is missing; raises StoreUnavailableError."""
    with reported(directory):
        directory.mkdir(parents=True, exist_ok=True)


def _give_back(kept: ExitStack, path: Path, state_dir: Path, epoch: int) -> None:
    with kept:
        try:
            note_stop(path, state_dir, epoch)
        except (sqlite3.Error, OSError, StoreUnavailableError) as error:
            log.warning("stop not noted", path=str(path), reason=str(error))


# --- checks ---


class RunningInstance(Struct, frozen=True):
    """
    An instance that runs.

    Attributes:
        state_dir: None when there is none.
        ports: Addresses on which it listens.
        files: Of its databases, msdb included, as `real` spells them.
        is_unknown: Whether it was not asked, so that no file is reported as taken by others, and no port is tried.
    """

    state_dir: Path | None = None
    ports: tuple[ListenAddress, ...] = ()
    files: frozenset[str] = frozenset()
    is_unknown: bool = False

    def has_port(self, address: ListenAddress) -> bool:
        """True if it is this instance that listens where no other can listen now."""
        return any(clash(address, one) for one in self.ports)

    def has_file(self, path: Path) -> bool:
        """Whether it is this instance that has a database open."""
        return self.is_unknown or real(path) in self.files


NOT_RUNNING = RunningInstance()
UNASKED = RunningInstance(is_unknown=True)


def real(path: str | Path) -> str:
    """The one spelling of a path, whichever links and directories it was reached by."""
    return os.path.realpath(path)


def owner_from(values: Mapping[str, object], *, state_dir: Path) -> RunningInstance:
    """The instance with these settings, by key as `in_force` returns them; NOT_RUNNING for another state directory."""
    if real(str(values.get("instance.state_dir"))) != real(state_dir):
        return NOT_RUNNING
    ports = [text for part in ("endpoint", "admin", "observe") for text in _texts(values.get(f"{part}.listen"))]
    files = [str(value) for key, value in values.items() if key.startswith("databases.") and key.endswith(".path")]
    return RunningInstance(
        state_dir, tuple(map(parse_listen, ports)), frozenset(map(real, [*files, str(state_dir / "msdb.db")]))
    )


def _texts(value: object) -> list[str]:
    """The addresses in a value: a list, one, or none."""
    found = value if isinstance(value, list) else [value]
    return [text for text in found if isinstance(text, str) and text]


def file_errors(settings: Settings, owner: RunningInstance) -> list[SettingError]:
    """
    Return the errors in the places and the contents of the configured files that keep them from being taken.

    A check takes none.

    Args:
        settings: As `load_settings` gives them, with absolute paths.
        owner: The instance that runs already and has these files open.
    """
    places = place_errors(settings)
    errors = [error for error in places.values() if error is not None]
    for name in (MSDB, *settings.databases):
        path = path_of(settings, name)
        if name in places or is_elsewhere(settings, name):
            continue
        try:
            check_mounted(path)
            if is_locked(path) and not owner.has_file(path):
                raise StoreUnavailableError(str(path), HELD)  # noqa: TRY301 - reported below as the others
            check_remains(path)
            is_moved = name != MSDB and settings.databases[name].mirroring == "command"
            problem = "" if is_moved or may_create(settings, name) else lost_problem(settings, name)
            if problem:
                hint = lost_hint(settings, name)
                errors.append(settings.error(key_of(name), f"{path}: {problem}", hint))
            if not path.is_file() or not path.stat().st_size:
                continue
            check_links(path)
            with closing(open_watch(path)) as db:
                errors += _file_errors(settings, name, db)
        except sqlite3.Error as error:
            errors.append(settings.error(key_of(name), f"{path}: {sentence(error)}"))
        except OSError as error:
            errors.append(settings.error(key_of(name), f"{path}: {error.strerror or error}"))
        except StoreUnavailableError as error:
            is_record = error.path == str(settings.instance.state_dir / RECORD)
            hint = (STOP_IT if path.exists() else ONLY_COPY) if error.problem == HELD else ""
            errors.append(settings.error(key_of(MSDB if is_record else name), str(error), hint))
    return errors


def file_warnings(settings: Settings) -> list[SettingError]:
    """Databases that were made in place of a lost one, or would be by a start."""
    warnings: list[SettingError] = []
    for name in (MSDB, *settings.databases):
        # A database that a command moves about with its disk is missing wherever the disk is not.
        if is_elsewhere(settings, name) or (name != MSDB and settings.databases[name].mirroring == "command"):
            continue
        path = path_of(settings, name)
        with suppress(sqlite3.Error, OSError, StoreUnavailableError):  # `file_errors` reports it
            check_remains(path)
            lost = lost_problem(settings, name) if may_create(settings, name) else ""
            problem = lost or replaced_at(path, settings.instance.state_dir)
            if problem:
                hint = lost_hint(settings, name) if lost else CREATED_HINT.format(name, settings.config_option)
                warnings.append(settings.error(key_of(name), f"{path}: {problem}", hint))
    return warnings


def lost_hint(settings: Settings, name: str) -> str:
    """What to do about a database that is missing."""
    return ONLY_COPY if is_locked(path_of(settings, name)) else LOST_HINT.format(name, settings.config_option)


def emptiness(path: Path) -> str:
    """In which way there is no database in a file; empty when there is one."""
    if not path.exists():
        return "missing"
    if not path.stat().st_size:
        return "empty"
    with closing(open_watch(path)) as db:
        return "" if has_schema(db) else "without tables of the broker"


def _file_errors(settings: Settings, name: str, db: sqlite3.Connection) -> Iterator[SettingError]:
    if not has_schema(db):
        return
    path, version = path_of(settings, name), schema_version(db)
    problem = damage(db)
    if problem:
        yield settings.error(key_of(name), f"{path}: {problem}")
        return
    configured = None if name == MSDB else settings.databases[name].broker_instance
    if not OLDEST_VERSION <= version <= SCHEMA_VERSION:
        problem = f"{path}: its schema has version {version}, this release knows {SCHEMA_VERSION}"
        yield settings.error(key_of(name), problem, "use a newer release, or put back a backup from before")
    elif configured is not None and broker_instance(db) != configured.bytes:
        there = show_guid(broker_instance(db))
        problem = f"{path}: its broker instance is {there}, the configuration says {show_guid(configured)}"
        hint = "name the file that has it, or leave broker_instance out"
        yield settings.error(("databases", name, "broker_instance"), problem, hint)
    elif version == SCHEMA_VERSION:
        problem = sighted(settings, name, db).problem
        if problem:
            yield copy_error(settings, name, problem)


def copy_error(settings: Settings, name: str, problem: str) -> SettingError:
    """Return the error that the file of this database is not what it should be."""
    which = f"{name}{settings.config_option}"
    hint = (
        f"if it is the one to go on with, moved or restored: broker database keep {which}; if it shall be used along"
        f" with the original: broker database reset-identity {which}; --dry-run shows what that changes"
    )
    return settings.error(key_of(name), f"{problem} ({path_of(settings, name)})", hint)


def place_errors(settings: Settings) -> dict[str, SettingError | None]:
    """
    Return, by database, the errors that keep the files from being opened or made; for msdb, of the state directory.

    None for a file in a state directory that cannot be used. Nothing that the system refuses is raised.
    """
    state_dir = settings.instance.state_dir
    found: dict[str, SettingError | None] = {}
    state_problem = _state_problem(settings)
    if state_problem is not None:
        found[MSDB] = settings.error(key_of(MSDB), *state_problem)
    for name in (MSDB, *settings.databases):
        path = path_of(settings, name)
        if state_problem is not None and path.is_relative_to(state_dir):
            found.setdefault(name, None)
        elif not is_elsewhere(settings, name) and (problem := _database_problem(path, state_dir)) is not None:
            found[name] = settings.error(key_of(name), *problem)
    return found


def _state_problem(settings: Settings) -> tuple[str, str] | None:
    """The problem of the state directory, and what to do; None when there is none."""
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
    return None if problem is None else (problem, FREE_SPACE)


def _database_problem(path: Path, state_dir: Path) -> tuple[str, str] | None:
    """Return the problem that keeps this file from being opened or created as a database, and what to do."""
    directory = path.parent
    # Directories in the state directory are created at start; the state directory is reported for itself.
    if directory.is_relative_to(state_dir) and not os.path.exists(path):  # noqa: PTH110 - the other raises what is refused
        return None if directory == state_dir else _directory_problem(directory)
    if not os.path.isdir(directory):  # noqa: PTH112 - as above
        return f'the directory "{directory}" does not exist', _FILE
    problem = _directory_problem(directory)  # SQLite writes its journal in the same directory
    is_there = os.path.exists(path)  # noqa: PTH110 - as above
    return _file_problem(path, state_dir) if problem is None and is_there else problem


def _file_problem(path: Path, state_dir: Path) -> tuple[str, str] | None:
    closed = _closed_files(path, state_dir)
    if closed:
        names = ", ".join(f'"{one}"' for one in closed)
        return f"{names} may not be read and written", _RIGHTS.format("them" if len(closed) > 1 else "it")
    hint = "move it away" if path == state_dir / "msdb.db" else _FILE
    if not os.path.isfile(path):  # noqa: PTH113 - the other raises what the system refuses
        return f'"{path}" is not a regular file', hint
    try:
        is_database = is_sqlite(path)
    except sqlite3.Error as error:
        return f'"{path}" cannot be read: {error}', _FILE
    return None if is_database else (f'"{path}" is not an SQLite file', f"{hint}; if it was one, put back a backup")


def _closed_files(path: Path, state_dir: Path) -> list[str]:
    """Return those existing files of a database, and with msdb of the instance, that belong to another user."""
    needed = dict.fromkeys([*(f"{path}{end}" for end in _BESIDE), lock_path(path)], os.R_OK | os.W_OK)
    if path == state_dir / "msdb.db":
        record = f"{state_dir / RECORD}"
        needed |= {record: os.R_OK, f"{record}.lock": os.R_OK | os.W_OK}  # the record is replaced, not written
    may = {one: os.access(one, rights, effective_ids=True) for one, rights in needed.items()}
    return [one for one, is_open in may.items() if not is_open and os.path.lexists(one)]


def clock_problem(state_dir: Path, *, now: float) -> str | None:
    """
    Return a description of a clock that is slow, by the time of the instance's record; None if it seems right.

    Args:
        state_dir: Of an instance, which writes its record there at every start and stop.
        now: UTC seconds.
    """
    try:
        used_at = (state_dir / RECORD).stat().st_mtime
    except OSError:
        return None
    if used_at <= now + SLACK_SECONDS:
        return None
    here, there = (datetime.fromtimestamp(one, UTC).strftime("%Y-%m-%d %H:%M UTC") for one in (now, used_at))
    return f"the clock says {here}, and this instance was last started or stopped at {there}, which is later"
