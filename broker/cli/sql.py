"""
What a shell is offered where an option takes a name that lives in a running instance: services, databases.

The instance is the one that the words before name, or the environment. Somebody waits with a finger on the Tab key: an
instance that does not answer at once, and a mistake in the words before, offer nothing and say nothing.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.access import admin_client
from broker.cli.options import config_option, examples, socket_option, with_exit_code
from broker.cli.output import FORMATS, show_answer
from broker.ddl.lexer import decode_script
from broker.errors import BrokerError

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import ModuleType

    from broker.admin.client import AdminClient


ASK_SECONDS = 1.0

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def live_names(*kinds: str) -> Complete:
    """What completes a value to the names of these kinds, those of `broker.cli.sql.Names`."""

    def complete(context: click.Context, _parameter: click.Parameter, word: str) -> list[str]:

        try:
            client = admin_client(context.params.get("config"), context.params.get("socket"), timeout=ASK_SECONDS)
        except (BrokerError, click.UsageError):
            return []

        def ask(question: str) -> Sequence[Sequence[Any]]:
            rows: Sequence[Sequence[Any]] = client.sql(question)["rows"]
            return rows

        names = Names(ask)
        return sorted({name for kind in kinds for name in names.of(kind) if name.startswith(word)})

    return complete


# --- script ---
# Carrying out a long script, and showing how far it is: a bar on a terminal, else a line each ten seconds.
#
# The daemon gets the script whole, so that it is carried out wholly or not at all, and tells in `/v1/status` how far
# it
# is with it. Whoever interrupts the command leaves the script to the daemon.


LONG_CHARACTERS = 1_000_000  # a script of this size is shown; a shorter one takes a fraction of a second
POLL_SECONDS = 0.25
LINE_SECONDS = 10.0
SCRIPT_SECONDS = 3600.0  # for a script and those before it


def run_long_script(client: AdminClient, text: str, database: str | None) -> Any:
    """
    The answer of the daemon.

    Raises:
        DaemonUnreachableError, ProblemError: as `AdminClient.sql`.
    """
    from concurrent.futures import Future  # noqa: PLC0415 - see the docstring of broker.cli.group
    from threading import Thread  # noqa: PLC0415

    patient = client.patient(SCRIPT_SECONDS)
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(patient.sql(text, database))
        except BaseException as error:  # noqa: BLE001 - told by whoever waits
            answer.set_exception(error)

    Thread(target=ask, name="script", daemon=True).start()
    show = _show_bar if sys.stderr.isatty() else _show_lines
    show(_states(client, len(text), answer), len(text))
    return answer.result()


def _states(client: AdminClient, size: int, answer: Future[Any]) -> Iterator[dict[str, Any]]:
    """How far the script is, again and again until it is answered. Its size tells it from others."""
    from concurrent.futures import wait  # noqa: PLC0415

    while not wait([answer], POLL_SECONDS).done:
        try:
            running = client.get("/v1/status")["running_scripts"]
        except BrokerError:
            continue  # the answer itself will say what is wrong
        yield from [script for script in running if script["size"] == size][:1]


def _show_bar(states: Iterator[dict[str, Any]], size: int) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sending", total=size)
        for state in states:
            progress.update(task, description=_words(state), completed=state["position"])


def _show_lines(states: Iterator[dict[str, Any]], size: int) -> None:
    for number, state in enumerate(states, 1):
        if number % int(LINE_SECONDS / POLL_SECONDS) == 0:
            click.echo(f"{_words(state)}, {state['position'] * 100 // size} %", err=True)


def _words(state: dict[str, Any]) -> str:
    return f"{state['stage']}, {state['statements']:,} statements"


# --- asking ---
# The commands that ask a running daemon: statements and views, and its state at a glance.


@examples("""
broker sql "SELECT name, address FROM msdb.sys.routes"
broker sql --database orders < routes.sql
""")
@click.command()
@config_option
@socket_option
@click.option(
    "-d",
    "--database",
    shell_complete=live_names("database"),
    help="Where it runs; else the only user database, else msdb.",
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="How to print.")
@click.argument("statement", required=False)
@with_exit_code
def sql(
    config: Path | None, socket: Path | str | None, database: str | None, output: str, statement: str | None
) -> None:
    """
    Carry out a statement or script, or a SELECT over the views.

    Without an argument it is read from standard input, or asked for at a prompt, which has a history and completes
    names with Tab. Exit codes: 1 refused, 3 something it names does not exist, 4 daemon unreachable, 5 not permitted.
    """
    client = admin_client(config, socket)
    if statement is None and sys.stdin.isatty():
        run_prompt(client, database, output)
        return
    text = decode_script(sys.stdin.buffer.read()) if statement is None else statement
    run = client.sql if len(text) < LONG_CHARACTERS else partial(run_long_script, client)
    show_answer(run(text, database), output)


_interval_option = click.option(
    "--interval", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, help="Seconds between two looks."
)


# --- name_completion ---
# What a word at the prompt may become: keywords, views and their columns, and the names that live in the instance.
#
# The names are asked of the daemon when the first word is completed, and again when they are older than half a
# minute. A
# daemon that does not answer at once leaves the keywords. What is offered depends on what stands before the word:
# views
# and queues behind FROM, routes behind ROUTE, names of services in a text.


# Asks a SELECT: rows.
Ask = Callable[[str], Sequence[Sequence[Any]]]

NAMES_MAX = 1000  # of one kind
FRESH_SECONDS = 30.0
OFFERED_MAX = 500  # more than anybody reads
DELIMITERS = " \t\n,()=<>+;'"  # what ends a word; a name may hold dots, slashes, brackets

_WORDS = """
    ADDRESS ALTER AND ANONYMOUS AS ASC AUTHORIZATION BETWEEN BROKER_INSTANCE BY CASE CAST CHARINDEX COALESCE CONNECT
    CONTRACT CONVERSATION COUNT COUNT_BIG CREATE DATE DATETIME DENY DESC DISTINCT DROP ELSE END ENDPOINT EXCEPT
    EXISTS FETCH FROM FULL GETUTCDATE GO GRANT GROUP HAVING IIF IN INNER INTERSECT IS ISNULL JOIN JULIANDAY LEFT LEN
    LIFETIME LIKE LOCAL LOWER MAX MESSAGE MIN MIRROR_ADDRESS NEXT NOT NULL NULLIF OFFSET ON ONLY OR ORDER OUTER OVER
    PARTITION PRIORITY QUEUE REMOTE REPLACE REVOKE RIGHT ROUND ROUTE ROWS SELECT SEND SERVICE SERVICE_NAME SET
    STATUS STRING_AGG SUBSTRING SUM SYSUTCDATETIME THEN TO TOP TRANSPORT TRIM TYPE UNION UPPER USE VALIDATION WEIGHT
    WHEN WHERE WITH
