"""
Whether settings that are right in themselves meet a machine on which they can work.

Everything is tried as the daemon does it, by the daemon's own functions where it has one: scripts are rehearsed,
certificates and tokens are loaded, listeners are bound and closed again, files are opened and only read, a file is made
in each directory that has to be written (and is gone at once). All problems come in one report. Nothing is changed and
nothing is sent but questions to the resolver. What a running instance of this very state directory has is its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from broker.control.admin_check import admin_errors
from broker.control.catalog import MSDB
from broker.control.certificates import certificate_errors, certificate_warnings
from broker.control.clock import clock_problem
from broker.control.concern import Diagnostic
from broker.control.config import by_place
from broker.control.custody import file_errors, file_warnings, path_of
from broker.control.file_place import out_of_reach, place_errors
from broker.control.journal_check import journal_errors
from broker.control.load import load_settings
from broker.control.owner import NOBODY, UNASKED, RunningInstance, real
from broker.control.place import KeyPath
from broker.control.quota import Kind
from broker.control.reach import survey_all
from broker.control.rehearsal import Rehearsal, rehearse
from broker.control.resolution import named_hosts, unresolved
from broker.control.socket_place import ANSWERED, socket_problem
from broker.control.start_error import SOCKET_ELSEWHERE, SOCKET_TAKEN
from broker.control.tracing_check import tracing_errors
from broker.control.writable import write_problem
from broker.errors import ListenFailedError, SettingError, SettingsError
from broker.store.database import is_locked

if TYPE_CHECKING:
    from broker.control.config import Settings
    from broker.control.listen import ListenAddress

_STATE_DIR: KeyPath = ("instance", "state_dir")
_ALL = "everything on this machine, what is legal and unwise, and whether the names of next hops resolve"

OwnerOf = Callable[["Settings"], RunningInstance]
"""Who runs already by the state directory of these settings."""


class CheckReport(Struct, frozen=True):
    """
    What a check found.

    Shape: `errors` keep an instance from starting; `warnings` of settings and `concerns` about what the scripts say are
    legal and unwise; `left_out` counts the concerns of one code and file that are not among them; `skipped` is what was
    not looked at, because it was asked for offline; `waiting` what was not, because of an error in the settings;
    `running` the state directories of instances that run.
    """

    errors: list[SettingError] = field(default_factory=list)
    warnings: list[SettingError] = field(default_factory=list)
    concerns: list[Diagnostic] = field(default_factory=list)
    left_out: dict[Kind, int] = field(default_factory=dict)
    skipped: list[SettingError] = field(default_factory=list)
    waiting: list[SettingError] = field(default_factory=list)
    running: list[Path] = field(default_factory=list)


def check_files(
    paths: Sequence[Path | None],
    *,
    environ: Mapping[str, str],
    offline: bool = False,
    overrides: Mapping[str, object] | None = None,
    owner_of: OwnerOf = lambda _: NOBODY,
) -> CheckReport:
    """
    Check configurations, each by itself and, as far as they are sound, all together.

    Args:
        paths: Configuration files; None = no file, only the environment.
        environ: The environment, which holds for each of them.
        offline: As for `check_settings`.
        overrides: By dotted key, as `load_settings`.
        owner_of: Asks who runs already; not asked when offline.
    """
    report = CheckReport(_kernel(environ))
    sound = []
    for path in paths:
        try:
            settings = load_settings(path, environ=environ, overrides=overrides or {})
        except SettingsError as error:
            report.errors.extend(error.errors)
            report.waiting.append(error.errors[0].but(problem=_ALL, hint="", excerpt=""))
            continue
        rehearsal = rehearse(settings, now=datetime.now(UTC))
        owner = UNASKED if offline else owner_of(settings)
        if owner.state_dir is not None:
            report.running.append(owner.state_dir)
        report.errors.extend(check_settings(settings, rehearsal, offline=offline, owner=owner))
        report.warnings.extend(warnings_of(settings, rehearsal))
        if offline:
            report.skipped.extend(settings.error(*one) for one in _skipped(settings, rehearsal))
        else:
            report.concerns.extend(unresolved(rehearsal))
        if not rehearsal.errors:
            sound.append(rehearsal)
    concerns, left_out = survey_all(sound)
    return replace(report, concerns=[*report.concerns, *concerns], left_out=left_out)


def check_running(settings: Settings) -> CheckReport:
    """What a check of the settings in force finds; the ports are taken by the instance itself."""
    rehearsal = rehearse(settings, now=datetime.now(UTC))
    concerns, left_out = survey_all([] if rehearsal.errors else [rehearsal])
    files = frozenset(real(path_of(settings, name)) for name in (MSDB, *settings.databases))
    own = RunningInstance(settings.instance.state_dir, files=files)
    errors = check_settings(settings, rehearsal, offline=True, owner=own)
    return CheckReport(errors, warnings_of(settings, rehearsal), concerns, left_out)


def check_settings(
    settings: Settings, rehearsal: Rehearsal, *, offline: bool = False, owner: RunningInstance = NOBODY
) -> list[SettingError]:
    """
    Look at everything outside that these settings need.

    Args:
        settings: As `load_settings` gives them, with absolute paths.
        rehearsal: What their scripts come to.
        offline: Do not bind the listening ports: another machine, or an instance that is running, has them.
        owner: The instance that runs already; what it has is not taken by somebody else.

    Returns:
        Every problem, sorted by place; empty when the instance could start.
    """
    errors = [
        *rehearsal.errors,
        *_files(settings, owner),
        *_admin_socket(settings, owner, offline=offline),
        *changeable_errors(settings),
    ]
    for key, address in () if offline else _addresses(settings):
        errors += _listener(settings, owner, key, address)
    return sorted(errors, key=by_place)


def changeable_errors(settings: Settings) -> list[SettingError]:
    """What is wrong with the files that a running instance could take anew: certificates, journal, admin API."""
    return [
        *certificate_errors(settings),
        *_identity_errors(settings),
        *journal_errors(settings),
        *tracing_errors(settings),
        *admin_errors(settings),
    ]


def warnings_of(settings: Settings, rehearsal: Rehearsal) -> list[SettingError]:
    """What is legal and unwise about settings, sorted by place."""
    found = [*settings.warnings(), *certificate_warnings(settings), *rehearsal.warnings, *_role_commands(settings)]
    found += file_warnings(settings)
    problem = clock_problem(settings.instance.state_dir, now=rehearsal.now.timestamp())
    if problem:
        found.append(settings.error(("instance", "state_dir"), problem, "set the clock of this machine"))
    return sorted(found, key=by_place)


def _kernel(environ: Mapping[str, str]) -> list[SettingError]:
    if not environ.get("BROKER_KERNEL"):  # the usual case, for which no kernel has to be imported
        return []
    from broker.forwarding.kernel_choice import KERNEL_VARIABLE, choose_kernel  # noqa: PLC0415 - see broker.cli.group

    try:
        choose_kernel(environ[KERNEL_VARIABLE])
    except SettingError as error:
        return [error]
    return []


def _role_commands(settings: Settings) -> Iterator[SettingError]:
    """Programs that should tell a role and are not there; without an answer the instance is a mirror."""
    for name, database in settings.databases.items():
        command = database.role_command
        if database.mirroring != "command" or not command:
            continue
        from shutil import which  # noqa: PLC0415 - slow to import: see broker.cli.group

        if which(command[0]) is None:
            problem = f'there is no program "{command[0]}" that may be run, so the database stays a mirror'
            hint = "correct its path, or make it executable"
            yield settings.error(("databases", name, "role_command"), problem, hint)


def _files(settings: Settings, owner: RunningInstance) -> list[SettingError]:
    told = place_errors(settings)
    return [*told.values(), *file_errors(settings, owner, but=told.keys() | out_of_reach(settings, told))]


def _identity_errors(settings: Settings) -> Iterable[SettingError]:
    if not any(one.certificate or one.private_key or one.peers for one in settings.databases.values()):
        return []
    from broker.control.identities import identity_errors  # noqa: PLC0415 - slow to import: see broker.cli.group

    return identity_errors(settings)


def _admin_socket(settings: Settings, owner: RunningInstance, *, offline: bool) -> Iterator[SettingError]:
    path = settings.admin.socket
    is_there = os.path.isdir(path.parent)  # noqa: PTH112 - the other raises what the system refuses
    hint = SOCKET_ELSEWHERE
    problem = write_problem(path.parent) if is_there or path.parent != settings.instance.state_dir else None
    if problem is None and (is_there or path.parent != settings.instance.state_dir):
        problem = socket_problem(path)
        if problem == ANSWERED:
            hint = SOCKET_TAKEN
            problem = None if offline or owner.state_dir is not None else f'"{path}" is taken: {problem}'
        elif problem is not None:
            problem = f'"{path}" cannot be made: {problem}'
    elif problem is not None and path.parent == settings.instance.state_dir:
        problem = None  # told of the state directory
    if problem:
        yield settings.error(("admin", "socket"), problem, hint)


def _listener(
    settings: Settings, owner: RunningInstance, key: KeyPath, address: ListenAddress
) -> Iterator[SettingError]:
    from broker.net.listener import bind  # noqa: PLC0415 - slow to import: see broker.cli.group

    try:
        reuse_port = key[0] == "endpoint" and settings.endpoint.reuse_port
        bind(address.host, address.port, reuse_port=reuse_port).close()
    except ListenFailedError as error:
        if not owner.has_port(address):
            yield settings.error(key, f'cannot listen on "{address}": {error.problem}')


def _addresses(settings: Settings) -> Iterator[tuple[KeyPath, ListenAddress]]:
    """Where the instance listens."""
    for number, address in enumerate(settings.endpoint.listen):
        yield ("endpoint", "listen", number), address
    for section, one in (("admin", settings.admin.listen), ("observe", settings.observe.listen)):
        if one is not None:
            yield (section, "listen"), one


def _skipped(settings: Settings, rehearsal: Rehearsal) -> Iterator[tuple[KeyPath, str]]:
    """What only a look at this machine and its network would tell."""
    for key, address in _addresses(settings):
        yield key, f'whether "{address}" can be bound'
    yield ("admin", "socket"), f'whether another instance answers on "{settings.admin.socket}"'
    locked = [
        str(path) for path in (path_of(settings, name) for name in (MSDB, *settings.databases)) if is_locked(path)
    ]
    if locked:
        shown = ", ".join(locked[:10]) + (f" and {len(locked) - 10} more" if len(locked) > 10 else "")
        yield _STATE_DIR, f"whether it is this instance that has them open: {shown}"
    hosts = named_hosts(rehearsal)
    if hosts:
        shown = ", ".join(sorted(hosts)[:10]) + (f" and {len(hosts) - 10} more" if len(hosts) > 10 else "")
        yield ("routes",), f"whether the names of next hops resolve: {shown}"
