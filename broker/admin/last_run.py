"""
What was changed while nothing ran: the settings and the certificates of a start beside those that counted last.

A reload and a watch write down what they find changed in files; a file that was changed before a start is found by
nobody. So what counts is kept beside the databases, as values and fingerprints and never a key, whenever it changes,
and compared at the next start. What a start finds other than it was is a line of the audit, as what a reload finds is.
It is written when it counts already: who may write the files has the start in hand as well. One that cannot be written
is told by the next start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from broker.admin.audit import Audit, Outcome
from broker.admin.audit_file import AuditUnavailableError
from broker.admin.caller import Caller
from broker.control.admin_role import AdminRole
from broker.control.certificate_change import shown_security, tell_change
from broker.control.reload_change import shown_all
from broker.errors import StoreUnavailableError
from broker.store.record import write_record

if TYPE_CHECKING:
    from broker.control.config import Settings
    from broker.net.tls import Security

RECORD = "last_run.json"  # in the state directory
BEFORE_THE_START = Caller("configuration files", "while nothing ran", AdminRole.ADMIN)

Look = Callable[[], "tuple[Settings, Security]"]

log = structlog.get_logger(__name__)


class Counted(msgspec.Struct, frozen=True):
    """
    What counts in a run, and the file that keeps it.

    Shape: `settings` by key, as one writes them in TOML; `certificates` by setting, sorted names with fingerprints.
    """

    settings: dict[str, str]
    certificates: dict[str, list[str]]


class LastRun:
    """
    The record of an instance, for any thread.

    Args:
        file: Where it is kept.
        audit: Where what was changed is written down.
        look: Gives what counts now.
        executor: Keeps what counts later.
    """

    def __init__(self, file: Path, audit: Audit, look: Look, executor: Executor) -> None:
        self._file = file
        self._audit = audit
        self._look = look
        self._executor = executor
        self._lock = threading.Lock()

    def compare(self) -> None:
        """Write down what has changed since the last run, and keep what counts now. Blocking."""
        with self._lock:
            before, now = self._read(), self._now()
            if before == now:
                return
            try:
                if before is not None and (lines := self._lines(before, now)):
                    self._audit.append(lines)
            except AuditUnavailableError as error:
                log.error("audit unavailable", path=error.path, problem=error.problem, outcome=Outcome.DONE)  # noqa: TRY400 - no bug
                return
            self._write(now)

    def keep_soon(self) -> None:
        """Something else counts now: have it kept, by another thread."""
        self._executor.submit(self._keep)

    def _keep(self) -> None:
        with self._lock:
            self._write(self._now())

    def _now(self) -> Counted:
        settings, security = self._look()
        certificates = {setting: sorted(names) for setting, names in shown_security(security).items()}
        return Counted(shown_all(settings), certificates)

    def _read(self) -> Counted | None:
        """What counted last; None before the first run, and when nobody knows."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Counted)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("last run unknown", path=str(self._file), reason=repr(error))
            return None

    def _write(self, now: Counted) -> None:
        try:
            write_record(self._file, msgspec.structs.asdict(now))
        except StoreUnavailableError as error:
            log.warning("last run not kept", path=error.path, reason=error.problem)

    def _lines(self, before: Counted, now: Counted) -> list[dict[str, Any]]:
        """The lines of the audit, none where the same counts."""
        entry = self._audit.begin(BEFORE_THE_START, "start")
        lines: list[dict[str, Any]] = []

        def tell(target: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
            lines.append(entry.line(Outcome.DONE, target=target, before=old or None, after=new or None))

        old, new = before.settings, now.settings
        known = [key for key in {**old, **new} if key.startswith("databases.") or key in old.keys() & new.keys()]
        changed = [key for key in known if old.get(key) != new.get(key)]  # a key that this release has not is no change
        if changed:
            tell("configuration", _of(old, changed), _of(new, changed))
        sets = [{name: frozenset(some) for name, some in part.certificates.items()} for part in (before, now)]
        tell_change(tell, "certificates of the endpoint", *sets)
        return lines


def _of(values: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
    return {key: values[key] for key in keys if key in values}
