"""
`broker database`: go on with a database file that was copied, moved, or put back from a backup.

The commands work on the file itself, with its lock, so no daemon may run on it, and what they change is in the audit of
the configuration; `docs/databases.md` says when to use which.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from broker.catalog.catalog import MSDB
from broker.catalog.database_files import path_of
from broker.cli.access import read_settings, usual_config
from broker.cli.audit import recording
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import Group, config_option, output_option
from broker.cli.output import show_json
from broker.client.transaction import blame_file, check_schema
from broker.config.settings import Settings
from broker.errors import ConversationError, StoreUnavailableError
from broker.store.sqlite import administration, file_identity
from broker.store.sqlite.administration import ContentsAtRisk, stake_of
from broker.store.sqlite.database import HELD, broker_instance, is_locked, lock_store, open_watch
from broker.store.sqlite.transaction import BUSY_SECONDS, sentence

_database_argument = click.argument("database")
_dry_run_option = click.option("--dry-run", is_flag=True, help="Tell what would be done and lost, and change nothing.")
_KEEP_ADVICE = (
    "what was sent since this copy was made is sent again under the same numbers or not at all, and what was received"
    " since is missing: end the conversations with broker database error-conversations, unless the file was only moved"
)
_FILE_ALONE = (
    "only the file was looked at, for no databases.json, of the configuration or beside the file, knows it: whether it"
    " is older than what its instance has seen is not known"
)
_ASK_INSTANCE = "; broker database keep NAME -c CONFIG looks at that as well"


@click.group(cls=Group)
def database() -> None:
    """
    Keep, renew or clear a database file that was copied.

    Exit codes: as each of its commands tells.

    Examples:
        broker database keep orders -c config/endpoint.toml
        broker database new orders -c config/endpoint.toml --dry-run
    """


@database.command()
@config_option
@_dry_run_option
@output_option
@_database_argument
def keep(config: Path | None, database: str, output: str, *, dry_run: bool) -> None:
    """
    Go on with this file: it was moved, or restored.

    DATABASE is a name in the configuration, msdb, or the path of a file. The original must not be used any more. Exit
    codes: 0 done, 3 no such database, 6 refused because a daemon has the file.

    Examples:
        broker database keep orders -c config/endpoint.toml --dry-run
        broker database keep /var/lib/broker/orders.db -c config/endpoint.toml
    """
    configured, path = _find(config, database)
    with _alone(path) as db:
        state_dir, sighting = _sighting(db, path, configured)
        problem = sighting.problem
        file_identity.accept_file(db, path, state_dir)
        stake = stake_of(db)
        instance = _instance(db)
        _end(db, path, config, "keep", dry_run=dry_run or not problem)
    if problem:
        done = "would be the database" if dry_run else "is the database from now on"
        texts = [problem, f"this file {done}: broker instance {instance}, {stake}", _KEEP_ADVICE]
    elif sighting.is_known:
        texts = ["nothing to do: the file is the one that was last used"]
    else:
        texts = ["nothing to do by the file alone"]
    if not sighting.is_known:
        texts.append(_FILE_ALONE + (_ASK_INSTANCE if usual_config(config) is None else ""))
    record = str(state_dir / file_identity.RECORD) if sighting.is_known else None
    _tell(path, output, texts, stake, dry_run=dry_run, broker_instance=instance, problem=problem, record=record)


@database.command()
@config_option
@_dry_run_option
@output_option
@_database_argument
def new(config: Path | None, database: str, output: str, *, dry_run: bool) -> None:
    """
    Give this copy an identity of its own; see NEW_BROKER.

    All conversations in it are removed without notice to the far sides; queues, services and routes stay. DATABASE is a
    name in the configuration, msdb, or the path of a file. Exit codes: 0 done, 3 no such database, 6 refused because a
    daemon has the file.

    Examples:
        broker database new orders -c config/endpoint.toml --dry-run
        broker database new copy-of-orders.db -c config/endpoint.toml
    """
    settings = read_settings(config)
    path = _file(settings, database)
    with _alone(path) as db:
        stake, old = stake_of(db), _instance(db)
        instance = _new_instance(settings, path, old)
        administration.new_broker(db, instance)
        file_identity.accept_file(db, path, settings.instance.state_dir)
        _end(db, path, config, "new", dry_run=dry_run)
    texts = [
        # What a dry run draws is not what is drawn then.
        f"would get another broker instance than {old}" if dry_run else f"has broker instance {instance}, it was {old}",
        f"{'would be' if dry_run else 'were'} removed: {stake}",
        f"routes and dialogs elsewhere that name {old} lead to the original",
    ]
    _tell(path, output, texts, stake, dry_run=dry_run, broker_instance=None if dry_run else instance, was=old)


@database.command("error-conversations")
@config_option
@_dry_run_option
@output_option
@_database_argument
def error_conversations(config: Path | None, database: str, output: str, *, dry_run: bool) -> None:
    """
    End all open conversations with an error at both ends.

    What waits to be sent is still sent, then the error; both applications read it. For a file restored from a backup,
    whose far sides have gone on. DATABASE is a name in the configuration, msdb, or the path of a file. Exit codes: 0
    done, 3 no such database, 6 refused because a daemon has the file.

    Examples:
        broker database error-conversations orders -c config/endpoint.toml --dry-run
        broker database error-conversations orders.db -c config/endpoint.toml
    """
    _, path = _find(config, database)
    with _alone(path) as db:
        stake = stake_of(db)
        text = "the database was restored from a backup, and an administrator has ended its conversations"
        count = administration.error_conversations(db, time.time(), text=text)
        _end(db, path, config, "error-conversations", dry_run=dry_run)
    texts = [f"{count:,} of {stake.count:,} conversations {'would end' if dry_run else 'end'} with error 9719"]
    _tell(path, output, texts, stake, dry_run=dry_run, ended=count)


def open_database(config: Path | None, database: str) -> AbstractContextManager[sqlite3.Connection]:
    """
    A connection to a database given by its name in the configuration or by its file, closed at the end of the block.

    What SQLite says of the file inside of the block, as that its disk is full, is raised as StoreUnavailableError.

    Raises:
        ConversationError: 911, there is no such file.
        SettingsError: Something in the configuration is wrong.
        StoreUnavailableError: The file is no database of the broker, or one of another release.
    """
    path, hint = Path(database), "give the path of one, or with -c FILE the name of a database of that configuration"
    if config is not None:
        databases = read_settings(config).databases
        path = databases[database].path if database in databases else path
        hint = f"the configuration has {sorted(databases)}, and broker serve makes their files"
    if not path.is_file():
        raise ConversationError(911, f"there is no database file {str(path)!r}: {hint}")
    try:
        db = sqlite3.connect(path)
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), sentence(error)) from error
    try:
        check_schema(db)
        db.execute("PRAGMA synchronous = FULL")  # builds of SQLite may begin with less, with which nothing can be sent
    except BaseException:
        db.close()
        raise
    return _opened(db)


@contextmanager
def _opened(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    with closing(db):
        try:
            yield db
        except sqlite3.DatabaseError as error:
            blame_file(db, error)
            raise


def _find(config: Path | None, database: str) -> tuple[Path, Path]:
    """The state directory, which knows the databases, and the file. Raises ConversationError 911."""
    settings = read_settings(config)
    return settings.instance.state_dir, _file(settings, database)


def _file(settings: Settings, database: str) -> Path:
    is_named = database == MSDB or database in settings.databases
    path = path_of(settings, database) if is_named else Path(database)
    if not path.is_file():
        known = ", ".join([MSDB, *settings.databases])
        raise ConversationError(911, f"there is no database file {str(path)!r}; the configuration has: {known}")
    return path


def _sighting(db: sqlite3.Connection, path: Path, configured: Path) -> tuple[Path, file_identity.Sighting]:
    """What is seen of a file by the state directory that knows it: the configured one, else that in which it lies."""
    sighting = file_identity.compare_file(db, path, configured)
    for place in (path.absolute().parent, Path(os.path.realpath(path)).parent):
        if sighting.is_known:
            break
        with suppress(StoreUnavailableError):  # any file may have this name where no state directory is
            beside = file_identity.compare_file(db, path, place)
            if beside.is_known:
                return place, beside
    return configured, sighting


@contextmanager
def _alone(path: Path) -> Iterator[sqlite3.Connection]:
    """The file in a write transaction, without a daemon on it; the caller ends the transaction."""
    if is_locked(path):  # on another machine perhaps, where no other process may open the file
        _refuse_held(StoreUnavailableError(str(path), HELD))
    try:
        with closing(open_watch(path)) as db:
            check_schema(db)  # before anything is made beside a file that is none of ours
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), sentence(error)) from error
    try:
        lock = lock_store(path)
    except StoreUnavailableError as error:
        if error.problem == HELD:
            _refuse_held(error)
        raise
    try:
        address = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            yield db
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), sentence(error)) from error
    finally:
        os.close(lock)


def _refuse_held(error: StoreUnavailableError) -> NoReturn:
    hint = "stop it first; of these, only ALTER DATABASE ... SET ERROR_BROKER_CONVERSATIONS can be told to it"
    fail(f"{error}: {hint}", ExitCode.HARMFUL)


def _end(db: sqlite3.Connection, path: Path, config: Path | None, command: str, *, dry_run: bool) -> None:
    """Commit once the audit has it, or change nothing."""
    if dry_run:
        db.execute("ROLLBACK")
        return
    with recording(read_settings(config), f"broker database {command}") as record:
        record.seal_done(str(path.absolute()))
        db.execute("COMMIT")


def _instance(db: sqlite3.Connection) -> uuid.UUID:
    return uuid.UUID(bytes=broker_instance(db))


def _new_instance(settings: Settings, path: Path, old: uuid.UUID) -> uuid.UUID:
    """What the configuration says, else drawn. Raises SettingError: the configuration says what it was."""
    for name, one in settings.databases.items():
        if one.broker_instance is not None and one.path.exists() and one.path.samefile(path):
            if one.broker_instance == old:
                hint = "take it out of the configuration, or give another GUID, then repeat this"
                raise settings.error(("databases", name, "broker_instance"), "it is that of the original", hint)
            return one.broker_instance
    return uuid.uuid4()


def _tell(path: Path, output: str, texts: list[str], stake: ContentsAtRisk, *, dry_run: bool, **more: Any) -> None:
    if output == "json":
        values = {key: str(value) if isinstance(value, uuid.UUID) else value for key, value in more.items()}
        holds = {"conversations": stake.conversations, "unsent": stake.unsent, "unread": stake.unread}
        show_json({"path": str(path), "dry_run": dry_run, **holds, **values, "texts": texts})
        return
    for text in texts:
        click.echo(f"{path}: {text}")
