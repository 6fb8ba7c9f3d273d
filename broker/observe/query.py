"""
Queries of the system views: one SELECT, read only, within limits of time and size.

Every statement gets a separate connection to an empty database in memory, to which the files it names are attached
read only. Each view it mentions becomes a temporary view over its file, or a temporary table filled from the daemon,
under a random name that cannot be guessed. Two checks protect the files. Only a syntax tree that was understood is
rendered as SQL (`broker.observe.tsql`). And SQLite itself asks `_guard` about each object that the SQL would access;
`_guard` denies everything but those views. A reader never blocks a writer. It keeps the write-ahead log of the file
from being reset for as long as it runs, one reason for the time limit.

Source: SQLite documentation, "Compile-Time Authorization Callbacks", "Write-Ahead Logging", "Query Progress Callbacks",
"Temporary Files Used By SQLite"; proc(5), /proc/PID/fd.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from broker.advice import near_name
from broker.catalog.catalog import MSDB
from broker.errors import BrokerError, DdlSyntaxError, StatementError, StoreUnavailableError, UnknownNameError
from broker.observe.sql_functions import ALLOWED, add_functions, render_instant
from broker.observe.views import GUID_COLUMNS, MEMORY_VIEWS, OWN_VIEWS, Row, RowSource, find_name
from broker.protocol.layout import show_guid
from broker.store.sqlite.transaction import sentence
from broker.store.sqlite.views import COUNTED, FILE_VIEWS, QUEUE, SERVER_PERMISSIONS, FileView, attach, queue_numbers

if TYPE_CHECKING:
    from broker.observe.tsql import SelectQuery, TableName

# --- errors of SQLite, as the numbered errors of the original ---

# SQLite's sentence, kind, number, ours; `{0}` is the name that SQLite's sentence holds. The last fits every sentence.
_SENTENCES: tuple[tuple[str, type[StatementError], int, str], ...] = (
    (r"no such column: (.+)", UnknownNameError, 207, "invalid column name '{0}'"),
    (r"ambiguous column name: (.+)", UnknownNameError, 209, "ambiguous column name '{0}': name its table too"),
    (r"no such table: (.+)", UnknownNameError, 208, "invalid object name '{0}'"),
    (r"no such function: (.+)", StatementError, 195, "'{0}' is not a recognized function name"),
    (r"not authorized to use function: (.+)", StatementError, 195, "'{0}' is not a recognized function name"),
    (r"wrong number of arguments to function (\w+)\(\)", StatementError, 174, "wrong number of arguments to '{0}'"),
    (
        r"misuse of (?:\w+:? )*(\w+)",
        StatementError,
        147,
        "an aggregate or window function is out of place: {0}",
    ),
    (r"access to (.+) is prohibited", StatementError, 229, "the SELECT permission was denied on '{0}'"),
    (r"not authorized", StatementError, 229, "the permission was denied: only the views can be read"),
    (r"user-defined function raised exception", StatementError, 241, "conversion failed: no date, time or number"),
    (r"circular reference: (.+)", StatementError, 252, "the expression '{0}' refers to itself without UNION ALL"),
    (r"string or blob too big", StatementError, 7119, "a value or a row is too large: 64 KiB, for admins 1.25 MiB"),
    (
        r"LIKE or GLOB pattern too complex",
        StatementError,
        102,
        "a pattern of LIKE may have 256 bytes; write a shorter one",
    ),
    (r'near "(.+)": syntax error', DdlSyntaxError, 102, "not supported near '{0}'"),
    (r"(?s)(.*)", DdlSyntaxError, 102, "not supported: {0}"),
)
_CALLERS = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
_COLUMN = 207
FILE_GONE = (
    "its file is not there. A daemon that runs may have the only copy open: do not stop it, broker status says what to"
    " do. Otherwise put the file back together with its -wal; a new database has no file before the first start"
)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the likely meaning of a misspelt name, as the end of a sentence; empty when nothing is near."""
    near = near_name(name, names, cutoff=0.7)  # a schema may be missing
    return f"; did you mean {near}?" if near else ""


