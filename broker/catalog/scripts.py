"""
The scripts that a configuration names: which files they are, running them at a start, and again when they change.

Patterns count in the order given, the files of one pattern in the order of their names, each file once. A path that
names one file is a promise: without its routes an instance would drop what it should forward, so it does not start. A
pattern may match nothing: a directory of scripts can be empty, and a check only warns. A directory that may not be read
is not an empty one.

Where a script of a database has changed, was added or removed, all of that database's scripts are executed again, in
their order and as at a start; the scripts of other databases are left alone. All scripts that are executed are one
change: a mistake in one of them, and nothing has happened. A definition that was removed from a script stays, as it
does at a start: only DROP takes something away, and a reload that prunes (`broker.catalog.unscripted`).
"""

from __future__ import annotations

import asyncio
import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import structlog

from broker.catalog.catalog import MSDB, Auditing, Catalog, ScriptProgress
from broker.catalog.execute import execute
from broker.config.settings import Settings
from broker.config.toml import KeyPath
from broker.ddl.lexer import decode_script
from broker.ddl.parser import read_script
from broker.ddl.statements import Statement, UseDatabase
from broker.errors import DdlSyntaxError, SettingError, SettingsError, StatementError

TELL_SECONDS = 5.0  # between two log lines about a long script

log = structlog.get_logger(__name__)

_ESCAPED = re.compile(r"\[([\[*?])\]")  # by glob.escape, for a directory with such a name

State: TypeAlias = Mapping[str, tuple[tuple[Path, bytes], ...]]
"""The scripts of each database in their order, each with a digest of what is in it."""


# --- files ---


def script_files(patterns: Iterable[str]) -> list[Path]:
    """The files that exist; patterns are absolute, as `load_settings` makes them."""
    return list(dict.fromkeys(path for pattern in patterns for path in _matches(pattern)))


def closed_directory(pattern: str) -> str | None:
    """
    A directory that a pattern leads into and that this user may not read, so that its matches are unknown.

    Cost: one check of each directory that the pattern leads through.
    """
    parts = Path(pattern).parts
    for end in range(1, len(parts)):
        if glob.has_magic(parts[end]):
            above = os.path.join(*parts[:end])  # noqa: PTH118 - a pattern, no path
            beneath = os.path.join(above, "**", "") if parts[end] == "**" else above  # noqa: PTH118 - a pattern, no path
            found = glob.glob(above, recursive=True) + glob.glob(beneath, recursive=True)  # noqa: PTH207
            closed = next((one for one in found or [unescaped(above)] if _is_closed(one)), None)
            if closed is not None:
                return closed
    return None


def unescaped(pattern: str) -> str:
    """The path that a pattern without any magic means, as glob.escape has written it."""
    return _ESCAPED.sub(r"\1", pattern)


def _is_closed(directory: str) -> bool:
    try:
        mode = os.stat(directory).st_mode  # noqa: PTH116 - as above
    except PermissionError:
        return True
    except OSError:
        return False
    return stat.S_ISDIR(mode) and not os.access(directory, os.R_OK | os.X_OK, effective_ids=True)


def _matches(pattern: str) -> list[Path]:
    found = (Path(name) for name in sorted(glob.glob(pattern, recursive=True)))  # noqa: PTH207 - absolute patterns
    return [path for path in found if os.path.isfile(path)]  # noqa: PTH113 - the other raises what the system refuses


def is_pattern(path: str) -> bool:
    """Whether a path, made absolute by `load_settings`, may mean any number of files, none included."""
    return glob.has_magic(_ESCAPED.sub("", path))


def scripts_problem(settings: Settings, key: KeyPath, path: str) -> tuple[SettingError, bool] | None:
    """What is wrong with a path of scripts, and whether a start fails by it: a pattern may match nothing."""
    directory = closed_directory(path) if is_pattern(path) else None
    if directory is not None:
        hint = "let the user that runs the instance read and enter it, and read the files in it"
        return settings.error(key, f'"{path}": the directory "{directory}" may not be looked into', hint), True
    if _matches(path):
        return None
    hint = "correct the path; it is relative to the configuration file's directory"
    problem = "matches no file" if is_pattern(path) else "does not exist, or is not a regular file"
    return settings.error(key, f'"{path}" {problem}', hint), not is_pattern(path)


def scripts_setting(settings: Settings, name: str) -> tuple[KeyPath, tuple[str, ...]]:
    """The setting that names the scripts of a database, or of msdb, and its patterns."""
    if name == MSDB:
        return ("routes", "files"), settings.routes.files
    return ("databases", name, "scripts"), settings.databases[name].scripts


