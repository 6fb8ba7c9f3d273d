"""What a command prints on standard output: values as JSON, rows as JSON, CSV or as a table; paths to be copied."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

if TYPE_CHECKING:
    from pathlib import Path


FORMATS = ("table", "json", "jsonl", "csv")  # of rows


def show_json(value: Any) -> None:
    """Print a value as JSON, indented."""
    import json  # noqa: PLC0415 - see the docstring of broker.cli.group

    click.echo(json.dumps(value, indent=2))


def show_rows(rows: Sequence[Mapping[str, Any]], output: str, columns: Sequence[str] | None = None) -> None:
    """
    Print rows.

    Shape: `output` of `FORMATS`; `columns` the heads of the table, else the keys of the first row. In CSV (RFC 4180)
    NULL is an empty field, as the text of no characters is.
    """
    columns = columns or list(rows[0] if rows else ())
    if output == "json":
        show_json(rows)
    elif output == "jsonl":
        import json  # noqa: PLC0415 - see the docstring of broker.cli.group

        for row in rows:
            click.echo(json.dumps(row))
    elif output == "csv":
        _show_csv(rows, columns)
    else:
        render_table(columns, rows)


def show_answer(answer: Mapping[str, Any], output: str) -> None:
    """Print the answer to a statement: messages beside the output, rows on it."""
    for message in answer["messages"]:
        click.echo(message, err=True)
    columns = told_apart(answer["columns"])
    if columns:
        show_rows([dict(zip(columns, row, strict=True)) for row in answer["rows"]], output, columns)
    if answer.get("truncated"):
        click.echo("there are more rows than one answer holds: ask for fewer with WHERE, or page with OFFSET", err=True)


def told_apart(names: Sequence[str]) -> list[str]:
    """Names of columns, of which the second of one name is `name_2`, and so on."""
    found: list[str] = []
    for name in names:
        number, other = 1, name
        while other in found:
            number += 1
            other = f"{name}_{number}"
        found.append(other)
    return found


def _show_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    import csv  # noqa: PLC0415 - for those who ask for it
    import io  # noqa: PLC0415

    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([row.get(column) for column in columns] for row in rows)
    click.echo(text.getvalue(), nl=False)


def quoted_path(path: Path) -> str:
    """A path as a value of a configuration file, the same whatever directory that is in."""
    import json  # noqa: PLC0415 - see the docstring of broker.cli.group

    text = str(path.absolute())
    return json.dumps(text, ensure_ascii=not text.isprintable())


# --- terminal ---
# What a command prints for people: lines, in bold or in colour where a terminal shows it, and tables.
#
# Only the standard library, because every command pays for its imports before it says a word; what draws a whole
# screen
# again and again is left to rich. What is printed is taken as it is: whoever shows what comes from others makes it
# `readable` first.


NO_TERMINAL_COLUMNS = 250  # of what is piped or redirected
UNKNOWN_COLUMNS = 80  # of a terminal that does not tell
CUT = "…"  # the end of a text that was cut; one column
UNBROKEN_COLUMNS = 36  # a GUID, the longest value that has to stay on one line

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "bold red": "1;31"}
_ASCII = str.maketrans("┏━┳┓┃┡╇┩│└─┴┘·✓", "+-++|+++|+-++.*")
_FRAME_COLUMNS = 3  # what a table draws around a column


class Terminal:
    """
    Where lines go: a terminal, or a file or pipe in its place.

    Args:
        file: Standard output when it is left out.
        width: Columns; else those of the terminal.
        elsewhere: Columns of what is no terminal.
        is_styled: Whether lines are in bold and in colour; else as a terminal and the environment say.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        *,
        width: int | None = None,
        elsewhere: int = NO_TERMINAL_COLUMNS,
        is_styled: bool | None = None,
    ) -> None:
        self._file = file or sys.stdout
        is_terminal = self._file.isatty()
        is_colourless = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self._is_styled = is_terminal and not is_colourless if is_styled is None else is_styled
        self._encoding = self._file.encoding or "utf-8"
        self.width = width or (_columns_of(self._file) if is_terminal else elsewhere)

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line as it is; what the encoding lacks is written out. Shape: `style` of `_STYLES`, "" for none."""
        shown = encodable(text, self._encoding)
        code = _STYLES.get(style)
        self._file.write(f"\x1b[{code}m{shown}\x1b[0m\n" if code and self._is_styled else f"{shown}\n")

    def prose(self, text: str, style: str = "") -> None:
        """Print a text on as many lines as it takes, broken between words."""
        for one in folded(text, self.width, breaks_words=False):
            self.line(one, style)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
        """Print a table, or a block of lines for each row where it has no columns or too wide ones; nothing is cut."""
        columns, *rows = ([encodable(cell, self._encoding) for cell in row] for row in (columns, *rows))
        widest = [max(map(cells, column)) for column in zip(columns, *rows, strict=True)]
        room = self.width - 1 - _FRAME_COLUMNS * len(columns)
        if not columns or sum(min(width, UNBROKEN_COLUMNS) for width in widest) > room:
            self._blocks(columns, rows, title)
            return
        if title:
            self.prose(title, "bold")
        widths = _shrunk(widest, room)
        self.line(_rule("┏━┳┓", widths))
        for line in _row("┃", columns, widths):
            self.line(line, "bold")
        self.line(_rule("┡━╇┩", widths))
        for row in rows:
            for line in _row("│", row, widths):
                self.line(line)
        self.line(_rule("└─┴┘", widths))

    def _blocks(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
        if title:
            self.prose(title, "bold")
        names = max(map(cells, columns), default=0)
        for number, row in enumerate(rows, 1):
            self.line(f"-- {number} of {len(rows)}", "bold")
            for column, cell in zip(columns, row, strict=True):
                self.line(f"{_filled(column, names)}  {cell}")
        if not rows:
            self.line("no rows")


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.removesuffix(CUT).isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - for those who have such texts

    return cell_len(text)


def folded(text: str, width: int, *, breaks_words: bool = True) -> list[str]:
    """
    A text in lines of so many columns, broken between words where there are any.

    Args:
        text: One line.
        width: Columns, 2 or more.
        breaks_words: Whether a word that is longer than a line is broken; else it stands on a line that is too long.
    """
    lines, begin, end = [], 0, len(text)
    while cells(text[begin : begin + width + 1]) > width:
        stop = begin + _fitting(text[begin : begin + width], width)
        blank = text.rfind(" ", begin, stop + 1)
        if blank <= begin and not breaks_words:
            blank = text.find(" ", begin + 1)
            blank = end if blank < 0 else blank
        if blank > begin:
            lines.append(text[begin:blank].rstrip())
            begin = blank + 1
        else:
            lines.append(text[begin:stop])
            begin = stop
    return [*lines, text[begin:]] if begin < end or not lines else lines


def encodable(text: str, encoding: str) -> str:
    """The text in characters that the encoding has: marks and frames in ASCII, anything else written out."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


