"""
The audit file: one JSON object a line for each change, on the disk before the change is committed.

The lines of a script are written when all of it has been executed and nothing is committed yet; a script that cannot
be recorded is rolled back. Should a commit then fail, a second line with the same `request` says so. Refusals are
recorded as well, at a bounded rate, so that refused requests do not fill the disk. Names, addresses and states are
written, never a body, a key or a token.

The file is opened for each append, so that it can be renamed at any time (by logrotate), and locked, so that a command
and the running instance can both write. The process never renames it, and never truncates finished lines.

Keys of a line: `at` (UTC, ISO 8601), `request` (one for all lines of a request), `who`, `role`, `from`, `operation`,
`database`, `statement` or `target`, `outcome` (done, refused, failed), `problem`, and `unsaid`, the number of refusals
before this one that were not written; keys without a value are left out.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import structlog

from broker.admin.auth import Caller
from broker.config.admin_access import AdminRole
from broker.ddl.render import render_statement
from broker.ddl.statements import Statement, words_of
from broker.errors import DdlSyntaxError, ResourceError, StatementError, StoreUnavailableError
from broker.files import keep_names, room_problem
from broker.observe.views import audit_rows
from broker.ratelimit import TokenBucket

MODE = 0o600
LINES_MAX = 1000  # of one request that are written one by one; the others are counted
TEXT_MAX = 500  # characters of a target or a problem
STATEMENT_MAX = 4000  # characters
REFUSALS_BURST = 60
REFUSAL_SECONDS = 60.0  # for one more: by refusals alone the file grows by less than 2 MiB a day
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

log = structlog.get_logger(__name__)


class AuditUnavailableError(ResourceError):
    """A change cannot be recorded, so it is not made."""

    path: str
    problem: str
    says: ClassVar[str] = "audit {path}: {problem}; nothing is changed as long as no change can be written down"


class AuditOutcome(StrEnum):
    """The outcome of a change."""

    DONE = "done"
    REFUSED = "refused"  # because of the request or its caller; nothing is changed
    FAILED = "failed"  # after it was recorded as done: part of it may have happened


class Audit:
    """The audit of an instance, for any thread; without an `executor` the calling thread writes."""

    def __init__(self, path: Path, executor: Executor | None = None) -> None:
        self.path = path
        self._executor = executor
        self._refusals = TokenBucket(1 / REFUSAL_SECONDS, REFUSALS_BURST, time.monotonic())
        self._unsaid = 0
        self._failed: AuditUnavailableError | None = None  # of the last append, for problems that opening does not show
        self._lock = threading.Lock()

    def rows(self) -> list[tuple[object, ...]]:
        """The newest lines, as the view has them. Blocking; raises StoreUnavailableError."""
        return audit_rows(self.path)

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """
        Write lines, all of them or none. Blocking.

        Raises:
            AuditUnavailableError: they cannot be written.
        """
        path = self.path
        try:
            _append(path, lines)
        except OSError as error:
            failed = AuditUnavailableError(str(path), error.strerror or str(error))
            self._failed = None if _problem(path) else failed
            raise failed from error
        self._failed = None

    def problems(self, state_dir: Path) -> dict[str, str]:
        """Why changes cannot be made or recorded, as a status has it; "" where they can. Blocking."""
        return {"room_problem": room_problem(state_dir) or "", "audit_problem": self.problem()}

    def problem(self) -> str:
        """Why changes cannot be recorded, or the last one could not; "" while nothing is known. Blocking."""
        path, failed = self.path, self._failed
        found = _problem(path)
        if found:
            return str(AuditUnavailableError(str(path), found))
        if failed is None or failed.path != str(path):
            return ""
        return f"audit {failed.path}: the last change could not be written down, and was not made: {failed.problem}"

    def refuse(self, entry: AuditEntry, problem: str) -> None:
        """Record a refusal, in another thread, unless there were too many."""
        with self._lock:
            if not self._refusals.allow(time.monotonic()):
                self._unsaid += 1
                return
            unsaid, self._unsaid = self._unsaid, 0
        more = {"unsaid": unsaid} if unsaid else {}
        self.record(entry.line(AuditOutcome.REFUSED, problem=problem[:TEXT_MAX], **more))

    def record(self, line: Mapping[str, Any]) -> None:
        """Write a line about something that changes nothing, in another thread."""
        if self._executor is None:
            self._write(line)
        else:
            self._executor.submit(self._write, line)

    def _write(self, line: Mapping[str, Any]) -> None:
        """Write a line about something that changes nothing; log when that fails."""
        try:
            self.append([line])
        except AuditUnavailableError as error:
            log.error("audit unavailable", path=error.path, problem=error.problem, outcome=line["outcome"])  # noqa: TRY400 - no bug


class AuditEntry:
    """The record of one request that changes something, empty at first; as `broker.catalog.catalog.Auditing` asks."""

    def __init__(self, audit: Audit, caller: Caller, operation: str, database: str | None = None) -> None:
        self._audit = audit
        self.caller = caller
        self._operation = operation
        self._database = database
        self._request = secrets.token_hex(8)
        self._lines: list[dict[str, Any]] = []
        self._target: str | None = None
        self.is_sealed = False

    def note(self, database: str, statement: Statement) -> None:
        """A statement was executed; nothing is committed yet."""
        if len(self._lines) < LINES_MAX:
            text = render_statement(statement)[:STATEMENT_MAX]
            line = self.line(AuditOutcome.DONE, operation=words_of(statement), database=database, statement=text)
            self._lines.append(line)

    def seal(self, statements: int) -> None:
        """
        Write all of it. Blocking.

        Raises:
            AuditUnavailableError: it cannot be written.
        """
        if statements:
            self._append(self._lines, statements, "more statements")

    def seal_done(self, *targets: str) -> None:
        """
        Write that this is about to be done to each of these. Blocking.

        Raises:
            AuditUnavailableError: it cannot be written.
        """
        lines = [self.line(AuditOutcome.DONE, target=target[:TEXT_MAX]) for target in targets[:LINES_MAX]]
        self._append(lines, len(targets), "more")
        self._target = targets[0] if len(targets) == 1 else None

    def _append(self, lines: Sequence[dict[str, Any]], count: int, more: str) -> None:
        """Write lines, and how many more there are than these."""
        if count > len(lines):
            lines = [*lines, self.line(AuditOutcome.DONE, target=f"{count - len(lines)} {more}")]
        self._audit.append(lines)
        self.is_sealed = True

    def end_badly(self, error: BaseException) -> None:
        """It was refused, or has failed."""
        if self.is_sealed:
            self._audit.record(
                self.line(AuditOutcome.FAILED, target=self._target, problem=problem_in_short(error)[:TEXT_MAX])
            )
        else:
            self._audit.refuse(self, problem_in_short(error))

    def line(self, outcome: AuditOutcome, **more: Any) -> dict[str, Any]:
        """A line about the request."""
        caller = self.caller
        known = {"request": self._request, "who": caller.who, "role": caller.role.word, "from": caller.origin}
        told = {"at": datetime.now(UTC).isoformat(), **known, "operation": self._operation, "database": self._database}
        return {key: value for key, value in (told | more).items() if value is not None} | {"outcome": outcome}


class ScriptEntry(AuditEntry):
    """
    One run of a script of the configuration, as `broker.catalog.catalog.Auditing` asks: one line with the number of
    its statements, for scripts run at every start.
    """

    def __init__(self, audit: Path, script: Path, database: str) -> None:
        caller = Caller("configuration", f"script {script}", AdminRole.ADMIN)
        super().__init__(Audit(audit), caller, "script", database)

    def note(self, database: str, statement: Statement) -> None:
        """Only the number of statements is written."""

    def seal(self, statements: int) -> None:
        """
        Write that the script is about to be committed. Blocking.

        Raises:
            StoreUnavailableError: it cannot be written.
        """
        try:
            self.seal_done(f"{statements} statements")
        except AuditUnavailableError as error:
            problem = f"what {self.caller.origin} changes cannot be written down: {error.problem}"
            raise StoreUnavailableError(error.path, problem) from error


def problem_in_short(error: BaseException) -> str:
    """A sentence without the caller's text: a statement that cannot be parsed may have secrets in it."""
    if isinstance(error, DdlSyntaxError):
        place = "" if error.span is None else f", line {error.span.line}, column {error.span.column}"
        return f"Msg {error.number}: not understood{place}"
    return f"Msg {error.number}: {error.problem}" if isinstance(error, StatementError) else str(error) or repr(error)


def _append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add lines and have them on the disk, or take back what was written. Raises OSError."""
    data = b"".join(json.dumps(line, ensure_ascii=True).encode() + b"\n" for line in lines)
    is_new = not path.exists()
    descriptor = os.open(path, _FLAGS | os.O_CREAT, MODE)
    try:
        if is_new:
            _make_lasting(descriptor, path.parent)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        begin = os.fstat(descriptor).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, begin)
            raise
    finally:
        os.close(descriptor)


def _make_lasting(descriptor: int, directory: Path) -> None:
    """Have a new file's name on the disk; made by root, it belongs to the owner of the directory: the instance."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    keep_names(directory)


def _problem(path: Path) -> str:
    """Why lines cannot be added, as far as opening shows; "" when nothing is in the way. Creates no file. Blocking."""
    try:
        os.close(os.open(path, _FLAGS))
    except FileNotFoundError:
        directory = path.parent
        if not directory.is_dir():
            return f"there is no directory {directory}"
        return "" if os.access(directory, os.W_OK | os.X_OK) else f"no file can be made in {directory}"
    except OSError as error:
        return error.strerror or str(error)
    return ""
