"""Tables and the status page for a terminal; the only place that draws with rich."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def render_table(
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    title: str | None = None,
    console: Console | None = None,
) -> None:
    """Print rows as a table; a missing value is an empty cell, NULL is written out."""
    table = Table(*columns, title=title, title_justify="left", title_style="bold")
    for row in rows:
        table.add_row(*("NULL" if row.get(column, "") is None else str(row.get(column, "")) for column in columns))
    (console or Console()).print(table)
