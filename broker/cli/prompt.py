r"""
`broker sql` at a terminal: statements are typed, completed, kept for the next session, and answered.

A statement ends with `;` at the end of a line, or with GO on a line of its own, as in sqlcmd. Ctrl-C leaves what is
typed, or stops waiting for an answer: the daemon then stops a SELECT, and carries out anything else. Ctrl-D leaves.
A line that begins with a backslash is for the prompt itself; `\?` lists them.

The standard library's readline edits the line and finds earlier statements; without it, lines are read as they come.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.name_completion import DELIMITERS, Names, completions
from broker.cli.output import FORMATS, show_answer
from broker.cli.past_statements import PastStatements, history_path
from broker.cli.typed_batch import is_blank, is_go, is_open, is_secret, is_whole, used_database
from broker.errors import BrokerError

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from types import ModuleType

    from broker.admin.client import AdminClient

COMPLETION_SECONDS = 2.0  # for the daemon to answer while somebody waits for the end of a word
_FIRST, _NEXT = "broker> ", "    -> "
_GREETING = "a statement ends with ; or with a line GO; \\? helps, exit or Ctrl-D leaves"
_HELP = """\
  STATEMENT ;        carry it out; GO on a line of its own ends one too
  USE name ;         the database that is meant from now on
  \\d                 the views, and the queues of this database
  \\d NAME            the columns of a view or queue
  \\o FORMAT          show answers as table, json, jsonl or csv
  \\p                 what is typed so far
  \\r                 forget what is typed so far; so does Ctrl-C
  \\q                 leave; so do exit, quit and Ctrl-D
  \\?                 this help
