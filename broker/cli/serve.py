"""`broker serve`: runs one instance in the foreground until a signal."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import click

from broker.admin.server import leave
from broker.catalog.check import check_files
from broker.catalog.diagnostics import listen_error, store_error
from broker.cli.access import is_nothing_given, nothing_to_read, overrides_from, read_settings, usual_config
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import Command, Config, Overrides
from broker.daemon import instance as daemon
from broker.daemon import process
from broker.errors import (
    CertificateTooEarlyError,
    ListenFailedError,
    SettingError,
    SettingsError,
    StatementError,
    StoreUnavailableError,
)
from broker.net.listener import raise_limit
from broker.observe.logs import close_logging, configure_logging


@click.command(cls=Command)
def serve(config: Config, overrides: Overrides) -> None:
    """
    Run one instance in the foreground: gateway, endpoint or both.

    SIGTERM drains and ends it, a second one ends it at once. Exit codes: 0 drained, 7 something was not sent or handed
    over in time, 75 port taken or store locked, 78 bad configuration, 143 and 130 ended by a second signal.

    Examples:
        broker serve -c config/gateway.toml
        BROKER_ENDPOINT__MAX_HOPS=4 broker serve -c config/endpoint.toml
    """
    if is_nothing_given(config, overrides):
        fail(nothing_to_read(config), ExitCode.CONFIGURATION)
    process.forbid_core_dumps()
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
        fail(listen_error(settings, error).shown, ExitCode.TEMPORARY)
    except StoreUnavailableError as error:
        found, stays = store_error(settings, error)  # `stays`: until a person changes something
        fail(str(found or error), ExitCode.CONFIGURATION if stays else ExitCode.TEMPORARY)
    except SettingsError as error:
        fail(str(error), ExitCode.CONFIGURATION)
    except (SettingError, StatementError) as error:
        said = error.shown if isinstance(error, SettingError) else str(error)
        if isinstance(error.__cause__, CertificateTooEarlyError):
            fail(said, ExitCode.TEMPORARY)
        fail(_mistakes(config, overrides) or said, ExitCode.CONFIGURATION)
    leave(0 if is_clean else ExitCode.TIMED_OUT)
    if not is_clean:
        sys.exit(ExitCode.TIMED_OUT)


def _mistakes(config: Path | None, overrides: tuple[str, ...]) -> str:
    """Everything that is wrong with the configuration: a start ends at the first mistake."""
    given = overrides_from(overrides)
    report = check_files([usual_config(config)], environ=os.environ, overrides=given)
    return "\n".join(error.shown for error in report.errors)
