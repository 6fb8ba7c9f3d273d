"""
Prints JSON, CSV and tables on standard output, and lines of prose.

Texts from peers and applications are made `readable` first, so that they cannot control the terminal; `TextLine` does
it for prose. A value that a person may have to copy, such as a GUID, is never cut or broken: a table that is too wide
for the terminal becomes one block of lines for each row.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

import click
import msgspec
from rich.box import HEAVY_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

NO_TERMINAL_COLUMNS = 250  # of a table in a file or pipe
PROSE_COLUMNS = 80  # of prose in a file or pipe
PROSE_COLUMNS_MAX = 100  # a longer line of prose is hard to read
UNKNOWN_COLUMNS = 80  # of a terminal that does not report its width
UNBROKEN_COLUMNS = 36  # a GUID, the longest value that has to stay on one line
_FRAME_COLUMNS = 3  # that a table draws around a column
_ASCII = str.maketrans("·✓…", ".*~")


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """A value, which may be a struct, as JSON in ASCII, which any terminal and pipe accepts."""
    return json.dumps(msgspec.to_builtins(value), indent=indent)


def show_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON; without `indent` on one line."""
    click.echo(to_json(value, indent=indent))


def show_lines(value: Any, output: str, lines: Iterable[str]) -> None:
    """Print a value as JSON, or else these lines for people, which are not made for JSON."""
    if output == "json":
        show_json(value)
    else:
        for line in lines:
            click.echo(line)


def show_rows(
    rows: Sequence[Mapping[str, Any]], output: str, columns: Sequence[str] | None = None, *, empty: str = ""
) -> None:
    """
    Print rows. In CSV, lines end with LF, and NULL is an empty field, like an empty text.

    Args:
        rows: Values by column.
        output: One of `broker.cli.options.FORMATS`.
        columns: The heads of the table; the keys of the first row if left out.
        empty: A sentence instead of a table without rows.
    """
    columns = columns or list(rows[0] if rows else ())
    if output == "json":
        show_json(rows)
    elif output == "jsonl":
        for row in rows:
            show_json(row, indent=None)
    elif output == "csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([row.get(column) for column in columns] for row in rows)
        click.echo(text.getvalue(), nl=False)
    elif not rows and empty:
        click.echo(empty)
    else:
        Terminal().table(columns, rows)


def show_answer(answer: Mapping[str, Any], output: str) -> None:
    """Print the answer to a statement: rows, and its messages on standard error."""
    for message in answer["messages"]:
        click.echo(message, err=True)
    columns = distinct_names(answer["columns"])
    if columns:
        show_rows([dict(zip(columns, row, strict=True)) for row in answer["rows"]], output, columns)
    if answer.get("truncated"):
        click.echo("there are more rows than one answer holds: ask for fewer with WHERE, or page with OFFSET", err=True)


def distinct_names(names: Sequence[str]) -> list[str]:
    """Names of columns, where the second one of a name becomes `name_2`, and so on."""
    found: list[str] = []
    for name in names:
        number, other = 1, name
        while other in found:
            number += 1
            other = f"{name}_{number}"
        found.append(other)
    return found


def readable(value: object) -> str:
    """A value as printable text; control characters are escaped."""
    if value is None:
        return "NULL"
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def encodable(text: str, encoding: str) -> str:
    """The text in characters of the encoding: marks in ASCII, others escaped."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


class Terminal:
    """
    Prints lines and tables for people, on a terminal, a file or a pipe.

    Args:
        file: Standard output when it is left out.
        width: Columns; by default those of the terminal, or of the environment's COLUMNS.
        elsewhere: Columns when `file` is not a terminal.
        is_styled: Whether lines are bold and coloured; by default as terminal and environment (NO_COLOR) say.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        *,
        width: int | None = None,
        elsewhere: int = NO_TERMINAL_COLUMNS,
        is_styled: bool | None = None,
    ) -> None:
        file = file or sys.stdout
        if width is None:
            width = shutil.get_terminal_size((UNKNOWN_COLUMNS, 0)).columns if file.isatty() else elsewhere
        colours = "standard" if is_styled else "auto"
        self.width = width
        self._encoding = file.encoding or "utf-8"
        self._console = Console(
            file=file,
            width=width,
            force_terminal=is_styled,
            color_system=colours,  # type: ignore[arg-type]
            highlight=False,
        )

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line of any length, unwrapped; characters that the encoding lacks are escaped."""
        self._console.print(Text(encodable(text, self._encoding)), style=style, soft_wrap=True)

    def prose(self, text: str, style: str = "") -> None:
        """Print a text wrapped between words."""
        for one in _wrap(text, self.width):
            self.line(one, style)

    def lines(self, lines: Iterable[TextLine]) -> None:
        """Print lines of prose."""
        width = min(self.width, PROSE_COLUMNS_MAX)
        for line in lines:
            lead = " " * line.indent + (f"{line.mark} " if line.mark else "")
            text = readable(line.text)
            parts = [lead + text] if line.is_table else _wrap(text, width, lead, " " * (len(lead) + 2))
            for part in parts:
                self.line(part, line.style)

    def table(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], title: str = "") -> None:
        """
        Print a table, or a block of lines for each row when it has no columns or too wide ones.

        A missing value is an empty cell, None is NULL.
        """
        if title:
            self.prose(readable(title), "bold")
        values = (columns, *([row.get(column, "") for column in columns] for row in rows))
        heads, *lines = ([encodable(readable(value), self._encoding) for value in line] for line in values)
        widest = [max(map(cell_len, column)) for column in zip(heads, *lines, strict=True)]
        least = [min(width, UNBROKEN_COLUMNS) for width in widest]
        if not columns or sum(least) + _FRAME_COLUMNS * len(columns) + 1 > self.width:
            self._blocks(heads, lines)
            return
        table = Table(box=HEAVY_HEAD, header_style="bold")
        for name, width in zip(heads, least, strict=True):
            table.add_column(Text(name), overflow="fold", min_width=width)
        for line in lines:
            table.add_row(*map(Text, line))
        self._console.print(table)

    def _blocks(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        names = max(map(cell_len, columns), default=0)
        for number, row in enumerate(rows, 1):
            self.line(f"-- {number} of {len(rows)}", "bold")
            for column, cell in zip(columns, row, strict=True):
                self.line(f"{column}{' ' * (names - cell_len(column))}  {cell}")
        if not rows:
            self.line("no rows")


class TextLine(NamedTuple):
    """
    A line of prose, wrapped to the terminal with a hanging indent.

    Attributes:
        text: Any text; it is made readable.
        indent: Columns before it.
        mark: One character before the text.
        style: A style of rich, such as "bold red".
        is_table: Whether it is never wrapped.
    """

    text: str
    indent: int = 0
    mark: str = ""
    style: str = ""
    is_table: bool = False


def remedy_lines(remedy: str, label: str = "->", indent: int = 0, style: str = "") -> Iterator[TextLine]:
    """A remedy as it is copied: not wrapped, and each alternative and each later step by itself."""
    first, *others = re.split(r"(?<=[.;)]) (And|Or|Otherwise|Then),? ", remedy)
    yield TextLine(f"{label} {first}", indent, style=style, is_table=True)
    for word, part in zip(others[::2], others[1::2], strict=True):
        mark = word.lower().replace("otherwise", "or") + ":" * (":" in label)
        yield TextLine(f"{mark:<{len(label)}} {part}", indent, style=style, is_table=True)


def print_lines(lines: Iterable[TextLine]) -> None:
    """Print lines of prose on standard output."""
    Terminal(elsewhere=PROSE_COLUMNS).lines(lines)


def _wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [first]
