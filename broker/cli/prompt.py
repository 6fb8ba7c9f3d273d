r"""
The prompt of `broker sql` at a terminal, with completion and a history.

As in sqlcmd, a statement ends with GO on a line, and as at other prompts with `;` at the end of a line, unless that is
in a text, a name in brackets or a comment. Ctrl-C clears the statement, or stops waiting for an answer: the daemon then
stops a SELECT, and completes any other statement. Ctrl-D ends the session. A line that begins with a backslash is a
command of the prompt; `\?` lists them.

readline edits the line and finds earlier statements. Their file has mode 0600 and one statement a line, with U+0001 for
a line feed, as psql does. When the file cannot be used, the prompt has no history.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import click

from broker.admin.client import AdminClient
from broker.cli.names import Names, completions
from broker.cli.options import FORMATS
from broker.cli.output import show_answer
from broker.errors import BrokerError
from broker.files import write_file

try:
    import readline
except ImportError:  # a Python built without it: lines are read plainly
    readline = None  # type: ignore[assignment]

COMPLETION_SECONDS = 2.0  # for the daemon to answer while a word is completed
KEPT = 1000  # statements
STATEMENT_MAX = 8192  # characters; a longer one is probably pasted from a file
HISTORY_VARIABLE = "BROKER_SQL_HISTORY"
_DELIMITERS = " \t\n,()=<>+;'"  # ends of words; a name may have dots, slashes, brackets
_LINE_FEED = "\x01"
_FIRST, _NEXT = "broker> ", "    -> "
_GREETING = "a statement ends with ; or with a line GO; \\? shows help, exit or Ctrl-D ends"
_HELP = """\
  STATEMENT ;        run it; a line GO ends one too
  USE name ;         use this database from now on
  \\d                 the views, and the queues of this database
  \\d NAME            the columns of a view or queue
  \\o FORMAT          show answers as table, json, jsonl or csv
  \\p                 show the statement so far
  \\r                 clear the statement so far; so does Ctrl-C
  \\q                 end the session; so do exit, quit and Ctrl-D
  \\?                 this help
