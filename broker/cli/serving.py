"""The commands that need no running daemon, because they run one, judge its configuration or start their own."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.access import read_settings
from broker.cli.exit_code import EX_CONFIG, EX_TEMPFAIL, fail, with_exit_code
from broker.cli.option import config_option, configs_option, examples, output_option
from broker.cli.output import show_rows
from broker.errors import ListenFailedError, SettingError, SettingsError, StatementError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.control.check import Report
    from broker.control.concern import Concern
    from broker.control.quota import Kind

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
    from broker.net.core_dump import forbid_core_dumps  # noqa: PLC0415
    from broker.net.descriptors import raise_limit  # noqa: PLC0415
    from broker.observe.logs import configure_logging  # noqa: PLC0415
    from broker.workers import supervisor  # noqa: PLC0415
    from broker.workers.channel import WorkerFailedError  # noqa: PLC0415

    forbid_core_dumps()
    raise_limit()  # workers have what their supervisor has
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
    if output == "json":
        show_rows(_rows(report), output)
    else:
        for line in _lines(report):
            click.echo(line, err=True)
        if not report.errors:
            click.echo("the configuration is good" if len(configs) < 2 else "the configurations are good")
    sys.exit(1 if report.errors else 0)


def _rows(report: Report) -> list[dict[str, Any]]:
    """The report as values; what is only counted has a row for each code and file, with the count."""
    rows = [_row("error", "setting", error, _sentence(error)) for error in report.errors]
    rows += [_row("warning", "setting", warning, _sentence(warning)) for warning in report.warnings]
    rows += [_row("warning", concern.lint, concern, concern.sentence) for concern in report.concerns]
    for (code, file), count in report.left_out.items():
        text = f"and {count:,} more"
        rows.append(
            {"level": "warning", "code": code, "file": file, "line": None, "column": None, "text": text, "more": count}
        )
    return rows


def _row(level: str, code: str, found: SettingError | Concern, text: str) -> dict[str, Any]:
    span = found.span
    place = (span.source, span.line, span.column) if span is not None else (None, None, None)
    where = dict(zip(("file", "line", "column"), place, strict=True))
    return {"level": level, "code": code, **where, "text": text, "more": 0}


def _sentence(error: SettingError) -> str:
    """An error without its place, which has fields of its own."""
    return str(replace(error, span=None))


def _lines(report: Report) -> Iterator[str]:
    """The report for people: the first of each code and file, then how many more there are."""
    from broker.control.quota import SHOWN_MAX, first_of_each  # noqa: PLC0415

    def kind_of(error: SettingError) -> Kind:
        return "setting", error.span.source if error.span else None

    for before, errors in (("", report.errors), ("warning: ", report.warnings)):
        shown, more = first_of_each(errors, kind_of, most=SHOWN_MAX)
        yield from (f"{before}{error}" for error in shown)
        yield from (_more(before, kind, count) for kind, count in more.items())
    concerns, hidden = first_of_each(report.concerns, lambda one: (one.lint, one.file), most=SHOWN_MAX)
    yield from (f"warning: {concern}" for concern in concerns)
    for kind, count in hidden.items():
        yield _more("warning: ", kind, count + report.left_out.get(kind, 0))


def _more(before: str, kind: Kind, count: int) -> str:
    code, file = kind
    return f"{before}{f'{file}: ' if file else ''}and {count:,} more `{code}`"


@examples("""
broker demo
broker demo --report /tmp/demo.html
""")
@click.command()
@click.option("--messages", type=click.IntRange(1, 1_000_000), default=6000, show_default=True, help=_MESSAGES_HELP)
@click.option("--keep", is_flag=True, help="Leave the instances running until a key is pressed.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where to keep its files; else a temporary one.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default="report.html",
    show_default=True,
    help="Where to leave the pipeline's report on the demo.",
)
@click.option("--no-report", is_flag=True, help="Keep no journal and run no pipeline.")
@with_exit_code
def demo(messages: int, directory: Path | None, report: Path, *, keep: bool, no_report: bool) -> None:
    """
    Play the whole system on loopback, faults included.

    Seven instances, each a process of its own; a gateway is killed and a mirrored pair fails over on the way. At the
    end the pipeline reads the journal that they kept, when it is installed. Exit codes: 0 the ledgers add up and agree,
    1 not.
    """
    from broker.demo.story import run_demo  # noqa: PLC0415

    if directory is not None and directory.is_dir() and any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty: name a new directory")
    sys.exit(run_demo(messages=messages, directory=directory, keep=keep, report=None if no_report else report))
