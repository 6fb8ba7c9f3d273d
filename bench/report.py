"""Tables of figures, and of what has changed since another run."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from bench.figures import FigureChange, Result, Row, yardsticks
from broker.cli.output import Terminal


def show(result: Result) -> None:
    """Print every row, with machine, versions and notes."""
    lines = [
        ", ".join(f"{key} {value}" for key, value in result.machine.items()),
        ", ".join(f"load averages {when} {averages}" for when, averages in result.load.items()),
        *(f"note: {note}" for note in result.notes),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sticks = yardsticks(result.rows)
    for (bench, mode), rows in _grouped(result.rows):
        cells = [_cells(row, sticks.get(row.key[:3])) for row in rows]
        columns = list(dict.fromkeys(column for row in cells for column in row))
        Terminal().table(columns, cells, f"{bench}, {mode}")


def show_changes(changes: Sequence[FigureChange], then: Result) -> None:
    """Print what has changed since `then`, row by row."""
    cells = [
        {
            "row": ", ".join(filter(None, change.row.key)),
            "then": "" if change.then is None else f"{change.then:.2f}",
            "now": f"{change.now:.2f}",
            "noise": f"{change.tolerance:.0%}",
            "verdict": change.verdict,
        }
        for change in changes
    ]
    columns = ["row", "then", "now", "noise", "verdict"]
    Terminal().table(columns, cells, f"Ratios to the yardstick of each run, against that of {then.at}")


def readable(value: float) -> str:
    """Three digits at least, thousands separated; a count is whole."""
    if value >= 100 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _cells(row: Row, stick: Row | None) -> dict[str, Any]:
    cells: dict[str, Any] = ({"case": row.case} if row.case else {}) | {"subject": row.subject}
    for name, value in row.values.items():
        cells[head(name)] = readable(value)
        if name == row.headline:
            cells["x yardstick"] = "" if stick is None else f"{row.figure / stick.figure:.2f}"
    return cells | {"+-": f"{row.spread:.0%}"}


def head(name: str) -> str:
    """The head of a column: messages_s is messages/s, busy_pct is busy %, p50_us is p50 us."""
    what, _, unit = name.rpartition("_")
    units = {"s": "/s", "pct": " %"}
    return (what + units[unit] if what and unit in units else name).replace("_", " ")


def _grouped(rows: Iterable[Row]) -> Iterable[tuple[tuple[str, str], list[Row]]]:
    """By benchmark and mode, each in the order in which it first came."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.bench, row.mode), []).append(row)
    return groups.items()
