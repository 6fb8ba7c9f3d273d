"""
Check: whether settings that are right in themselves can work on this machine.

Everything is tried as the daemon does it, by the daemon's own functions where it has one: scripts are run dry,
certificates and tokens are loaded, listeners are bound and closed again, files are opened and only read, a file is made
in each directory that has to be written, and removed at once. All problems are in one report. Nothing is changed, and
nothing is sent but queries to the resolver. Ports and files of a running instance of the same state directory are not
reported as taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from msgspec import Struct, field
from msgspec.structs import replace

from broker.advice import to_install
from broker.catalog.catalog import MSDB
from broker.catalog.database_files import UNASKED, RunningInstance, clock_problem, file_errors, file_warnings, path_of
from broker.catalog.diagnostics import SOCKET_ELSEWHERE, SOCKET_TAKEN, Diagnostic, Kind, listening
from broker.catalog.dry_run import DryRun, dry_run
from broker.catalog.fleet import named_hosts, survey_all, unresolved
from broker.catalog.identities import identity_errors
from broker.config.admin_access import AdminRole, TokenFileError, holders_of, read_tokens, socket_group_of
from broker.config.load import load_settings
from broker.config.settings import Settings, by_place
from broker.config.toml import KeyPath
from broker.config.values import ListenAddress
from broker.errors import ListenFailedError, SettingError, SettingsError
from broker.files import ANSWERED, socket_problem, write_problem
from broker.forwarding.kernels import KERNEL_VARIABLE, choose_kernel
from broker.net.certificates import admin_certificate_errors, admin_security_of, certificate_errors, unwise
from broker.net.listener import bind
from broker.store.sqlite.database import is_locked

_STATE_DIR: KeyPath = ("instance", "state_dir")
_ALL = "scripts and everything else"

OwnerOf = Callable[[Settings], RunningInstance]
"""Returns the instance that runs already by the state directory of these settings."""


class CheckReport(Struct, frozen=True):
    """
    The findings of a check.

    Attributes:
        errors: The errors that keep an instance from starting.
        warnings: Settings that are legal but not advisable.
        concerns: Statements of the scripts that are legal but not advisable.
        left_out: How many concerns of one code and file are not among them.
        skipped: Checks that were not made, because the check is offline.
        waiting: Checks that were not made, because of an error in the settings.
        running: State directories of instances that run.
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
    overrides: Mapping[str, object] | None = None,
    owner_of: OwnerOf | None = None,
) -> CheckReport:
    """
    Check configurations, each by itself and, as far as they are sound, all together.

    Args:
        paths: Configuration files; None = no file, only the environment.
        environ: The environment, which holds for each of them.
        overrides: By dotted key, as `load_settings`.
        owner_of: Returns the instance that runs already; None = offline: what only this machine could answer is not
            checked.
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
        run = dry_run(settings, now=datetime.now(UTC))
        owner = UNASKED if owner_of is None else owner_of(settings)
        if owner.state_dir is not None:
            report.running.append(owner.state_dir)
        report.errors.extend(check_settings(settings, run, owner))
        report.warnings.extend(warnings_of(settings, run))
        if owner.is_unknown:
            report.skipped.extend(settings.error(*one) for one in _skipped(settings, run))
        else:
            report.concerns.extend(unresolved(run))
        if not run.errors:
            sound.append(run)
    concerns, left_out = survey_all(sound)
    return replace(report, concerns=[*report.concerns, *concerns], left_out=left_out)


def check_running(settings: Settings) -> CheckReport:
    """Return the findings of a check of the settings in force; the ports are taken by the instance itself."""
    run = dry_run(settings, now=datetime.now(UTC))
    concerns, left_out = survey_all([] if run.errors else [run])
    return CheckReport(check_settings(settings, run, UNASKED), warnings_of(settings, run), concerns, left_out)


def check_settings(settings: Settings, run: DryRun, owner: RunningInstance) -> list[SettingError]:
    """
    Check everything outside the configuration that these settings need.

    Args:
        settings: As `load_settings` gives them, with absolute paths.
        run: The result of running their scripts dry.
        owner: The instance that runs already; its ports and files do not count as taken by another process. When it
            is not known, the listening ports are not bound: another machine, or an instance that is running, has them.

    Returns:
        Every problem, sorted by place; empty when the instance could start.
    """
    errors = [
        *run.errors,
        *file_errors(settings, owner),
        *_admin_socket(settings, owner),
        *changeable_errors(settings),
    ]
    for key, address in () if owner.is_unknown else listening(settings):
        errors += _listener(settings, owner, key, address)
    return sorted(errors, key=by_place)


def changeable_errors(settings: Settings) -> list[SettingError]:
    """Return the errors in the files that a running instance could load again: certificates, journal, admin API."""
    return [
        *certificate_errors(settings),
        *identity_errors(settings),
        *journal_errors(settings),
        *tracing_errors(settings),
        *admin_errors(settings),
    ]


def warnings_of(settings: Settings, run: DryRun) -> list[SettingError]:
    """Return warnings about settings that are legal but not advisable, sorted by place."""
    connects = any(route.addresses for one in run.databases.values() for route in one.routes.values())
    found = [*unwise(settings, connects=connects), *run.warnings, *_role_commands(settings), *file_warnings(settings)]
    problem = clock_problem(settings.instance.state_dir, now=run.now.timestamp())
    if problem:
        found.append(settings.error(("instance", "state_dir"), problem, "set the clock of this machine"))
    return sorted(found, key=by_place)


def _kernel(environ: Mapping[str, str]) -> list[SettingError]:
    if not environ.get(KERNEL_VARIABLE):
        return []
    try:
        choose_kernel(environ[KERNEL_VARIABLE])
    except SettingError as error:
        return [error]
    return []


def _role_commands(settings: Settings) -> Iterator[SettingError]:
    """Yield an error for each role command whose program is missing; without an answer the instance is a mirror."""
    for name, database in settings.databases.items():
        command = database.role_command
        if database.mirroring != "command" or not command:
            continue
        if which(command[0]) is None:
            problem = f'there is no program "{command[0]}" that may be run, so the database stays a mirror'
            hint = "correct its path, or make it executable"
            yield settings.error(("databases", name, "role_command"), problem, hint)


def _admin_socket(settings: Settings, owner: RunningInstance) -> Iterator[SettingError]:
    path, hint = settings.admin.socket, SOCKET_ELSEWHERE
    is_in_state_dir = path.parent == settings.instance.state_dir  # made by the start, and reported for itself
    is_there = os.path.isdir(path.parent)  # noqa: PTH112 - the other raises what the system refuses
    problem = write_problem(path.parent) if is_there or not is_in_state_dir else None
    if problem is not None or (is_in_state_dir and not is_there):
        problem = None if is_in_state_dir else problem
    elif (problem := socket_problem(path)) == ANSWERED:
        hint = SOCKET_TAKEN
        problem = None if owner.is_unknown or owner.state_dir is not None else f'"{path}" is taken: {problem}'
    elif problem is not None:
        problem = f'"{path}" cannot be made: {problem}'
    if problem:
        yield settings.error(("admin", "socket"), problem, hint)


def _listener(
    settings: Settings, owner: RunningInstance, key: KeyPath, address: ListenAddress
) -> Iterator[SettingError]:
    try:
        reuse_port = key[0] == "endpoint" and settings.endpoint.reuse_port
        bind(address.host, address.port, reuse_port=reuse_port).close()
    except ListenFailedError as error:
        if not owner.has_port(address):
            yield settings.error(key, f'cannot listen on "{address}": {error.problem}')


def _skipped(settings: Settings, run: DryRun) -> Iterator[tuple[KeyPath, str]]:
    """Yield the checks that only this machine and its network could answer."""
    for key, address in listening(settings):
        yield key, f'whether "{address}" can be bound'
    yield ("admin", "socket"), f'whether another instance answers on "{settings.admin.socket}"'
    locked = [str(path) for name in (MSDB, *settings.databases) if is_locked(path := path_of(settings, name))]
    for key, question, subjects in (
        (_STATE_DIR, "whether it is this instance that has them open", locked),
        (("routes",), "whether the names of next hops resolve", sorted(named_hosts(run))),
    ):
        more = f" and {len(subjects) - 10} more" if len(subjects) > 10 else ""
        if subjects:
            yield key, f"{question}: {', '.join(subjects[:10])}{more}"


def check_ways_in(settings: Settings) -> None:
    """
    Check that at least one client could send requests to the TCP port. Blocking.

    Raises:
        SettingError: the file of tokens cannot be used, or no client has a token and no certificate is trusted.
    """
    admin = settings.admin
    if admin.listen is None:
        return
    try:
        has_tokens = bool(read_tokens(admin.tokens))
    except TokenFileError as error:
        raise settings.error(("admin", "tokens"), f"{error.path} {error.problem}", error.hint) from error
    is_open = admin.listen.is_loopback and admin.loopback_role != AdminRole.NONE.word
    if not (has_tokens or admin.trust or admin.peers or is_open):
        problem = f'no client can use "{admin.listen}": there is no token, and no certificate of a client is trusted'
        raise settings.error(
            ("admin", "listen"), problem, "use broker token create NAME --role viewer, or set trust and roles"
        )


def admin_errors(settings: Settings) -> list[SettingError]:
    """Return the errors in files, users and groups that keep the admin API from starting."""
    errors: list[SettingError] = []
    for look in (holders_of, socket_group_of, admin_security_of, check_ways_in):
        try:
            look(settings)
        except SettingError as error:
            more = admin_certificate_errors(settings) if look is admin_security_of else []
            errors += more or [error]
    for key in ("tokens", "audit"):
        directory = getattr(settings.admin, key).parent
        problem = write_problem(directory) if directory != settings.instance.state_dir else None
        if problem:
            errors.append(settings.error(("admin", key), problem, "name a directory that the instance may write"))
    return errors


def journal_errors(settings: Settings) -> Iterator[SettingError]:
    """Yield the errors that keep a journal from being written, as far as they can be seen from outside."""
    directory = settings.journal.directory
    if directory is None:
        return
    if find_spec("pyarrow") is None:
        hint = f"{to_install('journal')}, or leave the directory out"
        yield settings.error(("journal", "directory"), "a journal needs pyarrow, which is not installed", hint)
    problem = write_problem(directory)
    if problem:
        yield journal_directory_error(settings, problem)


def journal_directory_error(settings: Settings, problem: str) -> SettingError:
    """A journal that cannot be in its directory, under the setting that names it."""
    return settings.error(("journal", "directory"), problem, "name a directory that the instance may write")


def tracing_errors(settings: Settings) -> Iterator[SettingError]:
    """Yield the errors that keep spans from being made, as far as they can be seen from outside."""
    if settings.tracing.enabled and not _is_installed():
        hint = f"{to_install('otel')}, or turn it off"
        yield settings.error(("tracing", "enabled"), "tracing needs OpenTelemetry, which is not installed", hint)


def _is_installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # of a package around it
        return False
