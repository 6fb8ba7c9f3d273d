"""The command that runs an instance."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from broker.cli.access import is_nothing_given, nothing_to_read, overrides_from, read_settings
from broker.cli.exit_code import EX_CONFIG, EX_TEMPFAIL, TIMED_OUT, fail, with_exit_code
from broker.cli.option import config_option, examples, set_option
from broker.early_signal import end_on_signal
from broker.errors import (
    CertificateTooEarlyError,
    ListenFailedError,
    SettingError,
    SettingsError,
    StatementError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from broker.control.config import Settings


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
    from broker import daemon, process  # noqa: PLC0415
    from broker.admin.server import leave  # noqa: PLC0415
    from broker.net.core_dump import forbid_core_dumps  # noqa: PLC0415
    from broker.net.descriptors import raise_limit  # noqa: PLC0415
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
        from broker.control.start_error import listen_error  # noqa: PLC0415

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
    from broker.control.start_error import store_error  # noqa: PLC0415

    found, stays = store_error(settings, error)
    fail(str(found or error), EX_CONFIG if stays else EX_TEMPFAIL)
