"""The commands, from their help: the table of docs/exit-codes.md."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from broker.cli import main as program
from tools.pages.markers import table

_CODES = re.compile(r"Exit codes: (.*?)\.(?:\s|$)", re.DOTALL)


def commands(group: click.Group = program, name: str = "broker") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, with its words, sorted."""
    for word in sorted(group.commands):
        command = group.commands[word]
        if command.hidden:  # an earlier name
            continue
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def codes_of(command: click.Command) -> str:
    """
    Return the sentence on exit codes in the help of a command.

    Raises:
        ValueError: There is none.
    """
    found = _CODES.search(" ".join((command.help or "").split()))
    if found is None:
        raise ValueError(f"the help of {command.name} says nothing of exit codes")
    return found[1]


def exit_codes() -> str:
    """Return the table of the exit codes of each command."""
    return table(("Command", "Exit codes"), ((f"`{name}`", codes_of(command)) for name, command in commands()))
