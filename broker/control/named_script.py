"""
The scripts that a configuration names, and what it means when one is not there.

A path that names one file is a promise: without its routes an instance would drop what it should forward, so it does
not start. A pattern may match nothing: a directory of scripts can be empty, and a check only warns. A
directory that may not be looked into is no empty one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from broker.control.catalog import MSDB
from broker.control.place import KeyPath
from broker.control.script import closed_directory, script_files
from broker.errors import SettingError

if TYPE_CHECKING:
    from broker.control.config import Settings

_ESCAPED = re.compile(r"\[[\[*?]\]")  # by glob.escape, for a directory with such a name
_MAGIC = re.compile(r"[*?\[]")


def is_pattern(path: str) -> bool:
    """Whether a path, made absolute by `load_settings`, may mean any number of files, none included."""
    return bool(_MAGIC.search(_ESCAPED.sub("", path)))


def no_script(settings: Settings, key: KeyPath, path: str) -> SettingError:
    """That there is no such file; what it is worth depends on `is_pattern`."""
    hint = "correct the path; it is relative to the configuration file's directory"
    problem = "matches no file" if is_pattern(path) else "does not exist, or is no plain file"
    return settings.error(key, f'"{path}" {problem}', hint)


def closed_scripts(settings: Settings, key: KeyPath, path: str) -> SettingError | None:
    """That a directory of scripts may not be looked into; None when all may."""
    directory = closed_directory(path) if is_pattern(path) else None
    if directory is None:
        return None
    hint = "let the user that runs the instance read and enter it, and read the files in it"
    return settings.error(key, f'"{path}": the directory "{directory}" may not be looked into', hint)


def named_scripts(settings: Settings, key: KeyPath, paths: tuple[str, ...]) -> list[Path]:
    """
    The files of `routes.files` or of a database's `scripts`, in the order in which they are read.

    Raises:
        SettingError: a path that is no pattern leads to no file, or a directory may not be looked into.
    """
    for number, path in enumerate(paths):
        closed = closed_scripts(settings, (*key, number), path)
        if closed is not None:
            raise closed
        if not is_pattern(path) and not script_files([path]):
            raise no_script(settings, (*key, number), path)
    return script_files(paths)


def own_scripts(settings: Settings, name: str) -> list[tuple[str, Path]]:
    """The scripts of one database, each with its name; raises as `named_scripts`."""
    found = named_scripts(settings, ("databases", name, "scripts"), settings.databases[name].scripts)
    return [(name, path) for path in found]


def scripts_of(settings: Settings, own: list[str]) -> list[tuple[str, Path]]:
    """The scripts that run at every start, each with its database, msdb's first; raises as `named_scripts`."""
    scripts = [(MSDB, path) for path in named_scripts(settings, ("routes", "files"), settings.routes.files)]
    for name in own:
        scripts += own_scripts(settings, name)
    return scripts
