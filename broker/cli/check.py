"""`broker check`: reports all errors and risks of configurations in one run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from broker.admin.client import AdminClient
from broker.catalog.check import CheckReport, check_files
from broker.catalog.database_files import NOT_RUNNING, RunningInstance, owner_from
from broker.catalog.diagnostics import SHOWN_MAX, Diagnostic, Kind, first_of_each
from broker.cli.access import (
    NOTHING_TO_READ,
    is_nothing_given,
    nothing_to_read,
    overrides_from,
    usual_config,
    with_config,
)
from broker.cli.exit_codes import fail
from broker.cli.options import Command, Configs, Overrides
from broker.cli.output import show_rows
from broker.config.settings import Settings
from broker.config.units import plural
from broker.errors import BrokerError, SettingError

ASK_SECONDS = 5.0  # for a running instance to report its settings

_format_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "github"]),
    default="table",
    help="Output format; github: annotations of a workflow.",
)


@click.command(cls=Command)
@click.option("--offline", is_flag=True, help="Touch no port and ask no daemon; reports what was not checked.")
@_format_option
def check(configs: Configs, overrides: Overrides, output: str, *, offline: bool) -> None:
    """
    Report all errors and risks of a configuration.

    Each has its file, line and column. Ports and files of a running instance with the same state directory count as
    free. Several configurations are also checked together: loops, dead ends, missing routes back. Exit codes: 0 good, 1
    something is wrong; warnings do not count.

    Examples:
        broker check -c config/gateway.toml
        broker check -c config/gateway.toml -c config/endpoint.toml --offline
    """
    paths = configs or (usual_config(None),)
    if is_nothing_given(paths[0], overrides):
        if usual_config(paths[0]) is not None:
            fail(nothing_to_read(paths[0]), 1)
        raise click.UsageError(NOTHING_TO_READ)
    owner_of = None if offline else _owner
    report = check_files(paths, environ=os.environ, overrides=overrides_from(overrides), owner_of=owner_of)
    if output == "json":
        show_rows(_rows(report), output)
    elif output == "github":
        for row in _rows(report):
            click.echo(_annotation(row))
    else:
        for line in _lines(report):
            click.echo(with_config(line, configs[0] if len(configs) == 1 else None), err=True)
        warnings = len(report.warnings) + len(report.concerns) + sum(report.left_out.values())
        if not report.errors and warnings:
            click.echo(f"no errors, {plural(warnings, 'warning')}")
        elif not report.errors:
            click.echo("the configuration is good" if len(paths) < 2 else "the configurations are good")
    sys.exit(1 if report.errors else 0)


def _owner(settings: Settings) -> RunningInstance:
    """The running instance of this configuration, as it reports itself."""
    try:
        answer = AdminClient(settings.admin.socket, timeout=ASK_SECONDS).get("/v1/config")
        values = {row["key"]: row["value"] for row in answer["settings"]}
        return owner_from(values, state_dir=settings.instance.state_dir)
    except (BrokerError, LookupError, TypeError, ValueError):  # none, or one of another release
        return NOT_RUNNING


def _rows(report: CheckReport) -> list[dict[str, Any]]:
    """The report as rows; findings that are only counted have one row for each code and file."""
    rows = [_row("error", "setting", error, _sentence(error)) for error in report.errors]
    rows += [_row("warning", "setting", warning, _sentence(warning)) for warning in report.warnings]
    rows += [_row("warning", concern.lint, concern, concern.sentence) for concern in report.concerns]
    for (code, file), count in report.left_out.items():
        rows.append(_row("warning", code, None, f"and {count:,} more") | {"file": file, "more": count})
    rows += [_row("skipped", "setting", one, _sentence(one)) for one in (*report.waiting, *report.skipped)]
    return rows


def _row(level: str, code: str, found: SettingError | Diagnostic | None, text: str) -> dict[str, Any]:
    file, line, column = found.span[:3] if found and found.span else (None, None, None)
    return {"level": level, "code": code, "file": file, "line": line, "column": column, "text": text, "more": 0}


def _sentence(error: SettingError) -> str:
    """An error without its location, which has separate fields."""
    return str(error.but(span=None))


def _annotation(row: dict[str, Any]) -> str:
    """
    A row as a command of a workflow.

    Source: GitHub Actions documentation, "Workflow commands", and the escapes of actions/toolkit.
    """
    kind = {"error": "error", "warning": "warning"}.get(row["level"], "notice")
    known = {"file": row["file"], "line": row["line"], "col": row["column"], "title": row["code"]}
    where = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in known.items() if value is not None)
    return f"::{kind} {where}::{_escaped(row['text'])}"


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(one):02X}" if one in f"%\r\n{more}" else one for one in text)


def _lines(report: CheckReport) -> Iterator[str]:
    """The report for people: the first of each code and file, then the number of the others."""

    def kind_of(error: SettingError) -> Kind:
        return "setting", error.span.source if error.span else None

    for before, errors in (("", report.errors), ("warning: ", report.warnings)):
        shown, more = first_of_each(errors, kind_of, most=SHOWN_MAX)
        yield from (f"{before}{error.shown}" for error in shown)
        yield from (_more(before, kind, count) for kind, count in more.items())
    concerns, hidden = first_of_each(report.concerns, lambda one: (one.lint, one.file), most=SHOWN_MAX)
    yield from (f"warning: {concern}" for concern in concerns)
    for kind, count in hidden.items():
        yield _more("warning: ", kind, count + report.left_out.get(kind, 0))
    yield from (f"{one} are not checked until this is corrected" for one in report.waiting)
    yield from (f"not checked, --offline: {one}" for one in report.skipped)
    note = "its own ports and files do not count, and a second one would not start there"
    yield from (f"note: an instance runs from {one}; {note}" for one in report.running)


def _more(before: str, kind: Kind, count: int) -> str:
    code, file = kind
    what = f"{count:,} more `{code}`"
    if code == "setting":
        what = plural(count, "more warning" if before else "more mistake")
    return f"{before}{f'{file}: ' if file else ''}and {what}"
