"""
What the scripts of a configuration make of its databases, without a database.

The statements are run in the order of the daemon (msdb's scripts first, each database's in its place, USE obeyed) over
what the files hold already, or over what a new database begins with; what each does is in `broker.control.played`. Only
names and routes are kept, which is what a check on meaning asks for; statements about other things pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from broker.control.catalog import MSDB
from broker.control.custody import is_elsewhere
from broker.control.effect import refuse_option
from broker.control.named_script import closed_scripts, is_pattern, no_script
from broker.control.place import KeyPath, dotted
from broker.control.played import Played, begin_to_play, play
from broker.control.quota import KEPT_MAX
from broker.control.script import script_files
from broker.ddl.parser import read_script
from broker.ddl.statements import AlterDatabase, UseDatabase, blaming
from broker.ddl.text import decode_script
from broker.errors import DdlSyntaxError, SettingError, StatementError, UnknownNameError, caret
from broker.routing.decide import Hosted, hosted

if TYPE_CHECKING:
    from broker.control.config import Settings

COPY_PROBLEM = "error 9772: the file has the broker instance of another database here, so it is a copy of that one's"
COPY_HINT = "name another file; it is made when it is missing"


class Rehearsal(Struct, frozen=True):
    """
    What the scripts of one configuration come to.

    Shape: `databases` by name, msdb first; `errors` in the order in which they were met, and likewise `warnings` of
    patterns without a file; `now` the UTC instant at which it was played, which counts the lifetimes.
    """

    settings: Settings
    databases: dict[str, Played]
    errors: list[SettingError]
    now: datetime
    warnings: list[SettingError] = field(default_factory=list)

    @property
    def msdb(self) -> Played:
        """The database whose routes hold for what arrives."""
        return self.databases[MSDB]

    @property
    def users(self) -> list[Played]:
        """The databases that hold services."""
        return [played for name, played in self.databases.items() if name != MSDB]

    def hosted(self) -> Hosted:
        """The services that are here."""
        return hosted({played.broker_instance: played.services for played in self.users})


def rehearse(settings: Settings, *, now: datetime) -> Rehearsal:
    """
    Run the scripts, reporting every mistake and going on behind it.

    Args:
        settings: As `load_settings` gives them, with absolute paths.
        now: The UTC instant from which lifetimes count.
    """
    endpoint = settings.instance.name
    databases = {MSDB: begin_to_play(MSDB, settings.instance.state_dir / "msdb.db", is_known=True, endpoint=endpoint)}
    for name, database in settings.databases.items():
        away = is_elsewhere(settings, name)
        played = begin_to_play(
            name, database.path, is_known=bool(database.scripts), is_elsewhere=away, endpoint=endpoint
        )
        if database.broker_instance is not None:
            played.broker_instance, played.is_identified = database.broker_instance.bytes, True
        databases[name] = played
    rehearsal = Rehearsal(settings, databases, [], now)
    rehearsal.errors.extend(_copies(rehearsal))
    rehearsal.errors.extend(_scripts(rehearsal, MSDB, ("routes", "files"), settings.routes.files))
    for name, database in settings.databases.items():
        rehearsal.errors.extend(_scripts(rehearsal, name, ("databases", name, "scripts"), database.scripts))
    return rehearsal


def _copies(rehearsal: Rehearsal) -> Iterator[SettingError]:
    """Databases that have the identity of one before them; where the configuration says so, it is told already."""
    settings = rehearsal.settings
    given = {name: database.broker_instance for name, database in settings.databases.items()}
    owners: dict[bytes, str] = {}
    for name, played in rehearsal.databases.items():
        owner = owners.setdefault(played.broker_instance, name) if played.is_identified else name
        if owner != name and (given[name] is None or given[name] != given.get(owner)):
            yield settings.error(("databases", name, "path"), COPY_PROBLEM, COPY_HINT)


def _scripts(rehearsal: Rehearsal, database: str, key: KeyPath, patterns: tuple[str, ...]) -> Iterator[SettingError]:
    """Patterns without a file, and everything that is wrong in the files."""
    for number, pattern in enumerate(patterns):
        files = script_files([pattern])
        closed = closed_scripts(rehearsal.settings, (*key, number), pattern)
        if closed is not None:
            yield closed
        elif not files:
            error = no_script(rehearsal.settings, (*key, number), pattern)
            if is_pattern(pattern):
                rehearsal.warnings.append(error)
            else:
                yield error
        for path in files:
            yield from _script(rehearsal, database, (*key, number), path)


def _script(rehearsal: Rehearsal, database: str, key: KeyPath, path: Path) -> Iterator[SettingError]:
    """The first `KEPT_MAX` mistakes in one script, each at its place in the script."""
    try:
        text = decode_script(path.read_bytes(), source=str(path))
    except OSError as error:
        hint = "make it readable for the instance"
        yield rehearsal.settings.error(key, f'"{path}" cannot be read: {error.strerror}', hint)
        return
    except DdlSyntaxError as error:
        problem = f"error {error.number}: {error.problem}"
        yield SettingError(dotted(key), problem, error.span, "", _excerpt(error))
        return
    current: str | None = database
    mistakes = 0
    for outcome in read_script(text, source=str(path)):
        if mistakes == KEPT_MAX:
            problem = f'"{path}" has {KEPT_MAX:,} mistakes, and what comes after them is not read'
            yield rehearsal.settings.error(
                key, problem, "correct these, then check again; is this a script of statements?"
            )
            return
        try:
            if isinstance(outcome, StatementError):
                raise outcome
            if isinstance(outcome, UseDatabase):
                current = None  # what follows a USE that fails belongs nowhere
                current = _known_database(rehearsal, outcome, home=database)
            elif isinstance(outcome, AlterDatabase):
                with blaming(outcome):
                    _known_name(rehearsal, outcome.name or current or MSDB, home=database)
                    refuse_option(outcome, is_declared=True)
            elif current is not None:
                play(rehearsal.databases[current], outcome, rehearsal.now)
        except StatementError as error:
            mistakes += 1
            problem = f"error {error.number}: {error.problem}"
            yield SettingError(dotted(key), problem, error.span, "correct the statement", _excerpt(error))


def _excerpt(error: StatementError) -> str:
    """The line of the script with a caret; bounded, as a script may be one line of 100 MB."""
    return caret(error.text_line, error.span) if error.span is not None and error.text_line is not None else ""


def _known_database(rehearsal: Rehearsal, use: UseDatabase, *, home: str) -> str:
    with blaming(use):
        return _known_name(rehearsal, use.name, home=home)


def _known_name(rehearsal: Rehearsal, name: str, *, home: str) -> str:
    """A database that a script of `home` may name: not a mirrored one, which may not be here when the script runs."""
    named = rehearsal.settings.databases.get(name)
    if named is not None and named.mirroring != "off" and name != home:
        problem = f"the database {name!r} is mirrored, and may be elsewhere at the start: put this into its own scripts"
        raise StatementError(954, problem)
    if name not in rehearsal.databases:
        known = ", ".join(sorted(rehearsal.databases))
        raise UnknownNameError(911, f"the database {name!r} does not exist here; there are: {known}")
    return name
