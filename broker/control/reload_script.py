"""
The scripts of the configuration when it is read again: which have changed, and carrying those out.

Where a script of a database has changed, has come or has gone, all of that database's scripts are carried out again, in
their order and as at a start (`broker.control.effect`); the scripts of other databases are left alone. All that are
carried out are one change: a mistake in one of them, and nothing has happened. What a script does not say any more
stays, as it does at a start: only DROP takes something away.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from broker.control.catalog import MSDB, Catalog
from broker.control.config import Settings
from broker.control.execute import execute
from broker.control.place import KeyPath
from broker.control.progress import Auditing, ScriptProgress
from broker.control.script import script_files
from broker.ddl.parser import read_script
from broker.ddl.statements import Statement, UseDatabase
from broker.ddl.text import decode_script
from broker.errors import DdlSyntaxError, SettingError, SettingsError, StatementError

State: TypeAlias = Mapping[str, tuple[tuple[Path, bytes], ...]]
"""The scripts of each database in their order, each with a digest of what is in it."""


class Permitting(Auditing, Protocol):
    """Whoever says which statements may be carried out, and sees them."""

    def permitted(self, statements: Iterable[Statement | DdlSyntaxError]) -> Iterator[Statement | DdlSyntaxError]:
        """These, as far as they may; raises when one that may not is taken."""


@dataclass(slots=True)
class Scripts:
    """The scripts as they were carried out last. Shape: `done` as `look` gives it."""

    done: State = field(default_factory=dict)

    def are_others(self, found: State) -> bool:
        """Whether anything about scripts has changed, be it that there are none any more."""
        return any(scripts != self.done.get(name, ()) for name, scripts in found.items())

    def changed(self, found: State) -> list[str]:
        """The databases whose scripts are others now, msdb first; those that have none any more have nothing to do."""
        return [name for name, scripts in found.items() if scripts and scripts != self.done.get(name, ())]


def look(settings: Settings) -> State:
    """The scripts as they are now. Blocking; a file that cannot be read is told when it is carried out."""
    patterns = {MSDB: settings.routes.files} | {name: one.scripts for name, one in settings.databases.items()}
    return {name: tuple((path, _digest(path)) for path in script_files(some)) for name, some in patterns.items()}


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError as error:
        return str(error).encode()


async def run_changed(
    catalog: Catalog, settings: Settings, scripts: State, databases: Iterable[str], seen_by: Permitting
) -> list[str]:
    """
    Carry out the scripts of these databases, all of them or none. Those that are elsewhere have theirs when they come.

    Returns:
        What was done, as `execute` tells it.

    Raises:
        SettingsError: a script cannot be carried out; nothing has changed.
        StoreUnavailableError: as `execute`.
    """
    here = [name for name in databases if name in catalog.databases]
    if not here:
        return []
    source = ", ".join(str(path) for name in here for path, _ in scripts[name])
    size = await asyncio.to_thread(lambda: sum(path.stat().st_size for name in here for path, _ in scripts[name]))
    reading = _ScriptReader()
    try:
        statements = seen_by.permitted(reading.statements({name: scripts[name] for name in here}))
        progress = ScriptProgress(source, size, seen_by=seen_by)
        return await execute(catalog, statements, database=MSDB, is_declared=True, progress=progress)
    except StatementError as error:
        name = reading.database
        key: KeyPath = ("routes", "files") if name == MSDB else ("databases", name, "scripts")
        found = settings.error(key, f"error {error.number}: {error.problem}", "correct the statement")
        found.span = error.span or found.span
        raise SettingsError([found]) from error
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise SettingsError([SettingError(str(error.filename), problem, None, "make it readable")]) from error


@dataclass(slots=True)
class _ScriptReader:
    """Several scripts as one. Shape: `database` whose script is being read."""

    database: str = MSDB

    def statements(self, scripts: State) -> Iterator[Statement | DdlSyntaxError]:
        """Each script begins in its own database."""
        for name, files in scripts.items():
            self.database = name
            for path, _ in files:
                yield UseDatabase(name)
                yield from read_script(decode_script(path.read_bytes(), source=str(path)), source=str(path))
