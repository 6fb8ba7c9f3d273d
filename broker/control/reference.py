"""
The reference of all settings, made from the models, so that page and program cannot differ.

`docs/configuration.md` is written by hand around two markers; what stands between them is made here:

    python -m broker.control.reference docs/configuration.md

rewrites that part. A test fails when the committed page differs from what this would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from broker.control.config import Settings
from broker.control.place import dotted
from broker.control.setting import Setting, settings_of

BEGIN = "<!-- settings: begin, made by python -m broker.control.reference -->"
END = "<!-- settings: end -->"


def render_reference() -> str:
    """Markdown: a heading and a table for each section, a row for each key."""
    sections = groupby(settings_of(Settings), key=lambda one: one.path[:-1])
    return "\n".join(_section(dotted(path), rows) for path, rows in sections)


def renew_page(page: str) -> str:
    """
    The page with the part between the markers made anew.

    Raises:
        ValueError: the page lacks a marker.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page lacks a marker")
    return f"{before}{BEGIN}\n\n{render_reference()}\n{END}{after}"


def _section(name: str, rows: Iterable[Setting]) -> str:
    lines = [
        f"### `[{name}]`",
        "",
        "| Key | Default | Allowed | Reload | What it is | Why |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_row, rows), ""])


def _row(one: Setting) -> str:
    allowed = f"{one.kind.allowed} ({one.kind.unit})" if one.kind.unit else one.kind.allowed
    default = one.default if one.default_is_said else f"`{one.default}`" if one.default else "required"
    cells = (f"`{one.path[-1]}`", default, allowed, one.reload.value, one.description, one.reason)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def main(arguments: list[str]) -> None:
    """Rewrite the pages named."""
    for argument in arguments:
        page = Path(argument)
        page.write_text(renew_page(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
