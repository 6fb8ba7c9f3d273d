"""Reading the configuration again on command: who may, what is written down of it, and what the answer says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from broker.admin.audit import Audit, AuditEntry
from broker.admin.caller import Caller
from broker.control.admin_role import AdminRole
from broker.control.reload import Reloaded, Reloads
from broker.control.reload_change import Difference
from broker.control.setting import Reload
from broker.ddl.statements import Statement
from broker.errors import DdlSyntaxError

SIGNAL = Caller("signal SIGHUP", "a process of this machine", AdminRole.ADMIN)
_OF_ADMIN = frozenset({"encryption", "authentication", "certificate", "private_key", "trust", "peers", "role_command"})


class ReloadRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The configuration, as it is written now, is to hold."""

    dry_run: Annotated[bool, Meta(description="Try everything, tell what would change, and change nothing.")] = False


class ChangedSetting(msgspec.Struct, frozen=True):
    """One setting with another value."""

    key: str
    effect: Annotated[
        str,
        Meta(description="`live` it holds, `reconnect` for connections made from now on, `restart` it waits for one."),
    ]
    before: Annotated[str, Meta(description="As one writes it in the file; of a database, what becomes of it.")]
    after: str
    place: Annotated[str, Meta(description="File, line and column of the new value, or the variable that holds it.")]


class ReloadAnswer(msgspec.Struct, frozen=True):
    """What has changed, or would."""

    changed: Annotated[bool, Meta(description="Whether anything holds, or would, that did not before.")]
    dry_run: bool
    settings: list[ChangedSetting]
    databases: Annotated[list[str], Meta(description="Those whose scripts had changed and were carried out again.")]
    messages: Annotated[list[str], Meta(description="What these scripts did.")]
    connections: Annotated[
        int, Meta(description="Connections that go on with what they had, where a change is for new ones.")
    ]
    waiting: Annotated[list[str], Meta(description="Settings whose new values wait for a restart.")]
    warnings: Annotated[
        list[str], Meta(description="What is unwise about the settings that hold, or would, and was not before.")
    ] = []


class ReloadSeen:
    """A reload that somebody has asked for, as `broker.control.reload.ReloadObserver`."""

    def __init__(self, entry: AuditEntry, caller: Caller) -> None:
        self._entry = entry
        self._caller = caller

    def allow(self, changed: Sequence[Difference]) -> None:
        """See that the caller may change all of this; what decides who is believed takes an admin."""
        keys = [one.key for one in changed if one.path[0] == "admin" or one.path[-1] in _OF_ADMIN]
        if keys:
            expected = f"a reload that changes {', '.join(keys)}"
            self._caller.expect(AdminRole.ADMIN, expected)

    def permitted(self, statements: Iterable[Statement | DdlSyntaxError]) -> Iterator[Statement | DdlSyntaxError]:
        """The statements of changed scripts, as far as the caller may have them carried out."""
        return self._caller.permitted(statements)

    def note(self, database: str, statement: Statement) -> None:
        """A statement of a changed script was carried out."""
        self._entry.note(database, statement)

    def seal(self, statements: int) -> None:
        """Record the statements of changed scripts."""
        self._entry.seal(statements)

    def seal_reload(self, keys: Sequence[str]) -> None:
        """Record which settings change."""
        self._entry.seal_done(f"configuration: {', '.join(keys)}" if keys else "configuration")

    def end_badly(self, error: BaseException) -> None:
        """It was refused, or has failed."""
        self._entry.end_badly(error)


def signalled(audit: Audit) -> ReloadSeen:
    """A reload that a signal has asked for."""
    return ReloadSeen(audit.begin(SIGNAL, "SIGHUP"), SIGNAL)


async def reload_now(reloads: Reloads, audit: Audit, request: ReloadRequest, caller: Caller) -> ReloadAnswer:
    """
    Reload, or only try to.

    Raises:
        ForbiddenError, AuditUnavailableError: nothing has changed.
        ReloadRefusedError, SettingsError, StoreUnavailableError: as `Reloads.reload`; nothing has changed.
    """
    seen = ReloadSeen(audit.begin(caller, "POST /v1/reload"), caller)
    return _reload_answer(await reloads.reload(is_dry_run=request.dry_run, seen_by=seen))


def _reload_answer(done: Reloaded) -> ReloadAnswer:
    settings = [ChangedSetting(one.key, one.effect.value, one.before, one.after, one.place) for one in done.changes]
    waiting = [one.key for one in done.changes if one.effect is Reload.RESTART]
    return ReloadAnswer(
        done.has_changed,
        done.is_dry_run,
        settings,
        done.databases,
        done.scripts,
        done.connections,
        waiting,
        done.warnings,
    )