def _file_problem(path: Path, error: sqlite3.Error) -> str:
    """What is wrong with the file of a database."""
    is_unopened = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF == sqlite3.SQLITE_CANTOPEN
    return FILE_GONE if is_unopened and not path.exists() else sentence(error)


def translate(error: sqlite3.Error, statement: SelectQuery, *, columns: Iterable[str], path: str) -> BrokerError:
    """
    Return the error to raise for one of SQLite's.

    SQLite knows only its own version of the statement; the place shown is looked up in the text that was given. Faults
    of the file (locked, damaged, gone) are the machine's, everything else is the caller's.

    Args:
        error: As SQLite raised it.
        statement: The one that failed.
        columns: Every column of what it reads.
        path: The file it reads, for a fault of the file.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code not in _CALLERS:
        return StoreUnavailableError(path, _file_problem(Path(path), error))
    kind, number, problem, found = next(
        (kind, number, problem, found)
        for pattern, kind, number, problem in _SENTENCES
        if (found := re.match(pattern, str(error)))
    )
    name = found[1] if found.groups() else ""
    hint = nearest(name.rsplit(".", 1)[-1], columns) if number == _COLUMN else ""
    return statement.error(number, problem.format(name) + hint, name, kind=kind)


# --- limits of a statement: time, size of temporary files, and whether the client still waits ---

Wanted = Callable[[], bool]

OUT_OF_TIME, TOO_LARGE = 8649, 1105  # the original's: the query was cancelled; no room in tempdb
_LOOK_SECONDS = 0.05  # between two checks whether the result is still wanted
_SPILL_SECONDS, _SPILL_SHARE = 0.25, 20  # between two checks of the files, and times as long as the last one took
_DESCRIPTORS = Path("/proc/self/fd")
_SPILLED = "/etilqs_"  # how SQLite names its temporary files


class Watch:
    """
    Watchdog of one statement, whose time begins now.

    SQLite calls it every so many steps, in the thread that executes the statement. A large sort or group is spilled to
    temporary files; Linux reports how large they are, though they are already unlinked.

    Args:
        seconds: The time that the statement may take.
        spill_bytes: Size that temporary files may have, those of all statements of this process together.
        is_wanted: Returns whether the client still waits.

    Attributes:
        problem: Why the statement was ended, "" while it was not.
        number: Number of that error.
    """

    __slots__ = ("_deadline", "_is_wanted", "_look_at", "_seconds", "_spill_at", "_spill_bytes", "number", "problem")

    def __init__(self, seconds: float, spill_bytes: int, is_wanted: Wanted) -> None:
        now = time.monotonic()
        self.number = OUT_OF_TIME
        self.problem = ""
        self._seconds = seconds
        self._spill_bytes = spill_bytes
        self._is_wanted = is_wanted
        self._deadline = now + seconds
        self._look_at = now
        self._spill_at = now + _SPILL_SECONDS

    def __call__(self) -> bool:
        """Whether the statement is to end."""
        now = time.monotonic()
        if now > self._deadline:
            self.problem = f"the query was cancelled: it took longer than {self._seconds:g} s; ask for less"
        elif now > self._look_at:
            self._look_at = now + _LOOK_SECONDS
            if not self._is_wanted():
                self.problem = "the query was cancelled: the client has gone"
            elif now > self._spill_at:
                self._look_at_files(now)
        return bool(self.problem)

    def _look_at_files(self, now: float) -> None:
        spilled = spilled_bytes()
        if spilled > self._spill_bytes:
            self.number = TOO_LARGE
            self.problem = f"what is sorted and gathered has more than {self._spill_bytes >> 20} MiB; ask for less"
        self._spill_at = now + max(_SPILL_SECONDS, _SPILL_SHARE * (time.monotonic() - now))


def spilled_bytes() -> int:
    """Return the size of SQLite's temporary files in this process; 0 where the system does not report it."""
    size = 0
    with suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - a Path for each descriptor would cost more than the look
            with suppress(OSError):
                path = f"{_DESCRIPTORS}/{name}"
                if _SPILLED in os.readlink(path):  # noqa: PTH115 - likewise
                    size += os.stat(path).st_size  # noqa: PTH116 - likewise
    return size


