"""Options, types of values, and classes of commands that several modules use; and the question before a loss."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from copy import copy
from datetime import timedelta
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import click

from broker.admin.client import AdminClient
from broker.cli.access import read_settings
from broker.routing.address import NetworkAddress, parse_address

FORMATS = ("table", "json", "jsonl", "csv")  # of rows
DURATION_MAX = timedelta(days=36500)
_DURATION_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

Where = Mapping[NetworkAddress, Path | str]


class Command(click.Command):
    """A command whose docstring ends with `Examples:`, which its help shows after the options."""

    def __init__(self, *args: Any, **given: Any) -> None:
        text, _, lines = cleandoc(given["help"] or "").partition("\nExamples:\n")
        epilog = f"\b\nExamples:\n{indent(dedent(lines), '  ')}"
        super().__init__(*args, **given | {"help": text, "epilog": epilog})


class Group(Command, click.Group):
    """A group of such commands."""

    command_class = Command


def copy_command(command: click.Command, name: str) -> click.Command:
    """The command under an earlier name, kept for a release: help does not list it, and a warning names the new one."""
    old = copy(command)
    old.name, old.hidden, old.deprecated = name, True, f"use {command.name}"
    return old


def _read_where(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Where:
    """Read ADDRESS=WHERE: addresses, and the URL or socket file of an admin API for each."""
    found: dict[NetworkAddress, Path | str] = {}
    for text in values:
        address_text, _, where = text.partition("=")
        if not where:
            raise click.BadParameter(f"{text!r} is not like tcp://gateway-b:4022=http://127.0.0.1:9422")
        try:
            address = parse_address(address_text)
            found_at = where if where.startswith(("http:", "https:")) else Path(where)
            AdminClient(found_at)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        if not isinstance(address, NetworkAddress):
            raise click.BadParameter(f"{text!r} names no instance: {address} is not a network address")
        found[address] = found_at
    return found


where_option = click.option(
    "--admin",
    "where",
    multiple=True,
    metavar="ADDRESS=WHERE",
    callback=_read_where,
    help="Ask the next instance at ADDRESS by this URL or socket file; by default at port 9422 of its host.",
)

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, readable=False),  # the reader reports it with its own code
    envvar="BROKER_CONFIG",
    show_envvar=True,
    help="Configuration file; by default /etc/broker/broker.toml, if it exists.",
)
configs_option = click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    type=click.Path(path_type=Path, readable=False),  # the reader reports it with its own code
    envvar="BROKER_CONFIG",
    show_envvar=True,
    help="Configuration file; several times for several instances.",
)

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting that overrides file and environment: endpoint.max_hops=4; several times for several.",
)


class _WhereType(click.ParamType["Path | str"]):
    """The file of an admin socket, or the URL of an admin port."""

    name = "file or URL"

    def convert(
        self, value: Path | str, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path | str:
        """A URL as it is, a path as a path."""
        if isinstance(value, Path) or value.startswith(("http://", "https://")):
            return value
        if "://" in value:
            problem = f"{value!r} is neither a file nor a URL like http://127.0.0.1:9422 or https://gateway:9422"
            self.fail(problem, parameter, context)
        return Path(value)


class Duration(click.ParamType[timedelta]):
    """Seconds, or a number with a unit: 90, 30s, 15m, 1h, 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """As timedelta."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value))
        if found is None:
            self.fail(f"invalid duration {value!r}: write 90, 30s, 15m, 1h or 1d", param, ctx)
        seconds = float(found[1]) * _DURATION_SECONDS[found[2]]
        if seconds > DURATION_MAX.total_seconds():
            self.fail(f"{value!r} is too long; {DURATION_MAX.days}d is the longest", param, ctx)
        return timedelta(seconds=seconds)


socket_option = click.option(
    "--socket",
    "--url",
    "socket",
    type=_WhereType(),
    help="Admin socket of the instance, or URL of its admin port.  [default: BROKER_ADMIN_URL, then admin.socket]",
)
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output format."
)
rows_option = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="Output format."
)


def _only_database(context: click.Context, _: click.Parameter, database: str | None) -> str | None:
    """The named database, or the only one of the configuration."""
    if database is not None or context.resilient_parsing:
        return database
    known = list(read_settings(context.params.get("config")).databases)
    if len(known) != 1:
        raise click.UsageError(f"name the database with -d: {', '.join(known) or 'the path of its file'}")
    return known[0]


database_option = click.option(
    "-d",
    "--database",
    callback=_only_database,
    help="A database of the configuration, or the path of its file; by default the only one of the configuration.",
)


def confirm(question: str) -> None:
    """
    Ask the person at the terminal.

    Raises:
        click.UsageError: There is no terminal.
        click.Abort: The answer is no.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} confirm it with --yes, or see what it does with --dry-run")
    click.confirm(question, abort=True, err=True)