"""
_KEYWORDS = tuple(_WORDS.split())
# What the words before tell about the next one, and which kinds of names then fit.
_AFTER: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\b(FROM|JOIN)\s+$", ("view", "queue", "database")),
    (r"\bROUTE\s+$", ("route",)),
    (r"\bON\s+QUEUE\s+$|\bQUEUE\s+$", ("queue",)),
    (r"\bSERVICE\s+$|\bSERVICE::\s*$|\bTO\s+SERVICE\s+$|\bFROM\s+SERVICE\s+$", ("service",)),
    (r"\bCONTRACT\s+$", ("contract",)),
    (r"\bMESSAGE\s+TYPE\s+$", ("message type",)),
    (r"\bUSE\s+$|\bDATABASE\s+$", ("database",)),
    (r"'$", ("far service", "service", "address")),
)
_LIVE: Mapping[str, str] = {
    "database": "SELECT TOP {n} name FROM sys.databases",
    "route": "SELECT TOP {n} name FROM sys.routes UNION SELECT TOP {n} name FROM msdb.sys.routes",
    "far service": (
        "SELECT TOP {n} remote_service_name FROM sys.routes"
        " UNION SELECT TOP {n} remote_service_name FROM msdb.sys.routes"
    ),
    "address": "SELECT TOP {n} address FROM sys.routes UNION SELECT TOP {n} address FROM msdb.sys.routes",
    "service": "SELECT TOP {n} name FROM sys.services",
    "queue": "SELECT TOP {n} name FROM sys.service_queues",
    "contract": "SELECT TOP {n} name FROM sys.service_contracts",
    "message type": "SELECT TOP {n} name FROM sys.service_message_types",
}
_COLUMNS = "SELECT schema_name, view_name, name FROM sys.system_columns ORDER BY object_id DESC, column_id"
_PLAIN = re.compile(r"[A-Za-z_#][\w$#@]*")
_WORD = re.compile(r"[\w.]+")


class Names:
    """What lives in an instance. `ask` raises for what it cannot answer; such names are not offered."""

    def __init__(self, ask: Ask, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._columns: dict[str, list[str]] = {}
        self._live: dict[str, tuple[float, list[str]]] = {}

    def columns(self) -> Mapping[str, Sequence[str]]:
        """The columns of each view; asked until they are known, for they never change."""
        if not self._columns:
            for schema, view, column in self._rows(_COLUMNS):
                self._columns.setdefault(f"{schema}.{view}", []).append(str(column))
        return self._columns

    def of(self, kind: str) -> Sequence[str]:
        """The names of a kind, not older than `FRESH_SECONDS`."""
        if kind == "view":
            return list(self.columns())
        at, names = self._live.get(kind, (-FRESH_SECONDS, []))
        if self._clock() - at >= FRESH_SECONDS:
            rows = self._rows(_LIVE[kind].format(n=NAMES_MAX))
            names = sorted({str(row[0]) for row in rows if row[0] is not None and str(row[0]).isprintable()})
            self._live[kind] = self._clock(), names
        return names

    def forget(self) -> None:
        """Ask again next time: something was changed."""
        self._live.clear()

    def _rows(self, question: str) -> Sequence[Sequence[Any]]:
        try:
            return self._ask(question)
        except Exception:  # noqa: BLE001 - `result` raises it below
            return ()


def completions(names: Names, before: str, word: str) -> list[str]:
    """
    What `word` may become.

    Args:
        names: What lives in the instance.
        before: The whole statement in front of the word.
        word: As far as it is typed; it may be empty.

    Returns:
        Whole words, keywords in the case that is typed, `OFFERED_MAX` at most; those that differ from what is typed
        in case alone only when there are no others.
    """
    found: dict[str, None] = {}
    typed = word.lstrip("[").casefold()
    for name in _fitting(names, before, word):
        if name.lstrip("[").casefold().startswith(typed):
            found[name] = None
        if len(found) == OFFERED_MAX:
            break
    exact = [name for name in found if name.lstrip("[").startswith(word.lstrip("["))]
    return exact or list(found)


def _fitting(names: Names, before: str, word: str) -> Iterator[str]:
    for pattern, kinds in _AFTER:
        if re.search(pattern, before, re.IGNORECASE):
            is_text = before.endswith("'")
            for kind in kinds:
                yield from (name if is_text else _written(name, kind, kinds) for name in names.of(kind))
            if is_text or kinds[0] != "view":
                return
            yield from _of_database(names, word)
            return
    if before.count("'") % 2:
        return
    yield from _of_statement(names.columns(), before)
    if "." in word:  # an alias before the column
        alias = word.rpartition(".")[0]
        yield from (f"{alias}.{column}" for column in _of_statement(names.columns(), before))
    keywords = (keyword.lower() for keyword in _KEYWORDS) if word and word == word.lower() else iter(_KEYWORDS)
    yield from keywords


def _of_database(names: Names, word: str) -> Iterator[str]:
    """The views behind the name of a database: `orders.sys.`, once the name stands there."""
    database, dot, _ = word.partition(".")
    if dot and database.casefold() != "sys":
        yield from (f"{database}.{view}" for view in names.of("view"))


def _of_statement(columns: Mapping[str, Sequence[str]], before: str) -> Iterator[str]:
    """The columns of the views that the statement names; of all when it names none yet."""
    words = {word.casefold() for word in _WORD.findall(before)}
    named: Iterable[str] = [
        view for view in columns if any(word == view or word.endswith("." + view) for word in words)
    ]
    for view in named or columns:
        yield from columns[view]


def _written(name: str, kind: str, kinds: Sequence[str]) -> str:
    """A name as a statement has to have it: in brackets where it must be; a database in front of what is in it."""
    quoted = name if kind == "view" or _PLAIN.fullmatch(name) else f"[{name.replace(']', ']]')}]"
    return f"{quoted}." if kind == "database" and "view" in kinds else quoted


# --- past_statements ---
# The statements typed at the prompt, kept from one session to the next.
#
# They are in one file that only its owner can read, the newest of them alone, and none that may hold a secret. A line
# is
# one statement; the line feeds inside it are written as U+0001, as psql does. Several sessions may write at once:
# each
# appends. A file that cannot be used leaves the prompt without a past, and is no error.


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


# --- typed_batch ---
# What has been typed so far: whether it is a whole statement, and whether it holds a secret.
#
# As sqlcmd does, a line with GO ends what was typed before it; as other prompts do, so does a `;` at the end of a
# line,
# unless it stands in a text, a name in brackets or a comment.


# What hides a `;`: texts, names, comments; the last alternative of each pair is one that is not closed.
_HIDING = re.compile(
    r"""'(?:[^']|'')*+' | "(?:[^"]|"")*+" | \[(?:[^\]]|\]\])*+\] | --[^\n]*+ | /\*.*?\*/""", re.DOTALL | re.VERBOSE
)
_OPENING = re.compile(r"""['"\[]|/\*""")
_GO = re.compile(r"[ \t]*GO[ \t]*;?[ \t]*", re.IGNORECASE)
_USE = re.compile(r"\s*USE\s+(?:\[((?:[^\]]|\]\])+)\]|([^\s\[;]+))\s*;?\s*", re.IGNORECASE)
_SECRET = re.compile(r"PASSWORD|PASSPHRASE|SECRET|TOKEN|PRIVATE[\s_]*KEY|\bBEARER\b", re.IGNORECASE)


