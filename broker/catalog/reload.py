"""
Reload: read the configuration again while the instance runs. All of it takes effect, or nothing has changed.

Everything that can fail comes first: the file is parsed, its values and what they say together are judged, scripts are
run dry, files and users are checked, new ports are bound and certificates loaded, all next to what is in use. Then the
change is recorded, changed scripts are executed as one, and finally everything is swapped in one iteration of the
loop. If any step fails, everything stays as it was, and the error is reported with its place.

One reload runs at a time; a caller that arrives while one runs waits, and reads the file as it is when it is admitted.
Loop-only; what blocks is done in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Protocol

import structlog
from msgspec import Meta, Struct
from msgspec.structs import replace

from broker.advice import to_run
from broker.catalog.catalog import MESSAGES_MAX, MSDB, Catalog, Database
from broker.catalog.check import changeable_errors
from broker.catalog.diagnostics import listen_error
from broker.catalog.dry_run import DryDatabase, DryRun, dry_run
from broker.catalog.handlers import grants_of, rules_of
from broker.catalog.identities import identity_errors
from broker.catalog.scripts import Permitting, State, differing, look, run_changed
from broker.catalog.unscripted import Unscripted, not_there, unscripted
from broker.config.load import load_settings
from broker.config.reload_diff import Difference, differences, in_force, mixed_contradictions
from broker.config.schema import Reload
from broker.config.settings import Settings, by_place
from broker.ddl.statements import RevokePermission, Statement
from broker.errors import (
    SCRIPTS_UNSEEN,
    BrokerError,
    ListenFailedError,
    RequestError,
    SettingError,
    SettingsError,
    StoreUnavailableError,
)
from broker.net.certificates import security_of, unwise
from broker.security.grants import Grants, Permission

log = structlog.get_logger(__name__)

_OF_SCRIPTS = frozenset({"files", "scripts"})
PROBLEMS_LOGGED = 20  # of one reload that fails

CarryOut = Callable[[], Awaitable[None]]
"""Swap in what was prepared; does not fail."""


class ReloadRefusedError(RequestError):
    """A reload that cannot be: the instance stops, or its settings came from no file."""

    problem: str
    says: ClassVar[str] = "the configuration is not read again: {problem}; nothing has changed"


class ReloadObserver(Permitting, Protocol):
    """Decides what a reload may change, and records what it does."""

    def allow(self, changed: Sequence[Difference]) -> None:
        """See that all of this may change; raises what refuses it."""

    def seal_reload(self, keys: Sequence[str]) -> None:
        """These settings are about to change; raises when that cannot be recorded. Blocking."""

    def end_badly(self, error: BaseException) -> None:
        """It was refused, or has failed."""


class Reloadable(Protocol):
    """The instance as a reload sees it."""

    settings: Settings
    catalog: Catalog
    stopping: asyncio.Event

    async def prepare(self, settings: Settings, changed: Sequence[Difference], undo: AsyncExitStack) -> CarryOut:
        """
        Make ready for these settings, next to what is in use.

        Args:
            settings: Those that shall hold.
            changed: How they differ.
            undo: Takes back what was begun, unless its owner lets go of it to carry the change out.

        Raises:
            SettingError, SettingsError, ListenFailedError, StoreUnavailableError: it cannot be; nothing has changed.
        """

    def connections(self, before: float) -> int:
        """Connections to peers that were there at an instant of the loop's clock, and still are."""


class ChangedSetting(Struct, frozen=True):
    """One setting with another value."""

    key: str
    effect: Annotated[
        str,
        Meta(description="`live` it holds, `reconnect` for connections made from now on, `restart` it waits for one."),
    ]
    before: Annotated[str, Meta(description="As one writes it in the file; of a database, what becomes of it.")]
    after: str
    place: Annotated[str, Meta(description="File, line and column of the new value, or the variable that holds it.")]


class ReloadAnswer(Struct, frozen=True):
    """The changes that a reload has made, or would make."""

    changed: Annotated[bool, Meta(description="Whether anything holds, or would, that did not before.")]
    dry_run: bool
    settings: list[ChangedSetting]
    databases: Annotated[list[str], Meta(description="Those whose scripts had changed and were executed again.")]
    messages: Annotated[list[str], Meta(description="Messages of these scripts, or those that they would have.")]
    connections: Annotated[
        int, Meta(description="Connections that go on with what they had, where a change is for new ones.")
    ]
    waiting: Annotated[list[str], Meta(description="Settings whose new values wait for a restart.")]
    warnings: Annotated[
        list[str], Meta(description="Warnings about the settings in force after the reload that were not there before.")
    ] = []
    unscripted: Annotated[
        list[str],
        Meta(
            description="Statements that drop what no script names: the first hundred. They are compared when scripts"
            " have changed and when it prunes, and have been executed when it prunes, unless it is a dry run."
        ),
    ] = []
    unscripted_more: Annotated[int, Meta(description="How many more there are.")] = 0
    kept: Annotated[
        list[str],
        Meta(description="Likewise statements that would drop services and queues; a reload never executes them."),
    ] = []


