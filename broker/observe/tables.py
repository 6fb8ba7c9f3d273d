"""Part of `broker.observe.glance`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.observe.terminal import Terminal


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