def is_go(line: str) -> bool:
    """Whether a line ends the batch before it."""
    return _GO.fullmatch(line) is not None


def is_open(text: str) -> bool:
    """Whether a text, a name or a comment in it is not closed yet, so that the next line belongs to it."""
    return _OPENING.search(_HIDING.sub(" ", text)) is not None


def is_whole(text: str) -> bool:
    """Whether a `;` ends it."""
    bare = _HIDING.sub(" ", text)
    return bare.rstrip().endswith(";") and _OPENING.search(bare) is None


def is_blank(text: str) -> bool:
    """Whether there is nothing in it but blanks, comments and semicolons."""
    return not re.sub(r"--[^\n]*+|/\*.*?\*/|[\s;]", "", text, flags=re.DOTALL)


def is_secret(text: str) -> bool:
    """Whether it may hold what must not be kept: a password, a token, a key; or it begins with a blank."""
    return text[:1] in {" ", "\t"} or _SECRET.search(text) is not None


def used_database(text: str) -> str | None:
    """The database of a `USE name` that stands alone; else None."""
    found = _USE.fullmatch(text)
    return None if found is None else (found[1] or found[2]).replace("]]", "]")


# --- prompt ---
# `broker sql` at a terminal: statements are typed, completed, kept for the next session, and answered.
#
# A statement ends with `;` at the end of a line, or with GO on a line of its own, as in sqlcmd. Ctrl-C leaves what is
# typed, or stops waiting for an answer: the daemon then stops a SELECT, and carries out anything else. Ctrl-D leaves.
# A line that begins with a backslash is for the prompt itself; `\?` lists them.
#
# The standard library's readline edits the line and finds earlier statements; without it, lines are read as they
# come.


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