class Reloads:
    """
    The reloads of one instance, one at a time.

    Attributes:
        succeeded: How many since the start, as `failed`.
        is_successful: Whether the last one was; true before the first.
        last_success_at: UTC seconds of the last settings that took effect, at first those of the start.
        problem: Of the last one; empty when it was successful.
        waiting: Keys whose new values wait for a restart.
    """

    def __init__(self, instance: Reloadable) -> None:
        self.succeeded = self.failed = 0
        self.is_successful = True
        self.last_success_at = time.time()
        self.problem = ""
        self.waiting: list[str] = []
        self._instance = instance
        self._scripts: State = {}  # as they were last executed
        self._turn = asyncio.Lock()
        self._reconnect_at: float | None = None  # loop time of the last change that is for new connections

    async def begin(self) -> None:
        """Note the scripts as they are, before the start carries them out."""
        self._scripts = await asyncio.to_thread(look, self._instance.settings)

    @property
    def connections_as_before(self) -> int:
        """Connections that are older than the last change which is for new ones."""
        return 0 if self._reconnect_at is None else self._instance.connections(self._reconnect_at)

    def status(self) -> dict[str, Any]:
        """The state of reloading, as a plain value."""
        return {
            "successful": self.is_successful,
            "problem": self.problem,
            "last_success_at": datetime.fromtimestamp(self.last_success_at, UTC).isoformat(timespec="milliseconds"),
            "succeeded": self.succeeded,
            "failed": self.failed,
            "waiting": self.waiting,
            "connections_as_before": self.connections_as_before,
        }

    async def reload(
        self, seen_by: ReloadObserver, *, is_dry_run: bool = False, is_pruning: bool = False
    ) -> ReloadAnswer:
        """
        Read the configuration again, and have it hold.

        Args:
            seen_by: Permits it, and records what changes before it does.
            is_dry_run: Only report what would change; everything else is still tried.
            is_pruning: Drop what no script names.

        Raises:
            ReloadRefusedError: the instance stops, or its settings came from no file.
            SettingsError: something is wrong with the configuration; nothing has changed.
            StoreUnavailableError: a script could not be executed; nothing has changed.
        """
        # A client that disconnects must not cause a change that is only half made.
        running = asyncio.get_running_loop().create_task(
            self._in_turn(seen_by, is_dry_run=is_dry_run, is_pruning=is_pruning)
        )
        return await asyncio.shield(running)

    async def _in_turn(self, seen_by: ReloadObserver, *, is_dry_run: bool, is_pruning: bool) -> ReloadAnswer:
        async with self._turn:
            try:
                done = await self._reload(seen_by, is_dry_run=is_dry_run, is_pruning=is_pruning)
            except BrokerError as error:
                if not is_dry_run:
                    self._fail(error)
                    seen_by.end_badly(error)
                raise
            if not is_dry_run:
                self._succeed(done, is_pruning=is_pruning)
            return done

    async def _reload(self, seen_by: ReloadObserver, *, is_dry_run: bool, is_pruning: bool) -> ReloadAnswer:
        instance = self._instance
        self._refuse_while_stopping()
        old, new = instance.settings, await asyncio.to_thread(_read_again, instance.settings)
        changed = differences(old, new)
        seen_by.allow(changed)
        settings = in_force(old, new, changed)
        scripts = await asyncio.to_thread(look, settings)
        others = differing(scripts, self._scripts)
        are_others = bool(others) or any(one.path[-1] in _OF_SCRIPTS for one in changed)
        left: list[Unscripted] = []
        told: dict[str, list[str]] = {}
        databases: Mapping[str, Database | DryDatabase] = instance.catalog.databases
        before = grants_in(old, databases)
        if changed or are_others or is_pruning:
            run = await asyncio.to_thread(_judge, settings, changed, is_with_scripts=are_others or is_pruning)
            if run is not None:
                left, databases = await asyncio.to_thread(list, unscripted(run)), run.databases
                told = {name: one.messages for name, one in run.databases.items() if name in instance.catalog.databases}
        await asyncio.to_thread(_judge_files, settings)
        names = [name for name in others if scripts[name]]
        dropped = [] if names else await asyncio.to_thread(_dropped, settings, instance.catalog)
        warnings = await asyncio.to_thread(_new_warnings, old, settings, instance.catalog) if changed else []
        async with AsyncExitStack() as undo:
            carry_out = await _prepared(instance, settings, changed, undo)
            self._refuse_while_stopping()
            now = asyncio.get_running_loop().time()
            is_for_new = any(one.effect is Reload.RECONNECT for one in changed)
            prunable = [one for one in left if one.is_prunable]
            drops = [(one.database.name, one.drop) for one in prunable if is_pruning]
            waiting = [one.key for one in changed if one.effect is Reload.RESTART]
            done = ReloadAnswer(
                changed=bool(names or drops) or len(waiting) < len(changed),
                dry_run=is_dry_run,
                settings=[
                    ChangedSetting(one.key, one.effect.value, one.before, one.after, one.place) for one in changed
                ],
                databases=names,
                messages=[line for name in names if is_dry_run for line in told.get(name, ())],
                connections=instance.connections(now) if is_for_new else 0,
                waiting=waiting,
                warnings=[*changed_for_all(before, grants_in(settings, databases, drops)), *warnings, *dropped],
                unscripted=[one.script for one in prunable[:MESSAGES_MAX]],
                unscripted_more=max(0, len(prunable) - MESSAGES_MAX),
                kept=[one.script for one in left if not one.is_prunable][:MESSAGES_MAX],
            )
            if is_dry_run:
                return done
            await asyncio.to_thread(
                seen_by.seal_reload, [one.key for one in changed if one.effect is not Reload.RESTART]
            )
            done.messages.extend(await run_changed(instance.catalog, settings, scripts, names, seen_by, drops=drops))
            undo.pop_all()
        await carry_out()
        self._scripts = scripts
        if is_for_new:
            self._reconnect_at = asyncio.get_running_loop().time()
            return replace(done, connections=self.connections_as_before)  # without those that it has closed
        return done

    def _refuse_while_stopping(self) -> None:
        if self._instance.stopping.is_set():
            raise ReloadRefusedError("the instance is stopping; its successor reads the configuration when it starts")

    def _succeed(self, done: ReloadAnswer, *, is_pruning: bool) -> None:
        self.succeeded += 1
        self.is_successful, self.problem, self.last_success_at = True, "", time.time()
        self.waiting = done.waiting
        if done.changed or done.waiting:
            of = {effect: [one.key for one in done.settings if one.effect == effect] for effect in Reload}
            log.info(
                "configuration reloaded",
                live=of[Reload.LIVE],
                reconnect=of[Reload.RECONNECT],
                restart=of[Reload.RESTART],
                scripts_of=done.databases,
                connections_as_before=done.connections,
                warnings=done.warnings[:PROBLEMS_LOGGED],
                in_no_script=[*([] if is_pruning else done.unscripted), *done.kept][:PROBLEMS_LOGGED],
            )
        else:
            log.info("configuration reloaded, nothing changed")

    def _fail(self, error: BrokerError) -> None:
        """Note a failure; a reload that was refused says nothing about the configuration."""
        if not isinstance(error, SettingsError | StoreUnavailableError):
            log.warning("configuration reload refused", reason=str(error))
            return
        self.failed += 1
        self.is_successful, self.problem = False, str(error)
        errors = error.errors if isinstance(error, SettingsError) else [error]
        log.error(
            "configuration not reloaded, the one before stays",
            problems=[str(one) for one in errors[:PROBLEMS_LOGGED]],
            more=max(0, len(errors) - PROBLEMS_LOGGED),
        )


