"""
Writing down who changed what: one JSON object a line, in the file before it is done.

The lines of a script are written, and on the disk, when all of it has been carried out and nothing is committed yet; a
script of which nothing can be written is rolled back. Should a commit then fail, a second line with the same `request`
says so. What was refused is written as well, but no faster than some a minute, so that nobody can push the changes out
of the file by being refused. Names, addresses and states are written, never a body, a key or a token.

Shape of a line: `at` (UTC, ISO 8601), `request` (one for all lines of a request), `who`, `role`, `from`, `operation`,
`database`, `target`, `before`, `after`, `outcome` (done, refused, failed), `problem`, and `unsaid`, how many refusals
before this one were not written; what has no value is left out.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import structlog

from broker.admin.audit_file import AuditFile, AuditUnavailableError
from broker.admin.caller import Caller
from broker.control.definition import Change, target_of, words_of
from broker.ddl.statements import ChangePermission
from broker.errors import DdlSyntaxError, StatementError
from broker.observe.audit import audit_rows

CHANGES_MAX = 1000  # of one script that are written one by one; of the others their number
TEXT_MAX = 500  # characters of a name or a sentence
REFUSALS_BURST = 60
REFUSAL_SECONDS = 60.0  # for one more: by being refused alone it takes a year to push the changes out of the files

log = structlog.get_logger(__name__)


class Outcome(StrEnum):
    """What became of a change."""

    DONE = "done"
    REFUSED = "refused"  # by what it asks for, or by who asks; nothing is changed
    FAILED = "failed"  # after it was written as done: part of it may have happened


class Audit:
    """The record of an instance, for any thread; without an `executor` whoever calls it writes."""

    def __init__(self, file: AuditFile, executor: Executor | None = None) -> None:
        self.file = file
        self._executor = executor
        self._refusals = float(REFUSALS_BURST)
        self._refused_at = time.monotonic()
        self._unsaid = 0
        self._failed: AuditUnavailableError | None = None  # the last time, for what a look at the file does not tell
        self._lock = threading.Lock()

    def begin(self, caller: Caller, operation: str, database: str | None = None) -> Entry:
        """The record of one request, empty yet."""
        return Entry(self, caller, operation, database)

    def rows(self) -> list[tuple[object, ...]]:
        """The newest lines, as the view has them. Blocking; raises StoreUnavailableError."""
        file = self.file
        return audit_rows(file.path, file.keep)

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """
        Write lines, all of them or none. Blocking.

        Raises:
            AuditUnavailableError: they cannot be written.
        """
        try:
            self.file.append(lines)
        except AuditUnavailableError as error:
            self._failed = None if self.file.problem() else error
            raise
        self._failed = None

    def problem(self) -> str:
        """Why changes cannot be written down, or the last one could not; "" while nothing is known. Blocking."""
        file, failed = self.file, self._failed
        found = file.problem()
        if found:
            return str(AuditUnavailableError(str(file.path), found))
        if failed is None or failed.path != str(file.path):
            return ""
        return f"audit {failed.path}: the last change could not be written down, and was not made: {failed.problem}"

    def refuse(self, entry: Entry, problem: str) -> None:
        """Have a refusal written, by another thread, unless there were too many."""
        with self._lock:
            now = time.monotonic()
            self._refusals = min(REFUSALS_BURST, self._refusals + (now - self._refused_at) / REFUSAL_SECONDS)
            self._refused_at = now
            if self._refusals < 1:
                self._unsaid += 1
                return
            self._refusals -= 1
            unsaid, self._unsaid = self._unsaid, 0
        more = {"unsaid": unsaid} if unsaid else {}
        self._soon(entry.line(Outcome.REFUSED, problem=problem[:TEXT_MAX], **more))

    def fail(self, entry: Entry, problem: str) -> None:
        """Have it written, by another thread, that what was written as done has failed."""
        self._soon(entry.line(Outcome.FAILED, problem=problem[:TEXT_MAX]))

    def tell(
        self, caller: Caller, operation: str, target: str, *, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        """Have something written, by another thread, that is done already."""
        entry = self.begin(caller, operation)
        self._soon(entry.line(Outcome.DONE, target=target, before=before or None, after=after or None))

    def _soon(self, line: Mapping[str, Any]) -> None:
        if self._executor is None:
            self._write(line)
        else:
            self._executor.submit(self._write, line)

    def _write(self, line: Mapping[str, Any]) -> None:
        """Write what changes nothing; that it cannot be written is logged."""
        try:
            self.append([line])
        except AuditUnavailableError as error:
            log.error("audit unavailable", path=error.path, problem=error.problem, outcome=line["outcome"])  # noqa: TRY400 - no bug


class Entry:
    """One request that changes something, as `broker.control.definition.Auditing` asks."""

    def __init__(self, audit: Audit, caller: Caller, operation: str, database: str | None) -> None:
        self._audit = audit
        self._caller = caller
        self._operation = operation
        self._database = database
        self._request = secrets.token_hex(8)
        self._changes: list[Change] = []
        self._is_sealed = False

    @property
    def origin(self) -> str:
        """Where it came from."""
        return self._caller.origin

    @property
    def room(self) -> int:
        """How many changes it still wants to see one by one."""
        return CHANGES_MAX - len(self._changes)

    def note(self, change: Change) -> None:
        """A statement was carried out; nothing is committed yet."""
        self._changes.append(change)

    def seal(self, statements: int) -> None:
        """
        Write all of it. Blocking.

        Raises:
            AuditUnavailableError: it cannot be written.
        """
        lines = [self._change_line(change) for change in self._changes]
        more = statements - len(lines)
        if more > 0:
            lines.append(self.line(Outcome.DONE, target=f"{more} more statements"))
        if lines:
            self._audit.append(lines)
        self._is_sealed = bool(lines)

    def seal_done(self, target: str) -> None:
        """
        Write that something is about to be done. Blocking.

        Raises:
            AuditUnavailableError: it cannot be written.
        """
        self._audit.append([self.line(Outcome.DONE, target=target)])
        self._is_sealed = True

    def seal_reload(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """
        Write that other settings are about to hold, before they do. Blocking.

        Raises:
            AuditUnavailableError: it cannot be written.
        """
        line = self.line(Outcome.DONE, target="configuration", before=before or None, after=after or None)
        self._audit.append([line])
        self._is_sealed = True

    def end_badly(self, error: BaseException) -> None:
        """It was refused, or has failed."""
        if self._is_sealed:
            self._audit.fail(self, problem_in_short(error))
        else:
            self._audit.refuse(self, problem_in_short(error))

    def line(self, outcome: Outcome, **more: Any) -> dict[str, Any]:
        """A line about the request."""
        caller = self._caller
        known = {"request": self._request, "who": caller.who, "role": caller.role.word, "from": caller.origin}
        told = {"at": datetime.now(UTC).isoformat(), **known, "operation": self._operation, "database": self._database}
        return {key: value for key, value in (told | more).items() if value is not None} | {"outcome": outcome}

    def _change_line(self, change: Change) -> dict[str, Any]:
        statement = change.statement
        target = target_of(statement)
        if isinstance(statement, ChangePermission):
            target = f"{target} TO {', '.join(statement.principals)}"
        return self.line(
            Outcome.DONE,
            operation=words_of(statement),
            database=change.database,
            target=target[:TEXT_MAX],
            before=change.before,
            after=change.after,
        )


def problem_in_short(error: BaseException) -> str:
    """A sentence without the caller's text: where a statement is not understood, anything may stand in it."""
    if isinstance(error, DdlSyntaxError):
        place = "" if error.span is None else f", line {error.span.line}, column {error.span.column}"
        return f"Msg {error.number}: not understood{place}"
    return f"Msg {error.number}: {error.problem}" if isinstance(error, StatementError) else str(error)
