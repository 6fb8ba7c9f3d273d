"""What the commands' help and usage have in common: options of several commands, and examples at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

_Command = TypeVar("_Command", bound=click.Command)

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="BROKER_CONFIG",
    show_envvar=True,
    help="Configuration file.",
)
configs_option = click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="BROKER_CONFIG",
    show_envvar=True,
    help="Configuration file; several times for several instances.",
)
socket_option = click.option(
    "--socket", type=click.Path(path_type=Path), help="Admin socket of the instance; else the configuration's."
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
