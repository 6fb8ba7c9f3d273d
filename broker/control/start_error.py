"""
What kept an instance from starting or reloading, told as a problem of the setting behind it.

Whoever binds a port or opens a file knows the address or the path, not where the settings name it; here it is found
again, with its place and with what to do, as a check tells it.
"""

from __future__ import annotations

import errno
import sqlite3
from typing import TYPE_CHECKING

from broker.control.catalog import MSDB
from broker.control.config import by_place
from broker.control.custody import STOP_IT, key_of, path_of
from broker.control.file_place import place_errors
from broker.control.place import KeyPath
from broker.control.socket_place import ANSWERED, socket_problem
from broker.errors import ListenFailedError, SettingError, SettingsError, StoreUnavailableError
from broker.store.database import HELD, NO_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.control.config import Settings

SOCKET_ELSEWHERE = "name a directory that exists and that the instance may write"
RUNS_ALREADY = "an instance of this very state directory runs already: broker status tells of it"
SOCKET_TAKEN = "stop the other instance, or name another file"
_REFUSED = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY})
_PASSING = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOENT,
        errno.EROFS,
        errno.ENOMEM,
        errno.ESTALE,
    }
)


def listen_error(settings: Settings, error: ListenFailedError, *, is_running: bool = False) -> SettingError:
    """An address that could not be taken, by a start or by what runs, under the setting that names it."""
    key = next((key for key, address in _addresses(settings) if address == error.address), None)
    if key is None:
        return SettingError("endpoint.listen", str(error))
    hint = ""
    if key == ("admin", "socket"):
        hint = SOCKET_TAKEN if error.problem == ANSWERED else SOCKET_ELSEWHERE
    elif not is_running and socket_problem(settings.admin.socket) == ANSWERED:
        hint = RUNS_ALREADY
    return settings.error(key, f'cannot listen on "{error.address}": {error.problem}', hint)


def store_error(settings: Settings, error: StoreUnavailableError) -> tuple[SettingsError | None, bool]:
    """
    A file that could not be used at the start, under the settings that name it; None when no setting does.

    Returns:
        With it whether it stays so until somebody changes something, as with rights or a file in the way; what may pass
        by itself is a full disk, one that is mounted later, or another daemon that has the file.
    """
    cause = error.__cause__
    code = cause.errno if isinstance(cause, OSError) else None
    is_refused = isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) & 0xFF in _REFUSED
    if code is not None or is_refused or error.problem == NO_FILE:
        found = place_errors(settings)
        if found:
            return SettingsError(sorted(found.values(), key=by_place)), code not in _PASSING
    name = _database_at(settings, error.path)
    if name is None:
        return None, False
    hint = STOP_IT if error.problem == HELD else ""
    return SettingsError([settings.error(key_of(name), str(error), hint)]), False


def _database_at(settings: Settings, path: str) -> str | None:
    """The database whose file or directory this is."""
    for name in (MSDB, *settings.databases):
        file = path_of(settings, name)
        if path in {str(file), str(file.parent)}:
            return name
    return None


def _addresses(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    for number, address in enumerate(settings.endpoint.listen):
        yield ("endpoint", "listen", number), str(address)
    for section, one in (("admin", settings.admin.listen), ("observe", settings.observe.listen)):
        if one is not None:
            yield (section, "listen"), str(one)
    yield ("admin", "socket"), str(settings.admin.socket)
