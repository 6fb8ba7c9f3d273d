"""`broker bench`: measures this installation and prints a table for each benchmark and mode, and one of changes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from broker.bench import figures as result
from broker.bench import suite
from broker.bench.figures import FigureChange, Result, Row, yardsticks
from broker.cli.options import Command, output_option
from broker.cli.output import render_table, show_json


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
        render_table(columns, cells, title=f"{bench}, {mode}")


def show_changes(changes: Sequence[FigureChange], then: Result) -> None:
    """Print the changes since `then`, one a row."""
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
    render_table(columns, cells, title=f"Ratios to the yardstick of each run, against that of {then.at}")


def readable(value: float) -> str:
    """A number with at least three digits, thousands separated."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _cells(row: Row, stick: Row | None) -> dict[str, Any]:
    cells: dict[str, Any] = ({"case": row.case} if row.case else {}) | {"subject": row.subject}
    for name, value in row.values.items():
        cells[_head(name)] = readable(value)
        if name == row.headline:
            cells["x yardstick"] = "" if stick is None else f"{row.figure / stick.figure:.2f}"
    return cells | {"+-": f"{row.spread:.0%}"}


def _head(name: str) -> str:
    """The head of a column: messages_s is messages/s, busy_pct is busy %, p50_us is p50 us."""
    what, _, unit = name.rpartition("_")
    units = {"s": "/s", "pct": " %"}
    return (what + units[unit] if what and unit in units else name).replace("_", " ")


def _grouped(rows: Iterable[Row]) -> Iterable[tuple[tuple[str, str], list[Row]]]:
    """Rows by benchmark and mode, in the order of their first rows."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.bench, row.mode), []).append(row)
    return groups.items()


@click.command(cls=Command)
@click.argument("names", nargs=-1, type=click.Choice(tuple(suite.BENCHES)), metavar="[SUITE]...")
@click.option("--full", is_flag=True, help="Every size, rate and number of destinations and connections; ten minutes.")
@click.option(
    "--compare", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Figures of an earlier run."
)
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Where to keep the figures, as JSON.")
@output_option
def bench(names: tuple[str, ...], compare: Path | None, save: Path | None, output: str, *, full: bool) -> None:
    """
    Measure this installation, and compare with an earlier run.

    SUITE is forwarding (a gateway compared with a relay of bytes; needs a C compiler for the load generator) or dialogs
    (durable messages from one application to another); both when none is named: two minutes, on two cores that should
    have nothing else to do. Prints figures with machine and versions; compares with an earlier run by ratios to a
    yardstick in the same run.

    Exit codes: 0 measured, whatever the figures say; 1 not.

    Examples:
        broker bench forwarding --full --save figures.json --compare figures-of-last-week.json
        broker bench dialogs -o json
    """
    earlier = result.load(compare) if compare is not None else None
    benches = {name: suite.BENCHES[name] for name in names or suite.BENCHES}
    measured = suite.run(benches, is_full=full, tell=lambda what: click.echo(what, err=True))
    if save is not None:
        result.save(measured, save)
    changes = result.compare(measured.rows, earlier.rows) if earlier is not None else []
    if output == "json":
        verdicts = [{"row": change.row.key, "verdict": change.verdict} for change in changes]
        show_json({**asdict(measured), "changes": verdicts})
    else:
        show(measured)
        if earlier is not None:
            show_changes(changes, earlier)
