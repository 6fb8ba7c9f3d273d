"""What a command prints on standard output: values as JSON, rows as JSON, CSV or as a table; paths to be copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
        import json  # noqa: PLC0415 - as above

        for row in rows:
            click.echo(json.dumps(row))
    elif output == "csv":
        _show_csv(rows, columns)
    else:
        from broker.observe.tables import render_table  # noqa: PLC0415 - see the docstring of broker.cli.group

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
    import json  # noqa: PLC0415 - as above

    text = str(path.absolute())
    return json.dumps(text, ensure_ascii=not text.isprintable())