Tab completes keywords, views, columns, and names of routes, services, queues and databases. What is typed is kept in
the file that BROKER_SQL_HISTORY names, empty for none; never a statement with a password, or one after a blank."""


class Prompt:
    """One session. Shape: `database` what is meant, None as in `AdminClient.sql`; `output` of `FORMATS`."""

    def __init__(self, client: AdminClient, *, database: str | None, output: str, past: PastStatements) -> None:
        self.client = client
        self.database = database
        self.output = output
        self._past = past
        self._pending: list[str] = []
        self._is_leaving = False
        self._names = self._live_names()
        self._hint_is_due = True
        self._commands: Mapping[str, Callable[[str], None]] = {
            "?": lambda _: click.echo(_HELP, err=True),
            "d": self._describe,
            "o": self._choose_output,
            "p": lambda _: click.echo("\n".join(self._pending), err=True),
            "r": lambda _: self._pending.clear(),
            "q": self._leave,
        }

    def run(self, read: Callable[[str], str]) -> None:
        """Read lines until the end of input; `read` shows a prompt, and raises EOFError there."""
        click.echo(_GREETING, err=True)
        if self._past.problem:
            click.echo(f"no history: {self._past.problem}", err=True)
        while not self._is_leaving:
            try:
                self.take(read(_NEXT if self._pending else _FIRST))
            except EOFError:
                click.echo(err=True)
                return
            except KeyboardInterrupt:
                self._pending.clear()
                click.echo("^C", err=True)

    def take(self, text: str) -> None:
        """One entry: a line, or several when an earlier statement was called back."""
        for line in text.split("\n"):
            self._take_line(line)

    def words(self, before: str, word: str) -> list[str]:
        """What the word at the cursor may become; `before` is what the line has in front of it."""
        if before.startswith("\\") and not self._pending:
            command = before.strip()
            names: Iterable[str] = FORMATS if command == "\\o" else ()
            if command == "\\d":
                names = (*self._names.of("view"), *self._names.of("queue"))
            return [name for name in names if name.casefold().startswith(word.casefold())]
        return completions(self._names, "\n".join([*self._pending, before]), word)

    def _take_line(self, line: str) -> None:
        bare = line.strip()
        is_inside = is_open("\n".join(self._pending))
        if bare.startswith("\\") and not is_inside:
            self._obey(bare[1:])
        elif not self._pending and bare.rstrip(";").lower() in ("exit", "quit"):
            self._leave("")
        elif is_go(line) and not is_inside:
            self._end()
        elif bare or is_inside:
            self._pending.append(line)
            if is_whole("\n".join(self._pending)):
                self._end()
        elif self._pending and self._hint_is_due:
            self._hint_is_due = False
            click.echo("(it is carried out when it ends with ; or with a line GO)", err=True)

    def _end(self) -> None:
        """Carry out what is typed."""
        statement = "\n".join(self._pending)
        self._pending.clear()
        if is_blank(statement):
            return
        self._remember(statement)
        database = used_database(statement)
        if database is not None:
            self._use(database)
            return
        self._carry_out(statement)

    def _carry_out(self, statement: str) -> None:
        try:
            answer = self.client.sql(statement, self.database)
        except BrokerError as error:
            click.echo(str(error), err=True)
        except KeyboardInterrupt:
            click.echo("^C no longer waiting: a SELECT is stopped, anything else may still be carried out", err=True)
        else:
            if not answer["columns"]:
                self._names.forget()
            show_answer(answer, self.output)

    def _remember(self, statement: str) -> None:
        if is_secret(statement):
            return
        self._past.add(statement)
        editor = _readline()
        if editor is not None:
            editor.add_history(statement)

    # --- what is for the prompt itself ---

    def _obey(self, text: str) -> None:
        word, _, argument = text.partition(" ")
        command = self._commands.get(word)
        if command is None:
            click.echo(f"there is no \\{word}; \\? lists what there is", err=True)
        else:
            command(argument.strip().rstrip(";"))

    def _leave(self, _: str) -> None:
        self._is_leaving = True

    def _choose_output(self, name: str) -> None:
        if name in FORMATS:
            self.output = name
        else:
            click.echo(f"\\o takes one of {', '.join(FORMATS)}; it is {self.output}", err=True)

    def _describe(self, name: str) -> None:
        if not name:
            self._carry_out(
                "SELECT 'view' AS kind, schema_name + '.' + name AS name FROM sys.system_views"
                " UNION ALL SELECT 'queue', 'dbo.' + name FROM sys.service_queues ORDER BY kind DESC, name"
            )
            return
        view = name.replace("[", "").replace("]", "").rpartition(".")[2].replace("'", "''").lower()
        found = f"SELECT column_id, name AS column_name FROM sys.system_columns WHERE view_name = '{view}'"  # noqa: S608 - quoted
        try:
            answer = self.client.sql(f"{found} ORDER BY column_id", self.database)
            if not answer["rows"]:  # a queue, or nothing
                columns = self.client.sql(f"SELECT TOP 0 * FROM {name}", self.database)["columns"]  # noqa: S608 - what was typed
                answer = answer | {"rows": [[place, column] for place, column in enumerate(columns, 1)]}
        except BrokerError as error:
            click.echo(str(error), err=True)
        else:
            show_answer(answer, self.output)

    def _use(self, database: str) -> None:
        """The database of a USE, once the daemon has said that it is there."""
        try:
            self.client.sql("SELECT 1 AS one", database)
        except BrokerError as error:
            click.echo(str(error), err=True)
        else:
            self.database = database
            self._names = self._live_names()
            click.echo(f"changed database context to '{database}'", err=True)

    def _live_names(self) -> Names:
        quick = self.client.patient(COMPLETION_SECONDS)
        return Names(lambda question: quick.sql(question, self.database)["rows"])


def run_prompt(client: AdminClient, database: str | None, output: str) -> None:
    """A session at the terminal, with its history."""
    past = PastStatements(history_path(os.environ, Path.home()))
    prompt = Prompt(client, database=database, output=output, past=past)
    if not sys.stdout.isatty():
        prompt.run(_read_beside)
        return
    editor = _readline()
    if editor is not None:
        _prepare(editor, prompt, past)
    prompt.run(input)


def _read_beside(prompt: str) -> str:
    """A line, when standard output is for answers alone."""
    click.echo(prompt, nl=False, err=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _readline() -> ModuleType | None:
    try:
        import readline  # noqa: PLC0415 - only for a person at a terminal
    except ImportError:
        return None
    return readline


def _prepare(editor: Any, prompt: Prompt, past: PastStatements) -> None:
    """Earlier statements and completion; `editor` is the module readline."""
    editor.set_auto_history(False)  # a statement is one entry, and only when it may be kept
    editor.clear_history()
    for statement in past.statements:
        editor.add_history(statement)
    offered: list[str] = []

    def complete(word: str, state: int) -> str | None:
        if state == 0:
            offered[:] = prompt.words(editor.get_line_buffer()[: editor.get_begidx()], word)
        return offered[state] if state < len(offered) else None

    editor.set_completer_delims(DELIMITERS)
    editor.set_completer(complete)
    is_libedit = "libedit" in (editor.__doc__ or "")
    editor.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    if not is_libedit:
        editor.parse_and_bind("set enable-bracketed-paste on")
