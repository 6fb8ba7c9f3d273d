"""
One thing that is legal and probably not meant, with its place in a script or in a configuration.

The place is that of the statement which last made the route or the service. What was in a database file already has
none; then the place is the setting that names the file, as far as the configuration has one.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.control.place import KeyPath
from broker.control.rehearsal import Played, Rehearsal
from broker.ddl.statements import NAME, Statement
from broker.errors import Span, caret
from broker.routing.lint import Lint


@dataclass(frozen=True, slots=True)
class Concern:
    """
    What a check on meaning found.

    Shape: `subject` the instance and the database; `problem` what happens because of it, `hint` what to do; `span` None
    when nothing in the configuration stands for it; `text_line` the line of the script around it.
    """

    lint: Lint
    subject: str
    problem: str
    hint: str
    span: Span | None = None
    text_line: str | None = None

    def __str__(self) -> str:
        where = f"{self.span.source}:{self.span.line}:{self.span.column}" if self.span else self.subject
        text = f"{where}: {self.lint}: {self.problem}; {self.hint}"
        return f"{text}\n{caret(self.text_line, self.span)}" if self.span and self.text_line is not None else text


def of_statement(
    lint: Lint, problem: str, hint: str, *, at: tuple[Rehearsal, Played], statement: Statement | None, part: str = NAME
) -> Concern:
    """A concern about what a statement made; None when it was in the file already."""
    rehearsal, played = at
    subject = f"{rehearsal.settings.instance.name}, {played.name}"
    origin = statement.origin if statement is not None else None
    if origin is None:
        return Concern(lint, subject, problem, hint, _file_setting(rehearsal, played))
    start, end = origin.places.get(part, (origin.start, origin.end))
    return Concern(lint, subject, problem, hint, origin.span(start, end), origin.text_line(start))


def of_route(lint: Lint, problem: str, hint: str, *, at: tuple[Rehearsal, Played], route: str) -> Concern:
    """A concern about a route."""
    return of_statement(lint, problem, hint, at=at, statement=at[1].statements.get(route))


def of_setting(
    lint: Lint, problem: str, hint: str, *, at: tuple[Rehearsal, Played], path: KeyPath, of_key: bool = False
) -> Concern:
    """A concern about a setting, or about what is missing there."""
    rehearsal, played = at
    subject = f"{rehearsal.settings.instance.name}, {played.name}"
    return Concern(lint, subject, problem, hint, rehearsal.settings.error(path, "", of_key=of_key).span)


def _file_setting(rehearsal: Rehearsal, played: Played) -> Span | None:
    is_msdb = played is rehearsal.msdb
    path: KeyPath = ("instance", "state_dir") if is_msdb else ("databases", played.name, "path")
    return rehearsal.settings.error(path, "").span
