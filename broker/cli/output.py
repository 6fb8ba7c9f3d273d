"""What a command prints on standard output: values as JSON, rows as JSON or as a table."""

from __future__ import annotations

import json
from typing import Any

import click


def show_json(value: Any) -> None:
    """Print a value as JSON, indented."""
    click.echo(json.dumps(value, indent=2))


def show_rows(rows: list[dict[str, Any]], output: str, columns: list[str] | None = None) -> None:
    """
    Print rows.

    Shape: `output` "table" or "json", as `output_option` gives it; `columns` the heads of the table, else the keys of
    the first row.
    """
    if output == "json":
        show_json(rows)
        return
    from broker.observe.glance import render_table  # noqa: PLC0415 - see the docstring of broker.cli.group

    render_table(columns or list(rows[0] if rows else ()), rows)