def _read_again(settings: Settings) -> Settings:
    """The settings as they are written now. Blocking; raises SettingsError, also of a file that was emptied."""
    source = settings.places.source
    if source is None:
        raise ReloadRefusedError("a program has made its settings, and no file")
    try:
        found = load_settings(source.path, environ=source.environ, overrides=source.overrides)
    except SettingsError as error:
        raise SettingsError([*error.errors, SCRIPTS_UNSEEN]) from error
    if settings.places.keys and not found.places.keys:
        hint = "write the settings into it, then reload again"
        raise SettingsError([SettingError(source.name, "no longer has any settings", None, hint)])
    return found


def _judge(settings: Settings, changed: Sequence[Difference], *, is_with_scripts: bool) -> DryRun | None:
    """
    Whether these settings could hold on this machine; returns what their scripts make of its databases. Blocking.

    Raises:
        SettingsError: with everything that is wrong.
    """
    errors = [*mixed_contradictions(settings, changed), *changeable_errors(settings)]
    run = dry_run(settings, now=datetime.now(UTC)) if is_with_scripts else None
    if run is not None:
        errors += run.errors
    if errors:
        raise SettingsError(sorted(errors, key=by_place))
    return run


def _judge_files(settings: Settings) -> None:
    """Whether certificates and keys can be used as they are now, as at the start. Blocking; raises SettingsError."""
    errors = identity_errors(settings)
    try:
        security_of(settings)
    except SettingError as error:
        errors.append(error)
    if errors:
        raise SettingsError(sorted(errors, key=by_place))