def _columns_of(file: TextIO) -> int:
    """The width that a person has set, else that of the terminal."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(file.fileno()).columns or UNKNOWN_COLUMNS
    except OSError:
        return UNKNOWN_COLUMNS


def _fitting(text: str, width: int) -> int:
    """How many characters of a text fit, one at least."""
    count = len(text)
    while count > 1 and cells(text[:count]) > width:
        count -= 1
    return count


def _shrunk(widest: Sequence[int], room: int) -> list[int]:
    """The widths of columns, of which the widest give way; there is room for `UNBROKEN_COLUMNS` of each."""
    limit = min(max(widest), max(room, UNBROKEN_COLUMNS))
    while sum(min(width, limit) for width in widest) > room:
        limit -= 1
    return [min(width, limit) for width in widest]


def _rule(marks: str, widths: Sequence[int]) -> str:
    """A line of a table's frame. Shape: `marks` left, between, crossing, right."""
    left, between, crossing, right = list(marks)
    return left + crossing.join(between * (width + 2) for width in widths) + right


def _row(mark: str, row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """The lines of a row, whose cells may be folded."""
    parts = [folded(cell, max(width, 2)) for cell, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, parts))):
        shown = (
            _filled(lines[number] if number < len(lines) else "", width)
            for lines, width in zip(parts, widths, strict=True)
        )
        yield f"{mark} {f' {mark} '.join(shown)} {mark}"


def _filled(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


# --- tables ---
# Part of `broker.cli.status`.


def render_table(
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    title: str | None = None,
    terminal: Terminal | None = None,
) -> None:
    """Print rows as a table, or as blocks where that is too wide; a missing value is an empty cell, NULL stands out."""
    cells = [[readable(row.get(column, "")) for column in columns] for row in rows]
    (terminal or Terminal()).table(columns, cells, readable(title or ""))


def readable(value: object) -> str:
    """A value as it is shown, with everything a terminal would obey written out."""
    if value is None:
        return "NULL"
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


# --- line ---
# Lines of prose for a terminal, one below the other.
#
# A line is as wide as the terminal, 80 columns where there is none, and goes on indented below. A value that somebody
# may
# have to copy, such as a GUID, is never cut or broken. What is shown comes from peers and applications: what a
# terminal
# would obey is written out.


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