def named_scripts(settings: Settings, name: str) -> list[Path]:
    """
    The scripts of a database, or of msdb, in the order in which they are read.

    Raises:
        SettingError: a path that is not a pattern leads to no file, or a directory may not be read.
    """
    key, patterns = scripts_setting(settings, name)
    for number, path in enumerate(patterns):
        error, is_severe = scripts_problem(settings, (*key, number), path) or (None, False)
        if error is not None and is_severe:
            raise error
    return script_files(patterns)


# --- at a start ---


async def run_declared(catalog: Catalog, path: Path, database: str, seen_by: Auditing | None = None) -> None:
    """
    Carry out a script file, wholly or not at all; `seen_by` records it.

    Raises:
        StatementError, StoreUnavailableError: as `execute`.
        DdlSyntaxError: it is not text.
        SettingError: it cannot be read.
    """
    text = await asyncio.to_thread(_read, path)
    progress = ScriptProgress(str(path), len(text), seen_by=seen_by)
    statements = read_script(text, source=progress.source)
    telling = asyncio.get_running_loop().create_task(_tell(progress), name=f"progress of {path}")
    try:
        await execute(catalog, statements, database=database, is_declared=True, progress=progress)
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


def _read(path: Path) -> str:
    try:
        return decode_script(path.read_bytes(), source=str(path))
    except OSError as error:
        hint = "make it readable for the instance"
        raise SettingError(str(path), f"cannot be read: {error.strerror}", None, hint) from error


async def _tell(progress: ScriptProgress) -> None:
    while True:
        await asyncio.sleep(TELL_SECONDS)
        log.info(
            "script running",
            script=progress.source,
            stage=progress.stage.value,
            statements=progress.statements,
            percent=progress.position * 100 // max(1, progress.size),
        )


# --- when they have changed ---


class Permitting(Auditing, Protocol):
    """Decides which statements may be executed, and records them."""

    def permitted(self, statements: Iterable[Statement | DdlSyntaxError]) -> Iterator[Statement | DdlSyntaxError]:
        """Pass on those that are permitted; raises when the next one is not."""


def look(settings: Settings) -> State:
    """Return the scripts as they are now. Blocking; a file that cannot be read is reported when it is executed."""
    patterns = {name: scripts_setting(settings, name)[1] for name in (MSDB, *settings.databases)}
    return {name: tuple((path, _digest(path)) for path in script_files(some)) for name, some in patterns.items()}


def differing(found: State, before: State) -> list[str]:
    """The databases whose scripts have changed, msdb first, those that no longer have any among them."""
    return [name for name, scripts in found.items() if scripts != before.get(name, ())]


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError as error:
        return str(error).encode()


async def run_changed(
    catalog: Catalog,
    settings: Settings,
    scripts: State,
    databases: Iterable[str],
    seen_by: Permitting,
    *,
    drops: Sequence[tuple[str, Statement]] = (),
) -> list[str]:
    """
    Carry out the scripts of these databases, then `drops`, statements with their databases; all or none.

    Databases that are elsewhere get theirs when they arrive.

    Returns:
        The messages of `execute` about what was done.

    Raises:
        SettingsError: a script cannot be executed; nothing has changed.
        StoreUnavailableError: as `execute`.
    """
    here = [name for name in databases if name in catalog.databases]
    if not here and not drops:
        return []
    source = ", ".join(str(path) for name in here for path, _ in scripts[name])
    size = await asyncio.to_thread(lambda: sum(path.stat().st_size for name in here for path, _ in scripts[name]))
    reading = MSDB

    def read() -> Iterator[Statement | DdlSyntaxError]:
        """Each script begins in its own database."""
        nonlocal reading
        for reading in here:
            for path, _ in scripts[reading]:
                yield UseDatabase(reading)
                yield from read_script(decode_script(path.read_bytes(), source=str(path)), source=str(path))
        for name, drop in drops:
            yield from (UseDatabase(name), drop)

    try:
        statements = seen_by.permitted(read())
        progress = ScriptProgress(source, size, seen_by=seen_by)
        return await execute(catalog, statements, database=MSDB, is_declared=True, progress=progress)
    except StatementError as error:
        found = settings.error(scripts_setting(settings, reading)[0], f"error {error.number}: {error.problem}", "")
        found.span = error.span or found.span
        raise SettingsError([found]) from error
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise SettingsError([SettingError(str(error.filename), problem, None, "make it readable")]) from error
