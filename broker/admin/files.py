"""
Writing down what changes by files and not through the API: scripts of the configuration, which run at a start and when
a database is taken over, and certificates, whose files are used when they change.

Scripts run again at every start, so only what they really change is written, and on the disk before it is committed. A
change of certificates is written when it counts already: trust that is withdrawn must not wait until a disk has room.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from broker.admin.audit import Audit, Entry
from broker.admin.audit_file import AuditFile, AuditUnavailableError
from broker.admin.caller import Caller
from broker.control.admin_role import AdminRole
from broker.control.definition import Change
from broker.errors import StoreUnavailableError

if TYPE_CHECKING:
    from broker.control.config import Settings

LOOKED_AT_MAX = 10_000  # statements of one script; each costs two questions to its database, some 50 us
CERTIFICATES = Caller("certificate files", "this machine", AdminRole.ADMIN)


class ScriptSeen:
    """A script of the configuration under way, as `broker.control.definition.Auditing` asks."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._looked_at = self._changed = 0

    @property
    def room(self) -> int:
        """How many statements it still wants to see one by one."""
        return min(self._entry.room, LOOKED_AT_MAX - self._looked_at)

    def note(self, change: Change) -> None:
        """A statement was carried out; it counts where something is not as it was."""
        self._looked_at += 1
        if change.before != change.after:
            self._changed += 1
            self._entry.note(change)

    def seal(self, statements: int) -> None:
        """
        Write what has changed, and how many statements were not looked at. Blocking.

        Raises:
            StoreUnavailableError: it cannot be written.
        """
        try:
            self._entry.seal(self._changed + statements - self._looked_at)
        except AuditUnavailableError as error:
            problem = f"what {self._entry.origin} changes cannot be written down: {error.problem}"
            raise StoreUnavailableError(error.path, problem) from error


def script_seen(settings: Settings, path: Path) -> ScriptSeen:
    """Whoever writes down what a script of the configuration changes."""
    caller = Caller("configuration", f"script {path}", AdminRole.ADMIN)
    return ScriptSeen(Audit(audit_file_of(settings)).begin(caller, "script"))


def audit_file_of(settings: Settings) -> AuditFile:
    """Where the changes of an instance are written down."""
    return AuditFile(settings.admin.audit, settings.admin.audit_size, settings.admin.audit_keep)


def write_certificates(
    audit: Audit, whose: str, before: Mapping[str, list[str]], after: Mapping[str, list[str]]
) -> None:
    """As `broker.control.certificate_change.Tell`: have it written, by another thread."""
    audit.tell(CERTIFICATES, "certificates", whose, before=before, after=after)
