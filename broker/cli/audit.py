"""`broker audit`: who changed what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.access import admin_client, read_settings
from broker.cli.exit_code import with_exit_code
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.cli.output import show_rows
from broker.errors import DaemonUnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (
    "audit_time",
    "principal_name",
    "role",
    "origin",
    "operation",
    "database_name",
    "target",
    "definition_before",
    "definition_after",
    "outcome",
    "problem",
)
LINES_MAX = 10_000


@examples("""
broker audit tail -c config/gateway.toml
broker audit tail -n 100 -c config/gateway.toml -o json
""")
@click.group()
def audit() -> None:
    """
    Show who changed what through the admin API.

    Exit codes: see the commands.
    """


@examples("""
broker audit tail -c config/gateway.toml
broker audit tail -n 100 --url https://gateway-a.example:9422 -o json
""")
@audit.command()
@config_option
@socket_option
@click.option(
    "-n", "--lines", type=click.IntRange(1, LINES_MAX), default=20, show_default=True, help="How many, the newest."
)
@output_option
@with_exit_code
def tail(config: Path | None, socket: Path | str | None, lines: int, output: str) -> None:
    """
    Show the newest changes, and what was refused.

    The running instance is asked; when none answers, and a configuration is named, its files are read. Exit codes: 1 a
    file cannot be read, 4 daemon unreachable, 5 not permitted.
    """
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in reversed(_rows(config, socket, lines))]
    show_rows(rows, output, list(COLUMNS))


def _rows(config: Path | None, socket: Path | str | None, lines: int) -> Sequence[Any]:
    """The newest first."""
    question = f"SELECT TOP {lines} {', '.join(COLUMNS)} FROM sys.dm_broker_audit ORDER BY audit_time DESC"  # noqa: S608 - a number and our own names
    try:
        rows: list[Any] = admin_client(config, socket).sql(question)["rows"]
    except DaemonUnreachableError:
        if config is None:
            raise
        return _of_files(config, lines)
    return rows


def _of_files(config: Path, lines: int) -> Sequence[Any]:
    from broker.observe.audit import COLUMNS as ALL  # noqa: PLC0415 - see the docstring of broker.cli.group
    from broker.observe.audit import audit_rows  # noqa: PLC0415

    admin = read_settings(config).admin
    found = [dict(zip(ALL, row, strict=True)) for row in audit_rows(admin.audit, admin.audit_keep)[-lines:]]
    return [[str(row[name]) if name == "audit_time" else row[name] for name in COLUMNS] for row in reversed(found)]
