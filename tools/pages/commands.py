"""The commands, from their help: docs/cli.md, and the table of docs/exit-codes.md."""

import html
import re
from collections.abc import Iterator
from textwrap import dedent

import click

from broker.cli import main as program
from broker.cli.main import SECTIONS
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


def reference() -> str:
    """Return a heading for each section of `broker --help` and each command, with all that its help says."""
    parts: list[str] = []
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names.split():
            parts += _command(f"broker {name}", program.commands[name], "###")
    return "\n\n".join(parts)


def _command(name: str, command: click.Command, heading: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, terminal_width=1000, max_content_width=1000, show_default=True)
    yield f"{heading} {name}"
    yield f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```"
    yield (command.help or "").strip()
    shown = filter(None, (one.get_help_record(context) for one in command.params))
    if rows := [(f"<code>{html.escape(words, quote=False)}</code>", about) for words, about in shown if about]:
        yield table(("Option", ""), rows)
    if command.epilog:
        yield f"```sh\n{dedent(command.epilog.partition('Examples:')[2].strip(chr(10)))}\n```"
    for word, one in sorted(getattr(command, "commands", {}).items()):
        if not one.hidden:
            yield from _command(f"{name} {word}", one, f"{heading}#")