def _texts(most: int) -> Callable[[bytes], str]:
    """Return what decodes texts of SQLite, of so many bytes in all. Bytes that are not UTF-8 are replaced."""
    left = most

    def decode(data: bytes) -> str:
        nonlocal left
        left -= len(data)
        if left < 0:
            raise StatementError(TOO_LARGE, f"one row has more than {most >> 20} MiB; ask for fewer columns")
        return data.decode(errors="replace")

    return decode


ATTACHED_MAX = 10  # databases in one statement; what SQLite can attach unless it was built otherwise
VALUE_MAX_BYTES = 64 * 1024  # one value, or one row that is sorted, inside SQLite
BODY_MAX_BYTES = 1280 * 1024  # the same where bodies are shown: the largest of them, and room
PATTERN_MAX_BYTES = 256  # of LIKE; its time grows with this times the length of the text
COLUMNS_MAX = 128  # of a result; three times those of the widest view, and with the above a bound for one row
PROGRESS_STEPS = 50  # steps of SQLite between two readings of the clock; a step on a large value takes milliseconds
_QUEUE_SCHEMA = "dbo"
_VIEW_SCHEMA = "sys"
SELF_MADE = frozenset(view.name for view in OWN_VIEWS)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """
    The result of a SELECT.

    Attributes:
        columns: Names in order, which may repeat.
        rows: Of None, int, float and str; bytes are shown as `0x...`.
        truncated: There was more than the limits allow.
    """

    columns: tuple[str, ...]
    rows: list[Row]
    truncated: bool


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """
    For every statement: `seconds` it may take, `rows` and `result_bytes` after which its result ends, and
    `spill_bytes` of temporary files, those of all statements together.
    """

    seconds: float = 10.0
    rows: int = 10_000
    result_bytes: int = 32 * 1024 * 1024
    spill_bytes: int = 512 * 1024 * 1024


class SystemViews:
    """
    The system views of one instance.

    Args:
        databases: The file of each database by name, msdb first.
        snapshots: By name of a memory view, the source of its rows, values in the order of `MEMORY_VIEWS`: UUIDs,
            datetimes, bools, numbers, texts and None. Called in the thread that calls `select`, and only when a
            statement mentions the view.
        mirrors: The databases whose files must not be opened here.
        limits: For every statement.
    """

    def __init__(
        self,
        *,
        databases: Mapping[str, Path],
        snapshots: Mapping[str, RowSource],
        mirrors: Iterable[str] = (),
        limits: QueryLimits | None = None,
    ) -> None:
        self.databases = databases
        self.snapshots: dict[str, RowSource] = {
            **snapshots,
            **{view.name: partial(view.rows, databases) for view in OWN_VIEWS},
        }
        self.mirrors = mirrors
        self.limits = limits or QueryLimits()

    def select(
        self, statement: str, *, database: str, shows_bodies: bool = True, is_wanted: Wanted = lambda: True
    ) -> QueryResult:
        """
        Execute one SELECT (or WITH ... SELECT). Blocking.

        Args:
            statement: T-SQL.
            database: The one whose views and queues are meant where the statement names none; an empty name is msdb.
            shows_bodies: Whether the caller may read the bodies of messages; without it those columns are NULL.
            is_wanted: Called repeatedly, in this thread; when it returns False, the statement ends.

        Raises:
            StatementError: it is not a SELECT, or cannot be executed; the number is the original's: 102 syntax,
                207 column, 208 view or queue, 259 not a SELECT, 911 database, 954 a mirror, 1105 too large,
                8649 out of time ..
            StoreUnavailableError: a file that cannot be read.
        """
        home = self.find_database(database or MSDB)
        if home is None:
            raise UnknownNameError(911, f"database '{database}' does not exist{nearest(database, self.databases)}")
        watch = Watch(self.limits.seconds, self.limits.spill_bytes, is_wanted)
        parsed: SelectQuery = import_module("broker.observe.tsql").SelectQuery(statement)  # with the first SELECT
        with closing(sqlite3.connect(":memory:", uri=True, isolation_level=None, timeout=self.limits.seconds)) as db:
            return _QueryRun(self, db, home=home, watch=watch, shows_bodies=shows_bodies).answer(parsed)

    def find_database(self, name: str) -> str | None:
        """Find the database of this name, in any case unless two names differ only in case."""
        return find_name(name, self.databases)


