"""
Whether settings that are right in themselves meet a machine on which they can work.

Everything is tried as the daemon will do it: scripts are rehearsed, certificates are loaded, listeners are bound and
closed again, a file is made in each directory that has to be written (and is gone at once). All problems come in one
report. Nothing is changed and nothing is sent; a check beside a running instance finds its own ports taken, which
`offline` leaves out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from broker.control.administration import admin_errors
from broker.control.certificates import certificate_errors, certificate_warnings
from broker.control.concern import Concern
from broker.control.config import by_place
from broker.control.custody import file_errors
from broker.control.identities import identity_errors
from broker.control.journal import journal_errors
from broker.control.load import load_what_is_good
from broker.control.place import KeyPath
from broker.control.quota import Kind
from broker.control.reach import survey_all
from broker.control.rehearsal import Rehearsal, rehearse
from broker.control.writable import write_problem
from broker.errors import SettingError, SettingsError
from broker.routing.route import BROKER_CONFIGURATION

if TYPE_CHECKING:
    from broker.control.config import Settings
    from broker.control.listen import ListenAddress

_SQLITE_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Report:
    """
    What a check found.

    Shape: `errors` keep an instance from starting; `warnings` of settings and `concerns` about what the scripts say are
    legal and unwise; `left_out` counts the concerns of one code and file that are not among them.
    """

    errors: list[SettingError] = field(default_factory=list)
    warnings: list[SettingError] = field(default_factory=list)
    concerns: list[Concern] = field(default_factory=list)
    left_out: dict[Kind, int] = field(default_factory=dict)


def check_files(paths: Sequence[Path | None], *, environ: Mapping[str, str], offline: bool = False) -> Report:
    """
    Check configurations, each by itself and, as far as they are sound, all together.

    Args:
        paths: Configuration files; None = no file, only the environment.
        environ: The environment, which holds for each of them.
        offline: As for `check_settings`.
    """
    report = Report()
    sound = []
    for path in paths:
        try:
            settings, refused = load_what_is_good(path, environ=environ)
        except SettingsError as error:
            report.errors.extend(error.errors)
            continue
        rehearsal = rehearse(settings, now=datetime.now(UTC))
        if refused:  # a refused setting has its default, so the machine is not asked about it
            report.errors.extend([*refused, *rehearsal.errors])
            continue
        report.errors.extend(check_settings(settings, rehearsal, offline=offline))
        report.warnings.extend(sorted([*settings.warnings(), *certificate_warnings(settings)], key=by_place))
        if not rehearsal.errors:
            sound.append(rehearsal)
    concerns, left_out = survey_all(sound)
    return replace(report, concerns=concerns, left_out=left_out)


def check_running(settings: Settings) -> Report:
    """What a check of the settings in force finds; the ports are taken by the instance itself."""
    rehearsal = rehearse(settings, now=datetime.now(UTC))
    concerns, left_out = survey_all([] if rehearsal.errors else [rehearsal])
    warnings = sorted([*settings.warnings(), *certificate_warnings(settings)], key=by_place)
    return Report(check_settings(settings, rehearsal, offline=True), warnings, concerns, left_out)


def check_settings(settings: Settings, rehearsal: Rehearsal, *, offline: bool = False) -> list[SettingError]:
    """
    Look at everything outside that these settings need.

    Args:
        settings: As `load_settings` gives them, with absolute paths.
        rehearsal: What their scripts come to.
        offline: Do not bind the listening ports: another machine, or an instance that is running, has them.

    Returns:
        Every problem, sorted by place; empty when the instance could start.
    """
    errors = [*_state_directory(settings), *rehearsal.errors, *_databases(settings), *file_errors(settings)]
    errors += [*_admin_socket(settings), *_askers(settings, rehearsal), *certificate_errors(settings)]
    errors += [*identity_errors(settings), *journal_errors(settings), *admin_errors(settings)]
    if not offline:
        errors += _listeners(settings)
    return sorted(errors, key=by_place)


def _state_directory(settings: Settings) -> Iterator[SettingError]:
    problem = write_problem(settings.instance.state_dir)
    if problem:
        hint = "create it for the user that runs the instance, or name another directory"
        yield settings.error(("instance", "state_dir"), problem, hint)


def _admin_socket(settings: Settings) -> Iterator[SettingError]:
    directory = settings.admin.socket.parent
    problem = write_problem(directory) if directory != settings.instance.state_dir else None
    if problem:
        yield settings.error(("admin", "socket"), problem, "name a directory that the instance may write")


def _databases(settings: Settings) -> Iterator[SettingError]:
    for name, database in settings.databases.items():
        problem = _database_problem(database.path, settings.instance.state_dir)
        if problem:
            hint = "name an SQLite file, or one to be created in a directory that exists"
            yield settings.error(("databases", name, "path"), problem, hint)


def _database_problem(path: Path, state_dir: Path) -> str | None:
    """What keeps this file from being opened or created as a database."""
    directory = path.parent
    # The state directory is created at start; it is reported for itself.
    if directory == state_dir and not path.exists():
        return None
    if not directory.is_dir():
        return f'the directory "{directory}" does not exist'
    problem = write_problem(directory)  # SQLite writes its journal beside the file
    if problem or not path.exists():
        return problem
    if not os.access(path, os.R_OK | os.W_OK):
        return f'"{path}" may not be read and written'
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        return f'"{path}" cannot be read: {error.strerror}'
    return f'"{path}" is no SQLite file' if start not in {b"", _SQLITE_MAGIC} else None


def _askers(settings: Settings, rehearsal: Rehearsal) -> Iterator[SettingError]:
    """Routes by which msdb would ask for other routes, where several processes share it."""
    asking = [one.name for one in rehearsal.msdb.routes.values() if one.remote_service_name == BROKER_CONFIGURATION]
    if asking and settings.endpoint.workers > 1:
        yield asking_error(settings, asking[0])


def asking_error(settings: Settings, route: str) -> SettingError:
    """That msdb has this route, by which it asks for others, and `endpoint.workers` is above 1."""
    problem = f"several processes do not ask for routes, and msdb has the route {route!r} by which it would"
    return settings.error(("endpoint", "workers"), problem, f"set it to 1, or DROP ROUTE [{route}]")


def _listeners(settings: Settings) -> Iterator[SettingError]:
    listeners: list[tuple[KeyPath, ListenAddress | None]] = [
        *((("endpoint", "listen", number), address) for number, address in enumerate(settings.endpoint.listen)),
        (("admin", "listen"), settings.admin.listen),
        (("observe", "listen"), settings.observe.listen),
    ]
    for key, address in listeners:
        problem = _bind_problem(address) if address is not None else None
        if problem:
            hint = "stop what listens there (this instance itself?), or choose another address"
            yield settings.error(key, f'cannot listen on "{address}": {problem}', hint)


def _bind_problem(address: ListenAddress) -> str | None:
    """What keeps this address from being bound; every address its host has, as the daemon will bind them."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in found:
            with closing(socket.socket(family, kind, protocol)) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(place)
                listener.listen()
    except OSError as error:
        return error.strerror or str(error)
    return None
