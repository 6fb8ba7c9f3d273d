"""What the commands' help and usage have in common: options of several commands, and examples at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

_Command = TypeVar("_Command", bound=click.Command)

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, readable=False),  # whoever reads it says so when it cannot be read, with its code
    envvar="BROKER_CONFIG",
    show_envvar=True,
    help="Configuration file; else /etc/broker/broker.toml, when it is there.",
)
configs_option = click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    type=click.Path(path_type=Path, readable=False),  # whoever reads it says so when it cannot be read, with its code
    envvar="BROKER_CONFIG",
    show_envvar=True,
    help="Configuration file; several times for several instances.",
)

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting that counts more than file and environment: endpoint.max_hops=4; several times for several.",
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


socket_option = click.option(
    "--socket",
    "--url",
    "socket",
    type=_WhereType(),
    help="Admin socket of the instance, or URL of its admin port; else BROKER_ADMIN_URL, else the configuration's.",
)
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
database_option = click.option(
    "-d", "--database", "database", required=True, help="A database of the configuration, or the path of its file."
)


def examples(text: str) -> Callable[[_Command], _Command]:
    """Two examples at the end of the help, one a line; stands above `click.command`."""

    def add(command: _Command) -> _Command:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())
        return command

    return add


def confirm(question: str) -> None:
    """
    Ask a person at a terminal; without one it has to be said beforehand.

    Raises:
        click.UsageError: nobody could be asked.
        click.Abort: the answer is no.
    """
    if not sys.stdin.isatty():
        raise click.UsageError("something would be lost: say --yes, or look first with --dry-run")
    click.confirm(question, abort=True, err=True)
