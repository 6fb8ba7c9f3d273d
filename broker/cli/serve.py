"""`broker run`: the readers of an application, until a signal ends them."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from broker.cli.access import is_nothing_given, nothing_to_read, overrides_from, read_settings
from broker.cli.options import (
    EX_CONFIG,
    EX_TEMPFAIL,
    TIMED_OUT,
    config_option,
    examples,
    exit_code,
    fail,
    set_option,
    with_exit_code,
)
from broker.daemon.early_signal import end_on_signal
from broker.errors import (
    BrokerError,
    CertificateTooEarlyError,
    ListenFailedError,
    SettingError,
    SettingsError,
    StatementError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from broker.client.reader_pool import Reader
    from broker.config.settings import Settings


@examples("""
broker run -c config/endpoint.toml shop.billing
broker run --database billing=/var/lib/broker/billing.db shop.billing:app
""")
@click.command()
@config_option
@click.option(
    "-d",
    "--database",
    "databases",
    multiple=True,
    metavar="[NAME=]FILE",
    help="A database and its file; several times for several. Else those of the configuration.",
)
@click.option("--directory", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Where the module is.")
@click.option(
    "--grace", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds to finish, at the end."
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "console"]),
    default="auto",
    show_default=True,
    help="Of the log.",
)
@click.argument("application", metavar="MODULE[:NAME]")
@with_exit_code
def run(config: Path | None, databases: tuple[str, ...], directory: Path | None, application: str, **how: Any) -> None:
    """
    Run the readers of a Python module.

    MODULE is imported from the current directory, or from --directory; NAME is a reader, a broker.Readers or a list
    of readers in it. SIGTERM or SIGINT: nothing new is taken and what is under way is finished within --grace; a
    second signal ends at once. Exit codes: 0 all finished, 1 something was cut off or the module failed, 2 no such
    module or no reader in it, 3 no such database or queue, 75 a file cannot be used.
    """
    from broker.client.reader_pool import run_until_signal  # noqa: PLC0415
    from broker.observe.logs import configure_logging  # noqa: PLC0415

    files = _files(config, databases)
    configure_logging(log_format=how["log_format"], level="info", instance=application)
    readers = _load(application, directory)
    try:
        is_finished = run_until_signal(readers, files, grace=how["grace"], on_stop=_end_at_second_signal)
    except StoreUnavailableError as error:
        fail(str(error), EX_TEMPFAIL)
    except BrokerError as error:
        fail(str(error), exit_code(error))
    sys.stdout.flush()
    if not is_finished:
        # A thread cannot be ended: only the process can, and with it the slot, so that its messages are free.
        os._exit(1)


def _end_at_second_signal() -> None:
    """From the first signal on the next one has its usual effect, without waiting for any thread."""

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
    """The readers of a module. What importing it raises is told with its traceback, by Python."""
    from broker.client.reader_pool import find_readers  # noqa: PLC0415

    module_name, _, name = application.partition(":")
    sys.path.insert(0, str((directory or Path.cwd()).absolute()))
    try:
        target: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # something that the module itself imports
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


# --- serving ---
# The command that runs an instance.


@examples("""
broker serve -c config/gateway.toml
BROKER_ENDPOINT__MAX_HOPS=4 broker serve -c config/endpoint.toml
""")
@click.command()
@config_option
@set_option
@with_exit_code
def serve(config: Path | None, overrides: tuple[str, ...]) -> None:
    """
    Run one instance in the foreground: gateway, endpoint or both.

    SIGTERM drains and ends it, a second one ends it at once. Exit codes: 0 drained, 7 something was left behind when
    the time was up, 75 port taken or store locked, 78 bad configuration, 143 and 130 ended by a second signal.
    """
    if is_nothing_given(config, overrides):
        fail(nothing_to_read(config), EX_CONFIG)
    end_on_signal()  # before anything that takes long to import
    from broker.admin.server import leave  # noqa: PLC0415
    from broker.daemon import instance as daemon  # noqa: PLC0415
    from broker.daemon import process  # noqa: PLC0415
    from broker.daemon.process import forbid_core_dumps  # noqa: PLC0415
    from broker.net.listener import raise_limit  # noqa: PLC0415
    from broker.observe.logs import close_logging, configure_logging  # noqa: PLC0415

    forbid_core_dumps()
    raise_limit()
    try:
        settings = read_settings(config, overrides_from(overrides))
        observe = settings.observe
        name = settings.instance.name
        configure_logging(log_format=observe.log_format, level=observe.log_level, instance=name, is_queued=True)
        try:
            is_clean = process.run(partial(daemon.serve, settings))
        finally:
            close_logging()
    except ListenFailedError as error:
        from broker.catalog.diagnostics import listen_error  # noqa: PLC0415

        fail(listen_error(settings, error).shown, EX_TEMPFAIL)
    except StoreUnavailableError as error:
        _fail_by_store(settings, error)
    except SettingError as error:
        passes = isinstance(error.__cause__, CertificateTooEarlyError)
        fail(error.shown, EX_TEMPFAIL if passes else EX_CONFIG)
    except (StatementError, SettingsError) as error:
        fail(str(error), EX_CONFIG)
    leave(0 if is_clean else TIMED_OUT)
    if not is_clean:
        sys.exit(TIMED_OUT)


def _fail_by_store(settings: Settings, error: StoreUnavailableError) -> NoReturn:
    """A file that cannot be used: told with its setting; 78 where it stays so until somebody changes something."""
    from broker.catalog.diagnostics import store_error  # noqa: PLC0415

    found, stays = store_error(settings, error)
    fail(str(found or error), EX_CONFIG if stays else EX_TEMPFAIL)
