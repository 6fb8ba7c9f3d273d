"""
Diagnostics: settings and statements that are legal and probably not meant, and errors that prevented a start.

Each has its place in a script or in a configuration: that of the statement which last made the route or the service.
A row that was in a database file already has no place; then the place is the setting that names the file, as far as
the configuration has one. Line and column are worked out when asked for: of a million concerns most are only counted.
A port that cannot be bound and a file that cannot be opened are reported by address and path; here the setting is
found.
"""

from __future__ import annotations

import errno
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from broker.catalog.catalog import MSDB
from broker.catalog.database_files import STOP_IT, key_of, path_of, place_errors
from broker.catalog.dry_run import DryDatabase
from broker.config.settings import Settings, by_place
from broker.config.toml import KeyPath
from broker.config.values import ListenAddress
from broker.ddl.statements import NAME, Statement, StatementOrigin
from broker.errors import ListenFailedError, SettingError, SettingsError, Span, StoreUnavailableError, caret
from broker.files import ANSWERED, socket_problem
from broker.routing.lint import Lint
from broker.store.sqlite.database import HELD, NO_FILE

SOCKET_ELSEWHERE = "name a directory that exists and that the instance may write"
RUNS_ALREADY = "an instance with this state directory is running already: see broker status"
SOCKET_TAKEN = "stop the other instance, or name another file"
_REFUSED = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY})
_PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE}
    | {errno.ENOENT, errno.EROFS, errno.ENOMEM, errno.ESTALE}
)
KEPT_MAX = 1000  # of one kind in a report: more than people correct by hand, and a megabyte at most
SHOWN_MAX = 20  # of one kind in a table: two kinds still fit a screen that scrolls

Kind: TypeAlias = tuple[str, str | None]
"""A code, and the file in which it was found."""

_T = TypeVar("_T")


class Part(NamedTuple):
    """A part of a statement: a property, or the name of its object; one that was not written is the whole."""

    origin: StatementOrigin
    name: str

    @property
    def bounds(self) -> tuple[int, int]:
        """Its first and last offset in the script."""
        return self.origin.places.get(self.name, (self.origin.start, self.origin.end))


class Diagnostic(Struct, frozen=True):
    """
    A finding: something legal and probably not meant.

    Attributes:
        subject: The instance and the database.
        problem: Its effect.
        hint: A remedy.
        place: None when nothing in the configuration leads to it.
    """

    lint: Lint
    subject: str
    problem: str
    hint: str
    place: Span | Part | None = None

    @property
    def file(self) -> str | None:
        """The file that it is about."""
        return self.place.origin.source if isinstance(self.place, Part) else self.place.source if self.place else None

    @property
    def span(self) -> Span | None:
        """Line and column of it."""
        return self.place.origin.span(*self.place.bounds) if isinstance(self.place, Part) else self.place

    @property
    def sentence(self) -> str:
        """Effect and remedy; prefixed with the subject when there is no place."""
        text = f"{self.problem}; {self.hint}"
        return text if self.place else f"{self.subject}: {text}"

    def __str__(self) -> str:
        span = self.span
        where = f"{span.source}:{span.line}:{span.column}" if span else self.subject
        text = f"{where}: {self.lint}: {self.problem}; {self.hint}"
        if span is None or not isinstance(self.place, Part):
            return text
        return f"{text}\n{caret(self.place.origin.text_line(self.place.bounds[0]), span)}"


def concern(
    database: DryDatabase,
    lint: Lint,
    problem: str,
    hint: str,
    at: Statement | KeyPath | None,
    *,
    part: str = NAME,
    of_key: bool = False,
) -> Diagnostic:
    """
    A concern about what a database defines.

    Args:
        database: Of the instance whose name it has.
        lint: The code.
        problem: As in the diagnostic.
        hint: As in the diagnostic.
        at: The statement or the setting that it is about; None for what was in the file already.
        part: Of the statement.
        of_key: Whether the key of the setting is meant, because something is missing there.
    """
    place: Span | Part | None
    if isinstance(at, Statement) and at.origin is not None:
        place = Part(at.origin, part)
    else:
        path = at if isinstance(at, tuple) else key_of(database.name)
        place = database.settings.error(path, "", of_key=of_key).span
    return Diagnostic(lint, f"{database.settings.instance.name}, {database.name}", problem, hint, place)


def first_of_each(found: Iterable[_T], kind_of: Callable[[_T], Kind], *, most: int) -> tuple[list[_T], dict[Kind, int]]:
    """
    Keep the first of each kind, in their order: a script of a million routes can have one thing wrong a million times.

    Args:
        found: Read once; what is not kept is not held.
        kind_of: Code and file of one of them; no file is None.
        most: How many of one kind are kept.

    Returns:
        The findings that are kept, and the number of others by kind.
    """
    seen: Counter[Kind] = Counter()
    kept = []
    for one in found:
        kind = kind_of(one)
        seen[kind] += 1
        if seen[kind] <= most:
            kept.append(one)
    return kept, {kind: count - most for kind, count in seen.items() if count > most}


# --- what keeps an instance from starting or reloading ---


def listen_error(settings: Settings, error: ListenFailedError, *, is_running: bool = False) -> SettingError:
    """An address that could not be taken, by a start or by what runs, under the setting that names it."""
    addresses = [(key, str(address)) for key, address in listening(settings)]
    addresses.append((("admin", "socket"), str(settings.admin.socket)))
    key = next((key for key, address in addresses if address == error.address), None)
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
        With it, whether the error is permanent until an operator changes something, as with rights or a file in the
        way. A full disk, a disk that is mounted later, or another daemon that has the file may pass by itself.
    """
    cause = error.__cause__
    code = cause.errno if isinstance(cause, OSError) else None
    is_refused = isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) & 0xFF in _REFUSED
    if code is not None or is_refused or error.problem == NO_FILE:
        found = [one for one in place_errors(settings).values() if one is not None]
        if found:
            return SettingsError(sorted(found, key=by_place)), code not in _PASSING
    for name in (MSDB, *settings.databases):
        file = path_of(settings, name)
        if error.path in {str(file), str(file.parent)}:
            hint = STOP_IT if error.problem == HELD else ""
            return SettingsError([settings.error(key_of(name), str(error), hint)]), False
    return None, False


def listening(settings: Settings) -> Iterator[tuple[KeyPath, ListenAddress]]:
    """Yield each address on which the instance listens, with its setting."""
    for number, address in enumerate(settings.endpoint.listen):
        yield ("endpoint", "listen", number), address
    for section, one in (("admin", settings.admin.listen), ("observe", settings.observe.listen)):
        if one is not None:
            yield (section, "listen"), one