Tab completes keywords, views, columns, and names of routes, services, queues and databases. Statements are kept in the
file that BROKER_SQL_HISTORY names, empty for none; but never one with a password, or one after a blank."""
_VIEWS = (
    "SELECT 'view' AS kind, schema_name + '.' + name AS name FROM sys.system_views"
    " UNION ALL SELECT 'queue', 'dbo.' + name FROM sys.service_queues ORDER BY kind DESC, name"
)


def run_prompt(client: AdminClient, database: str | None, output: str) -> None:
    """Run a session; standard output gets only the answers when it is not a terminal."""
    history = History(history_path(os.environ, Path.home()))
    prompt = Prompt(client, database=database, output=output, history=history)
    if not sys.stdout.isatty():
        prompt.run(_read_plainly)
        return
    if readline is not None:
        prepare_readline(prompt, history)
    prompt.run(input)


class Prompt:
    """
    One session.

    Args:
        client: Asks the daemon.
        database: The database of statements, None as in `AdminClient.sql`.
        output: One of `FORMATS`.
        history: Gets the statements that may be kept.
    """

    def __init__(self, client: AdminClient, *, database: str | None, output: str, history: History) -> None:
        self.database = database
        self.output = output
        self._client = client
        self._history = history
        self._pending: list[str] = []
        self._is_leaving = False
        quick = client.patient(COMPLETION_SECONDS)
        self._names = Names(lambda question: quick.sql(question, self.database)["rows"])
        self._hint_is_due = True

    def run(self, read: Callable[[str], str]) -> None:
        """Read lines until the end of input; `read` shows a prompt, and raises EOFError there."""
        click.echo(_GREETING, err=True)
        if self._history.problem:
            click.echo(f"no history: {self._history.problem}", err=True)
        while not self._is_leaving:
            try:
                self.enter(read(_NEXT if self._pending else _FIRST))
            except EOFError:
                click.echo(err=True)
                return
            except KeyboardInterrupt:
                self._pending.clear()
                click.echo("^C", err=True)

    def enter(self, text: str) -> None:
        """Process one entry: a line, or several of an earlier statement."""
        for line in text.split("\n"):
            try:
                self._enter_line(line)
            except BrokerError as error:
                click.echo(str(error), err=True)

    def words(self, before: str, word: str) -> list[str]:
        """Complete the word at the cursor; `before` is the line in front of it."""
        if before.startswith("\\") and not self._pending:
            command = before.strip()
            names: Iterable[str] = FORMATS if command == "\\o" else ()
            if command == "\\d":
                names = (*self._names.of("view"), *self._names.of("queue"))
            return [name for name in names if name.casefold().startswith(word.casefold())]
        return completions(self._names, "\n".join([*self._pending, before]), word)

    def _enter_line(self, line: str) -> None:
        bare = line.strip()
        is_inside = is_open("\n".join(self._pending))
        if bare.startswith("\\") and not is_inside:
            self._run_command(bare[1:])
        elif not self._pending and bare.rstrip(";").lower() in ("exit", "quit"):
            self._is_leaving = True
        elif is_go(line) and not is_inside:
            self._end()
        elif bare or is_inside:
            self._pending.append(line)
            if is_whole("\n".join(self._pending)):
                self._end()
        elif self._pending and self._hint_is_due:
            self._hint_is_due = False
            click.echo("(end the statement with ; or with a line GO to run it)", err=True)

    def _end(self) -> None:
        """Run the statement."""
        statement = "\n".join(self._pending)
        self._pending.clear()
        if is_blank(statement):
            return
        if not is_secret(statement):
            self._history.add(statement)
            if readline is not None:
                readline.add_history(statement)
        database = used_database(statement)
        if database is None:
            self._run_statement(statement)
        else:
            self._use(database)

    def _run_statement(self, statement: str) -> None:
        try:
            answer = self._client.sql(statement, self.database)
        except KeyboardInterrupt:
            click.echo("^C no longer waiting: a SELECT is stopped, any other statement may still run", err=True)
        else:
            if not answer["columns"]:
                self._names.forget()
            show_answer(answer, self.output)

    def _use(self, database: str) -> None:
        """Change the database if the daemon has it."""
        self._client.sql("SELECT 1 AS one", database)
        self.database = database
        self._names.forget()
        click.echo(f"changed database context to '{database}'", err=True)

    def _run_command(self, text: str) -> None:
        """Run a command of the prompt, given without its backslash."""
        command, _, argument = text.partition(" ")
        argument = argument.strip().rstrip(";")
        match command:
            case "?":
                click.echo(_HELP, err=True)
            case "d":
                self._describe(argument)
            case "o" if argument in FORMATS:
                self.output = argument
            case "o":
                click.echo(f"\\o takes one of {', '.join(FORMATS)}; it is {self.output}", err=True)
            case "p":
                click.echo("\n".join(self._pending), err=True)
            case "r":
                self._pending.clear()
            case "q":
                self._is_leaving = True
            case _:
                click.echo(f"there is no \\{command}; \\? lists all", err=True)

    def _describe(self, name: str) -> None:
        if not name:
            self._run_statement(_VIEWS)
            return
        view = name.replace("[", "").replace("]", "").rpartition(".")[2].replace("'", "''").lower()
        found = f"SELECT column_id, name AS column_name FROM sys.system_columns WHERE view_name = '{view}'"  # noqa: S608 - quoted
        answer = self._client.sql(f"{found} ORDER BY column_id", self.database)
        if not answer["rows"]:  # a queue, or nothing
            columns = self._client.sql(f"SELECT TOP 0 * FROM {name}", self.database)["columns"]  # noqa: S608 - the typed name
            answer = answer | {"rows": [[place, column] for place, column in enumerate(columns, 1)]}
        show_answer(answer, self.output)


def prepare_readline(prompt: Prompt, history: History) -> None:
    """Give readline the earlier statements and the completion."""
    readline.set_auto_history(False)  # a statement is one entry, and only when it may be kept
    readline.clear_history()
    for statement in history.statements:
        readline.add_history(statement)
    offered: list[str] = []

    def complete(word: str, state: int) -> str | None:
        if state == 0:
            offered[:] = prompt.words(readline.get_line_buffer()[: readline.get_begidx()], word)
        return offered[state] if state < len(offered) else None

    readline.set_completer_delims(_DELIMITERS)
    readline.set_completer(complete)
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
    else:
        readline.parse_and_bind("tab: complete")
        readline.parse_and_bind("set enable-bracketed-paste on")


def _read_plainly(prompt: str) -> str:
    """Read a line, with the prompt on standard error."""
    click.echo(prompt, nl=False, err=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


# --- history ---


def history_path(environ: Mapping[str, str], home: Path) -> Path | None:
    """The file of BROKER_SQL_HISTORY, None if that is empty; by default in XDG_STATE_HOME or the home directory."""
    named = environ.get(HISTORY_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    state = Path(environ.get("XDG_STATE_HOME") or "")
    return (state if state.is_absolute() else home / ".local" / "state") / "broker" / "sql_history"


class History:
    """
    The file of earlier statements. Several sessions may append to it at once.

    Args:
        path: None for no history.

    Attributes:
        statements: Statements of earlier sessions, oldest first.
        problem: Reason why there is no history; "" when there is one.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.problem = ""
        self.statements: list[str] = []
        if path is None:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(
                _open_own(path, os.O_RDONLY), "r", encoding="utf-8", errors="surrogateescape", newline="\n"
            ) as file:
                os.fchmod(file.fileno(), 0o600)  # it may have been made readable for others
                lines = [line for line in file.read().split("\n") if line.strip()]
            self.statements = [line.replace(_LINE_FEED, "\n") for line in lines[-KEPT:]]
            if len(lines) > 2 * KEPT:
                kept = "".join(f"{line}\n" for line in lines[-KEPT:])
                write_file(path, kept.encode("utf-8", "surrogateescape"), mode=0o600)
        except OSError as error:
            self.problem = f"{path}: {error.strerror or error}"

    def add(self, statement: str) -> None:
        """Keep a statement that holds no secret."""
        if self._path is None or self.problem or len(statement) > STATEMENT_MAX:
            return
        line = statement.replace("\n", _LINE_FEED) + "\n"
        with suppress(OSError), os.fdopen(_open_own(self._path, os.O_WRONLY | os.O_APPEND), "wb") as file:
            file.write(line.encode("utf-8", "surrogateescape"))


