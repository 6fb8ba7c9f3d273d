"""
`broker database`: makes a database file that was copied, moved or restored usable again.

The commands hold the lock of the file, so no daemon may have it open, and record their changes in the audit of the
configuration, if there is one; `docs/how-to/back-up-and-restore.md` says when to use which.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias

import click

from broker.catalog.catalog import MSDB
from broker.catalog.database_files import ONLY_COPY, emptiness, lost_hint, path_of
from broker.cli.access import is_nothing_given, option_of, read_settings, usual_config
from broker.cli.audit import recording
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import Config, Group, Output, Yes, confirm, copy_command
from broker.cli.output import show_lines
from broker.client.transaction import blame_file, check_schema
from broker.config.settings import DatabaseSettings, Settings
from broker.config.units import plural
from broker.errors import ConversationError, StoreUnavailableError
from broker.protocol.layout import show_guid
from broker.store.sqlite import administration, file_identity
from broker.store.sqlite.administration import ContentsAtRisk, stake_of
from broker.store.sqlite.database import HELD, broker_instance, is_locked, lock_store, open_store
from broker.store.sqlite.role_file import check_remains
from broker.store.sqlite.transaction import BUSY_SECONDS, open_watch, translated

_DRY_RUN = click.Option(("--dry-run",), is_flag=True, help="Show what would be done and lost, and change nothing.")
_DryRun: TypeAlias = Annotated[bool, _DRY_RUN]
_Name: TypeAlias = Annotated[str, click.Argument(("database",))]
_KEEP_ADVICE = (
    "warning: if messages were sent or received since this copy was made, end its conversations, otherwise more are"
    " lost without an error: broker database error-conversations"
)
_FILE_ALONE = (
    "only the file was checked: neither the databases.json of the configuration nor one next to the file lists it, so"
    " it is not known whether the file is older than its instance's last state"
)
_AGAIN = (
    "scripts run at the next start; what broker partner import or broker sql had made in the lost one is gone: import"
    " the partner files again. A route elsewhere that names the lost broker instance needs ALTER ROUTE with the new one"
)
_UNRECORDED = "not recorded in an audit: there is no configuration; -c FILE names that of the instance"
_NAME_ONE = "give the path of one, or with -c FILE the name of a database of that configuration"
_ASK_INSTANCE = "; broker database keep NAME -c CONFIG checks that too"


@click.group(cls=Group)
def database() -> None:
    """
    Keep, renew or clear a database file that was copied.

    Changes are recorded in the audit of the configuration; without one, nowhere.

    Examples:
        broker database keep orders -c config/endpoint.toml
        broker database reset-identity orders -c config/endpoint.toml --dry-run
    """


@database.command()
def keep(config: Config, database: _Name, output: Output, *, dry_run: _DryRun) -> None:
    """
    Accept a moved or restored file as this database, or a new one.

    DATABASE is a name in the configuration, msdb, or the path of a file. Do not use the original again. Exit codes: 0
    done, 3 no such database, 6 refused because a daemon has the file; a file made in place of a lost one is accepted
    while a daemon has it.

    Examples:
        broker database keep orders -c config/endpoint.toml --dry-run
        broker database keep /var/lib/broker/orders.db -c config/endpoint.toml
    """
    settings = read_settings(config)
    configured, path = settings.instance.state_dir, _file(settings, database)
    replaced = file_identity.replaced_at(path, configured)
    if replaced:
        if not dry_run:
            with recording(settings, "broker database keep", target=str(path.absolute())):
                file_identity.accept_replacement(path, configured)
        text = f"{replaced}: the new one {'would be' if dry_run else 'is'} accepted"
        show_lines({"path": str(path), "dry_run": dry_run, "texts": [text]}, output, [f"{path}: {text}"])
        return
    with _locked(path, config) as db:
        state_dir, sighting = _sighting(db, path, configured)
        problem = sighting.problem
        file_identity.accept_file(db, path, state_dir)
        stake = stake_of(db)
        instance = _instance(db)
        notes = _end(db, path, config, "keep", dry_run=dry_run or not problem)
    if problem:
        done = "would be the database" if dry_run else "is the database from now on"
        advice = [f"{_KEEP_ADVICE} {shlex.quote(database)}{option_of(config)}"] if stake.count else []
        warnings = [f"warning: {problem.removeprefix('error 9772: ')}", *advice]
        texts = [f"this file {done}: broker instance {show_guid(instance)}, {stake}", *warnings, *notes]
    elif sighting.is_known:
        texts = ["nothing to do: the file is the one that was last used"]
    else:
        texts = ["nothing to do by the file alone"]
    if not sighting.is_known:
        texts.append(_FILE_ALONE + (_ASK_INSTANCE if usual_config(config) is None else ""))
    record = str(state_dir / file_identity.RECORD) if sighting.is_known else None
    _report(path, output, texts, stake, dry_run=dry_run, broker_instance=instance, problem=problem, record=record)


@database.command()
@click.argument("database", metavar="NAME")
def create(config: Config, database: str) -> None:
    """
    Make an empty database in place of one whose file is gone.

    NAME is a name in the configuration, or msdb. What this instance knew of the lost database is forgotten. Exit codes:
    0 done, 3 no such database, 6 refused because there is a database in the file, or a daemon has it.

    Examples:
        broker database create orders -c config/endpoint.toml
        broker database create msdb -c config/gateway.toml
    """
    settings = read_settings(config)
    if database != MSDB and database not in settings.databases:
        raise ConversationError(911, f"the configuration has no database {database!r}: it has {_names(settings)}")
    path = path_of(settings, database)
    if is_locked(path):
        if emptiness(path):
            fail(f"{path}: {ONLY_COPY}", ExitCode.HARMFUL)
        _refuse_held(StoreUnavailableError(str(path), HELD), config)
    if not emptiness(path):
        fail(f"{path}: there is a database in it; move the file away first", ExitCode.HARMFUL)
    check_remains(path)
    configured = None if database == MSDB else settings.databases[database].broker_instance
    with recording(settings, "broker database create", target=str(path.absolute())):
        file_identity.forget_lost(path, settings.instance.state_dir)
        with closing(open_store(path, broker_instance=configured)) as db:
            click.echo(f"{path}: has a new, empty database of broker instance {show_guid(_instance(db))}")
            click.echo(f"{path}: {_AGAIN}")


@database.command("reset-identity")
def reset_identity(config: Config, database: _Name, output: Output, *, dry_run: _DryRun, yes: Yes) -> None:
    """
    Give this copy a new identity, and delete its conversations.

    All conversations in it are removed without notice to the far sides; queues, services and routes stay. DATABASE is a
    name in the configuration, msdb, or the path of a file. Exit codes: 0 done, 3 no such database, 6 refused because a
    daemon has the file.

    Examples:
        broker database reset-identity orders -c config/endpoint.toml --dry-run
        broker database reset-identity /var/lib/broker/billing.db -c config/endpoint.toml --yes
    """
    settings = read_settings(config)
    path = _file(settings, database)
    if not (dry_run or yes):
        _confirm(path, config, "delete all conversations and messages: {}")
    with _locked(path, config) as db:
        stake, old = stake_of(db), _instance(db)
        instance = _new_instance(settings, path, old)
        administration.new_broker(db, instance)
        file_identity.accept_file(db, path, settings.instance.state_dir)
        notes = _end(db, path, config, "reset-identity", dry_run=dry_run)
    now, was = show_guid(instance), show_guid(old)
    texts = [
        # The real run draws another one.
        f"would get another broker instance than {was}" if dry_run else f"has broker instance {now}, it was {was}",
        f"{'would be' if dry_run else 'were'} removed: {stake}",
        f"routes and dialogs elsewhere lead to {was}: where this replaces it, ALTER ROUTE and END CONVERSATION there",
        *notes,
    ]
    _report(path, output, texts, stake, dry_run=dry_run, broker_instance=None if dry_run else instance, was=old)


database.add_command(copy_command(reset_identity, "new", new="broker database reset-identity"))


@database.command("error-conversations")
def error_conversations(config: Config, database: _Name, output: Output, *, dry_run: _DryRun, yes: Yes) -> None:
    """
    End all open conversations with an error at both ends.

    Messages to be sent are still sent before the error, which both applications read. Use it for a file restored from a
    backup, whose far sides have continued. DATABASE is a name in the configuration, msdb, or the path of a file. Exit
    codes: 0 done, 3 no such database, 6 refused because a daemon has the file.

    Examples:
        broker database error-conversations orders -c config/endpoint.toml --dry-run
        broker database error-conversations orders.db -c config/endpoint.toml --yes
    """
    path = _file(read_settings(config), database)
    name = "NAME" if path == Path(database) else database
    running = f'broker sql{option_of(config)} "ALTER DATABASE [{name}] SET ERROR_BROKER_CONVERSATIONS"'
    if not (dry_run or yes):
        _confirm(path, config, "end with an error at both ends: {}", running)
    with _locked(path, config, running) as db:
        stake = stake_of(db)
        count = administration.error_conversations(db, time.time())
        notes = _end(db, path, config, "error-conversations", dry_run=dry_run)
    texts = [f"{count:,} of {plural(stake.count, 'conversation')} {'would end' if dry_run else 'end'} with error 9719"]
    _report(path, output, [*texts, *notes], stake, dry_run=dry_run, ended=count)


def _confirm(path: Path, config: Path | None, question: str, running: str = "") -> None:
    """Ask, if there is anything in the file that would be lost; raises as `confirm`."""
    with _locked(path, config, running) as db:
        stake = stake_of(db)
        db.execute("ROLLBACK")
    if stake.count or stake.unread:
        confirm(f"{path}: {question.format(stake)}?")


@contextmanager
def open_database(config: Path | None, database: str) -> Iterator[sqlite3.Connection]:
    """
    A connection to a database given by its name in the configuration or by its file, closed at the end of the block.

    Errors of the file inside the block, such as a full disk, are raised as StoreUnavailableError.

    Raises:
        ConversationError: 911, there is no such file.
        SettingsError: Something in the configuration is wrong.
        StoreUnavailableError: The file is not a database of the broker, or one of another release.
    """
    path = file_of({} if config is None else read_settings(config).databases, database, option_of(config))
    with translated(path):
        db = sqlite3.connect(path)
    with closing(db):
        check_schema(db)
        db.execute("PRAGMA synchronous = FULL")  # builds of SQLite may begin with less, with which nothing can be sent
        try:
            yield db
        except sqlite3.DatabaseError as error:
            blame_file(db, error)
            raise


def file_of(known: Mapping[str, DatabaseSettings], database: str, config_option: str) -> Path:
    """The file of a database given by its name in the configuration or by the path; raises as `open_database`."""
    path = known[database].path if database in known else Path(database)
    if not path.is_file():
        hint = f"the configuration has {sorted(known)}" if known else _NAME_ONE
        if database in known:
            hint = (
                f"broker status{config_option} says what to do where a daemon runs, which may have the only copy open;"
                f" otherwise broker check{config_option} does; broker serve makes the file of a new database"
            )
        raise ConversationError(911, f"there is no database file {str(path)!r}: {hint}")
    return path


def _file(settings: Settings, database: str) -> Path:
    """The file of a database given by its name or path. Raises ConversationError 911."""
    is_named = database == MSDB or database in settings.databases
    path = path_of(settings, database) if is_named else Path(database)
    if not path.is_file():
        hint = f"the configuration has {_names(settings)}" if settings.config_option else _NAME_ONE
        if is_named:
            hint = lost_hint(settings, database)
        raise ConversationError(911, f"there is no database file {str(path)!r}: {hint}")
    return path


def _names(settings: Settings) -> str:
    return ", ".join([MSDB, *settings.databases])


def _sighting(db: sqlite3.Connection, path: Path, configured: Path) -> tuple[Path, file_identity.Sighting]:
    """A state directory that lists a file, and the comparison: the configured one, or the one that holds the file."""
    sighting = file_identity.compare_file(db, path, configured)
    for place in (path.absolute().parent, Path(os.path.realpath(path)).parent):
        if sighting.is_known:
            break
        with suppress(StoreUnavailableError):  # any directory may have a file of this name
            other = file_identity.compare_file(db, path, place)
            if other.is_known:
                return place, other
    return configured, sighting


@contextmanager
def _locked(path: Path, config: Path | None, running: str = "") -> Iterator[sqlite3.Connection]:
    """The file in a write transaction, locked against a daemon, or as `_refuse_held`; the caller ends it."""
    if is_locked(path):  # perhaps by another machine: then no process here may open the file
        _refuse_held(StoreUnavailableError(str(path), HELD), config, running)
    with translated(path), closing(open_watch(path)) as db:
        check_schema(db)  # before a lock file is made next to a foreign file
    try:
        lock = lock_store(path)
    except StoreUnavailableError as error:
        if error.problem == HELD:
            _refuse_held(error, config, running)
        raise
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        with translated(path), closing(sqlite3.connect(uri, BUSY_SECONDS, isolation_level=None, uri=True)) as db:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            yield db
    finally:
        os.close(lock)


def _refuse_held(error: StoreUnavailableError, config: Path | None, running: str = "") -> NoReturn:
    """End with what to do: stop the daemon, or `running`, a command for one that runs."""
    more = running and f"; or let it do that: {running}"
    fail(f"{error}: stop it first: broker drain{option_of(config)}{more}", ExitCode.HARMFUL)


def _end(db: sqlite3.Connection, path: Path, config: Path | None, command: str, *, dry_run: bool) -> list[str]:
    """Commit after the change is in the audit, and roll back a dry run; return what its user has to know of that."""
    if dry_run:
        db.execute("ROLLBACK")
        return []
    if is_nothing_given(config, ()):
        db.execute("COMMIT")
        return [_UNRECORDED]
    with recording(read_settings(config), f"broker database {command}", target=str(path.absolute())):
        db.execute("COMMIT")
    return []


def _instance(db: sqlite3.Connection) -> uuid.UUID:
    return uuid.UUID(bytes=broker_instance(db))


def _new_instance(settings: Settings, path: Path, old: uuid.UUID) -> uuid.UUID:
    """The identity of the configuration, or a random one. Raises SettingError: the configuration has the old one."""
    for name, one in settings.databases.items():
        if one.broker_instance is not None and one.path.exists() and one.path.samefile(path):
            if one.broker_instance == old:
                hint = "take it out of the configuration, or give another GUID, then repeat this"
                raise settings.error(("databases", name, "broker_instance"), "it is the one of the original", hint)
            return one.broker_instance
    return uuid.uuid4()


def _report(path: Path, output: str, texts: list[str], stake: ContentsAtRisk, *, dry_run: bool, **more: Any) -> None:
    values = {key: show_guid(value) if isinstance(value, uuid.UUID) else value for key, value in more.items()}
    holds = {"conversations": stake.conversations, "unsent": stake.unsent, "unread": stake.unread}
    told = {"path": str(path), "dry_run": dry_run, **holds, **values, "texts": texts}
    show_lines(told, output, [f"{path}: {text}" for text in texts])
