"""
Lines of prose for a terminal, one below the other.

A line is as wide as the terminal, 80 columns where there is none, and goes on indented below. A value that somebody may
have to copy, such as a GUID, is never cut or broken. What is shown comes from peers and applications: what a terminal
would obey is written out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from broker.observe.tables import readable
from broker.observe.terminal import Terminal

TABLE_COLUMNS = 80
COLUMNS_MAX = 100  # a longer line of prose is hard to read


class TextLine(NamedTuple):
    """
    One line. Shape: `indent` columns; `mark` one character before the text; `style` as `Terminal.line` has it;
    `is_table` is never wrapped.
    """

    text: str
    indent: int = 0
    mark: str = ""
    style: str = ""
    is_table: bool = False


def print_lines(lines: Iterable[TextLine], terminal: Terminal | None = None) -> None:
    """Print lines, wrapped between words; marks that the encoding lacks become ASCII."""
    terminal = terminal or Terminal(elsewhere=TABLE_COLUMNS)
    width = min(terminal.width, COLUMNS_MAX)
    for line in lines:
        for text in _wrapped(line, width):
            terminal.line(text, line.style)


def _wrapped(line: TextLine, width: int) -> list[str]:
    lead = " " * line.indent + (f"{line.mark} " if line.mark else "")
    text = readable(line.text)
    if line.is_table or not text:
        return [lead + text]
    hang = " " * (len(lead) + 2)
    return textwrap.wrap(
        text,
        width,
        initial_indent=lead,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
