"""
One thing that is legal and probably not meant, with its place in a script or in a configuration.

The place is that of the statement which last made the route or the service. What was in a database file already has
none; then the place is the setting that names the file, as far as the configuration has one. Line and column are worked
out when somebody asks: of a million concerns most are only counted.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from broker.control.place import KeyPath
from broker.control.played import Played
from broker.control.rehearsal import Rehearsal
from broker.ddl.statements import NAME, Statement, StatementOrigin
from broker.errors import Span, caret
from broker.routing.lint import Lint


class Part(NamedTuple):
    """A part of a statement: a property, or the name of its object; one that was not written is the whole."""

    origin: StatementOrigin
    name: str

    @property
    def bounds(self) -> tuple[int, int]:
        """Where it begins and ends, as offsets into the script."""
        return self.origin.places.get(self.name, (self.origin.start, self.origin.end))


class Diagnostic(Struct, frozen=True):
    """
    What a check on meaning found.

    Shape: `subject` the instance and the database; `problem` what happens because of it, `hint` what to do; `place`
    None when nothing in the configuration stands for it.
    """

    lint: Lint
    subject: str
    problem: str
    hint: str
    place: Span | Part | None = None

    @property
    def file(self) -> str | None:
        """The file in which it stands."""
        return self.place.origin.source if isinstance(self.place, Part) else self.place.source if self.place else None

    @property
    def span(self) -> Span | None:
        """Where it stands."""
        return self.place.origin.span(*self.place.bounds) if isinstance(self.place, Part) else self.place

    @property
    def sentence(self) -> str:
        """What happens and what to do; whom it is about, when no place tells that."""
        text = f"{self.problem}; {self.hint}"
        return text if self.place else f"{self.subject}: {text}"

    def __str__(self) -> str:
        span = self.span
        where = f"{span.source}:{span.line}:{span.column}" if span else self.subject
        text = f"{where}: {self.lint}: {self.problem}; {self.hint}"
        if span is None or not isinstance(self.place, Part):
            return text
        return f"{text}\n{caret(self.place.origin.text_line(self.place.bounds[0]), span)}"


def of_statement(
    lint: Lint, problem: str, hint: str, *, at: tuple[Rehearsal, Played], statement: Statement | None, part: str = NAME
) -> Diagnostic:
    """A concern about what a statement made; None when it was in the file already."""
    rehearsal, played = at
    subject = f"{rehearsal.settings.instance.name}, {played.name}"
    origin = statement.origin if statement is not None else None
    if origin is None:
        return Diagnostic(lint, subject, problem, hint, _file_setting(rehearsal, played))
    return Diagnostic(lint, subject, problem, hint, Part(origin, part))


def of_route(lint: Lint, problem: str, hint: str, *, at: tuple[Rehearsal, Played], route: str) -> Diagnostic:
    """A concern about a route."""
    return of_statement(lint, problem, hint, at=at, statement=at[1].statements.get(route))


def of_setting(
    lint: Lint, problem: str, hint: str, *, at: tuple[Rehearsal, Played], path: KeyPath, of_key: bool = False
) -> Diagnostic:
    """A concern about a setting, or about what is missing there."""
    rehearsal, played = at
    subject = f"{rehearsal.settings.instance.name}, {played.name}"
    return Diagnostic(lint, subject, problem, hint, rehearsal.settings.error(path, "", of_key=of_key).span)


def _file_setting(rehearsal: Rehearsal, played: Played) -> Span | None:
    is_msdb = played is rehearsal.msdb
    path: KeyPath = ("instance", "state_dir") if is_msdb else ("databases", played.name, "path")
    return rehearsal.settings.error(path, "").span