def _new_warnings(old: Settings, new: Settings, catalog: Catalog) -> list[str]:
    """Return the warnings about these settings that the old ones did not have. Blocking."""
    before, now = (unwise(one, connects=catalog.leads_out) for one in (old, new))
    known = {(one.key, one.problem) for one in before}
    return [str(one) for one in now if (one.key, one.problem) not in known]


def _dropped(settings: Settings, catalog: Catalog) -> list[str]:
    """Return a warning for each route and rule of the scripts that is gone, until they are executed. Blocking."""
    warnings = []
    run = dry_run(settings, now=datetime.now(UTC))
    for name, one in run.databases.items():
        if name in catalog.databases:
            here = catalog.databases[name]
            for what, create in not_there(one, {*(route.name for route in here.table), *here.rows.permissions}):
                again = to_run(create, database=name, is_scripted=False, option=settings.config_option)
                how = "was dropped" if what.startswith("the route") else "was revoked"
                gone = f"{name}: {what} {how}, and its script has not changed"
                warnings.append(f"{gone}: to leave it out, remove it from the script; to bring it back, {again}")
    return warnings


def grants_in(
    settings: Settings, databases: Mapping[str, Database | DryDatabase], drops: Sequence[tuple[str, Statement]] = ()
) -> dict[str, Grants]:
    """Return the grants of each database after these drops."""
    revokes = [(name, drop) for name, drop in drops if isinstance(drop, RevokePermission)]
    revoked = {(name, rule.about) for name, drop in revokes for rule in rules_of(drop)}
    return {
        name: grants_of(settings, (rule for rule in one.rows.permissions if (name, rule.about) not in revoked), name)
        for name, one in databases.items()
    }


def changed_for_all(before: Mapping[str, Grants], after: Mapping[str, Grants]) -> Iterator[str]:
    """Yield a warning for each permission that all peers, or senders to a database, have lost or have from now on."""
    for name, grants in after.items():
        for one in Permission if name in before else ():
            had_all = before[name].is_for_all(one)
            if had_all and not grants.is_for_all(one):
                to = "" if grants.is_default_deny else " TO [public]"
                also = ", acknowledgements and answers too" if name == MSDB and one is Permission.SEND else ""
                yield f"{name}: all had {one}; from now on what no GRANT {one}{to} permits is refused{also}"
            elif before[name].is_default_deny and not grants.is_default_deny and not grants.is_for_all(one):
                yield f"{name}: peers show no certificates now: without a GRANT {one} TO [public] all are refused"
            elif grants.is_open(one) and not had_all:
                yield f"{name}: there is no GRANT {one}, and from now on all have it"
            elif grants.is_default_deny and before[name].has_granted(one) and not grants.has_granted(one):
                yield f"{name}: there is no GRANT {one}, and from now on all are refused"


async def _prepared(
    instance: Reloadable, settings: Settings, changed: Sequence[Difference], undo: AsyncExitStack
) -> CarryOut:
    """Return what the instance has made ready; report what prevents it as an error of the setting that caused it."""
    try:
        return await instance.prepare(settings, changed, undo)
    except SettingError as error:
        raise SettingsError([error]) from error
    except ListenFailedError as error:
        raise SettingsError([listen_error(settings, error, is_running=True)]) from error


def reload_part(reloads: Reloads) -> Mapping[str, str]:
    """For the health of the parts of an instance: that the last reload has failed."""
    return {"configuration": f"not reloaded: {reloads.problem.splitlines()[0]}" if reloads.problem else ""}
