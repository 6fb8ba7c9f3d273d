"""Part of `broker.control.journal`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from broker.errors import SettingError

if TYPE_CHECKING:
    from broker.control.config import Settings
from broker.control.journal import _DIRECTORY, ARROW_LIBRARY


def journal_errors(settings: Settings) -> Iterator[SettingError]:
    """What keeps a journal from being written, as far as a look tells."""
    directory = settings.journal.directory
    if directory is None:
        return
    from broker.control.writable import write_problem  # noqa: PLC0415 - slow to import: see broker.cli.group

    if find_spec(ARROW_LIBRARY) is None:
        hint = "pip install broker[journal], or leave the directory out"
        yield settings.error(_DIRECTORY, f"a journal needs {ARROW_LIBRARY}, which is not installed", hint)
    problem = write_problem(directory)
    if problem:
        yield _refused(settings, problem)


def _refused(settings: Settings, problem: str) -> SettingError:
    return settings.error(_DIRECTORY, problem, "name a directory that the instance may write")
