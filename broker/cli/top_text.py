"""
How `broker top` writes numbers and tables into a terminal that may be narrow.

Pure. A column that does not fit is left out, the last first, and a text that does not fit is cut; what is left still
lines up. Whatever a terminal would obey is written out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.observe.glance import readable
from broker.observe.terminal import CUT
from broker.observe.terminal import cells as cells_of

UNKNOWN = "-"
_TEXT_LEAST = 10  # cells that a text is cut to before a column is left out
_GAP = "  "
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Shape: `is_number` stands to the right and is never cut."""

    title: str
    cells: Sequence[str]
    is_number: bool = False


def count(value: float | None) -> str:
    """A whole number, with thousands apart; above ten million in millions."""
    if value is None:
        return UNKNOWN
    return f"{value / 1e6:,.1f} M" if value >= 1e7 else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """So many a second."""
    if value is None:
        return UNKNOWN
    return f"{value:,.1f}" if 0 < value < 10 else count(value)


def size(value: float | None) -> str:
    """Bytes, in units of 1024."""
    if value is None:
        return UNKNOWN
    left, unit = float(value), 0
    while left >= 1024 and unit < len(_BINARY) - 1:
        left, unit = left / 1024, unit + 1
    return f"{left:,.0f} B" if unit == 0 else f"{left:,.1f} {_BINARY[unit]}"


def span(value: float | None) -> str:
    """Seconds, in the unit in which a person would say it."""
    if value is None:
        return UNKNOWN
    if value < 0.0995:
        return f"{value * 1000:.1f} ms"
    for limit, unit, name in ((100, 1, "s"), (100 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if value < limit:
            return f"{value / unit:.1f} {name}" if value < 10 * unit and name == "s" else f"{value / unit:.0f} {name}"
    return f"{value / 86400:.0f} d"


def age(value: float | None) -> str:
    """How long ago the oldest came; a dash when there is none."""
    return span(value) if value else UNKNOWN


def text(value: object) -> str:
    """A name or a sentence; what is missing is a dash."""
    return UNKNOWN if value is None or value == "" else readable(value)


def cut(line: str, width: int) -> str:
    """A line that fits; one that was longer ends with a sign of it."""
    if cells_of(line) <= width:
        return line
    return _begin(line, max(0, width - 1)).rstrip() + CUT if width > 0 else ""


def _begin(line: str, width: int) -> str:
    """So much of a line as fits."""
    if line.isascii():
        return line[:width]
    from rich.cells import set_cell_size  # noqa: PLC0415 - for those who have such texts

    return set_cell_size(line, width)


def of_rows(rows: Sequence[Mapping[str, Any]], title: str, key: str, write: Any = text) -> Column:
    """A column of one value of each row."""
    return Column(title, [write(row.get(key)) for row in rows], is_number=write is not text)


def table(columns: Sequence[Column], width: int) -> list[str]:
    """The lines of a table, its titles first, each at most `width` cells wide."""
    shown = [column for column in columns if any(cell not in {UNKNOWN, ""} for cell in column.cells)] or columns[:1]
    while True:
        natural = [max(map(cells_of, (column.title, *column.cells))) for column in shown]
        widths = _shrunk(shown, natural, width - len(_GAP) * (len(shown) - 1))
        if widths is not None:
            break
        if len(shown) == 1:
            widths = [width]
            break
        shown = shown[:-1]
    rows = zip(*(column.cells for column in shown), strict=True)
    return [_line(shown, row, widths) for row in ([column.title for column in shown], *rows)]


def _shrunk(columns: Sequence[Column], natural: Sequence[int], room: int) -> list[int] | None:
    """Widths that fit, the widest texts cut first; None when even cut they do not."""
    widths = list(natural)
    while sum(widths) > room:
        texts = [at for at, column in enumerate(columns) if not column.is_number and widths[at] > _TEXT_LEAST]
        if not texts:
            return None
        widths[max(texts, key=lambda at: widths[at])] -= 1
    return widths


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        fitting = cut(cell, width)
        fill = " " * (width - cells_of(fitting))
        parts.append(fill + fitting if column.is_number else fitting + fill)
    return _GAP.join(parts).rstrip()
