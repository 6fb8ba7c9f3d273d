"""The commands that need no running daemon, because they run one, judge its configuration or start their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.access import read_settings
from broker.cli.exit_code import EX_CONFIG, EX_TEMPFAIL, fail, with_exit_code
from broker.cli.option import config_option, configs_option, examples, output_option
from broker.cli.output import show_rows
from broker.errors import ListenFailedError, SettingError, SettingsError, StatementError, StoreUnavailableError

if TYPE_CHECKING:
    from broker.control.concern import Concern

_MESSAGES_HELP = "To the targets, in equal parts on twenty dialogs; as many answers come back."


@examples("""
broker serve -c config/gateway.toml
BROKER_ENDPOINT__MAX_HOPS=4 broker serve -c config/endpoint.toml
""")
@click.command()
@config_option
@with_exit_code
def serve(config: Path | None) -> None:
    """
    Run one instance in the foreground: gateway, endpoint or both.

    SIGTERM ends it. Exit codes: 75 port taken or store locked, 78 bad configuration.
    """
    from broker import daemon  # noqa: PLC0415
    from broker.observe.logs import configure_logging  # noqa: PLC0415
    from broker.workers import supervisor  # noqa: PLC0415
    from broker.workers.channel import WorkerFailedError  # noqa: PLC0415

    try:
        settings = read_settings(config)
        observe = settings.observe
        configure_logging(log_format=observe.log_format, level=observe.log_level, instance=settings.instance.name)
        (daemon if settings.endpoint.workers == 1 else supervisor).run(settings)
    except (ListenFailedError, StoreUnavailableError, WorkerFailedError) as error:
        fail(str(error), EX_TEMPFAIL)
    except (StatementError, SettingError, SettingsError) as error:
        fail(str(error), EX_CONFIG)


@examples("""
broker check -c config/gateway.toml
broker check -c config/gateway.toml -c config/endpoint.toml --offline
""")
@click.command()
@configs_option
@click.option("--offline", is_flag=True, help="Touch no port; for a machine that is not the instance's own.")
@output_option
@with_exit_code
def check(configs: tuple[Path, ...], output: str, *, offline: bool) -> None:
    """
    Find everything wrong with a configuration, and what is unwise.

    All of it in one run, with file, line and column. Of several configurations, also what they say together: circles,
    dead ends, missing ways back. Exit codes: 0 good, 1 something is wrong; warnings do not count.
    """
    from broker.control.check import check_files  # noqa: PLC0415

    report = check_files(configs or (None,), environ=os.environ, offline=offline)
    rows = [_row("error", "setting", error, str(error)) for error in report.errors]
    rows += [_row("warning", "setting", warning, f"warning: {warning}") for warning in report.warnings]
    rows += [_row("warning", concern.lint, concern, f"warning: {concern}") for concern in report.concerns]
    if output == "json":
        show_rows(rows, output)
    else:
        for row in rows:
            click.echo(row["text"], err=True)
        if not report.errors:
            click.echo("the configuration is good" if len(configs) < 2 else "the configurations are good")
    sys.exit(1 if report.errors else 0)


def _row(level: str, code: str, found: SettingError | Concern, text: str) -> dict[str, Any]:
    span = found.span
    place = (span.source, span.line, span.column) if span is not None else (None, None, None)
    return {"level": level, "code": code, **dict(zip(("file", "line", "column"), place, strict=True)), "text": text}


@examples("""
broker demo
broker demo --messages 20000 --keep
""")
@click.command()
@click.option("--messages", type=click.IntRange(1, 1_000_000), default=6000, show_default=True, help=_MESSAGES_HELP)
@click.option("--keep", is_flag=True, help="Leave the instances running until a key is pressed.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where to keep its files; else a temporary one.")
@with_exit_code
def demo(messages: int, directory: Path | None, *, keep: bool) -> None:
    """
    Play the whole system on loopback, one gateway killed on the way.

    Five instances, each a process of its own. Exit codes: 0 the ledger adds up, 1 not.
    """
    from broker.demo.story import run_demo  # noqa: PLC0415

    if directory is not None and directory.is_dir() and any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty: name a new directory")
    sys.exit(run_demo(messages=messages, directory=directory, keep=keep))
