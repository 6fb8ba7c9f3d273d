"""
What the help of every command says of its exit codes, as a table in a page.

    python -m tools.exit_codes docs/exit-codes.md

rewrites the part between two markers. A test fails when the committed page differs from what this would write, or when
the help of a command is silent.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click

from broker.cli import main as program
from tools.marked import renew, rewrite

_CODES = re.compile(r"Exit codes: (.*?)\.(?:\s|$)", re.DOTALL)


def commands(group: click.Group = program, name: str = "broker") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its words, in the order of the alphabet."""
    for word in sorted(group.commands):
        command = group.commands[word]
        if command.hidden:  # an earlier name
            continue
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def told(command: click.Command) -> str:
    """
    What the help says.

    Raises:
        ValueError: nothing.
    """
    found = _CODES.search(" ".join((command.help or "").split()))
    if found is None:
        raise ValueError(f"the help of {command.name} says nothing of exit codes")
    return found[1]


def render() -> str:
    """The table."""
    rows = (f"| `{name}` | {told(command).replace('|', '&#124;')} |" for name, command in commands())
    return "\n".join(["| Command | Exit codes |", "|---|---|", *rows])


def renew_page(page: str) -> str:
    """The page with the table made anew. Raises ValueError: it lacks a marker."""
    return renew(page, {"exit codes": render()}, "tools.exit_codes")


if __name__ == "__main__":
    rewrite(sys.argv[1:], renew_page)
