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
from pathlib import Path

import click

from broker.cli import main as program

BEGIN = "<!-- exit codes: begin, made by python -m tools.exit_codes -->"
END = "<!-- exit codes: end -->"
_CODES = re.compile(r"Exit codes: (.*?)\.(?:\s|$)", re.DOTALL)


def commands(group: click.Group = program, name: str = "broker") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its words, in the order of the alphabet."""
    for word in sorted(group.commands):
        command = group.commands[word]
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
    """
    The page with the part between the markers made anew.

    Raises:
        ValueError: the page lacks a marker.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page lacks a marker")
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{after}"


def main(arguments: list[str]) -> None:
    """Rewrite the pages named."""
    for argument in arguments:
        page = Path(argument)
        page.write_text(renew_page(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
