"""
The statements typed at the prompt, kept from one session to the next.

They are in one file that only its owner can read, the newest of them alone, and none that may hold a secret. A line is
one statement; the line feeds inside it are written as U+0001, as psql does. Several sessions may write at once: each
appends. A file that cannot be used leaves the prompt without a past, and is no error.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

KEPT = 1000  # statements; what a person may want to find again
STATEMENT_MAX = 8192  # characters; a longer one came out of a file, which is its past
FILE_MAX_BYTES = 4 * 1024 * 1024  # of a file that is read at all
HISTORY_VARIABLE = "BROKER_SQL_HISTORY"
_OWN = 0o600
_LINE_FEED = "\x01"


def history_path(environ: Mapping[str, str], home: Path) -> Path | None:
    """
    Where they are kept: BROKER_SQL_HISTORY, else in XDG_STATE_HOME, else in the home directory.

    Returns:
        None when BROKER_SQL_HISTORY is empty: nothing is kept.
    """
    named = environ.get(HISTORY_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    state = environ.get("XDG_STATE_HOME") or ""
    return (Path(state) if Path(state).is_absolute() else home / ".local" / "state") / "broker" / "sql_history"


class PastStatements:
    """The file. Shape: `path` None for none; `statements` as read when it was opened, oldest first."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.problem = ""
        self.statements: list[str] = []
        if path is not None:
            self._open(path)

    def add(self, statement: str) -> None:
        """Keep one more; who calls has seen that it holds no secret."""
        if self._path is None or self.problem or len(statement) > STATEMENT_MAX:
            return
        line = statement.replace("\n", _LINE_FEED) + "\n"
        with suppress(OSError), os.fdopen(_open_own(self._path, os.O_WRONLY | os.O_APPEND), "wb") as file:
            file.write(line.encode("utf-8", "surrogateescape"))

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(_open_own(path, os.O_RDONLY), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    self.problem = f"{path} is no file of yours"
                    return
                os.fchmod(file.fileno(), _OWN)  # one that somebody has made readable for others
                file.seek(max(0, found.st_size - FILE_MAX_BYTES))
                lines = file.read(FILE_MAX_BYTES).decode("utf-8", "surrogateescape").splitlines()
            self.statements = [line.replace(_LINE_FEED, "\n") for line in lines[-KEPT:] if line.strip()]
            if len(lines) > 2 * KEPT or found.st_size > FILE_MAX_BYTES:
                _replace(path, lines[-KEPT:])
        except OSError as error:
            self.problem = f"{path}: {error.strerror or error}"


def _open_own(path: Path, flags: int) -> int:
    """A descriptor of the file, made when it is missing, never through a symbolic link. Raises OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, _OWN)


def _replace(path: Path, lines: Iterable[str]) -> None:
    """The newest alone, in one step, so that no session reads a half-written file."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(line.encode("utf-8", "surrogateescape") + b"\n" for line in lines)
        Path(name).replace(path)
    except OSError:
        with suppress(OSError):
            Path(name).unlink()
