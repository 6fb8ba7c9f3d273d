"""
Taking a pairing back on one side: the files it made, and statements that undo what their scripts say.

The scripts are what was said, so each of their statements is answered by its contrary. A permission that another script
of the configuration gives to the same principal stays: the far endpoint may be paired with for another service too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from broker.control.catalog import MSDB
from broker.control.config import Settings
from broker.control.pairing import names_for, place_for, places_of
from broker.control.script import script_files
from broker.ddl.parser import parse_script, read_script
from broker.ddl.render import render_statement
from broker.ddl.statements import (
    CreateRemoteServiceBinding,
    CreateRoute,
    DropRemoteServiceBinding,
    DropRoute,
    GrantPermission,
    RevokePermission,
    Statement,
    UseDatabase,
)
from broker.errors import PairingError, SettingError


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes. Shape: `files` that are there; `statements` to be said, with the USE that each takes."""

    files: tuple[Path, ...]
    statements: tuple[Statement, ...]

    @property
    def script(self) -> str:
        """The statements as one says them, a line each."""
        return "".join(f"{render_statement(one)}\n" for one in self.statements)


def removal(settings: Settings, database: str, far_service: str, *, present: Collection[tuple[str, str]]) -> Removal:
    """
    What takes back what `broker pair` made for a far service.

    Args:
        settings: Of this side.
        database: Whose pairing it was.
        far_service: The service of the other side.
        present: What the daemon has of `database`, ("route" or "binding", name): what is gone is not dropped again.

    Raises:
        PairingError: this side is not paired with it.
        SettingError: it is, and a setting has no pattern any more from which the place of a file could be told.
        DdlSyntaxError, OSError: a script that pairing made and that cannot be read any more.
    """
    places = places_of(settings, database)
    name = names_for(far_service).file
    paths: list[Path] = []
    roomless: list[SettingError] = []
    for key, patterns in places.items():
        try:
            paths.append(place_for(settings, key, patterns, name))
        except SettingError as error:
            roomless.append(error)
    there = tuple(path for path in paths if path.exists())
    if not there:
        missing = f"no {paths[-1]}" if paths else "no setting that has room for the files of a pairing"
        raise PairingError(f"{database} is not paired with {far_service}: there is {missing}")
    if roomless:
        raise roomless[0]
    _, _, in_msdb, in_database = paths
    _, _, shared, own = places.values()
    statements: list[Statement] = []
    for script, patterns, where in ((in_msdb, shared, MSDB), (in_database, own, database)):
        if script in there:
            kept = set(_granted(path for path in script_files(patterns) if path != script))
            said = parse_script(script.read_text(encoding="utf-8"), source=str(script))
            statements += [UseDatabase(where), *_contraries(said, kept, present)]
    return Removal(there, tuple(statements))


def _granted(scripts: Iterable[Path]) -> Iterator[GrantPermission]:
    """What these give; one that cannot be read gives nothing, which a check of the configuration tells."""
    for script in scripts:
        try:
            text = script.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        yield from (one for each in read_script(text) if isinstance(each, GrantPermission) for one in _single(each))


def _single(grant: GrantPermission) -> Iterator[GrantPermission]:
    """One for each principal."""
    return (GrantPermission(grant.permission, grant.securable, (one,)) for one in grant.principals)


def _contraries(
    said: Iterable[Statement], kept: Collection[GrantPermission], present: Collection[tuple[str, str]]
) -> Iterator[Statement]:
    for statement in reversed(list(said)):
        if isinstance(statement, CreateRoute) and ("route", statement.name) in present:
            yield DropRoute(statement.name)
        elif isinstance(statement, CreateRemoteServiceBinding) and ("binding", statement.name) in present:
            yield DropRemoteServiceBinding(statement.name)
        elif isinstance(statement, GrantPermission):
            gone = tuple(one.principals[0] for one in _single(statement) if one not in kept)
            if gone:
                yield RevokePermission(statement.permission, statement.securable, gone)