class _QueryRun:
    """One statement on its own connection; nothing of it outlives `answer`."""

    def __init__(
        self, views: SystemViews, db: sqlite3.Connection, *, home: str, watch: Watch, shows_bodies: bool
    ) -> None:
        self._shows_bodies = shows_bodies
        self._views = views
        self._db = db
        self._home = home
        self._watch = watch
        self._now = datetime.now(UTC)
        self._attached: dict[str, str] = {}
        self._made: dict[tuple[str, str], str] = {}  # by database and object: the temporary view or table
        self._secret = secrets.token_hex(8)
        self._columns: set[str] = set()

    def answer(self, statement: SelectQuery) -> QueryResult:
        """The rows of the statement, as far as the limits allow."""
        db, limits = self._db, self._views.limits
        db.text_factory = _texts(2 * limits.result_bytes)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, BODY_MAX_BYTES if self._shows_bodies else VALUE_MAX_BYTES)
        db.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_MAX_BYTES)
        db.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, COLUMNS_MAX)
        add_functions(db, now=self._now, database=self._home)
        sql = statement.render({table: self._make(table, statement) for table in statement.tables})
        db.set_progress_handler(self._watch, PROGRESS_STEPS)
        db.set_authorizer(_guard(frozenset(self._made.values()), statement.own))
        try:
            cursor = db.execute(sql)
            columns = tuple(column[0] for column in cursor.description)
            rows, truncated = _fetch(cursor, limits)
        except sqlite3.Error as error:
            if self._watch.problem:
                raise StatementError(self._watch.number, self._watch.problem) from error
            path = str(self._views.databases.get(next(iter(self._attached), self._home), self._home))
            raise translate(error, statement, columns=self._columns, path=path) from error
        return QueryResult(columns, rows, truncated)

    # --- what a name refers to -----------------------------------------------------------------------------

    def _make(self, table: TableName, statement: SelectQuery) -> str:
        """The temporary view or table for a name; made once."""
        database = self._home if table.database is None else self._views.find_database(table.database)
        if database is None and find_name(table.database or "", self._views.mirrors) is not None:
            problem = f"the database {table.database!r} is a mirror here: ask its principal"
            raise statement.error_about(table, 954, problem)
        if database is None:
            hint = nearest(table.database or "", self._views.databases)
            raise statement.error_about(table, 208, f"invalid object name '{table}'{hint}", kind=UnknownNameError)
        schema = (table.schema or _QUEUE_SCHEMA).lower()
        if schema == _VIEW_SCHEMA:
            view = f"{_VIEW_SCHEMA}.{table.name.lower()}"
            if view in FILE_VIEWS:
                return self._make_view(MSDB if view == SERVER_PERMISSIONS else database, view, FILE_VIEWS[view])
            if view in MEMORY_VIEWS:
                return self._make_table(view)
        elif schema == _QUEUE_SCHEMA:
            queues = self._queues(database)
            queue = find_name(table.name, queues)
            if queue is not None:
                return self._make_view(database, f"queue {queue}", QUEUE, queues[queue])
        hint = nearest(str(table), self._known_names(database, table))
        raise statement.error_about(table, 208, f"invalid object name '{table}'{hint}", kind=UnknownNameError)

    def _known_names(self, database: str, table: TableName) -> list[str]:
        """Everything that can be read, written with as many parts as the name that cannot."""
        queues = list(self._queues(database))
        if table.schema is not None:
            queues = [f"{_QUEUE_SCHEMA}.{queue}" for queue in queues]
        prefix = "" if table.database is None else f"{database}."
        return [prefix + name for name in (*FILE_VIEWS, *MEMORY_VIEWS, *queues)]

    def _queues(self, database: str) -> dict[str, int]:
        return queue_numbers(self._db, self._attach(database))

    # --- making it readable ---------------------------------------------------------------------------------

    def _make_view(self, database: str, key: str, view: FileView, queue_id: int = 0) -> str:
        made = self._made.get((database, key))
        if made is None:
            made = self._made[database, key] = self._next_name()
            alias, now = self._attach(database), self._now.timestamp()
            select = view.render(db=alias, now=now, queue_id=queue_id, shows_bodies=self._shows_bodies)
            self._columns.update(view.columns)
            self._db.execute(f"CREATE TEMP VIEW {made} AS {select}")
        return made

    def _make_table(self, view: str) -> str:
        made = self._made.get(("", view))
        if made is None:
            made = self._made["", view] = self._next_name()
            columns = MEMORY_VIEWS[view]
            self._columns.update(columns)
            declared = ", ".join(f"{name} COLLATE NOCASE" if name in GUID_COLUMNS else name for name in columns)
            self._db.execute(f"CREATE TEMP TABLE {made} ({declared})")
            self._db.execute("BEGIN")
            self._db.executemany(
                f"INSERT INTO {made} VALUES ({', '.join('?' * len(columns))})",  # noqa: S608 - our own name
                (tuple(map(shown_value, row)) for row in self._views.snapshots[view]()),
            )
            self._db.execute("COMMIT")
        return made

    def _next_name(self) -> str:
        return f"view_{self._secret}_{len(self._made)}"

    def _attach(self, database: str) -> str:
        """The alias under which a database's file can be read."""
        alias = self._attached.get(database)
        if alias is None:
            if len(self._attached) == ATTACHED_MAX:
                raise StatementError(102, f"a statement can read {ATTACHED_MAX} databases at most")
            alias = f"database_{len(self._attached)}"
            path = self._views.databases[database]
            try:
                attach(self._db, path, alias)
            except sqlite3.Error as error:
                raise StoreUnavailableError(str(path), _file_problem(path, error)) from error
            self._attached[database] = alias
        return alias


