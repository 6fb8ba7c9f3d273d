"""`broker run`: runs the readers of an application until a signal."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from broker.cli.access import read_settings
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import DIRECTORY, Command, Config
from broker.client.reader_pool import Reader, find_readers, run_until_signal
from broker.errors import StoreUnavailableError
from broker.observe.logs import configure_logging


@click.command(cls=Command)
@click.option(
    "-d",
    "--database",
    "databases",
    multiple=True,
    metavar="[NAME=]FILE",
    help="A database and its file; several times for several. By default those of the configuration.",
)
@click.option("--directory", type=DIRECTORY, help="Directory of the module.")
@click.option("--grace", type=click.FloatRange(0), default=30.0, help="Seconds to finish, at the end.")
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "console"]),
    default="auto",
    help="Format of the log.",
)
@click.argument("application", metavar="MODULE[:NAME]")
def run(config: Config, databases: tuple[str, ...], directory: Path | None, application: str, **how: Any) -> None:
    """
    Run message readers (the daemon is `broker serve`).

    MODULE is imported from the current directory, or from --directory; NAME is a reader, a broker.Readers or a list of
    readers in it. On SIGTERM or SIGINT, readers finish their messages within --grace and receive no others; a second
    signal ends the process at once. Exit codes: 0 all finished, 1 something was cut off or the module failed, 2 no such
    module or no reader in it, 3 no such database or queue, 75 a file cannot be used.

    Examples:
        broker run -c config/endpoint.toml shop.billing
        broker run --database billing=/var/lib/broker/billing.db shop.billing:app
    """
    files = _files(config, databases)
    configure_logging(log_format=how["log_format"], level="info", instance=application)
    readers = _load(application, directory)
    try:
        is_finished = run_until_signal(readers, files, grace=how["grace"], on_stop=_end_at_second_signal)
    except StoreUnavailableError as error:
        fail(str(error), ExitCode.TEMPORARY)
    sys.stdout.flush()
    if not is_finished:
        # Only the end of the process ends its threads and releases its slot, and so its messages.
        os._exit(1)


def _end_at_second_signal() -> None:
    """Let the second signal end the process without waiting for threads."""

    def end(number: int, _frame: object) -> None:
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _files(config: Path | None, databases: tuple[str, ...]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for text in databases:
        name, equals, path = text.partition("=")
        file = Path(path if equals else text)
        files[name if equals else file.stem] = file
    if not files:
        files = {name: database.path for name, database in read_settings(config).databases.items()}
    if not files:
        raise click.UsageError(
            "there is no database: give --database NAME=FILE, or -c FILE of a configuration with some"
        )
    return files


def _load(application: str, directory: Path | None) -> list[Reader]:
    """The readers of a module. Python prints the traceback of errors in the module."""
    module_name, _, name = application.partition(":")
    sys.path.insert(0, str((directory or Path.cwd()).absolute()))
    try:
        target: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that this one imports
        raise click.UsageError(
            f"there is no module {module_name!r} in {directory or Path.cwd()} or on the path"
        ) from None
    for part in name.split(".") if name else ():
        if not hasattr(target, part):
            raise click.UsageError(f"there is no {name!r} in {module_name!r}")
        target = getattr(target, part)
    try:
        return find_readers(target)
    except TypeError as error:
        raise click.UsageError(str(error)) from None