def _open_own(path: Path, flags: int) -> int:
    """Open the file, or make it; never through a symbolic link. Raises OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


# --- statements ---

# Texts, names and comments, in which `;` ends nothing.
_HIDING = re.compile(
    r"""'(?:[^']|'')*+' | "(?:[^"]|"")*+" | \[(?:[^\]]|\]\])*+\] | --[^\n]*+ | /\*.*?\*/""", re.DOTALL | re.VERBOSE
)
_OPENING = re.compile(r"""['"\[]|/\*""")
_GO = re.compile(r"[ \t]*GO[ \t]*;?[ \t]*", re.IGNORECASE)
_USE = re.compile(r"\s*USE\s+(?:\[((?:[^\]]|\]\])+)\]|([^\s\[;]+))\s*;?\s*", re.IGNORECASE)
_SECRET = re.compile(r"PASSWORD|PASSPHRASE|SECRET|TOKEN|PRIVATE[\s_]*KEY|\bBEARER\b", re.IGNORECASE)


def is_go(line: str) -> bool:
    """Whether a line is GO, which ends the batch before it."""
    return _GO.fullmatch(line) is not None


def is_open(text: str) -> bool:
    """Whether a text, a name or a comment is not closed yet, so that the next line belongs to it."""
    return _OPENING.search(_HIDING.sub(" ", text)) is not None


def is_whole(text: str) -> bool:
    """Whether a `;` ends it."""
    bare = _HIDING.sub(" ", text)
    return bare.rstrip().endswith(";") and _OPENING.search(bare) is None


def is_blank(text: str) -> bool:
    """Whether it has only blanks, comments and semicolons."""
    return not re.sub(r"--[^\n]*+|/\*.*?\*/|[\s;]", "", text, flags=re.DOTALL)


def is_secret(text: str) -> bool:
    """Whether it must not be kept: it may hold a password, a token or a key, or begins with a blank."""
    return text[:1] in {" ", "\t"} or _SECRET.search(text) is not None


def used_database(text: str) -> str | None:
    """The database of a statement that is only `USE name`."""
    found = _USE.fullmatch(text)
    return None if found is None else (found[1] or found[2]).replace("]]", "]")