def _guard(made: frozenset[str], own: frozenset[str]) -> Callable[..., int]:
    """
    Return SQLite's authorizer for a user's statement.

    count(*) reads no column, and for no view: rows can be counted of `own` and of what the views are made of.

    Args:
        made: The names of the temporary views and tables. SQLite passes for each thing the view on whose behalf it is
            touched, and a text cannot hold such a name, because it contains a secret.
        own: The names that the statement defines.
    """
    counted = COUNTED | own

    def authorize(action: int, first: str | None, second: str | None, _schema: str | None, behalf: str | None) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            is_allowed = True
        elif action == sqlite3.SQLITE_READ:
            is_allowed = behalf in made or first in made or (not second and str(first).casefold() in counted)
        else:
            is_allowed = action == sqlite3.SQLITE_FUNCTION and (behalf in made or second in ALLOWED)
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    return authorize


def shown_value(value: object) -> object:
    """Convert a value of a snapshot to the form that views show; one in that form is returned as it is."""
    if isinstance(value, uuid.UUID):
        return show_guid(value)
    if isinstance(value, datetime):
        return render_instant(value)
    return int(value) if isinstance(value, bool) else value


def _fetch(cursor: sqlite3.Cursor, limits: QueryLimits) -> tuple[list[Row], bool]:
    """The rows within the limits; one more row may pass the limit of bytes, so that a large one can be seen at all."""
    rows: list[Row] = []
    size = 0
    for row in cursor:
        if len(rows) == limits.rows or size >= limits.result_bytes:
            return rows, True
        shown = tuple(f"0x{value.hex().upper()}" if isinstance(value, bytes) else value for value in row)
        size += sum(len(value) for value in shown if isinstance(value, str))
        rows.append(shown)
    return rows, False
