"""
What a command changes in files of an instance, in the audit of its configuration: written down before it counts.

The API's changes are written by the daemon; a command that works on files is a process of its own and writes beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker.admin.audit import Outcome
    from broker.control.config import Settings

LINES_MAX = 1000  # of one command that are written one by one; of the others their number


class Record:
    """The lines of one command, which share a request. Made by `recording`."""

    def __init__(self, settings: Settings, operation: str) -> None:
        from broker.admin.audit_file import AuditFile  # noqa: PLC0415
        from broker.control.administration import user_name  # noqa: PLC0415

        self._file = AuditFile(settings.admin.audit, settings.admin.audit_size, settings.admin.audit_keep)
        self._known = {
            "request": os.urandom(8).hex(),
            "who": f"user:{user_name(os.geteuid())}",
            "from": f"command, process {os.getpid()}",
            "operation": operation,
        }
        self._done: Sequence[Mapping[str, Any]] = ()

    def done(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """
        Write that these things are about to be done, all of them or none. Blocking.

        Args:
            changes: `target`, and where it says something `database`, `before` and `after`, for each.

        Raises:
            AuditUnavailableError: it cannot be written, so it must not be done.
        """
        from broker.admin.audit import Outcome  # noqa: PLC0415

        lines = [self._line(Outcome.DONE, change) for change in changes[:LINES_MAX]]
        if more := len(changes) - len(lines):
            lines.append(self._line(Outcome.DONE, {"target": f"{more} more"}))
        self._file.append(lines)
        self._done = changes

    def failed(self, error: BaseException) -> None:
        """Write that what was written as done has failed; nothing when none was. Blocking."""
        from broker.admin.audit import TEXT_MAX, Outcome  # noqa: PLC0415
        from broker.admin.audit_file import AuditUnavailableError  # noqa: PLC0415

        if self._done:
            about = self._done[0] if len(self._done) == 1 else {}
            problem = (str(error) or repr(error))[:TEXT_MAX]
            with suppress(AuditUnavailableError):  # what has failed is told anyway
                self._file.append([self._line(Outcome.FAILED, {**about, "problem": problem})])

    def _line(self, outcome: Outcome, more: Mapping[str, Any]) -> dict[str, Any]:
        at = datetime.now(UTC).isoformat()
        return {"at": at, **self._known, **{name: value for name, value in more.items() if value}, "outcome": outcome}


@contextmanager
def recording(settings: Settings, operation: str) -> Iterator[Record]:
    """The record of one command; what ends the block with an error is written down as failed."""
    record = Record(settings, operation)
    try:
        yield record
    except BaseException as error:
        record.failed(error)
        raise
